package users

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
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
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Action: "identity.untold", Limit: 1})
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
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1})
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
	if log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1}); err != nil ||
		!strings.Contains(log[0].Detail, near.Why) {
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
	token, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	c.add(time.Hour)
	signIn(t, s, ben)
	// At once: zoe's session ends, and does not last until the next sign-in.
	if _, err := s.SessionUser(t.Context(), token); err == nil {
		t.Error("ben's groups were sent, and zoe is still signed in")
	}
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
	o.Realm, o.Username = "ldap:ou=people, dc=example, dc=org", "zoe" // as versions before wrote it
	u := signIn(t, s, o)
	if err := s.NormalizeRealms(t.Context(), func(realm string) string { return strings.ReplaceAll(realm, ", ", ",") }); err != nil {
		t.Fatal(err)
	}
	o.Realm, o.Subject, o.Also, o.Username = "ldap:ou=people,dc=example,dc=org", "new-id", []string{"old-id"}, "zoe-maria"
	if in := signIn(t, s, o); in.ID != u.ID {
		t.Errorf("signed in as %+v, not %+v", in, u)
	}
	if log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1}); err != nil ||
		!strings.Contains(log[0].Detail, "where the account was called zoe and is now zoe-maria") {
		t.Errorf("%+v, %v", log, err)
	}
}

// People whom the rules refused before the upgrade stay refused: the upgrade reads refusals from the audit log.
func TestRefusedBeforeTheUpgrade(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "boss", RoleAdmin)
	for _, name := range []string{"zoe", "mia", "leo"} {
		signIn(t, s, theirs(name))
	}
	c.add(time.Hour)
	left := theirs("zoe")
	left.Refused = "You are in no group that may use this lab."
	if _, err := s.SignInOutside(t.Context(), left, "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
		t.Fatal(err)
	}
	renamed := theirs("leo") // at the provider, since the last sign-in
	renamed.Username, renamed.Refused = "leonard@example.org", left.Refused
	if _, err := s.SignInOutside(t.Context(), renamed, "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
		t.Fatal(err)
	}
	if _, err := s.db.ExecContext(t.Context(), "UPDATE identities SET refused_at = NULL, told_at = NULL"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0037_identities_untold", "0038_identities_kept"} {
		migration, err := os.ReadFile("../store/migrations/" + name + ".sql")
		if err != nil {
			t.Fatal(err)
		}
		_, update, ok := strings.Cut(string(migration), "\nUPDATE ")
		if !ok {
			t.Fatalf("the migration %s updates nothing", name)
		}
		if _, err := s.db.ExecContext(t.Context(), "UPDATE "+update); err != nil {
			t.Fatal(err)
		}
	}
	untold := func(name string) Outside {
		o := theirs(name)
		o.Role, o.Untold, o.Refused = "", "there are too many", "The provider left the groups out."
		return o
	}
	for _, name := range []string{"zoe", "leo"} {
		if _, err := s.SignInOutside(t.Context(), untold(name), "192.0.2.1"); !errors.Is(err, ErrNotAdmitted) {
			t.Errorf("%s was refused before, and is in now: %v", name, err)
		}
	}
	signIn(t, s, untold("mia"))
}

// keeper has somebody sign in who was a lead of the group vision, and whose groups the provider now leaves out.
func keeper(t *testing.T, s *Service, c *clock, untold Outside) User {
	t.Helper()
	create(t, s, "boss", RoleAdmin)
	if _, err := s.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	told := theirs(untold.Subject)
	told.Role, told.Groups, told.Told = RoleLead, []OutsideGroup{{"vision", true}}, true
	signIn(t, s, told)
	c.add(100 * 24 * time.Hour) // nobody loses anything without notice, however long they were away
	return signIn(t, s, untold)
}

// Role and groups are kept for 30 days from the first sign-in without groups; then the rules decide without them.
func TestUntoldKeepsForAWhile(t *testing.T) {
	for what, tc := range map[string]struct {
		bySweep bool
	}{"by a sign-in": {false}, "by itself": {true}} {
		t.Run(what, func(t *testing.T) {
			s, c := newTest(t)
			o := theirs("zoe")
			o.Role, o.Untold = RoleGuest, "there are too many"
			u := keeper(t, s, c, o)
			token, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
			if err != nil {
				t.Fatal(err)
			}
			until := c.now().Add(keptFor)
			kept, err := s.KeptUntold(t.Context())
			if err != nil || len(kept) != 1 || kept[0].Handle != "zoe" || kept[0].Role != RoleLead || kept[0].Then != RoleGuest || kept[0].Refused || !kept[0].Until.Equal(until) {
				t.Errorf("kept are %+v, %v", kept, err)
			}
			if p, err := s.Person(t.Context(), "zoe"); err != nil || p.Identities[0].KeptUntil == nil || !p.Identities[0].KeptUntil.Equal(until) || p.Identities[0].UntoldSince == nil {
				t.Errorf("the person: %+v, %v", p, err)
			}
			has := func(what string, role Role, groups string) {
				t.Helper()
				if u, err := s.ByID(t.Context(), u.ID); err != nil || u.Role != role || inGroups(t, s, u.ID) != groups {
					t.Errorf("%s: %+v in %q, %v", what, u, inGroups(t, s, u.ID), err)
				}
			}
			c.add(keptFor - time.Second)
			if err := s.settleUntold(t.Context()); err != nil {
				t.Fatal(err)
			}
			has("a second before", RoleLead, "vision*")
			c.add(time.Second)
			if !tc.bySweep {
				signIn(t, s, o)
			} else if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			has("after 30 days", RoleGuest, "")
			if _, err := s.SessionUser(t.Context(), token); err == nil {
				t.Error("the session of the lead goes on")
			}
			signIn(t, s, o)
			has("at the next sign-in", RoleGuest, "")
			if got := actionsOf(t, s); strings.Count(got, "identity.lapse zoe") != 1 {
				t.Error(got)
			}
			if kept, err := s.KeptUntold(t.Context()); err != nil || len(kept) != 0 {
				t.Errorf("still kept: %+v, %v", kept, err)
			}
			// Sent again, the groups count again.
			told := theirs("zoe")
			told.Role, told.Groups, told.Told = RoleLead, []OutsideGroup{{"vision", true}}, true
			signIn(t, s, told)
			has("told again", RoleLead, "vision*")
			signIn(t, s, o)
			has("left out again", RoleLead, "vision*")
		})
	}
}

