package users

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

func newTestToken(t *testing.T, s *Service, id int64, scope TokenScope) (string, Token) {
	t.Helper()
	secret, token, err := s.CreateToken(t.Context(), id, NewToken{Name: "laptop", Scope: scope, Days: 30})
	if err != nil {
		t.Fatal(err)
	}
	return secret, token
}

func TestToken(t *testing.T) {
	s, c := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	secret, token := newTestToken(t, s, ada.ID, ScopeRead)
	if len(secret) != 49 || !strings.HasPrefix(secret, "gpulab_") || strings.Trim(secret[7:], base62) != "" {
		t.Errorf("secret %q", secret)
	}
	if token.LastUsed != nil || !token.Expires.Equal(c.now().AddDate(0, 0, 30)) {
		t.Errorf("%+v", token)
	}
	u, got, err := s.TokenUser(t.Context(), secret, "192.0.2.7", false)
	if err != nil || u.ID != ada.ID || got.ID != token.ID {
		t.Fatalf("%+v %+v %v", u, got, err)
	}
	used := c.now()
	c.add(59 * time.Second)
	if _, _, err := s.TokenUser(t.Context(), secret, "192.0.2.8", false); err != nil {
		t.Fatal(err)
	}
	list, err := s.Tokens(t.Context(), ada.ID)
	if err != nil || len(list) != 1 || list[0].LastUsed == nil || !list[0].LastUsed.Equal(used) || list[0].Remote != "192.0.2.7" {
		t.Fatalf("%+v, %v", list, err)
	}
	c.add(time.Minute)
	if _, _, err := s.TokenUser(t.Context(), secret, "192.0.2.8", false); err != nil {
		t.Fatal(err)
	}
	if list, err = s.Tokens(t.Context(), ada.ID); err != nil || list[0].Remote != "192.0.2.8" {
		t.Errorf("%+v, %v", list, err)
	}
	c.t = token.Expires
	_, _, err = s.TokenUser(t.Context(), secret, "", false)
	wantErr(t, err, ErrTokenRefused)
	if !strings.Contains(err.Error(), "expired") {
		t.Error(err)
	}
	c.add(tokensKept + time.Minute)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list, err = s.Tokens(t.Context(), ada.ID); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestTokenRefusals(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	for what, n := range map[string]NewToken{
		"no name": {"  ", ScopeRead, 30}, "a long name": {strings.Repeat("ä", 61), ScopeRead, 30}, "a name with signs": {"a\x1b[2J", ScopeRead, 30},
		"no scope": {"x", "", 30}, "all": {"x", "admin", 30}, "for ever": {"x", ScopeRead, 0}, "long": {"x", ScopeRead, 366},
	} {
		_, _, err := s.CreateToken(t.Context(), ada.ID, n)
		if !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for range TokensPerUser {
		newTestToken(t, s, ada.ID, ScopeRead)
	}
	_, _, err := s.CreateToken(t.Context(), ada.ID, NewToken{"x", ScopeRead, 30})
	wantErr(t, err, ErrTokenLimit)
	_, _, err = s.CreateToken(t.Context(), 99, NewToken{"x", ScopeRead, 30})
	wantErr(t, err, ErrNotFound)
}

func TestMistypedTokenIsTold(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	secret, _ := newTestToken(t, s, ada.ID, ScopeRead)
	unknown := 0
	for i := range secret {
		for _, other := range "0Az_ -" {
			mistyped := secret[:i] + string(other) + secret[i+1:]
			if mistyped != secret && wellFormedToken(mistyped) {
				unknown++
			}
		}
	}
	if unknown > 0 {
		t.Errorf("%d mistyped tokens look right", unknown)
	}
	for i, bad := range []string{"", "gpulab_", secret[1:], secret[:48], secret + "x", " " + secret, strings.ToUpper(secret), strings.Repeat("x", 1<<20)} {
		_, _, err := s.TokenUser(t.Context(), bad, fmt.Sprint("192.0.2.", i), false)
		wantErr(t, err, ErrTokenRefused)
		if !strings.Contains(err.Error(), "not all of it") || strings.Contains(err.Error(), secret[8:20]) {
			t.Error(err)
		}
	}
	_, _, err := s.TokenUser(t.Context(), newTokenSecret(), "", false)
	wantErr(t, err, ErrTokenRefused)
}

func TestTokenSecretsAreSpreadEvenly(t *testing.T) {
	seen, counts := map[string]bool{}, map[byte]int{}
	const n = 3000
	for range n {
		secret := newTokenSecret()
		if seen[secret] || !wellFormedToken(secret) {
			t.Fatalf("%q", secret)
		}
		seen[secret] = true
		for _, b := range []byte(secret[len(tokenPrefix) : len(tokenPrefix)+tokenRandom]) {
			counts[b]++
		}
	}
	mean := float64(n*tokenRandom) / 62
	for i := range len(base62) {
		if got := float64(counts[base62[i]]); got < 0.85*mean || got > 1.15*mean {
			t.Errorf("%c comes %v times, %v would be even", base62[i], got, mean)
		}
	}
}

// However an account ends, its tokens end at once; ending sessions leaves them.
func TestTokensEnd(t *testing.T) {
	for what, tc := range map[string]struct {
		end  func(s *Service, u User) error
		ends bool
	}{
		"suspended": {func(s *Service, u User) error { return s.Suspend(t.Context(), u.ID) }, true},
		"suspended and back": {func(s *Service, u User) error {
			return errors.Join(s.Suspend(t.Context(), u.ID), s.Resume(t.Context(), u.ID))
		}, true},
		"removed": {func(s *Service, u User) error { return s.Remove(t.Context(), u.ID) }, true},
		"suspended behind the service": {func(s *Service, u User) error {
			_, err := s.db.ExecContext(t.Context(), "UPDATE users SET suspended_at = 1 WHERE id = ?", u.ID)
			return err
		}, true},
		"revoked": {func(s *Service, u User) error { _, err := s.RevokeTokens(t.Context(), u.ID); return err }, true},
		"a password by link": {func(s *Service, u User) error {
			link, err := s.CreateLink(t.Context(), Link{Purpose: PurposePassword, UserID: &u.ID}, 0)
			if err == nil {
				_, err = s.RedeemLink(t.Context(), link, "", "", "another good password")
			}
			return err
		}, true},
		"signed out everywhere": {func(s *Service, u User) error { return s.EndSessions(t.Context(), u.ID) }, false},
		"own password changed": {func(s *Service, u User) error {
			return s.ChangePassword(t.Context(), u.ID, goodPassword, "another good password", "")
		}, false},
		"role changed": {func(s *Service, u User) error { return s.Change(t.Context(), u.ID, Change{Role: new(RoleGuest)}) }, false},
	} {
		t.Run(what, func(t *testing.T) {
			s, _ := newTest(t)
			create(t, s, "ada", RoleAdmin)
			ben, eve := create(t, s, "ben", RoleMember), create(t, s, "eve", RoleMember)
			secret, _ := newTestToken(t, s, ben.ID, ScopeFull)
			other, _ := newTestToken(t, s, eve.ID, ScopeFull)
			if err := tc.end(s, ben); err != nil {
				t.Fatal(err)
			}
			u, _, err := s.TokenUser(t.Context(), secret, "", false)
			if tc.ends {
				wantErr(t, err, ErrTokenRefused)
			} else if err != nil || u.ID != ben.ID {
				t.Errorf("%+v %v", u, err)
			}
			if _, _, err := s.TokenUser(t.Context(), other, "", false); err != nil {
				t.Errorf("somebody else's: %v", err)
			}
		})
	}
}

func TestRevokeOneToken(t *testing.T) {
	s, _ := newTest(t)
	ben, eve := create(t, s, "ben", RoleMember), create(t, s, "eve", RoleMember)
	secret, token := newTestToken(t, s, ben.ID, ScopeRead)
	_, err := s.RevokeToken(t.Context(), eve.ID, token.ID)
	wantErr(t, err, ErrTokenNotFound)
	if _, _, err := s.TokenUser(t.Context(), secret, "", false); err != nil {
		t.Fatal("somebody else revoked it")
	}
	gone, err := s.RevokeToken(t.Context(), ben.ID, token.ID)
	if err != nil || gone.Name != "laptop" {
		t.Fatal(gone, err)
	}
	_, err = s.RevokeToken(t.Context(), ben.ID, token.ID)
	wantErr(t, err, ErrTokenNotFound)
}

// The rights of a token are those of its owner's role at this moment, less what its scope leaves out.
func TestTokenScopes(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "root-admin", RoleAdmin)
	for _, role := range Roles() {
		u := create(t, s, "a-"+string(role), role)
		for _, scope := range TokenScopes() {
			secret, token := newTestToken(t, s, u.ID, scope)
			for _, change := range []bool{false, true} {
				got, _, err := s.TokenUser(t.Context(), secret, "", change)
				if err != nil {
					t.Fatal(err)
				}
				for _, rule := range Policy() {
					want := rule.Roles[role]
					switch {
					case scope == ScopeFiles && rule.Action == ActionFiles:
						want = Own
					case scope == ScopeFiles:
						want = Nobody
					case !change, scope == ScopeFull:
					case scope == ScopeLaunch && (rule.Action == ActionLaunch || rule.Action == ActionManageNotebooks || rule.Action == ActionFiles):
						want = Own
					default:
						want = Nobody
					}
					if has := got.Scope(rule.Action); has != want {
						t.Errorf("%s with a token for %s, change %v: %s on %v, want %v", role, scope, change, rule.Action, has, want)
					}
					if got.May(rule.Action, 99999) != (want == Everybody) || got.May(rule.Action, u.ID) != (want > Nobody) {
						t.Errorf("%s, %s, %s: May differs from Scope", role, scope, rule.Action)
					}
				}
			}
			if _, err := s.RevokeToken(t.Context(), u.ID, token.ID); err != nil {
				t.Fatal(err)
			}
		}
		secret, _ := newTestToken(t, s, u.ID, ScopeFull)
		if err := s.Change(t.Context(), u.ID, Change{Role: new(RoleGuest)}); err != nil {
			t.Fatal(err)
		}
		if got, _, err := s.TokenUser(t.Context(), secret, "", true); err != nil || got.Scope(ActionManageUsers) != Nobody || got.Scope(ActionLaunch) != Own {
			t.Errorf("after the role changed: %+v, %v", got, err)
		}
	}
}

// A lead's token acts on the group, as the lead does.
func TestTokenOfALead(t *testing.T) {
	s, _ := newTest(t)
	lea, ben, eve := create(t, s, "lea", RoleLead), create(t, s, "ben", RoleMember), create(t, s, "eve", RoleMember)
	if _, err := s.CreateGroup(t.Context(), "class", ""); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SetMember(t.Context(), "class", lea.ID, true), s.SetMember(t.Context(), "class", ben.ID, false)); err != nil {
		t.Fatal(err)
	}
	for scope, others := range map[TokenScope]bool{ScopeFull: true, ScopeLaunch: false, ScopeRead: false} {
		secret, _ := newTestToken(t, s, lea.ID, scope)
		u, _, err := s.TokenUser(t.Context(), secret, "", true)
		if err != nil || u.May(ActionManageNotebooks, ben.ID) != others || u.May(ActionManageNotebooks, eve.ID) {
			t.Errorf("%s: %v", scope, err)
		}
	}
}

