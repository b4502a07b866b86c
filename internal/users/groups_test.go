package users

import (
	"testing"
)

func TestPolicy(t *testing.T) {
	s, _ := newTest(t)
	lead, ann, ben := create(t, s, "lea", RoleMember), create(t, s, "ann", RoleMember), create(t, s, "ben", RoleGuest)
	admin := create(t, s, "root-1", RoleAdmin)
	for _, g := range []string{"vision", "robots"} {
		if _, err := s.CreateGroup(t.Context(), g, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []struct {
		group string
		user  User
		lead  bool
	}{{"vision", lead, true}, {"vision", ann, false}, {"robots", lead, false}, {"robots", ben, false}} {
		if err := s.SetMember(t.Context(), m.group, m.user.ID, m.lead); err != nil {
			t.Fatal(err)
		}
	}
	signedIn := func(u User) User {
		t.Helper()
		token, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
		if err != nil {
			t.Fatal(err)
		}
		session, err := s.SessionUser(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		return session.User
	}
	lead, ann, ben, admin = signedIn(lead), signedIn(ann), signedIn(ben), signedIn(admin)
	if lead.Role != RoleLead {
		t.Errorf("who leads a group has the role %s", lead.Role)
	}
	for _, tc := range []struct {
		who    User
		action Action
		on     User
		want   bool
	}{
		{admin, ActionManageNotebooks, ben, true},
		{admin, ActionManageUsers, lead, true},
		{admin, ActionLaunch, ben, false}, // nobody launches in another one's name
		{lead, ActionManageNotebooks, ann, true},
		{lead, ActionManageNotebooks, lead, true},
		{lead, ActionManageNotebooks, ben, false}, // in a group they do not lead
		{lead, ActionManageUsers, ann, false},
		{lead, ActionSeeUse, ann, true},
		{ann, ActionManageNotebooks, ann, true},
		{ann, ActionManageNotebooks, lead, false},
		{ann, ActionSee, ben, true},
		{ben, ActionManageNotebooks, ann, false},
		{ben, ActionInvite, ben, false},
		{ben, "fly", ben, false},
		{User{}, ActionSee, ben, false},
		{User{ID: 7, Role: "king"}, ActionSee, ben, false},
		{User{ID: 7, Role: RoleAdmin, Suspended: true}, ActionSee, ben, false},
	} {
		if got := tc.who.May(tc.action, tc.on.ID); got != tc.want {
			t.Errorf("May: %s may %s on %s: %v", tc.who.Handle, tc.action, tc.on.Handle, got)
		}
		if got := tc.who.MayTo(tc.action, tc.on.Handle); got != tc.want {
			t.Errorf("MayTo: %s may %s on %s: %v", tc.who.Handle, tc.action, tc.on.Handle, got)
		}
	}
	if err := s.RemoveMember(t.Context(), "vision", ann.ID); err != nil {
		t.Fatal(err)
	}
	if signedIn(lead).May(ActionManageNotebooks, ann.ID) {
		t.Error("a lead keeps power over somebody who left the group")
	}
}

func TestPolicyIsWhole(t *testing.T) {
	for _, r := range Policy() {
		if r.What == "" || len(r.Roles) != len(Roles()) {
			t.Errorf("%s: no words, or not for every role", r.Action)
		}
		for i, role := range Roles()[1:] {
			if more := Roles()[i]; r.Roles[role] > r.Roles[more] {
				t.Errorf("%s: %s may more than %s", r.Action, role, more)
			}
		}
	}
}

func TestGroups(t *testing.T) {
	s, _ := newTest(t)
	ann, ben := create(t, s, "ann", RoleMember), create(t, s, "ben", RoleGuest)
	for _, bad := range []string{"", "Vision", "a", "../x", "all", "a--b"} {
		_, err := s.CreateGroup(t.Context(), bad, "")
		wantErr(t, err, ErrGroupInvalid)
	}
	_, err := s.CreateGroup(t.Context(), "vision", "Computer vision\x00")
	wantErr(t, err, ErrGroupInvalid)
	if _, err := s.CreateGroup(t.Context(), "vision", "Computer vision"); err != nil {
		t.Fatal(err)
	}
	_, err = s.CreateGroup(t.Context(), "vision", "")
	wantErr(t, err, ErrGroupTaken)
	wantErr(t, s.SetMember(t.Context(), "sound", ann.ID, false), ErrGroupNotFound)
	wantErr(t, s.SetMember(t.Context(), "vision", 99, false), ErrNotFound)
	wantErr(t, s.SetMember(t.Context(), "vision", ben.ID, true), ErrRoleInvalid)
	for id, lead := range map[int64]bool{ann.ID: true, ben.ID: false} {
		if err := s.SetMember(t.Context(), "vision", id, lead); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.Groups(t.Context())
	if err != nil || len(list) != 1 || list[0].Members != 2 || len(list[0].Leads) != 1 || list[0].Leads[0] != "ann" || list[0].Title != "Computer vision" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := s.Remove(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	members, err := s.Members(t.Context(), "vision")
	if err != nil || len(members) != 1 || members[0].Handle != "ann" || !members[0].Lead || members[0].Role != RoleLead {
		t.Fatalf("%+v, %v", members, err)
	}
	if err := s.RemoveGroup(t.Context(), "vision"); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.RemoveGroup(t.Context(), "vision"), ErrGroupNotFound)
	if of, err := s.Memberships(t.Context(), ann.ID); err != nil || len(of) != 0 {
		t.Errorf("%+v, %v", of, err)
	}
}

func BenchmarkMay(b *testing.B) {
	u := User{ID: 1, Handle: "lea", Role: RoleLead, led: &circle{ids: map[int64]bool{}, handles: map[string]bool{}}}
	for i := range int64(100) {
		u.led.ids[i] = true
	}
	for b.Loop() {
		if !u.May(ActionManageNotebooks, 42) {
			b.Fatal("refused")
		}
	}
}
