package users

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"
)

// ended collects what the hook hears.
type ended struct {
	mu  sync.Mutex
	log []string
}

func listen(s *Service) *ended {
	e := &ended{}
	s.OnSessionsEnded(func(userID int64, sessionID string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if sessionID != "" {
			sessionID = "one"
		} else {
			sessionID = "all"
		}
		e.log = append(e.log, fmt.Sprint(userID, sessionID))
	})
	return e
}

func (e *ended) take() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() { e.log = nil }()
	return strings.Join(e.log, ",")
}

func start(t *testing.T, s *Service, u User) string {
	t.Helper()
	token, err := s.StartSession(t.Context(), u.ID, SessionMeta{Remote: "192.0.2.1", UserAgent: "test\x00" + strings.Repeat("x", 999)})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestSession(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	first, second := start(t, s, ada), start(t, s, ada)
	if first == second || len(first) < 43 {
		t.Fatalf("tokens %q, %q", first, second)
	}
	a, err := s.SessionUser(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	if a.User != ada || a.ID == "" || strings.Contains(first, a.ID) || !a.Expires.Equal(c.now().Add(SessionMax)) {
		t.Errorf("%+v", a)
	}
	b, err := s.SessionUser(t.Context(), second)
	if err != nil || a.CSRF == b.CSRF || a.ID == b.ID {
		t.Errorf("two sessions share something: %+v, %+v, %v", a, b, err)
	}
	if !a.ValidCSRF(a.CSRF) || a.ValidCSRF(b.CSRF) || a.ValidCSRF("") || (Session{}).ValidCSRF("") {
		t.Error("form tokens are not told apart")
	}
	var stored string
	if err := s.db.QueryRow("SELECT group_concat(hex(token_hash) || id || user_agent) FROM sessions").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stored, first) || strings.Contains(stored, fmt.Sprintf("%X", first)) || len(stored) > 1000 {
		t.Error("the database holds a token, or an endless browser name")
	}
}

func TestSessionRefusesWhatItDidNotIssue(t *testing.T) {
	s, _ := newTest(t)
	token := start(t, s, create(t, s, "ada", RoleMember))
	swapped := "A" + token[1:]
	if swapped == token {
		swapped = "B" + token[1:]
	}
	for _, bad := range []string{"", "x", swapped, token + "A", token[:42], strings.Repeat("A", 43), token[:42] + "=", token + "\n", strings.Repeat("x", 1<<16)} {
		_, err := s.SessionUser(t.Context(), bad)
		wantErr(t, err, ErrSignedOut)
		if err := s.EndSession(t.Context(), bad); err != nil {
			t.Errorf("EndSession(%.20q): %v", bad, err)
		}
	}
	if _, err := s.SessionUser(t.Context(), token); err != nil {
		t.Error(err)
	}
}

func TestSessionExpiry(t *testing.T) {
	for _, tc := range []struct {
		name  string
		steps []time.Duration // between two uses
		alive bool
	}{
		{"used daily", []time.Duration{24 * time.Hour, 24 * time.Hour, 6 * 24 * time.Hour}, true},
		{"just within the idle time", []time.Duration{SessionIdle - time.Millisecond}, true},
		{"idle too long", []time.Duration{SessionIdle}, false},
		{"used all the time", []time.Duration{6 * 24 * time.Hour, 6 * 24 * time.Hour, 6 * 24 * time.Hour, 6 * 24 * time.Hour, 6*24*time.Hour - time.Minute}, true},
		{"beyond the end", []time.Duration{6 * 24 * time.Hour, 6 * 24 * time.Hour, 6 * 24 * time.Hour, 6 * 24 * time.Hour, 6 * 24 * time.Hour}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, c := newTest(t)
			ada := create(t, s, "ada", RoleMember)
			heard := listen(s)
			token := start(t, s, ada)
			var err error
			for _, step := range tc.steps {
				c.add(step)
				_, err = s.SessionUser(t.Context(), token)
			}
			if (err == nil) != tc.alive {
				t.Fatalf("alive = %v, %v", err == nil, err)
			}
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := heard.take(); (got == "") != tc.alive {
				t.Errorf("the sweep ended %q", got)
			}
		})
	}
}

// A session that was begun while the clock stood in the future does not last for longer once it is right.
func TestSessionFromTheFuture(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	for back, alive := range map[time.Duration]bool{time.Hour: true, 365 * 24 * time.Hour: false} {
		token := start(t, s, ada)
		c.add(-back)
		if _, err := s.SessionUser(t.Context(), token); (err == nil) != alive {
			t.Errorf("with the clock set back by %s: %v", back, err)
		}
		c.add(back)
	}
}

