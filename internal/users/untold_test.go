package users

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// A person loses nothing because a provider leaves out groups: role, groups, sessions, access tokens and SSH keys stay.
func TestUntoldKeepsEverything(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "boss", RoleAdmin)
	if _, err := s.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	told := theirs("zoe")
	told.Role, told.Groups, told.Told = RoleLead, []OutsideGroup{{"vision", true}}, true
	u := signIn(t, s, told)
	token, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	secret, _, err := s.CreateToken(t.Context(), u.ID, NewToken{Name: "laptop", Scope: ScopeRead, Days: 30})
	if err != nil {
		t.Fatal(err)
	}
	key, line := newSSHKey(t, "laptop")
	if _, err := s.AddSSHKey(t.Context(), u.ID, "", line); err != nil {
		t.Fatal(err)
	}
	has := func(what string) {
		t.Helper()
		if u, err := s.ByID(t.Context(), u.ID); err != nil || u.Role != RoleLead || u.Suspended || inGroups(t, s, u.ID) != "vision*" {
			t.Errorf("%s: %+v in %s, %v", what, u, inGroups(t, s, u.ID), err)
		}
		if _, err := s.SessionUser(t.Context(), token); err != nil {
			t.Errorf("%s, the session: %v", what, err)
		}
		if _, _, err := s.TokenUser(t.Context(), secret, "", false); err != nil {
			t.Errorf("%s, the access token: %v", what, err)
		}
		if _, err := s.SignInForFilesByKey(t.Context(), "zoe", key.Marshal(), "192.0.2.1"); err != nil {
			t.Errorf("%s, the SSH key: %v", what, err)
		}
	}
	tooMany := theirs("zoe")
	tooMany.Role, tooMany.Untold, tooMany.Refused, tooMany.Suspend = "", "there are too many", "The provider left the groups out.", true
	for range 3 {
		c.add(time.Hour)
		if in := signIn(t, s, tooMany); in.ID != u.ID || in.Role != RoleLead {
			t.Errorf("signed in as %+v", in)
		}
	}
	has("too many groups")
	if got := actionsOf(t, s); strings.Count(got, "system identity.untold zoe") != 3 {
		t.Error(got)
	}
	log, err := s.AuditEntries(t.Context(), AuditFilter{Action: "identity.untold", Limit: 1})
	if err != nil || len(log) != 1 {
		t.Fatal(log, err)
	}
	if got, ok := UntoldIn(log[0]); !ok || got.Provider != "university" || got.Username != "zoe@example.org" || got.Why != "there are too many" {
		t.Errorf("%+v of %+v", got, log[0])
	}
	// Once the provider sends the groups again, the rules apply again.
	c.add(time.Hour)
	told.Role = RoleMember
	if u := signIn(t, s, told); u.Role != RoleMember {
		t.Errorf("told again: %+v", u)
	}
}

// A new person who may not come in reads why, and so do admins.
func TestUntoldOfSomebodyNew(t *testing.T) {
	s, _ := newTest(t)
	o := theirs("zoe")
	o.Untold, o.Refused, o.Suspend = "there are too many", "The provider left the groups out.", true
	if _, err := s.SignInOutside(t.Context(), o, "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) || err.Error() != o.Refused {
		t.Errorf("%v", err)
	}
	log, err := s.AuditLog(t.Context(), 1)
	if err != nil || len(log) != 1 {
		t.Fatal(log, err)
	}
	if got, ok := UntoldIn(log[0]); !ok || got.Provider != "university" || got.Username != "zoe@example.org" || got.Why != "there are too many" {
		t.Errorf("%+v of %+v", got, log[0])
	}
	near := theirs("ben")
	near.Refused, near.Why = "No.", "a rule names the group gpu, the provider says /GPU"
	if _, err := s.SignInOutside(t.Context(), near, "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
		t.Error(err)
	}
	if log, err := s.AuditLog(t.Context(), 1); err != nil || !strings.Contains(log[0].Detail, near.Why) {
		t.Errorf("%+v, %v", log, err)
	} else if _, ok := UntoldIn(log[0]); ok {
		t.Errorf("%+v is taken for something untold", log[0])
	}
	// They come in if what the provider did send is enough.
	o.Refused, o.Role = "", RoleGuest
	if u := signIn(t, s, o); u.Role != RoleGuest {
		t.Errorf("%+v", u)
	}
}

