package users

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
)

// theirs is somebody at a provider whom the rules let in.
func theirs(subject string) Outside {
	return Outside{Provider: "university", Title: "Example University", Realm: "https://id.example.org", Subject: subject,
		Username: subject + "@example.org", Name: "Somebody " + subject, Email: subject + "@example.org", Role: RoleMember, Create: true}
}

func signIn(t *testing.T, s *Service, o Outside) User {
	t.Helper()
	u, err := s.SignInOutside(t.Context(), o, "192.0.2.1")
	if err != nil {
		t.Fatalf("sign in %s: %v", o.Subject, err)
	}
	return u
}

func inGroups(t *testing.T, s *Service, id int64) string {
	t.Helper()
	list, err := s.Memberships(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range list {
		if m.Lead {
			m.Group += "*"
		}
		out = append(out, m.Group)
	}
	return strings.Join(out, ",")
}

func actionsOf(t *testing.T, s *Service) string {
	t.Helper()
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range slices.Backward(log) {
		out = append(out, e.Actor+" "+e.Action+" "+e.Target)
	}
	return strings.Join(out, ", ")
}

func TestSignInOutsideMakesAnAccountOnce(t *testing.T) {
	s, _ := newTest(t)
	o := theirs("zoe")
	u := signIn(t, s, o)
	if u.Handle != "zoe" || u.Name != "Somebody zoe" || u.Email != "zoe@example.org" || u.Role != RoleMember || u.HasPassword {
		t.Errorf("made %+v", u)
	}
	// The subject tells who it is, whatever else changes.
	o.Username, o.Name, o.Email = "zoe.new@example.org", "Zoë", "new@example.org"
	again := signIn(t, s, o)
	if again.ID != u.ID || again.Name != u.Name || again.Email != u.Email {
		t.Errorf("the second time %+v", again)
	}
	p, err := s.Person(t.Context(), "zoe")
	if err != nil || len(p.Identities) != 1 || p.Identities[0].Username != "zoe.new@example.org" || p.Identities[0].Used == nil {
		t.Errorf("identities %+v, %v", p.Identities, err)
	}
	if got := actionsOf(t, s); got != "zoe identity.join zoe, zoe sign-in zoe" {
		t.Error(got)
	}
	// The same subject of another provider is somebody else.
	other := theirs("zoe")
	other.Realm = "https://evil.example"
	_, err = s.SignInOutside(t.Context(), other, "")
	var needed *HandleNeeded
	if !errors.As(err, &needed) || needed.Suggest != "zoe-2" {
		t.Errorf("another provider's zoe: %v", err)
	}
}

// An equal e-mail address or name is no reason to let somebody into an account.
func TestNothingIsLinkedByItself(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleAdmin)
	if err := s.SetProfile(t.Context(), ada.ID, "Ada", "ada@example.org"); err != nil {
		t.Fatal(err)
	}
	_, err := s.SignInOutside(t.Context(), theirs("ada"), "")
	var needed *HandleNeeded
	if !errors.As(err, &needed) || needed.Wanted != "ada" || needed.Suggest != "ada-2" {
		t.Fatalf("got %v", err)
	}
	wantErr(t, err, ErrHandleTaken)
	_, err = s.JoinOutside(t.Context(), needed.Outside, "ada", "")
	wantErr(t, err, ErrHandleTaken)
	_, err = s.JoinOutside(t.Context(), needed.Outside, "Bad Name", "")
	wantErr(t, err, ErrHandleInvalid)
	u, err := s.JoinOutside(t.Context(), needed.Outside, "countess", "")
	if err != nil || u.ID == ada.ID || u.Role != RoleMember {
		t.Errorf("joined as %+v, %v", u, err)
	}
	if again, err := s.JoinOutside(t.Context(), needed.Outside, "second", ""); err != nil || again.ID != u.ID {
		t.Errorf("joining twice made %+v, %v", again, err)
	}
}

