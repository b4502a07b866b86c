package users

import (
	"errors"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

func TestChangePassword(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	session, err := s.StartSession(t.Context(), ada.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	const next = "seven loud kettles"
	for what, tc := range map[string]struct {
		old, next string
		want      error
	}{
		"wrong": {"not it at all", next, ErrBadCredentials},
		"weak":  {goodPassword, "short", ErrPasswordWeak},
		"name":  {goodPassword, "ada", ErrPasswordWeak},
		"same":  {goodPassword, goodPassword, ErrPasswordWeak},
	} {
		err := s.ChangePassword(t.Context(), ada.ID, tc.old, tc.next, "192.0.2.1")
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.SessionUser(t.Context(), session); err != nil {
		t.Errorf("a refusal ended the session: %v", err)
	}
	if err := s.ChangePassword(t.Context(), ada.ID, goodPassword, next, "192.0.2.1"); err != nil {
		t.Fatal(err)
	}
	_, err = s.SessionUser(t.Context(), session)
	wantErr(t, err, ErrSignedOut)
	if _, err := s.Authenticate(t.Context(), "ada", next, ""); err != nil {
		t.Error(err)
	}
	_, err = s.Authenticate(t.Context(), "ada", goodPassword, "")
	wantErr(t, err, ErrBadCredentials)
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Action: "password.changed"})
	if err != nil || len(log) != 1 || log[0].Actor != "ada" || log[0].Remote != "192.0.2.1" {
		t.Errorf("%+v, %v", log, err)
	}
}

// Whoever sits at a browser that was left open cannot guess the password there more often than at sign-in.
func TestChangePasswordIsLimited(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	limited := false
	for range 20 {
		err := s.ChangePassword(t.Context(), ada.ID, "wrong", "seven loud kettles", "192.0.2.1")
		limited = limited || errors.Is(err, ErrTooManyTries)
	}
	if !limited {
		t.Fatal("guessing is not limited")
	}
	err := s.ChangePassword(t.Context(), ada.ID, goodPassword, "seven loud kettles", "192.0.2.1")
	wantErr(t, err, ErrTooManyTries)
	if len(failed(t, s)) == 0 {
		t.Error("nothing of it is in the log")
	}
}

func TestSessionsOfOnePerson(t *testing.T) {
	s, c := newTest(t)
	ada, eve := create(t, s, "ada", RoleMember), create(t, s, "eve", RoleMember)
	start := func(u User, remote string) (string, Session) {
		t.Helper()
		token, err := s.StartSession(t.Context(), u.ID, SessionMeta{Remote: remote, UserAgent: "Firefox"})
		if err != nil {
			t.Fatal(err)
		}
		session, err := s.SessionUser(t.Context(), token)
		if err != nil {
			t.Fatal(err)
		}
		c.add(time.Minute)
		return token, session
	}
	first, firstInfo := start(ada, "192.0.2.1")
	second, secondInfo := start(ada, "192.0.2.2")
	third, _ := start(ada, "192.0.2.3")
	hers, herInfo := start(eve, "192.0.2.4")
	list, err := s.Sessions(t.Context(), ada.ID)
	if err != nil || len(list) != 3 || list[0].Remote != "192.0.2.3" || list[2].ID != firstInfo.ID || list[0].UserAgent != "Firefox" {
		t.Fatalf("%+v, %v", list, err)
	}
	var ended []string
	s.OnSessionsEnded(func(_ int64, id string) { ended = append(ended, id) })
	if did, err := s.EndOneSession(t.Context(), ada.ID, herInfo.ID); did || err != nil {
		t.Error("ada ended eve's session", err)
	}
	if did, err := s.EndOneSession(t.Context(), ada.ID, firstInfo.ID); !did || err != nil {
		t.Error(did, err)
	}
	_, err = s.SessionUser(t.Context(), first)
	wantErr(t, err, ErrSignedOut)
	if did, err := s.EndOtherSessions(t.Context(), ada.ID, secondInfo.ID); !did || err != nil {
		t.Error(did, err)
	}
	_, err = s.SessionUser(t.Context(), third)
	wantErr(t, err, ErrSignedOut)
	for _, token := range []string{second, hers} {
		if _, err := s.SessionUser(t.Context(), token); err != nil {
			t.Error(err)
		}
	}
	if len(ended) != 2 || ended[0] != firstInfo.ID {
		t.Errorf("heard of %v", ended)
	}
	c.add(SessionIdle)
	if list, err := s.Sessions(t.Context(), ada.ID); err != nil || len(list) != 0 {
		t.Errorf("idle ones: %+v, %v", list, err)
	}
}
