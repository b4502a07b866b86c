package users

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

func adminLink(t *testing.T, s *Service) string {
	t.Helper()
	token, err := s.CreateLink(t.Context(), Link{Purpose: PurposeAdminSetup}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestAdminSetup(t *testing.T) {
	s, c := newTest(t)
	token := adminLink(t, s)
	info, err := s.LinkInfo(t.Context(), token)
	if err != nil || info.Purpose != PurposeAdminSetup || info.Role != RoleAdmin || info.UserID != nil || !info.Expires.Equal(c.now().Add(time.Hour)) {
		t.Fatalf("%+v, %v", info, err)
	}
	// What is refused does not use the link up.
	for _, tc := range []struct {
		handle, password string
		want             error
	}{
		{"../x", goodPassword, ErrHandleInvalid},
		{"Ada", goodPassword, ErrHandleInvalid},
		{"ada", "short", ErrPasswordWeak},
		{"ada", "ada", ErrPasswordWeak},
	} {
		_, err := s.RedeemLink(t.Context(), token, tc.handle, "Ada", tc.password)
		wantErr(t, err, tc.want)
	}
	u, err := s.RedeemLink(t.Context(), token, "ada", "Ada Lovelace", goodPassword)
	if err != nil || u.Role != RoleAdmin || u.Name != "Ada Lovelace" || !u.HasPassword {
		t.Fatalf("%+v, %v", u, err)
	}
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, ""); err != nil {
		t.Error(err)
	}
	_, err = s.RedeemLink(t.Context(), token, "eve", "Eve", goodPassword)
	wantErr(t, err, ErrLinkUsed)
	_, err = s.LinkInfo(t.Context(), token)
	wantErr(t, err, ErrLinkUsed)
	_, err = s.CreateLink(t.Context(), Link{Purpose: PurposeAdminSetup}, 0)
	wantErr(t, err, ErrAdminExists)
	if !strings.Contains(err.Error(), "gpulab user passwd ada") {
		t.Errorf("no next step: %q", err)
	}
}

// A link made before an admin came to be by another way is worth nothing after.
func TestAdminSetupAfterAnAdminExists(t *testing.T) {
	s, _ := newTest(t)
	token := adminLink(t, s)
	create(t, s, "ada", RoleAdmin)
	_, err := s.RedeemLink(t.Context(), token, "eve", "Eve", goodPassword)
	wantErr(t, err, ErrAdminExists)
	if _, err := s.ByHandle(t.Context(), "eve"); !errors.Is(err, ErrNotFound) {
		t.Errorf("half done: %v", err)
	}
}

// Whoever ran init in another window has a link too; the first that is used
// ends them all.
func TestLinksForTheFirstAdmin(t *testing.T) {
	s, _ := newTest(t)
	old, current := adminLink(t, s), adminLink(t, s)
	for _, token := range []string{old, current} {
		if _, err := s.LinkInfo(t.Context(), token); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.RedeemLink(t.Context(), old, "ada", "Ada", goodPassword); err != nil {
		t.Fatal(err)
	}
	_, err := s.RedeemLink(t.Context(), current, "eve", "Eve", goodPassword)
	wantErr(t, err, ErrAdminExists)
}

func TestANewPasswordLinkReplacesTheOld(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	link := Link{Purpose: PurposePassword, UserID: &u.ID}
	old, err := s.CreateLink(t.Context(), link, 0)
	if err != nil {
		t.Fatal(err)
	}
	current, err := s.CreateLink(t.Context(), link, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.LinkInfo(t.Context(), old)
	wantErr(t, err, ErrLinkUnknown)
	if _, err := s.LinkInfo(t.Context(), current); err != nil {
		t.Error(err)
	}
}

func TestPasswordLink(t *testing.T) {
	s, _ := newTest(t)
	u, err := s.Create(t.Context(), NewUser{Handle: "ada", Name: "Ada"})
	if err != nil {
		t.Fatal(err)
	}
	bob := create(t, s, "bob", RoleMember)
	forBob, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &bob.ID}, 0)
	if err != nil {
		t.Fatal(err)
	}
	token, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.LinkInfo(t.Context(), token)
	if err != nil || *info.UserID != u.ID || info.Handle != "ada" || info.Name != "Ada" || info.Role != RoleMember {
		t.Fatalf("%+v, %v", info, err)
	}
	session, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	// The link is ada's, whatever handle the form claims.
	got, err := s.RedeemLink(t.Context(), token, "bob", "Bob", goodPassword)
	if err != nil || got.Handle != "ada" || got.Name != "Ada" || got.Role != RoleMember {
		t.Fatalf("%+v, %v", got, err)
	}
	_, err = s.SessionUser(t.Context(), session)
	wantErr(t, err, ErrSignedOut)
	if _, err := s.LinkInfo(t.Context(), forBob); err != nil {
		t.Errorf("somebody else's link: %v", err)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1})
	if err != nil || len(log) != 1 || log[0].Action != "password.chosen" {
		t.Errorf("audit %+v, %v", log, err)
	}
}

