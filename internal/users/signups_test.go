package users

import (
	"fmt"
	"strings"
	"testing"
)

func ask(t *testing.T, s *Service, handle string) {
	t.Helper()
	if err := s.AskToJoin(t.Context(), NewUser{Handle: handle, Name: strings.ToUpper(handle), Email: handle + "@example.org"}, "thesis", goodPassword, "10.0.0.1"); err != nil {
		t.Fatal(err)
	}
}

func signUps(t *testing.T, s *Service) []SignUp {
	t.Helper()
	list, err := s.SignUps(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAskToJoin(t *testing.T) {
	s, c := newTest(t)
	group(t, s, "vision", nil)
	ask(t, s, "zoe")
	list := signUps(t, s)
	want := SignUp{ID: list[0].ID, Handle: "zoe", Wanted: "zoe", Name: "ZOE", Email: "zoe@example.org", Note: "thesis", Remote: "10.0.0.1", Requested: c.now()}
	if len(list) != 1 || list[0] != want {
		t.Fatalf("requests: %+v, want %+v", list, want)
	}
	if n, err := s.CountSignUps(t.Context()); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
	// Until then there is no account, and nobody else gets the name.
	_, err := s.Authenticate(t.Context(), "zoe", goodPassword, "")
	wantErr(t, err, ErrPending)
	_, err = s.Authenticate(t.Context(), "zoe", "another password", "")
	wantErr(t, err, ErrBadCredentials)
	_, err = s.Create(t.Context(), NewUser{Handle: "zoe"})
	wantErr(t, err, ErrHandleTaken)
	wantErr(t, s.HandleFree(t.Context(), "Zoe"), ErrHandleTaken)

	u, err := s.Approve(t.Context(), list[0].ID, RoleLead, "vision")
	if err != nil || u.Handle != "zoe" || u.Role != RoleLead || u.UID != FirstUID || u.Email != "zoe@example.org" {
		t.Fatalf("approved: %+v, %v", u, err)
	}
	if in, err := s.Memberships(t.Context(), u.ID); err != nil || len(in) != 1 || !in[0].Lead {
		t.Errorf("groups: %+v, %v", in, err)
	}
	if _, err := s.Authenticate(t.Context(), "zoe", goodPassword, ""); err != nil {
		t.Errorf("the password they chose: %v", err)
	}
	_, err = s.Approve(t.Context(), list[0].ID, RoleMember, "")
	wantErr(t, err, ErrSignUpNotFound)
}

func TestDecline(t *testing.T) {
	s, _ := newTest(t)
	ask(t, s, "zoe")
	id := signUps(t, s)[0].ID
	for _, tc := range []struct {
		role  Role
		group string
		want  error
	}{{"king", "", ErrRoleInvalid}, {RoleMember, "nothing", ErrGroupNotFound}} {
		_, err := s.Approve(t.Context(), id, tc.role, tc.group)
		wantErr(t, err, tc.want)
	}
	if len(signUps(t, s)) != 1 {
		t.Fatal("an approval that was refused took the request along")
	}
	if r, err := s.Decline(t.Context(), id); err != nil || r.Handle != "zoe" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err := s.Decline(t.Context(), id)
	wantErr(t, err, ErrSignUpNotFound)
	_, err = s.Authenticate(t.Context(), "zoe", goodPassword, "")
	wantErr(t, err, ErrBadCredentials)
	if err := s.HandleFree(t.Context(), "zoe"); err != nil {
		t.Error(err)
	}
}

// A stranger does not learn who is there: a taken name is no error, and the next one is kept.
func TestAskToJoinTellsNothing(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleAdmin)
	gone := create(t, s, "gone", RoleMember)
	if err := s.Remove(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, handle := range []string{"ada", "ada", "gone", "free", "free"} {
		ask(t, s, handle)
	}
	for _, r := range signUps(t, s) {
		got = append(got, r.Handle+" for "+r.Wanted)
	}
	if list := strings.Join(got, ", "); list != "ada-2 for ada, ada-3 for ada, gone-2 for gone, free for free, free-2 for free" {
		t.Error(list)
	}
	// The waiting request for ada-2 does not open ada.
	_, err := s.Authenticate(t.Context(), "ada-2", goodPassword, "")
	wantErr(t, err, ErrPending)
	if got := numbered(strings.Repeat("x", 27)+"-yz", 10); got != strings.Repeat("x", 27)+"-10" || CheckHandle(got) != nil {
		t.Error(got)
	}
}

func TestAskToJoinRefuses(t *testing.T) {
	s, _ := newTest(t)
	for _, tc := range []struct {
		n              NewUser
		note, password string
		want           error
	}{
		{NewUser{Handle: "Ä b"}, "", goodPassword, ErrHandleInvalid},
		{NewUser{Handle: "root"}, "", goodPassword, ErrHandleInvalid},
		{NewUser{Handle: "zoe", Email: "zoe"}, "", goodPassword, ErrEmailInvalid},
		{NewUser{Handle: "zoe", Name: "z\x1b"}, "", goodPassword, ErrNameInvalid},
		{NewUser{Handle: "zoe"}, "", "short", ErrPasswordWeak},
		{NewUser{Handle: "zoe"}, strings.Repeat("x", 501), goodPassword, ErrNoteInvalid},
		{NewUser{Handle: "zoe"}, "a\u202eb", goodPassword, ErrNoteInvalid},
	} {
		wantErr(t, s.AskToJoin(t.Context(), tc.n, tc.note, tc.password, ""), tc.want)
	}
	if n := len(signUps(t, s)); n != 0 {
		t.Errorf("%d requests were kept", n)
	}
}

func TestSignUpsAreBounded(t *testing.T) {
	s, c := newTest(t)
	asked := 0
	for i := range 100 { // from one address
		err := s.AskToJoin(t.Context(), NewUser{Handle: fmt.Sprintf("one%d", i)}, "", goodPassword, "10.0.0.1")
		if err != nil {
			wantErr(t, err, ErrTooManyTries)
			if text, _ := Message(err); !strings.Contains(text, "from your address. Try again in") {
				t.Error(text)
			}
			break
		}
		asked++
	}
	if asked < 30 || asked > 60 {
		t.Errorf("one address got %d requests in", asked)
	}
	for i := asked; i < maxSignUps; i++ {
		if err := s.AskToJoin(t.Context(), NewUser{Handle: fmt.Sprintf("many%d", i)}, "", goodPassword, fmt.Sprintf("10.1.0.%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, s.AskToJoin(t.Context(), NewUser{Handle: "zoe"}, "", goodPassword, "10.2.0.1"), ErrTooManySignUps)
	c.add(signUpsKept + 1e9)
	if err := s.Sweep(t.Context()); err != nil || len(signUps(t, s)) != 0 {
		t.Errorf("requests of two months ago: %d, %v", len(signUps(t, s)), err)
	}
	if err := s.AskToJoin(t.Context(), NewUser{Handle: "zoe"}, "", goodPassword, "10.2.0.1"); err != nil {
		t.Error(err)
	}
}
