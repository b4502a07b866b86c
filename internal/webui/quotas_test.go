package webui_test

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/users"
)

// newQuotas are real quotas over a test's accounts and launches, with a real storage.
func newQuotas(t testing.TB, people *testUsers, launches *fakeNotebooks) (*quota.Service, *storage.Service) {
	t.Helper()
	dir := t.TempDir()
	var quotas *quota.Service
	files := storage.New(storage.Config{DB: people.db, People: people.Service, Audit: people.Service.AuditLog(),
		HomesDir: filepath.Join(dir, "homes"), FoldersDir: filepath.Join(dir, "folders"), DataDir: dir,
		HomeLimit: func(ctx context.Context, u users.User) (*storage.HomeLimit, error) {
			limit, err := quotas.LimitOf(ctx, u, quota.HomeSize)
			if err != nil || limit == nil {
				return nil, err
			}
			return &storage.HomeLimit{Bytes: int64(limit.Value), Why: limit.From.Words()}, nil
		}})
	quotas = quota.New(quota.Config{DB: people.db, People: people.Service,
		HomeSize: func(ctx context.Context, u users.User) (*int64, time.Time, error) {
			size, _, err := files.HomeUse(ctx, u)
			if err != nil || size == nil {
				return nil, time.Time{}, err
			}
			return &size.Bytes, size.At, nil
		},
		Held: func(_ context.Context, userID, _ int64) ([]quota.Ask, error) {
			var list []quota.Ask
			for _, l := range launches.filter(notebooks.Launch.Active) {
				if l.UserID == userID {
					list = append(list, quota.Ask{GPUs: l.GPUs, CPUs: 2, Memory: 4 << 30})
				}
			}
			return list, nil
		},
		Hours: func(context.Context, string, time.Time) ([]quota.HourUse, error) {
			return []quota.HourUse{{Hour: time.Now().Add(-5 * time.Hour).Truncate(time.Hour), Held: 90 * time.Minute}}, nil
		}})
	return quotas, files
}

// setSomeQuotas limits everybody a little, and grants ben more.
func setSomeQuotas(t testing.TB, l *lab) {
	t.Helper()
	for kind, value := range map[quota.Kind]float64{quota.Notebooks: 3, quota.GPUs: 1, quota.GPUHoursWeek: 20, quota.Memory: 32 << 30, quota.HomeSize: 50 << 30} {
		if err := l.quotas.Set(t.Context(), quota.Subject{}, kind, "", &value); err != nil {
			t.Fatal(err)
		}
	}
	none := 0.0
	if err := l.quotas.Set(t.Context(), quota.Subject{Role: "guest"}, quota.GPUs, "NVIDIA-A100-SXM4-40GB", &none); err != nil {
		t.Fatal(err)
	}
	if _, err := l.quotas.Grant(t.Context(), quota.Grant{User: "ben", Kind: quota.GPUs, Extra: 1, Note: "thesis", By: "ada", Ends: time.Now().Add(80 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
}

func TestQuotasPage(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/quotas").want(t, http.StatusOK, "Everybody may use what is free.")
	l.client(t, "ben").get("/").want(t, http.StatusOK)
	if strings.Contains(l.client(t, "ben").get("/").body, "Your quotas") {
		t.Error("quotas are shown where there are none")
	}
	set := func(subject, kind, model, value string) answer {
		return c.post("/quotas", "/quotas", url.Values{"subject": {subject}, "kind": {kind}, "model": {model}, "value": {value}})
	}
	set("role:member", "gpus", "", "2").want(t, http.StatusSeeOther)
	c.get("/quotas").want(t, http.StatusOK, "role:member", "GPUs at once")
	l.client(t, "ben").get("/").want(t, http.StatusOK, "Your quotas", "for the role member")
	set("everybody", "gpu-memory", "", "20Gi").want(t, http.StatusSeeOther)
	l.client(t, "ben").get("/").want(t, http.StatusOK, "GPU memory at once", "for everybody; measured, not enforced")
	c.post("/quotas", "/quotas", url.Values{"subject": {"everybody"}, "kind": {"gpu-memory"}, "unset": {"yes"}}).want(t, http.StatusSeeOther)
	set("rolle:member", "gpus", "", "2").want(t, http.StatusUnprocessableEntity, "nobody a quota can be for", `value="rolle:member"`)
	set("user:zoe", "gpus", "", "2").want(t, http.StatusUnprocessableEntity, "no such user")
	set("everybody", "memory", "", "much").want(t, http.StatusUnprocessableEntity, "Write it like 64Gi")
	set("everybody", "memory", "A100", "1Gi").want(t, http.StatusUnprocessableEntity, "Only gpus")

	grant := func(user, extra, ends string) answer {
		return c.post("/quotas", "/quotas/grants", url.Values{"user": {user}, "kind": {"gpus"}, "extra": {extra}, "ends": {ends}, "note": {"<b>thesis</b>"}})
	}
	grant("ben", "1", "soon").want(t, http.StatusUnprocessableEntity, "Say on which day it ends.")
	grant("zoe", "1", time.Now().AddDate(0, 0, 3).Format(time.DateOnly)).want(t, http.StatusUnprocessableEntity, "no such user")
	grant("ben", "1", time.Now().AddDate(0, 0, 3).Format(time.DateOnly)).want(t, http.StatusSeeOther)
	c.get("/quotas").want(t, http.StatusOK, "&lt;b&gt;thesis&lt;/b&gt;", "by ada")
	l.client(t, "ben").get("/").want(t, http.StatusOK, "1 of it is granted until")
	c.post("/quotas", "/quotas/grants/1/end", nil).want(t, http.StatusSeeOther)
	c.post("/quotas", "/quotas/grants/1/end", nil).want(t, http.StatusSeeOther)
	c.get("/quotas").want(t, http.StatusOK, "Nothing is granted")
	c.post("/quotas", "/quotas", url.Values{"subject": {"role:member"}, "kind": {"gpus"}, "unset": {"yes"}}).want(t, http.StatusSeeOther)
	c.get("/quotas").want(t, http.StatusOK, "Everybody may use what is free.")
	var done []string
	for _, e := range l.users.audit(t) {
		done = append(done, e.Action+" "+e.Target)
	}
	if got, want := strings.Join(done, ", "), "quota.set role:member, quota.set everybody, quota.unset everybody, quota.grant ben, quota.end-grant ben, quota.unset role:member"; got != want {
		t.Errorf("audit: %s, want %s", got, want)
	}
}