func TestLinkExpires(t *testing.T) {
	s, c := newTest(t)
	u := create(t, s, "ada", RoleMember)
	token, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 10*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	admin := adminLink(t, s)
	c.add(10*time.Minute - time.Millisecond)
	if _, err := s.LinkInfo(t.Context(), token); err != nil {
		t.Error(err)
	}
	c.add(time.Millisecond)
	_, err = s.RedeemLink(t.Context(), token, "", "", goodPassword)
	wantErr(t, err, ErrLinkExpired)
	c.add(time.Hour)
	_, err = s.LinkInfo(t.Context(), admin)
	wantErr(t, err, ErrLinkExpired)
	if !strings.Contains(err.Error(), "gpulab admin-link") {
		t.Errorf("no next step: %q", err)
	}
	c.add(linksKept)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = s.LinkInfo(t.Context(), admin)
	wantErr(t, err, ErrLinkUnknown)
}

func TestLinkRefuses(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "boss", RoleAdmin)
	sue := create(t, s, "sue", RoleMember)
	pending, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &sue.ID}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Suspend(t.Context(), sue.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.RedeemLink(t.Context(), pending, "", "", goodPassword)
	wantErr(t, err, ErrLinkUnknown)
	_, err = s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &sue.ID}, 0)
	wantErr(t, err, ErrSuspended)
	missing := int64(99)
	_, err = s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &missing}, 0)
	wantErr(t, err, ErrNotFound)
	for _, bad := range []Link{{}, {Purpose: "fly"}, {Purpose: PurposePassword}, {Purpose: PurposeAdminSetup, UserID: &sue.ID}} {
		if _, err := s.CreateLink(t.Context(), bad, 0); err == nil {
			t.Errorf("CreateLink(%+v) succeeded", bad)
		}
	}
	for _, token := range []string{"", "x", strings.Repeat("A", 43), strings.Repeat("x", 1<<16)} {
		_, err := s.LinkInfo(t.Context(), token)
		wantErr(t, err, ErrLinkUnknown)
		_, err = s.RedeemLink(t.Context(), token, "eve", "", goodPassword)
		wantErr(t, err, ErrLinkUnknown)
	}
}

func TestConcurrentRedeemsHaveOneWinner(t *testing.T) {
	s, _ := newTest(t)
	token := adminLink(t, s)
	handles := []string{"ada", "eve", "mallory", "oscar", "peggy", "trudy"}
	errs := make([]error, len(handles))
	var wg sync.WaitGroup
	for i, handle := range handles {
		wg.Go(func() { _, errs[i] = s.RedeemLink(t.Context(), token, handle, "", goodPassword) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantErr(t, err, ErrLinkUsed)
		}
	}
	list, err := s.List(t.Context())
	if won != 1 || err != nil || len(list) != 1 {
		t.Errorf("%d winners, users %+v, %v", won, list, err)
	}
}
