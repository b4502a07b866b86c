package users

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

func group(t *testing.T, s *Service, name string, members map[int64]bool) {
	t.Helper()
	if _, err := s.CreateGroup(t.Context(), name, ""); err != nil {
		t.Fatal(err)
	}
	for id, leads := range members {
		if err := s.SetMember(t.Context(), name, id, leads); err != nil {
			t.Fatal(err)
		}
	}
}

func invite(t *testing.T, s *Service, by User, n NewInvitation) string {
	t.Helper()
	_, token, err := s.Invite(t.Context(), by, n)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// The command line on the head has no account, and nobody can take its place.
func TestRootInvites(t *testing.T) {
	s, c := newTest(t)
	inv, token, err := s.Invite(t.Context(), Root(), NewInvitation{Role: RoleAdmin, Uses: 1})
	if err != nil || inv.By != "root" || inv.State(c.now()) != "open" {
		t.Fatalf("%+v, %v", inv, err)
	}
	if _, err := s.Join(t.Context(), token, NewUser{Handle: "root"}, goodPassword, ""); !errors.Is(err, ErrHandleInvalid) {
		t.Errorf("joined as root: %v", err)
	}
	if u, err := s.Join(t.Context(), token, NewUser{Handle: "ada"}, goodPassword, ""); err != nil || u.Role != RoleAdmin {
		t.Errorf("joined: %+v, %v", u, err)
	}
	list, err := s.Invitations(t.Context(), Root())
	if err != nil || len(list) != 1 || list[0].State(c.now()) != "used up" {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestInvite(t *testing.T) {
	s, c := newTest(t)
	admin := create(t, s, "ada", RoleAdmin)
	group(t, s, "vision", nil)
	inv, token, err := s.Invite(t.Context(), admin, NewInvitation{Group: "vision", Uses: 2, Note: " Summer school "})
	if err != nil {
		t.Fatal(err)
	}
	if inv.Role != RoleMember || inv.Group != "vision" || inv.Note != "Summer school" || inv.Left() != 2 || inv.By != "ada" ||
		!inv.Expires.Equal(c.now().Add(InvitationTTL)) {
		t.Errorf("invitation: %+v", inv)
	}
	if got, err := s.InvitationInfo(t.Context(), token); err != nil || got != inv {
		t.Errorf("its link says %+v, %v", got, err)
	}
	zoe, err := s.Join(t.Context(), token, NewUser{Handle: "zoe", Name: "Zoë", Role: RoleAdmin}, goodPassword, "10.0.0.1")
	if err != nil || zoe.Role != RoleMember || !zoe.HasPassword || zoe.Name != "Zoë" {
		t.Fatalf("joined: %+v, %v", zoe, err)
	}
	if in, err := s.Memberships(t.Context(), zoe.ID); err != nil || len(in) != 1 || in[0].Group != "vision" || in[0].Lead {
		t.Errorf("groups: %+v, %v", in, err)
	}
	if _, err := s.Authenticate(t.Context(), "zoe", goodPassword, "10.0.0.1"); err != nil {
		t.Error(err)
	}
	list, err := s.Invitations(t.Context(), admin)
	if err != nil || len(list) != 1 || list[0].Left() != 1 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 10}); err != nil ||
		log[1].Action != "invitation.join" || log[1].Actor != "zoe" ||
		log[1].Detail != "invitation 1 by ada, role member, group vision" || log[1].Remote != "10.0.0.1" {
		t.Errorf("audit: %+v, %v", log, err)
	}
	// The database holds no token, but a hash of it.
	raw, _, _ := parseToken(token)
	var kept []byte
	if err := s.db.QueryRowContext(t.Context(), "SELECT token_hash FROM invitations").Scan(&kept); err != nil || len(kept) != 32 || bytes.Equal(kept, raw) {
		t.Errorf("kept: %x of %x, %v", kept, raw, err)
	}
}

// Who leads a group stays inside it; admins do not.
func TestWhoMayInviteWhom(t *testing.T) {
	s, _ := newTest(t)
	admin, lea, ben, gus := create(t, s, "ada", RoleAdmin), create(t, s, "lea", RoleLead), create(t, s, "ben", RoleMember), create(t, s, "gus", RoleGuest)
	group(t, s, "vision", map[int64]bool{lea.ID: true})
	group(t, s, "robots", map[int64]bool{lea.ID: false})
	suspended := admin
	suspended.Suspended = true
	for _, tc := range []struct {
		by    User
		role  Role
		group string
		want  error
	}{
		{admin, RoleAdmin, "", nil}, {admin, RoleLead, "vision", nil}, {admin, RoleGuest, "", nil},
		{lea, RoleMember, "vision", nil}, {lea, RoleGuest, "vision", nil},
		{lea, RoleLead, "vision", ErrMayNot}, {lea, RoleAdmin, "vision", ErrMayNot},
		{lea, RoleMember, "robots", ErrMayNot}, {lea, RoleMember, "", ErrMayNot},
		{ben, RoleMember, "vision", ErrMayNot}, {gus, RoleGuest, "", ErrMayNot}, {User{}, RoleGuest, "", ErrMayNot}, {suspended, RoleGuest, "", ErrMayNot},
		{lea, RoleMember, "nothing", ErrGroupNotFound},
	} {
		_, _, err := s.Invite(t.Context(), tc.by, NewInvitation{Role: tc.role, Group: tc.group, Uses: 1})
		if !errors.Is(err, tc.want) {
			t.Errorf("%s invites a %s into %q: %v, want %v", tc.by.Handle, tc.role, tc.group, err, tc.want)
		}
	}
	if list, err := s.Invitations(t.Context(), lea); err != nil || len(list) != 2 {
		t.Errorf("the lead sees %+v, %v", list, err)
	}
	if list, err := s.Invitations(t.Context(), ben); err != nil || len(list) != 0 {
		t.Errorf("a member sees %+v, %v", list, err)
	}
	_, err := s.RevokeInvitation(t.Context(), lea, 1)
	wantErr(t, err, ErrInvitationUnknown) // an admin's
	if inv, err := s.RevokeInvitation(t.Context(), lea, 4); err != nil || !inv.Revoked {
		t.Errorf("revoked: %+v, %v", inv, err)
	}
}

func TestInviteRefuses(t *testing.T) {
	s, _ := newTest(t)
	admin := create(t, s, "ada", RoleAdmin)
	for _, tc := range []struct {
		n    NewInvitation
		want error
	}{
		{NewInvitation{}, ErrUsesInvalid},
		{NewInvitation{Uses: -1}, ErrUsesInvalid},
		{NewInvitation{Uses: 501}, ErrUsesInvalid},
		{NewInvitation{Uses: 2, Role: RoleAdmin}, ErrUsesInvalid},
		{NewInvitation{Uses: 1, TTL: 91 * 24 * time.Hour}, ErrDaysInvalid},
		{NewInvitation{Uses: 1, TTL: -1}, ErrDaysInvalid},
		{NewInvitation{Uses: 1, Role: "king"}, ErrRoleInvalid},
		{NewInvitation{Uses: 1, Note: strings.Repeat("x", 201)}, ErrInvitationInvalid},
		{NewInvitation{Uses: 1, Note: "two\nlines"}, ErrInvitationInvalid},
	} {
		_, _, err := s.Invite(t.Context(), admin, tc.n)
		wantErr(t, err, tc.want)
	}
}

// What is wrong with the input uses nothing up; what is wrong with the link is said.
func TestJoinRefuses(t *testing.T) {
	s, c := newTest(t)
	admin := create(t, s, "ada", RoleAdmin)
	token := invite(t, s, admin, NewInvitation{Uses: 1})
	join := func(handle, password string) error {
		_, err := s.Join(t.Context(), token, NewUser{Handle: handle}, password, "10.0.0.1")
		return err
	}
	for range 150 { // more than the limit for links that do not work
		wantErr(t, join("zoe", "short"), ErrPasswordWeak)
	}
	wantErr(t, join("../x", goodPassword), ErrHandleInvalid)
	wantErr(t, join("ada", goodPassword), ErrHandleTaken)
	wantErr(t, join("Ada", goodPassword), ErrHandleTaken)
	if err := join("zoe", goodPassword); err != nil {
		t.Fatal(err)
	}
	wantErr(t, join("yan", goodPassword), ErrInvitationUsed)

	token = invite(t, s, admin, NewInvitation{Uses: 5, TTL: 24 * time.Hour})
	c.add(24 * time.Hour)
	wantErr(t, join("yan", goodPassword), ErrInvitationExpired)
	token = invite(t, s, admin, NewInvitation{Uses: 5})
	for range 2 {
		if _, err := s.RevokeInvitation(t.Context(), admin, 3); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, join("yan", goodPassword), ErrInvitationRevoked)
	for _, wrong := range []string{"", "guessed", strings.Repeat("A", 43), token + "x"} {
		token = wrong
		wantErr(t, join("yan", goodPassword), ErrInvitationUnknown)
	}
	if n, err := s.List(t.Context()); err != nil || len(n) != 2 {
		t.Errorf("people: %+v, %v", n, err)
	}
	// A link with one use more takes part in nobody else's tries.
	for range 100 {
		_ = join("yan", goodPassword)
	}
	wantErr(t, join("yan", goodPassword), ErrTooManyTries)
	// A class has one address: one of them must not keep the others out.
	token = invite(t, s, admin, NewInvitation{Uses: 1})
	if err := join("yan", goodPassword); err != nil {
		t.Errorf("with an invitation that works: %v", err)
	}
}

// The link of a lead who may not invite any more would let them in again under another name.
func TestInvitationEndsWithItsMaker(t *testing.T) {
	for name, end := range map[string]func(*Service, User) error{
		"suspended":   func(s *Service, u User) error { return s.Suspend(t.Context(), u.ID) },
		"removed":     func(s *Service, u User) error { return s.Remove(t.Context(), u.ID) },
		"member":      func(s *Service, u User) error { return s.Change(t.Context(), u.ID, Change{Role: new(RoleMember)}) },
		"left":        func(s *Service, u User) error { return s.RemoveMember(t.Context(), "vision", u.ID) },
		"leads not":   func(s *Service, u User) error { return s.SetMember(t.Context(), "vision", u.ID, false) },
		"no group":    func(s *Service, _ User) error { return s.RemoveGroup(t.Context(), "vision") },
		"still there": func(*Service, User) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newTest(t)
			lea := create(t, s, "lea", RoleLead)
			group(t, s, "vision", map[int64]bool{lea.ID: true})
			token := invite(t, s, lea, NewInvitation{Group: "vision", Uses: 1})
			if err := end(s, lea); err != nil {
				t.Fatal(err)
			}
			_, err := s.Join(t.Context(), token, NewUser{Handle: "zoe"}, goodPassword, "")
			switch name {
			case "still there":
				wantErr(t, err, nil)
			case "no group":
				wantErr(t, err, ErrInvitationUnknown)
			default:
				wantErr(t, err, ErrInvitationRevoked)
			}
		})
	}
}