// The cache answers for seconds; an expiry inside that time must be seen all the same.
func TestCachedSessionStillExpires(t *testing.T) {
	s, c := newTest(t)
	token := start(t, s, create(t, s, "ada", RoleMember))
	for range 4 {
		c.add(6 * 24 * time.Hour)
		if _, err := s.SessionUser(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	}
	c.add(6*24*time.Hour - time.Second)
	if _, err := s.SessionUser(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	c.add(time.Second)
	_, err := s.SessionUser(t.Context(), token)
	wantErr(t, err, ErrSignedOut)
}

func TestWhatEndsSessions(t *testing.T) {
	for _, tc := range []struct {
		name      string
		do        func(t *testing.T, s *Service, u User, token string) error
		heard     string // by the hook; %d is the user
		firstEnds bool
		restEnds  bool
	}{
		{"sign-out", func(t *testing.T, s *Service, _ User, token string) error { return s.EndSession(t.Context(), token) }, "%done", true, false},
		{"sign-out everywhere", func(t *testing.T, s *Service, u User, _ string) error { return s.EndSessions(t.Context(), u.ID) }, "%dall", true, true},
		{"suspension", func(t *testing.T, s *Service, u User, _ string) error { return s.Suspend(t.Context(), u.ID) }, "%dall", true, true},
		{"role", func(t *testing.T, s *Service, u User, _ string) error {
			return s.Change(t.Context(), u.ID, Change{Role: new(RoleLead)})
		}, "%dall", true, true},
		{"same role", func(t *testing.T, s *Service, u User, _ string) error {
			return s.Change(t.Context(), u.ID, Change{Role: new(RoleMember)})
		}, "", false, false},
		{"password", func(t *testing.T, s *Service, u User, _ string) error {
			return s.SetPassword(t.Context(), u.ID, "another fine sentence 7")
		}, "%dall", true, true},
		{"removal", func(t *testing.T, s *Service, u User, _ string) error { return s.Remove(t.Context(), u.ID) }, "%dall", true, true},
		{"name", func(t *testing.T, s *Service, u User, _ string) error {
			return s.SetProfile(t.Context(), u.ID, "New Name", "")
		}, "", false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _ := newTest(t)
			create(t, s, "boss", RoleAdmin)
			u := create(t, s, "ada", RoleMember)
			other := start(t, s, create(t, s, "bob", RoleMember))
			first, second := start(t, s, u), start(t, s, u)
			for _, token := range []string{first, second, other} { // into the cache
				if _, err := s.SessionUser(t.Context(), token); err != nil {
					t.Fatal(err)
				}
			}
			heard := listen(s)
			if err := tc.do(t, s, u, first); err != nil {
				t.Fatal(err)
			}
			want := ""
			if tc.heard != "" {
				want = fmt.Sprintf(tc.heard, u.ID)
			}
			if got := heard.take(); got != want {
				t.Errorf("the hook heard %q, want %q", got, want)
			}
			for token, ends := range map[string]bool{first: tc.firstEnds, second: tc.restEnds, other: false} {
				if _, err := s.SessionUser(t.Context(), token); (err != nil) != ends {
					t.Errorf("ended = %v, want %v (%v)", err != nil, ends, err)
				}
			}
		})
	}
}

func TestChangesShowAtOnce(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	token := start(t, s, u)
	if _, err := s.SessionUser(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if err := s.SetProfile(t.Context(), u.ID, "New Name", ""); err != nil {
		t.Fatal(err)
	}
	if got, err := s.SessionUser(t.Context(), token); err != nil || got.User.Name != "New Name" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A session read just before it ended must not get into the cache just after.
func TestCacheRefusesStaleEntries(t *testing.T) {
	c := newSessionCache()
	now := time.Now()
	_, round, _ := c.get([32]byte{1}, now)
	c.drop()
	c.put([32]byte{1}, Session{ID: "stale"}, round, now)
	if _, _, ok := c.get([32]byte{1}, now); ok {
		t.Error("a stale session was kept")
	}
}

func TestSuspendedCannotStart(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	if err := s.Suspend(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	_, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	wantErr(t, err, ErrSuspended)
	if err := s.Resume(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	start(t, s, u)
}

func TestSessionsPerUserAreBounded(t *testing.T) {
	s, c := newTest(t)
	u := create(t, s, "ada", RoleMember)
	oldest := start(t, s, u)
	heard := listen(s)
	for range sessionsPerUser {
		c.add(time.Second)
		start(t, s, u)
	}
	if got := heard.take(); got != fmt.Sprint(u.ID, "one") {
		t.Errorf("the hook heard %q", got)
	}
	_, err := s.SessionUser(t.Context(), oldest)
	wantErr(t, err, ErrSignedOut)
}