func TestHandlesOfOutsidePeople(t *testing.T) {
	s, _ := newTest(t)
	for username, want := range map[string]string{
		"root": "", "admin-x": "admin-x", "Ada.Lovelace@example.org": "ada-lovelace", "kube-x": "", "żółć": "zolc", "17": "user-17",
		"a-name-that-is-much-longer-than-thirty-letters": "a-name-that-is-much-longer-tha",
	} {
		o := theirs("s " + username)
		o.Username = username
		u, err := s.SignInOutside(t.Context(), o, "")
		var needed *HandleNeeded
		switch {
		case want == "" && errors.As(err, &needed):
			if CheckHandle(needed.Suggest) != nil {
				t.Errorf("%s: suggests %q", username, needed.Suggest)
			}
		case err != nil || u.Handle != want:
			t.Errorf("%s becomes %q, %v; want %q", username, u.Handle, err, want)
		}
	}
	// What cannot be shown or sent to is left out, and keeps nobody out.
	o := theirs("odd")
	o.Name, o.Email = "a\u202eb\x00", "not an address"
	if u := signIn(t, s, o); u.Name != "odd" || u.Email != "" {
		t.Errorf("made %+v", u)
	}
}

func TestWhoMayNotComeIn(t *testing.T) {
	s, _ := newTest(t)
	o := theirs("zoe")
	o.Create = false
	_, err := s.SignInOutside(t.Context(), o, "")
	wantErr(t, err, ErrNoAccount)
	o = theirs("zoe")
	o.Refused = "Your account at Example University is not in a group that may use this lab."
	_, err = s.SignInOutside(t.Context(), o, "")
	wantErr(t, err, ErrNotAdmitted)
	if n, _ := s.List(t.Context()); len(n) != 0 {
		t.Errorf("made %+v", n)
	}
	u := signIn(t, s, theirs("zoe"))
	if err := s.Suspend(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignInOutside(t.Context(), theirs("zoe"), "")
	wantErr(t, err, ErrSuspended)
	if err := s.Remove(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	_, err = s.SignInOutside(t.Context(), theirs("zoe"), "")
	wantErr(t, err, ErrNotAdmitted)
	if err := s.Purge(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	// Deleted for good: they are new, and the name stays given.
	_, err = s.SignInOutside(t.Context(), theirs("zoe"), "")
	wantErr(t, err, ErrHandleTaken)
	if _, err := s.SignInOutside(t.Context(), Outside{Provider: "x", Create: true}, ""); err == nil {
		t.Error("nobody signed in")
	}
}

// A role of the rules follows them at once; one that was given by hand stays.
func TestRolesByRulesAndByHand(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "boss", RoleAdmin)
	o := theirs("zoe")
	u := signIn(t, s, o)
	token, err := s.StartSession(t.Context(), u.ID, SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	o.Role = RoleAdmin
	if u = signIn(t, s, o); u.Role != RoleAdmin {
		t.Errorf("role %s", u.Role)
	}
	if _, err := s.SessionUser(t.Context(), token); !errors.Is(err, ErrSignedOut) {
		t.Errorf("a session with the old role: %v", err)
	}
	o.Role = RoleGuest
	if u = signIn(t, s, o); u.Role != RoleGuest {
		t.Errorf("role %s", u.Role)
	}
	if err := s.Change(t.Context(), u.ID, Change{Role: new(RoleLead)}); err != nil {
		t.Fatal(err)
	}
	if u = signIn(t, s, o); u.Role != RoleLead {
		t.Errorf("the role that was given by hand became %s", u.Role)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1})
	if err != nil || !strings.Contains(log[0].Detail, "whose rules give the role guest; the role lead was given by hand") {
		t.Errorf("%+v, %v", log, err)
	}
	if err := s.RoleByRules(t.Context(), u.ID); err != nil {
		t.Fatal(err)
	}
	if u = signIn(t, s, o); u.Role != RoleGuest {
		t.Errorf("left to the rules, the role is %s", u.Role)
	}
	o.Role = "" // the rules say nothing of roles any more
	if u = signIn(t, s, o); u.Role != RoleGuest {
		t.Errorf("role %s", u.Role)
	}
	// Rules do not take the lab its last admin.
	one, _ := newTest(t)
	o = theirs("solo")
	o.Role = RoleAdmin
	signIn(t, one, o)
	o.Role = RoleMember
	if u := signIn(t, one, o); u.Role != RoleAdmin {
		t.Errorf("the last admin became %s", u.Role)
	}
}

func TestGroupsByRulesAndByHand(t *testing.T) {
	s, _ := newTest(t)
	for _, g := range []string{"vision", "class", "staff"} {
		if _, err := s.CreateGroup(t.Context(), g, ""); err != nil {
			t.Fatal(err)
		}
	}
	o := theirs("zoe")
	o.Role, o.Groups = RoleLead, []OutsideGroup{{"vision", true}, {"class", false}, {"vision", false}, {"nowhere", false}}
	u := signIn(t, s, o)
	if got := inGroups(t, s, u.ID); got != "class,vision*" {
		t.Errorf("in %s", got)
	}
	if err := s.SetMember(t.Context(), "staff", u.ID, false); err != nil {
		t.Fatal(err)
	}
	o.Groups = []OutsideGroup{{"vision", false}, {"staff", false}}
	signIn(t, s, o)
	if got := inGroups(t, s, u.ID); got != "staff,vision" {
		t.Errorf("in %s", got)
	}
	o.Groups = nil
	signIn(t, s, o)
	if got := inGroups(t, s, u.ID); got != "staff" {
		t.Errorf("what was done by hand is %s", got)
	}
	// Taken out by hand, they come back: the provider's group is what counts.
	o.Groups = []OutsideGroup{{"class", false}}
	signIn(t, s, o)
	if err := s.RemoveMember(t.Context(), "class", u.ID); err != nil {
		t.Fatal(err)
	}
	signIn(t, s, o)
	if got := inGroups(t, s, u.ID); got != "class,staff" {
		t.Errorf("in %s", got)
	}
	// A role by hand that leads nothing.
	if err := s.Change(t.Context(), u.ID, Change{Role: new(RoleGuest)}); err != nil {
		t.Fatal(err)
	}
	o.Groups = []OutsideGroup{{"vision", true}}
	signIn(t, s, o)
	if got := inGroups(t, s, u.ID); got != "staff,vision" {
		t.Errorf("in %s", got)
	}
}

// Whom the rules refuse loses what they gave, at once.
func TestRefusedLater(t *testing.T) {
	s, _ := newTest(t)
	if _, err := s.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	o := theirs("zoe")
	o.Groups = []OutsideGroup{{"vision", false}}
	u := signIn(t, s, o)
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
	device, err := s.AskDevice(t.Context(), DeviceAsk{Client: "laptop", Scope: ScopeRead, Days: 30})
	if err == nil {
		_, err = s.DecideDevice(t.Context(), u, device.UserCode, true, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	var heard []int64
	s.OnSessionsEnded(func(id int64, _ string) { heard = append(heard, id) })
	o.Refused = "Not in a group that may use this lab."
	_, err = s.SignInOutside(t.Context(), o, "192.0.2.1")
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.UserID != u.ID || refusal.Handle != "zoe" || refusal.Suspend {
		t.Fatalf("got %+v", err)
	}
	if _, err := s.SessionUser(t.Context(), token); !errors.Is(err, ErrSignedOut) || len(heard) != 1 {
		t.Errorf("the session: %v, heard of %v", err, heard)
	}
	if _, _, err := s.TokenUser(t.Context(), secret, "", false); !errors.Is(err, ErrTokenRefused) {
		t.Errorf("the access token: %v", err)
	}
	if _, err := s.SignInForFilesByKey(t.Context(), "zoe", key.Marshal(), "192.0.2.1"); !errors.Is(err, ErrSSHKeyNotFound) {
		t.Errorf("the SSH key: %v", err)
	}
	if _, _, _, err := s.DeviceToken(t.Context(), device.Code, ""); !errors.Is(err, ErrDeviceUnknown) {
		t.Errorf("the program that was confirmed and had not come for its token: %v", err)
	}
	if got := inGroups(t, s, u.ID); got != "" {
		t.Errorf("in %s", got)
	}
	if got := actionsOf(t, s); !strings.HasSuffix(got, "system group.member-remove zoe, system sign-in.failed zoe") {
		t.Error(got)
	}
	// An account that stands on its own password stays signed in.
	ben := create(t, s, "ben", RoleMember)
	if err := s.LinkOutside(t.Context(), ben.ID, theirs("benjamin")); err != nil {
		t.Fatal(err)
	}
	if token, err = s.StartSession(t.Context(), ben.ID, SessionMeta{}); err != nil {
		t.Fatal(err)
	}
	o = theirs("benjamin")
	o.Refused = "No."
	if _, err := s.SignInOutside(t.Context(), o, ""); !errors.Is(err, ErrNotAdmitted) {
		t.Error(err)
	}
	if _, err := s.SessionUser(t.Context(), token); err != nil {
		t.Errorf("ben's session: %v", err)
	}
}

func TestLinkAndUnlink(t *testing.T) {
	s, _ := newTest(t)
	ada, ben := create(t, s, "ada", RoleAdmin), create(t, s, "ben", RoleMember)
	if err := s.LinkOutside(t.Context(), ada.ID, theirs("countess")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.LinkOutside(t.Context(), ada.ID, theirs("countess")), ErrIdentityExists)
	wantErr(t, s.LinkOutside(t.Context(), ben.ID, theirs("countess")), ErrIdentityTaken)
	wantErr(t, s.LinkOutside(t.Context(), ada.ID, theirs("other")), ErrIdentityExists)
	// What belonged to a removed account is to be had once that is gone for good.
	gone := create(t, s, "gone", RoleMember)
	if err := errors.Join(s.LinkOutside(t.Context(), gone.ID, theirs("former")), s.Remove(t.Context(), gone.ID)); err != nil {
		t.Fatal(err)
	}
	if err := s.LinkOutside(t.Context(), ben.ID, theirs("former")); !errors.Is(err, ErrIdentityTaken) || !strings.Contains(err.Error(), "that was removed") {
		t.Error(err)
	}
	if err := errors.Join(s.Purge(t.Context(), gone.ID), s.LinkOutside(t.Context(), create(t, s, "again", RoleMember).ID, theirs("former"))); err != nil {
		t.Fatal(err)
	}
	refused := theirs("third")
	refused.Refused = "No."
	if err := s.LinkOutside(t.Context(), ben.ID, refused); !errors.Is(err, ErrNotAdmitted) {
		t.Error(err)
	}
	u := signIn(t, s, theirs("countess"))
	if u.ID != ada.ID || u.Role != RoleAdmin {
		t.Errorf("a linked account signs in as %+v", u)
	}
	list, err := s.Identities(t.Context(), ada.ID)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	_, err = s.Unlink(t.Context(), ben.ID, list[0].ID, false)
	wantErr(t, err, ErrIdentityNotFound)
	if gone, err := s.Unlink(t.Context(), ada.ID, list[0].ID, false); err != nil || gone.Username != "countess@example.org" {
		t.Errorf("%+v, %v", gone, err)
	}
	_, err = s.SignInOutside(t.Context(), theirs("countess"), "")
	if u, _ := s.ByHandle(t.Context(), "countess"); err != nil || u.ID == ada.ID {
		t.Errorf("unlinked, it signs in as %+v, %v", u, err)
	}
	zoe := signIn(t, s, theirs("zoe"))
	list, err = s.Identities(t.Context(), zoe.ID)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Unlink(t.Context(), zoe.ID, list[0].ID, false)
	wantErr(t, err, ErrLastWayIn)
	if _, err = s.Unlink(t.Context(), zoe.ID, list[0].ID, true); err != nil {
		t.Error(err)
	}
}

func TestConfirmPassword(t *testing.T) {
	s, _ := newTest(t)
	ada := create(t, s, "ada", RoleMember)
	if err := s.ConfirmPassword(t.Context(), ada.ID, goodPassword, ""); err != nil {
		t.Error(err)
	}
	wantErr(t, s.ConfirmPassword(t.Context(), ada.ID, "guess", ""), ErrBadCredentials)
	for range 30 {
		_ = s.ConfirmPassword(t.Context(), ada.ID, "guess", "")
	}
	wantErr(t, s.ConfirmPassword(t.Context(), ada.ID, goodPassword, ""), ErrTooManyTries)
	zoe := signIn(t, s, theirs("zoe"))
	if err := s.ConfirmPassword(t.Context(), zoe.ID, "", ""); err != nil {
		t.Errorf("without a password there is none to confirm: %v", err)
	}
}

// book is a directory with names and passwords.
type book struct {
	people map[string]string
	edit   func(*Outside) // what the rules make of somebody; nil = theirs
	away   bool
	asked  []string
}

// Whom the rules want suspended is so, whichever door they came to: page and API, or files.
func TestRefusedAndSuspended(t *testing.T) {
	for way, try := range map[string]func(s *Service) error{
		"page": func(s *Service) error {
			_, err := s.Authenticate(t.Context(), "zoe", "zoe's own", "192.0.2.1")
			return err
		},
		"files": func(s *Service) error {
			_, err := s.SignInForFiles(t.Context(), "zoe", "zoe's own", "192.0.2.1")
			return err
		},
	} {
		s, _ := newTest(t)
		create(t, s, "ada", RoleAdmin)
		b := &book{people: map[string]string{"zoe": "zoe's own"}}
		s.UseDirectories(b)
		if err := try(s); err != nil {
			t.Fatalf("%s: %v", way, err)
		}
		b.edit = func(o *Outside) { o.Refused, o.Suspend = "Not in a group that may use this lab.", true }
		var asked []int64
		s.SuspendWith(func(ctx context.Context, id int64) error {
			asked = append(asked, id)
			return s.Suspend(ctx, id)
		})
		if err := try(s); !errors.Is(err, ErrNotAdmitted) {
			t.Errorf("%s: %v", way, err)
		}
		zoe, err := s.ByHandle(t.Context(), "zoe")
		if err != nil || !zoe.Suspended || len(asked) != 1 || asked[0] != zoe.ID {
			t.Errorf("%s: %+v, %v; asked to suspend %v", way, zoe, err, asked)
		}
		if got := actionsOf(t, s); !strings.HasSuffix(got, "system sign-in.failed zoe, system user.suspend zoe") {
			t.Errorf("%s: %s", way, got)
		}
		if err := try(s); !errors.Is(err, ErrSuspended) || len(asked) != 1 {
			t.Errorf("%s, once more: %v, %v", way, err, asked)
		}
	}
	// The lab's last admin is refused, and stays.
	s, _ := newTest(t)
	o := theirs("zoe")
	o.Role = RoleAdmin
	u := signIn(t, s, o)
	o.Refused, o.Suspend = "Not in a group that may use this lab.", true
	if _, err := s.SignInOutside(t.Context(), o, ""); !errors.Is(err, ErrNotAdmitted) {
		t.Error(err)
	}
	if u, err := s.ByID(t.Context(), u.ID); err != nil || u.Suspended {
		t.Errorf("%+v, %v", u, err)
	}
	if got := actionsOf(t, s); strings.Contains(got, "user.suspend") {
		t.Error(got)
	}
}

func (b *book) Title() string { return "Example Directory" }
func (b *book) SignIn(_ context.Context, name, password string) (*Outside, error) {
	b.asked = append(b.asked, name)
	if b.away {
		return nil, errors.New("connection refused")
	}
	if b.people[name] != password {
		return nil, nil
	}
	o := theirs(name)
	o.Provider, o.Realm = "directory", "ldap:ou=people"
	if b.edit != nil {
		b.edit(&o)
	}
	return &o, nil
}

func TestAuthenticateWithADirectory(t *testing.T) {
	s, c := newTest(t)
	create(t, s, "ada", RoleAdmin)
	b := &book{people: map[string]string{"zoe": "zoe's own", "ada": "another ada's"}}
	s.UseDirectories(b)
	if u, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1"); err != nil || u.Handle != "ada" || len(b.asked) != 0 {
		t.Errorf("%+v, %v; the directory was asked for %v", u, err, b.asked)
	}
	u, err := s.Authenticate(t.Context(), " zoe ", "zoe's own", "192.0.2.1")
	if err != nil || u.Handle != "zoe" {
		t.Errorf("%+v, %v", u, err)
	}
	_, err = s.Authenticate(t.Context(), "zoe", "wrong", "192.0.2.1")
	wantErr(t, err, ErrBadCredentials)
	b.people["zoe"] = ""
	for _, empty := range []string{"", strings.Repeat("x", maxPassword+1)} {
		_, err = s.Authenticate(t.Context(), "zoe", empty, "192.0.2.1")
		wantErr(t, err, ErrBadCredentials)
	}
	// Somebody there who is called like an account here comes not into that one.
	_, err = s.Authenticate(t.Context(), "ada", "another ada's", "192.0.2.1")
	wantErr(t, err, ErrHandleTaken)

	// One that does not answer keeps nobody out who has a password here, nor locks an account.
	b.away = true
	for range 30 {
		_, err = s.Authenticate(t.Context(), "zoe", "zoe's own", fmt.Sprintf("198.51.100.%d", c.now().Second()))
		wantErr(t, err, ErrDirectoryAway)
		c.add(time.Second)
	}
	if u, err := s.Authenticate(t.Context(), "ada", goodPassword, "192.0.2.1"); err != nil || u.Handle != "ada" {
		t.Errorf("%+v, %v", u, err)
	}
	b.away, b.people["zoe"] = false, "zoe's own"
	if _, err := s.Authenticate(t.Context(), "zoe", "zoe's own", "192.0.2.1"); err != nil {
		t.Errorf("after the directory came back: %v", err)
	}
}

// Guessing at a directory is limited as guessing here is, and signing in there gives no tries back at an account here.
func TestDirectoryTriesAreLimited(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleAdmin)
	b := &book{people: map[string]string{"ada": "another ada's"}}
	s.UseDirectories(b)
	var err error
	for range 40 {
		_, err = s.Authenticate(t.Context(), "zoe", "guess", "192.0.2.1")
	}
	wantErr(t, err, ErrTooManyTries)
	for i := 0; ; i++ {
		if i == 60 {
			t.Fatal("signing in with the directory gives tries back")
		}
		// Each time from elsewhere, so that it is the account's own limit that is met.
		from := fmt.Sprintf("198.51.100.%d", i)
		_, err := s.Authenticate(t.Context(), "ada", "guess", from)
		if errors.Is(err, ErrTooManyTries) {
			break
		}
		_, _ = s.Authenticate(t.Context(), "ada", "another ada's", from)
	}
}

func TestLimitOutside(t *testing.T) {
	s, _ := newTest(t)
	for range 200 {
		done, err := s.LimitOutside("", "192.0.2.1")
		if err != nil {
			t.Fatal(err)
		}
		done(false)
	}
	var err error
	for range 60 {
		var done func(bool)
		if done, err = s.LimitOutside("", "192.0.2.1"); err == nil {
			done(true)
		}
	}
	wantErr(t, err, ErrTooManyTries)
	// A class has one address: one browser must not keep the others out.
	for range 150 {
		if done, err := s.LimitOutside("one browser", "192.0.2.3"); err == nil {
			done(true)
		}
	}
	_, err = s.LimitOutside("one browser", "192.0.2.3")
	wantErr(t, err, ErrTooManyTries)
	if done, err := s.LimitOutside("another browser", "192.0.2.3"); err != nil {
		t.Error(err)
	} else {
		done(false)
	}
	if done, err := s.LimitOutside("", "192.0.2.2"); err != nil {
		t.Error(err)
	} else {
		done(false)
	}
}