// Of many who use a link with one use at once exactly one gets in; with three uses, three.
func TestJoinRace(t *testing.T) {
	s, _ := newTest(t)
	admin := create(t, s, "ada", RoleAdmin)
	for _, uses := range []int{1, 3} {
		token := invite(t, s, admin, NewInvitation{Uses: uses})
		before, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		errs := make([]error, 24)
		for i := range errs {
			wg.Go(func() {
				_, errs[i] = s.Join(t.Context(), token, NewUser{Handle: fmt.Sprintf("u%d-%d", uses, i)}, goodPassword, fmt.Sprintf("10.0.0.%d", i))
			})
		}
		wg.Wait()
		in := 0
		for _, err := range errs {
			if err == nil {
				in++
			} else if !errors.Is(err, ErrInvitationUsed) {
				t.Errorf("refused with %v", err)
			}
		}
		after, err := s.List(t.Context())
		if err != nil || in != uses || len(after) != len(before)+uses {
			t.Errorf("%d uses let %d in, %d accounts more, %v", uses, in, len(after)-len(before), err)
		}
	}
}

// Several people who want the same name use up no more than one place.
func TestJoinRaceForAName(t *testing.T) {
	s, _ := newTest(t)
	token := invite(t, s, create(t, s, "ada", RoleAdmin), NewInvitation{Uses: 10})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, err := s.Join(t.Context(), token, NewUser{Handle: "zoe"}, goodPassword, ""); err != nil && !errors.Is(err, ErrHandleTaken) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if inv, err := s.InvitationInfo(t.Context(), token); err != nil || inv.Uses != 1 {
		t.Errorf("%+v, %v", inv, err)
	}
}

func TestOldInvitationsAreForgotten(t *testing.T) {
	s, c := newTest(t)
	token := invite(t, s, create(t, s, "ada", RoleAdmin), NewInvitation{Uses: 1, TTL: time.Hour})
	c.add(linksKept)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := s.InvitationInfo(t.Context(), token)
	wantErr(t, err, ErrInvitationExpired)
	c.add(2 * time.Hour)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = s.InvitationInfo(t.Context(), token)
	wantErr(t, err, ErrInvitationUnknown)
}
