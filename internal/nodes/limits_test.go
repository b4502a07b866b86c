package nodes

import (
	"errors"
	"fmt"
	"testing"
)

func TestLimit(t *testing.T) {
	r, _ := newRegistry(t)
	ctx := t.Context()
	exec := func(query string) {
		t.Helper()
		if _, err := r.db.ExecContext(ctx, query); err != nil {
			t.Fatal(err)
		}
	}
	exec(`INSERT INTO groups (name, created_at) VALUES ('vision', 0), ('robots', 0)`)
	limits := func(want string) {
		t.Helper()
		if got, err := r.Limits(ctx); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%v, %v, want %s", got, err, want)
		}
	}
	limits("map[]")
	for machine, l := range map[string]*Limit{"a": {Roles: []string{"guest"}}, "b": {Groups: []string{"vision", "robots"}}} {
		if err := r.Limit(ctx, machine, l); err != nil {
			t.Fatal(err)
		}
	}
	limits("map[a:{[guest] []} b:{[] [robots vision]}]")
	if err := r.Limit(ctx, "b", &Limit{Groups: []string{"vision", "nobody"}}); !errors.Is(err, ErrNoGroup) {
		t.Errorf("a group that is not there: %v", err)
	}
	limits("map[a:{[guest] []} b:{[] [robots vision]}]")
	if err := r.Limit(ctx, "a", nil); err != nil {
		t.Fatal(err)
	}
	// A machine whose groups go is not everybody's.
	exec(`DELETE FROM groups`)
	limits("map[b:{[] []}]")

	l := Limit{Roles: []string{"guest"}, Groups: []string{"vision"}}
	for _, c := range []struct {
		role   string
		groups []string
		want   bool
	}{{"guest", nil, true}, {"member", []string{"robots"}, false}, {"member", []string{"robots", "vision"}, true}, {"admin", nil, false}} {
		if got := l.Lets(c.role, c.groups); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	if (Limit{}).Lets("admin", []string{"vision"}) {
		t.Error("one for nobody lets somebody in")
	}
}
