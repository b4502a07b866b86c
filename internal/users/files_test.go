package users

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// The ways to sign in for files: what each takes, and that the log has it.
func TestSignInForFiles(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleGuest)
	access, err := s.SignInForFiles(t.Context(), " Ada", goodPassword, "192.0.2.7")
	if err != nil || access.User.ID != ada.ID || access.Way != "the password" {
		t.Fatalf("%+v %v", access, err)
	}
	for scope, ok := range map[TokenScope]bool{ScopeFiles: true, ScopeRead: false, ScopeLaunch: true, ScopeFull: true} {
		secret, _ := newTestToken(t, s, ada.ID, scope)
		_, err := s.SignInForFiles(t.Context(), "ada", secret, "192.0.2.7")
		if (err == nil) != ok {
			t.Errorf("scope %s: %v", scope, err)
		}
		if !ok {
			wantErr(t, err, ErrTokenRefused)
		}
	}
	key, line := newSSHKey(t, "laptop")
	if _, err := s.AddSSHKey(t.Context(), ada.ID, "", line); err != nil {
		t.Fatal(err)
	}
	if access, err = s.SignInForFilesByKey(t.Context(), "ada", key.Marshal(), "192.0.2.9"); err != nil || access.User.ID != ada.ID {
		t.Fatalf("%+v %v", access, err)
	}
	list, err := s.SSHKeys(t.Context(), ada.ID)
	if err != nil || list[0].LastUsed == nil || list[0].Remote != "192.0.2.9" {
		t.Errorf("%+v, %v", list, err)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 50})
	if err != nil {
		t.Fatal(err)
	}
	var details []string
	for _, e := range log {
		if e.Action == "sign-in" {
			details = append(details, e.Detail)
		}
	}
	for _, want := range []string{"for files, with the password", "for files, with access token", "for files, with SSH key"} {
		if !strings.Contains(strings.Join(details, "; "), want) {
			t.Errorf("%q is not in the log: %q", want, details)
		}
	}
}

func TestSignInForFilesRefusals(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "root-admin", RoleAdmin)
	ada, eve := create(t, s, "ada", RoleMember), create(t, s, "eve", RoleMember)
	evesToken, _ := newTestToken(t, s, eve.ID, ScopeFull)
	evesKey, line := newSSHKey(t, "x")
	if _, err := s.AddSSHKey(t.Context(), eve.ID, "", line); err != nil {
		t.Fatal(err)
	}
	_, err := s.SignInForFiles(t.Context(), "ada", "not it at all", "192.0.2.1")
	wantErr(t, err, ErrBadCredentials)
	_, err = s.SignInForFiles(t.Context(), "nobody1", "not it at all", "192.0.2.1")
	wantErr(t, err, ErrBadCredentials)
	_, err = s.SignInForFiles(t.Context(), "ada", evesToken, "192.0.2.1")
	wantErr(t, err, ErrTokenRefused)
	_, err = s.SignInForFiles(t.Context(), "ada", newTokenSecret(), "192.0.2.1")
	wantErr(t, err, ErrTokenRefused)
	_, err = s.SignInForFilesByKey(t.Context(), "ada", evesKey.Marshal(), "192.0.2.1")
	wantErr(t, err, ErrSSHKeyNotFound)
	if n, _, err := s.log.FailedSignIns(t.Context(), "ada", time.Time{}); err != nil || n != 3 {
		t.Errorf("%d failed sign-ins in the log, %v", n, err)
	}
	if err := s.Suspend(t.Context(), eve.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignInForFiles(t.Context(), "eve", goodPassword, "192.0.2.1")
	wantErr(t, err, ErrSuspended)
	_, err = s.SignInForFilesByKey(t.Context(), "eve", evesKey.Marshal(), "192.0.2.1")
	wantErr(t, err, ErrSSHKeyNotFound)
	_, err = s.SignInForFiles(t.Context(), "eve", evesToken, "192.0.2.1")
	wantErr(t, err, ErrTokenRefused)
	// Many wrong passwords close the door for the right one, too.
	var rate *RateError
	for range 30 {
		if _, err = s.SignInForFiles(t.Context(), "ada", "a guess or another", "192.0.2.66"); errors.As(err, &rate) {
			break
		}
	}
	if _, err := s.SignInForFiles(t.Context(), "ada", goodPassword, "192.0.2.66"); !errors.As(err, &rate) {
		t.Errorf("after many guesses: %v", err)
	}
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.66"); !errors.As(err, &rate) {
		t.Errorf("the page after many guesses over SFTP: %v", err)
	}
	_ = ada
}

// What let somebody in is asked for again.
func TestStillForFiles(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "root-admin", RoleAdmin)
	ada := create(t, s, "ada", RoleMember)
	key, line := newSSHKey(t, "x")
	kept, err := s.AddSSHKey(t.Context(), ada.ID, "", line)
	if err != nil {
		t.Fatal(err)
	}
	secret, token := newTestToken(t, s, ada.ID, ScopeFiles)
	expiring, _ := newTestToken(t, s, ada.ID, ScopeFiles)
	byPassword, err1 := s.SignInForFiles(t.Context(), "ada", goodPassword, "")
	byToken, err2 := s.SignInForFiles(t.Context(), "ada", secret, "")
	byOther, err3 := s.SignInForFiles(t.Context(), "ada", expiring, "")
	byKey, err4 := s.SignInForFilesByKey(t.Context(), "ada", key.Marshal(), "")
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	all := []FilesAccess{byPassword, byToken, byOther, byKey}
	for _, a := range all {
		if err := s.StillForFiles(t.Context(), a); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.RevokeToken(t.Context(), ada.ID, token.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.StillForFiles(t.Context(), byToken), ErrTokenRefused)
	if _, err := s.RemoveSSHKey(t.Context(), ada.ID, kept.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.StillForFiles(t.Context(), byKey), ErrSSHKeyNotFound)
	c.add(31 * 24 * time.Hour)
	wantErr(t, s.StillForFiles(t.Context(), byOther), ErrTokenRefused)
	if err := s.StillForFiles(t.Context(), byPassword); err != nil {
		t.Error(err)
	}
	if err := s.Suspend(t.Context(), ada.ID); err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if err := s.StillForFiles(t.Context(), a); err == nil {
			t.Errorf("%s is open while the account is suspended", a.Way)
		}
	}
}

// Whoever signs out everywhere else ends what has no session, too.
func TestSignedOutElsewhere(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	var heard []int64
	s.OnSignedOutElsewhere(func(userID int64) { heard = append(heard, userID) })
	if _, err := s.EndOtherSessions(t.Context(), ada.ID, "none"); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 1 || heard[0] != ada.ID {
		t.Errorf("heard %v", heard)
	}
}
