package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

func quotaLab(t *testing.T) *appliance {
	t.Helper()
	host, err := hoststat.New()
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	l := &appliance{host: host, store: db, people: users.New(db.DB())}
	l.quotas = quota.New(quota.Config{DB: db.DB(), People: l.people})
	return l
}

// everybody are the quotas that are set, by kind; all are for everybody.
func (l *appliance) everybody(t *testing.T) map[quota.Kind]float64 {
	t.Helper()
	rules, err := l.quotas.Rules(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	set := map[quota.Kind]float64{}
	for _, r := range rules {
		if (r.Subject != quota.Subject{}) {
			t.Errorf("a quota for %s", r.Subject)
		}
		set[r.Kind] = r.Value
	}
	return set
}

func TestNewLabHasQuotas(t *testing.T) {
	l := quotaLab(t)
	for range 2 {
		if err := l.startWithQuotas(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	set := l.everybody(t)
	if len(set) != 3 || set[quota.Notebooks] < 3 || set[quota.CPUs] < 8 || set[quota.Memory] < 16<<30 {
		t.Errorf("%v", set)
	}
	if text, next, err := l.quotaAdvice(t.Context()); text+next != "" || err != nil {
		t.Errorf("%q %q %v", text, next, err)
	}
	// An admin takes them away. The next start does not bring them back, and nobody is told to set them.
	for kind := range set {
		if err := l.quotas.Set(t.Context(), quota.Subject{}, kind, "", nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.startWithQuotas(t.Context()); err != nil || len(l.everybody(t)) != 0 {
		t.Errorf("%v %v", l.everybody(t), err)
	}
	if text, _, err := l.quotaAdvice(t.Context()); text != "" || err != nil {
		t.Errorf("%q %v", text, err)
	}
}

func TestExistingLabKeepsItsQuotas(t *testing.T) {
	for _, c := range []struct {
		name  string
		begin func(l *appliance) error // what was there before this version
	}{
		{"with an entry in the audit log", func(l *appliance) error {
			return l.people.AuditLog().Record(t.Context(), audit.Entry{Actor: "root", Action: "admin.link", Target: "ada"})
		}},
		{"with a quota for a role", func(l *appliance) error {
			one := 1.0
			return errors.Join(l.people.AuditLog().Record(t.Context(),
				audit.Entry{Actor: "root", Action: "quota.set", Target: "role:guest"}),
				l.quotas.Set(t.Context(), quota.Subject{}, quota.GPUs, "", &one))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := quotaLab(t)
			if err := c.begin(l); err != nil {
				t.Fatal(err)
			}
			before := l.everybody(t)
			if err := l.startWithQuotas(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := l.everybody(t); len(after) != len(before) {
				t.Errorf("%v became %v", before, after)
			}
			text, next, err := l.quotaAdvice(t.Context())
			if err != nil || !strings.Contains(text, "notebooks at once") || !strings.Contains(next, "gpulab quota recommended --set") {
				t.Errorf("%q %q %v", text, next, err)
			}
			if c, ok := l.quotasComponent(t.Context()); !ok || c.State != ctl.OK || c.NextStep == "" {
				t.Errorf("%+v", c)
			}
			rec, err := l.RecommendedQuotas(t.Context(), "")
			if err != nil || !rec.Advised || len(rec.Rules) != 3 || len(l.everybody(t)) != len(before) {
				t.Errorf("%+v %v", rec, err)
			}
			// Declined: nothing changes, and nobody is told again.
			if _, err := l.RecommendedQuotas(t.Context(), ctl.SettleDecline); err != nil || len(l.everybody(t)) != len(before) {
				t.Errorf("%v", err)
			}
			if _, ok := l.quotasComponent(t.Context()); ok {
				t.Error("the notice is still there")
			}
			if _, err := l.RecommendedQuotas(t.Context(), ctl.SettleSet); err != nil || l.everybody(t)[quota.Notebooks] != rec.Rules[0].Value {
				t.Errorf("%v %v", l.everybody(t), err)
			}
		})
	}
}