// A provider that leaves out empty lists still sends the groups of others. That tells it from one that sends none.
func TestLeftOutBecauseThereAreNone(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "boss", RoleAdmin)
	zoe, ben := theirs("zoe"), theirs("ben")
	zoe.Told, ben.Told = true, true
	u := signIn(t, s, zoe)
	signIn(t, s, ben)
	none := theirs("zoe")
	none.Untold, none.MayBeNone, none.Refused, none.Suspend = "nothing is said of groups", true, "The provider left the groups out.", false
	c.add(time.Hour)
	signIn(t, s, none)
	signIn(t, s, none) // the provider has sent nobody else's groups meanwhile
	c.add(time.Hour)
	signIn(t, s, ben)
	if _, err := s.SignInOutside(t.Context(), none, ""); !errors.Is(err, ErrNotAdmitted) {
		t.Errorf("ben's were told since: %v", err)
	}
	// From now on they are refused, also when the provider leaves out the groups again.
	tooMany := none
	tooMany.MayBeNone = false
	if _, err := s.SignInOutside(t.Context(), tooMany, ""); !errors.Is(err, ErrNotAdmitted) {
		t.Errorf("whom the rules refused came in with something left out: %v", err)
	}
	if in := signIn(t, s, zoe); in.ID != u.ID {
		t.Errorf("let in again, they are %+v", in)
	}
	if in := signIn(t, s, tooMany); in.ID != u.ID {
		t.Errorf("and kept again, %+v", in)
	}
	// With too many groups, it makes no difference what the provider sends about others.
	c.add(time.Hour)
	signIn(t, s, ben)
	signIn(t, s, tooMany)
}

// Any ID that never belongs to somebody else finds a person, with and without spaces in the directory's base.
func TestSamePersonByAnotherSubject(t *testing.T) {
	s, _ := newTest(t)
	o := theirs("old-id")
	o.Realm, o.Username = "ldap:ou=people, dc=example, dc=org", "zoe"
	u := signIn(t, s, o)
	o.Realm, o.Subject, o.Also, o.Username = "ldap:ou=people,dc=example,dc=org", "new-id", []string{"old-id"}, "zoe-maria"
	if in := signIn(t, s, o); in.ID != u.ID {
		t.Errorf("signed in as %+v, not %+v", in, u)
	}
	if log, err := s.AuditLog(t.Context(), 1); err != nil || !strings.Contains(log[0].Detail, "where the account was called zoe and is now zoe-maria") {
		t.Errorf("%+v, %v", log, err)
	}
}

// People whom the rules refused before the upgrade stay refused: the upgrade reads refusals from the audit log.
func TestRefusedBeforeTheUpgrade(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "boss", RoleAdmin)
	for _, name := range []string{"zoe", "mia"} {
		signIn(t, s, theirs(name))
	}
	c.add(time.Hour)
	left := theirs("zoe")
	left.Refused = "You are in no group that may use this lab."
	if _, err := s.SignInOutside(t.Context(), left, "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), "UPDATE identities SET refused_at = NULL"); err != nil {
		t.Fatal(err)
	}
	migration, err := os.ReadFile("../store/migrations/0037_identities_untold.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, update, ok := strings.Cut(string(migration), "\nUPDATE ")
	if !ok {
		t.Fatal("the migration updates nothing")
	}
	if _, err := s.db.ExecContext(t.Context(), "UPDATE "+update); err != nil {
		t.Fatal(err)
	}
	untold := func(name string) Outside {
		o := theirs(name)
		o.Role, o.Untold, o.Refused = "", "there are too many", "The provider left the groups out."
		return o
	}
	if _, err := s.SignInOutside(t.Context(), untold("zoe"), "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
		t.Errorf("refused before, and in now: %v", err)
	}
	signIn(t, s, untold("mia"))
}