// If the rules refuse people without groups, access ends after 30 days, but the account is not suspended for that.
func TestUntoldIsRefusedAfterAWhile(t *testing.T) {
	s, c := newTest(t)
	o := theirs("zoe")
	o.Role, o.Untold, o.Refused, o.Suspend = "", "there are too many", "The provider left the groups out.", true
	u := keeper(t, s, c, o)
	secret, _, err := s.CreateToken(t.Context(), u.ID, NewToken{Name: "laptop", Scope: ScopeRead, Days: 365})
	if err != nil {
		t.Fatal(err)
	}
	c.add(keptFor)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.TokenUser(t.Context(), secret, "", false); err == nil {
		t.Error("the access token goes on")
	}
	if u, err := s.ByID(t.Context(), u.ID); err != nil || u.Suspended || inGroups(t, s, u.ID) != "" {
		t.Errorf("%+v in %q, %v", u, inGroups(t, s, u.ID), err)
	}
	if _, err := s.SignInOutside(t.Context(), o, ""); !errors.Is(err, ErrNotAdmitted) {
		t.Errorf("came in: %v", err)
	}
}

// The lab's last admin stays admin, whatever a provider leaves out.
func TestUntoldLastAdminStays(t *testing.T) {
	s, c := newTest(t)
	told := theirs("zoe")
	told.Role, told.Told = RoleAdmin, true
	signIn(t, s, told)
	o := theirs("zoe")
	o.Role, o.Untold, o.Refused = "", "there are too many", "The provider left the groups out."
	signIn(t, s, o)
	c.add(keptFor)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u := signIn(t, s, o); u.Role != RoleAdmin {
		t.Errorf("%+v", u)
	}
}

// Nor does the lab's last admin go because the provider sends somebody else's groups.
func TestUntoldLastAdminStaysWithOthers(t *testing.T) {
	s, c := newTest(t)
	told := theirs("zoe")
	told.Role, told.Told = RoleAdmin, true
	signIn(t, s, told)
	o := theirs("zoe")
	o.Role, o.Untold, o.MayBeNone, o.Refused = "", "there is no claim", true, "You are in no group that may use this lab."
	signIn(t, s, o)
	c.add(time.Hour)
	ben := theirs("ben")
	ben.Told = true
	signIn(t, s, ben)
	if err := s.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if u := signIn(t, s, o); u.Role != RoleAdmin {
		t.Errorf("%+v", u)
	}
}

// What other rules decided, or those of a provider that is gone, is not applied after 30 days.
func TestUntoldByOtherRules(t *testing.T) {
	for name, rules := range map[string]map[string]string{"other rules": {theirs("zoe").Realm: "new"}, "no such provider": {}} {
		t.Run(name, func(t *testing.T) {
			s, c := newTest(t)
			s.UseRules(map[string]string{theirs("zoe").Realm: "old"})
			o := theirs("zoe")
			o.Role, o.Rules, o.Untold, o.Refused = "", "old", "there are too many", "The provider left the groups out."
			u := keeper(t, s, c, o)
			secret, _, err := s.CreateToken(t.Context(), u.ID, NewToken{Name: "laptop", Scope: ScopeRead, Days: 365})
			if err != nil {
				t.Fatal(err)
			}
			s.UseRules(rules)
			c.add(keptFor)
			if err := s.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.TokenUser(t.Context(), secret, "", false); err != nil {
				t.Error("the access token has ended:", err)
			}
		})
	}
}

// If two accounts have one subject in one realm, written in two ways, the one that was used last is found.
func TestNormalizeRealmsOfTwoAccounts(t *testing.T) {
	s, c := newTest(t)
	older, newer := theirs("same"), theirs("same")
	older.Realm, newer.Realm, newer.Username = "ldap:dc=a,dc=b", "ldap:dc=a, dc=b", "zoe-now"
	signIn(t, s, older)
	c.add(time.Hour)
	u := signIn(t, s, newer)
	for range 2 { // it runs at each start
		if err := s.NormalizeRealms(t.Context(), func(realm string) string { return strings.ReplaceAll(realm, ", ", ",") }); err != nil {
			t.Fatal(err)
		}
	}
	newer.Realm = "ldap:dc=a,dc=b"
	if in := signIn(t, s, newer); in.ID != u.ID {
		t.Errorf("signed in as %+v, not %+v", in, u)
	}
}

// Entries that earlier versions wrote are still understood.
func TestUntoldInOldEntries(t *testing.T) {
	got, ok := UntoldIn(audit.Entry{Action: "sign-in.failed", Detail: "uni, eve: not admitted by the rules; what the " +
		"rules look at was not told: no claim"})
	if !ok || got.Provider != "uni" || got.Username != "eve" || got.Why != "no claim" {
		t.Errorf("%+v, %v", got, ok)
	}
}
