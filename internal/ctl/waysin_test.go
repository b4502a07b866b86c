package ctl

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpulab/gpulab/internal/users"
)

func (d *daemon) Invitations(context.Context) ([]users.Invitation, error) {
	return []users.Invitation{{ID: 7, Role: users.RoleGuest, MaxUses: 2}}, nil
}

func (d *daemon) Invite(_ context.Context, n NewInvitation) (Invited, error) {
	d.told("invite %+v", n)
	return Invited{Invitation: users.Invitation{ID: 8, Role: n.Role}, URL: "https://lab/join?token=x"}, nil
}

func (d *daemon) RevokeInvitation(_ context.Context, id int64) (users.Invitation, error) {
	d.told("revoke %d", id)
	return users.Invitation{ID: id, Revoked: true}, nil
}

func (d *daemon) Requests(context.Context) ([]users.SignUp, error) {
	return []users.SignUp{{ID: 3, Handle: "zoe", Wanted: "zoe"}}, nil
}

func (d *daemon) ApproveRequest(_ context.Context, id int64, a Approval) (users.User, error) {
	d.told("approve %d %+v", id, a)
	return users.User{Handle: "zoe", Role: a.Role}, nil
}

func (d *daemon) DeclineRequest(_ context.Context, id int64) (users.SignUp, error) {
	d.told("decline %d", id)
	return users.SignUp{ID: id, Name: "Zoe"}, nil
}

func TestWaysInOverTheSocket(t *testing.T) {
	d := &daemon{}
	_, c := serveDaemon(t, d)
	ctx := t.Context()
	if list, err := c.Invitations(ctx); err != nil || len(list) != 1 || list[0].ID != 7 || list[0].MaxUses != 2 {
		t.Errorf("invitations: %+v, %v", list, err)
	}
	invited, err := c.Invite(ctx, NewInvitation{Role: users.RoleMember, Group: "vision", Uses: 30, Days: 7})
	if err != nil || invited.ID != 8 || invited.Role != users.RoleMember || invited.URL != "https://lab/join?token=x" {
		t.Errorf("invite: %+v, %v", invited, err)
	}
	if v, err := c.RevokeInvitation(ctx, 7); err != nil || v.ID != 7 || !v.Revoked {
		t.Errorf("revoke: %+v, %v", v, err)
	}
	if list, err := c.Requests(ctx); err != nil || len(list) != 1 || list[0].Handle != "zoe" {
		t.Errorf("requests: %+v, %v", list, err)
	}
	if u, err := c.ApproveRequest(ctx, 3, Approval{Role: users.RoleGuest, Group: "vision"}); err != nil || u.Handle != "zoe" || u.Role != users.RoleGuest {
		t.Errorf("approve: %+v, %v", u, err)
	}
	if r, err := c.DeclineRequest(ctx, 4); err != nil || r.Name != "Zoe" {
		t.Errorf("decline: %+v, %v", r, err)
	}
	want := "[invite {Role:member Group:vision Note: Uses:30 Days:7 Emails:[]} revoke 7 approve 3 {Role:guest Group:vision} decline 4]"
	if got := fmt.Sprint(d.heard); got != want {
		t.Errorf("heard %s\nwant %s", got, want)
	}
}