// Wrong tokens from one address are slowed down and then refused for a while; right ones are not.
func TestWrongTokensAreLimited(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	secret, _ := newTestToken(t, s, ada.ID, ScopeRead)
	limited := 0
	for i := range 150 {
		_, _, err := s.TokenUser(t.Context(), []string{newTokenSecret(), "gpulab_x"}[i%2], "192.0.2.1", false)
		var rate *RateError
		if errors.As(err, &rate) {
			limited++
			if rate.RetryAfter <= 0 || !strings.Contains(rate.Error(), "access tokens") {
				t.Fatal(rate)
			}
		} else if !errors.Is(err, ErrTokenRefused) {
			t.Fatal(err)
		}
	}
	if limited < 100 {
		t.Errorf("only %d of 150 were limited", limited)
	}
	if _, _, err := s.TokenUser(t.Context(), secret, "192.0.2.1", false); err != nil {
		t.Errorf("the right one from the same address: %v", err)
	}
	_, _, err := s.TokenUser(t.Context(), newTokenSecret(), "192.0.2.2", false)
	wantErr(t, err, ErrTokenRefused)
	if _, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1"); err != nil {
		t.Errorf("signing in from there: %v", err)
	}
}

// Whoever gets a copy of the database has no token: not in a table, not in a left-over page of the file.
func TestNoTokenInTheDatabase(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(st.DB(), quick, time.Now)
	ada := create(t, s, "ada", RoleMember)
	secret, _ := newTestToken(t, s, ada.ID, ScopeFull)
	session, err := s.StartSession(t.Context(), ada.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.TokenUser(t.Context(), secret, "192.0.2.1", false); err != nil {
		t.Fatal(err)
	}
	looked := 0
	look := func() {
		files, err := filepath.Glob(filepath.Join(dir, "*.db*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			looked += len(text)
			if strings.Contains(string(text), secret[len(tokenPrefix):]) || strings.Contains(string(text), session) {
				t.Errorf("%s holds a token", f)
			}
		}
	}
	look()
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	look()
	if looked < 10000 {
		t.Errorf("only %d bytes to look at", looked)
	}
}

func TestHoldsToken(t *testing.T) {
	secret := newTokenSecret()
	for text, want := range map[string]bool{
		secret: true, "x" + secret: true, "ada:" + secret + " ": true, "gpulab_gpulab_" + secret: true,
		"": false, "gpulab_": false, secret[1:]: false, secret[:48]: false, "gpulab_of-the-program-itself-and-long-enough-to-be-one": false,
	} {
		if got := HoldsToken(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
