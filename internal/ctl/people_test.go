package ctl

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

func (d *daemon) told(format string, args ...any) {
	d.heard = append(d.heard, fmt.Sprintf(format, args...))
}

func (d *daemon) User(_ context.Context, handle string) (users.Person, error) {
	return users.Person{}, errors.New("there is no user called " + handle)
}

func (d *daemon) ChangeUser(_ context.Context, handle string, c users.Change) (users.Person, error) {
	p := users.Person{User: users.User{Handle: handle, Name: "as it was"}}
	if c.Name != nil {
		p.Name = *c.Name
	}
	if c.Role != nil {
		p.Role = *c.Role
	}
	return p, nil
}

func (d *daemon) SuspendUser(_ context.Context, handle string, suspend bool) (users.Person, error) {
	return users.Person{User: users.User{Handle: handle, Suspended: suspend}}, nil
}

func (d *daemon) RemoveUser(_ context.Context, handle string, purge bool) (Removal, error) {
	if purge {
		return Removal{Handle: handle, HomeDeleted: true}, nil
	}
	return Removal{Handle: handle, Home: "/homes/1", Purge: time.Unix(1e9, 0).UTC()}, nil
}

func (d *daemon) UndeleteUser(_ context.Context, handle string) (users.Person, error) {
	return users.Person{User: users.User{Handle: handle}, Groups: []users.Membership{{Group: "vision", Lead: true}}}, nil
}

func (d *daemon) Groups(context.Context) ([]users.Group, error) {
	return []users.Group{{Name: "vision", Members: 2}}, nil
}

func (d *daemon) Group(_ context.Context, name string) (GroupWithMembers, error) {
	return GroupWithMembers{Group: users.Group{Name: name}, People: []users.Membership{{Handle: "ada", Lead: true}}}, nil
}

func (d *daemon) AddGroup(_ context.Context, g NewGroup) (users.Group, error) {
	return users.Group{Name: g.Name, Title: g.Title}, nil
}

func (d *daemon) RemoveGroup(_ context.Context, name string) error {
	d.told("remove %s", name)
	return nil
}

func (d *daemon) SetMember(_ context.Context, group, handle string, lead bool) error {
	d.told("%s in %s: %v", handle, group, lead)
	return nil
}

func (d *daemon) RemoveMember(_ context.Context, group, handle string) error {
	d.told("%s out of %s", handle, group)
	return nil
}

func TestPeopleOverTheSocket(t *testing.T) {
	d := &daemon{}
	_, c := serveDaemon(t, d)
	ctx := t.Context()
	const odd = "../x y?purge=true" // stays one part of a path
	if _, err := c.User(ctx, odd); err == nil || !strings.HasSuffix(err.Error(), "called "+odd) {
		t.Errorf("User: %v", err)
	}
	none, guest := "", users.RoleGuest
	if p, err := c.ChangeUser(ctx, "ada", users.Change{Role: &guest}); err != nil || p.Name != "as it was" || p.Role != guest {
		t.Errorf("ChangeUser: %+v %v", p, err)
	}
	if p, err := c.ChangeUser(ctx, "ada", users.Change{Name: &none}); err != nil || p.Name != "" || p.Role != "" {
		t.Errorf("ChangeUser: %+v %v", p, err)
	}
	for _, suspend := range []bool{true, false} {
		if p, err := c.SuspendUser(ctx, "ada", suspend); err != nil || p.Handle != "ada" || p.Suspended != suspend {
			t.Errorf("SuspendUser: %+v %v", p, err)
		}
	}
	if r, err := c.RemoveUser(ctx, odd, false); err != nil || r.Handle != odd || r.HomeDeleted || !r.Purge.Equal(time.Unix(1e9, 0)) {
		t.Errorf("RemoveUser: %+v %v", r, err)
	}
	if r, err := c.RemoveUser(ctx, "ada", true); err != nil || !r.HomeDeleted || !r.Purge.IsZero() {
		t.Errorf("RemoveUser with purge: %+v %v", r, err)
	}
	if p, err := c.UndeleteUser(ctx, "ada"); err != nil || p.Handle != "ada" || len(p.Groups) != 1 || !p.Groups[0].Lead {
		t.Errorf("UndeleteUser: %+v %v", p, err)
	}
	if g, err := c.Groups(ctx); err != nil || len(g) != 1 || g[0].Members != 2 {
		t.Errorf("Groups: %+v %v", g, err)
	}
	if g, err := c.Group(ctx, "vision"); err != nil || g.Name != "vision" || len(g.People) != 1 || !g.People[0].Lead {
		t.Errorf("Group: %+v %v", g, err)
	}
	if g, err := c.AddGroup(ctx, NewGroup{"vision", "Seeing"}); err != nil || g.Name != "vision" || g.Title != "Seeing" {
		t.Errorf("AddGroup: %+v %v", g, err)
	}
	for _, err := range []error{c.SetMember(ctx, "a/b", "ada", true), c.SetMember(ctx, "b", "ben", false), c.RemoveMember(ctx, "b", "a/b"), c.RemoveGroup(ctx, "b")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(d.heard, "; "); got != "ada in a/b: true; ben in b: false; a/b out of b; remove b" {
		t.Errorf("heard %q", got)
	}
}
