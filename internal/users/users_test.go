package users

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/store"
)

// quick keeps the tests fast; one test measures the real parameters.
var quick = argon2id.Params{Memory: 64, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32}

const goodPassword = "violet tractor 91 hums"

// clock is a time that tests move by hand.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func newTest(t *testing.T) (*Service, *clock) {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	c := &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	return newService(st.DB(), quick, c.now), c
}

func create(t *testing.T, s *Service, handle string, role Role) User {
	t.Helper()
	u, err := s.Create(t.Context(), NewUser{Handle: handle, Role: role})
	if err != nil {
		t.Fatalf("create %s: %v", handle, err)
	}
	if err := s.SetPassword(t.Context(), u.ID, goodPassword); err != nil {
		t.Fatalf("password for %s: %v", handle, err)
	}
	u.HasPassword = true
	return u
}

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("got %v, want %v", err, want)
	}
	if want == nil {
		return
	}
	text, ok := Message(err)
	if !ok || !strings.HasSuffix(text, ".") || text[0] < 'A' || text[0] > 'Z' {
		t.Errorf("%q is no sentence for people", err)
	}
}

func TestCreate(t *testing.T) {
	s, c := newTest(t)
	u, err := s.Create(t.Context(), NewUser{Handle: "ada", Name: " Ada Lovelace ", Email: "ada@example.org", Role: RoleLead})
	if err != nil {
		t.Fatal(err)
	}
	want := User{ID: u.ID, Handle: "ada", Name: "Ada Lovelace", Email: "ada@example.org", Role: RoleLead, UID: 20000, Created: c.now()}
	if u != want {
		t.Errorf("got %+v\nwant %+v", u, want)
	}
	for _, find := range []func() (User, error){
		func() (User, error) { return s.ByID(t.Context(), u.ID) },
		func() (User, error) { return s.ByHandle(t.Context(), "ada") },
		func() (User, error) { return s.ByHandle(t.Context(), " Ada ") },
	} {
		if got, err := find(); err != nil || got != want {
			t.Errorf("found %+v, %v", got, err)
		}
	}
	second := create(t, s, "bob", "")
	if second.UID != 20001 || second.Role != RoleMember || second.Name != "bob" {
		t.Errorf("second user: %+v", second)
	}
	list, err := s.List(t.Context())
	if err != nil || len(list) != 2 || list[0].Handle != "ada" || !list[1].HasPassword {
		t.Errorf("list: %+v, %v", list, err)
	}
	_, err = s.ByID(t.Context(), 99)
	wantErr(t, err, ErrNotFound)
	_, err = s.ByHandle(t.Context(), "' OR 1=1 --")
	wantErr(t, err, ErrNotFound)
}

func TestCreateRefuses(t *testing.T) {
	s, _ := newTest(t)
	create(t, s, "ada", RoleMember)
	for _, tc := range []struct {
		name string
		new  NewUser
		want error
		says string
	}{
		{"taken", NewUser{Handle: "ada"}, ErrHandleTaken, "ada"},
		{"differs by case only", NewUser{Handle: "Ada"}, ErrHandleTaken, "only by case"},
		{"upper case, free", NewUser{Handle: "Bob"}, ErrHandleInvalid, "choose bob"},
		{"path", NewUser{Handle: "../x"}, ErrHandleInvalid, "user-x"},
		{"letters with marks", NewUser{Handle: "Ä b"}, ErrHandleInvalid, "a-b"},
		{"300 characters", NewUser{Handle: strings.Repeat("x", 300)}, ErrHandleInvalid, "2 to 30"},
		{"role", NewUser{Handle: "bob", Role: "king"}, ErrRoleInvalid, "guest"},
		{"e-mail", NewUser{Handle: "bob", Email: "Bob <bob@example.org>"}, ErrEmailInvalid, "@"},
		{"name with a control character", NewUser{Handle: "bob", Name: "Bob\x1b[2J"}, ErrNameInvalid, "again"},
		{"name that reverses text", NewUser{Handle: "bob", Name: "a\u202eb"}, ErrNameInvalid, "again"},
		{"endless name", NewUser{Handle: "bob", Name: strings.Repeat("n", 81)}, ErrNameInvalid, "80"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := s.Create(t.Context(), tc.new)
			wantErr(t, err, tc.want)
			if !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%q does not mention %q", err, tc.says)
			}
			if len(err.Error()) > 300 {
				t.Errorf("a sentence of %d characters", len(err.Error()))
			}
		})
	}
	if list, err := s.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("refused users were created: %+v, %v", list, err)
	}
}

func TestCheckHandle(t *testing.T) {
	for handle, ok := range map[string]bool{
		"ab": true, "a1": true, "a-b": true, "a-1-b": true, "admin": true, "ada-lovelace": true, strings.Repeat("a", 30): true,
		"": false, "a": false, "1a": false, "-a": false, "a-": false, "a--b": false, "a_b": false, "a.b": false, "a b": false,
		"A": false, "Ab": false, "ä1": false, "a\n": false, "a\nb": false, "ab\x00": false, "а1": false /* Cyrillic */, "a/b": false,
		"../x": false, strings.Repeat("a", 31): false, strings.Repeat("a-", 29) + "a": false,
		"hub": false, "gpulab": false, "root": false, "system": false, "api": false, "kube": false, "kube-system": false,
		"gpulab-system": false, "k3s": false, "default": false, "ROOT": false,
	} {
		err := CheckHandle(handle)
		if (err == nil) != ok {
			t.Errorf("CheckHandle(%q) = %v, want ok = %v", handle, err, ok)
		}
		if err != nil {
			wantErr(t, err, ErrHandleInvalid)
		}
	}
}

func TestSuggestHandle(t *testing.T) {
	for name, want := range map[string]string{
		"Ä b": "a-b", "Ada Lovelace": "ada-lovelace", "Søren Ægir": "soren-aegir", "Groß": "gross", "O'Neill": "oneill",
		"  --x--  ": "user-x", "../x": "user-x", "7 of 9": "user-7-of-9", "": "user-1", "李雷": "user-1", "root": "my-root",
		"ada@example.org": "ada-example-org", "Ｆｕｌｌ": "full", strings.Repeat("ab ", 40): "ab-ab-ab-ab-ab-ab-ab-ab-ab-ab",
		"kube-system": "my-kube-system",
	} {
		if got := SuggestHandle(name); got != want {
			t.Errorf("SuggestHandle(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzSuggestHandle(f *testing.F) {
	f.Add("Ä b")
	f.Add(strings.Repeat("-a", 99))
	f.Add("kube-" + strings.Repeat("a", 40))
	f.Add("kube 000000000000000000000 0") // cut at a hyphen after "my-" came before it
	f.Fuzz(func(t *testing.T, name string) {
		if err := CheckHandle(SuggestHandle(name)); err != nil {
			t.Errorf("SuggestHandle(%q) = %q: %v", name, SuggestHandle(name), err)
		}
	})
}

func TestUIDsRunOut(t *testing.T) {
	s, _ := newTest(t)
	if _, err := s.db.Exec("INSERT INTO users (handle, role, uid, created_at) VALUES ('last-but-one', 'member', 59998, 0)"); err != nil {
		t.Fatal(err)
	}
	if u := create(t, s, "last", RoleMember); u.UID != LastUID {
		t.Errorf("UID %d", u.UID)
	}
	_, err := s.Create(t.Context(), NewUser{Handle: "too-late"})
	wantErr(t, err, ErrUIDsExhausted)
}

func TestConcurrentCreatesGetDifferentUIDs(t *testing.T) {
	s, _ := newTest(t)
	var wg sync.WaitGroup
	uids := make([]int, 12)
	for i := range uids {
		wg.Go(func() {
			u, err := s.Create(t.Context(), NewUser{Handle: fmt.Sprintf("user-%d", i)})
			if err != nil {
				t.Error(err)
			}
			uids[i] = u.UID
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, uid := range uids {
		if seen[uid] {
			t.Errorf("UID %d twice", uid)
		}
		seen[uid] = true
	}
}

func TestLastAdminStays(t *testing.T) {
	s, _ := newTest(t)
	admin := create(t, s, "ada", RoleAdmin)
	take := map[string]func(id int64) error{
		"remove":  func(id int64) error { return s.Remove(t.Context(), id) },
		"suspend": func(id int64) error { return s.Suspend(t.Context(), id) },
		"demote":  func(id int64) error { return s.Change(t.Context(), id, Change{Role: new(RoleMember)}) },
	}
	for name, f := range take {
		t.Run(name, func(t *testing.T) { wantErr(t, f(admin.ID), ErrLastAdmin) })
	}
	// An invited admin who never chose a password cannot take over.
	invited, err := s.Create(t.Context(), NewUser{Handle: "inga", Role: RoleAdmin})
	if err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.Remove(t.Context(), admin.ID), ErrLastAdmin)
	if err := s.Remove(t.Context(), invited.ID); err != nil {
		t.Errorf("an invited admin cannot be removed: %v", err)
	}
	second := create(t, s, "bob", RoleAdmin)
	if n, err := countAdmins(t.Context(), s); err != nil || n != 2 {
		t.Errorf("%d admins, %v", n, err)
	}
	if err := s.Suspend(t.Context(), admin.ID); err != nil {
		t.Fatal(err)
	}
	wantErr(t, s.Remove(t.Context(), second.ID), ErrLastAdmin)
	if err := s.Resume(t.Context(), admin.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), second.ID); err != nil {
		t.Error(err)
	}
}

// countAdmins counts the admins who are neither suspended nor removed.
func countAdmins(ctx context.Context, s *Service) (int, error) {
	var n int
	err := s.db.QueryRowContext(ctx,
		"SELECT count(*) FROM users WHERE role = 'admin' AND suspended_at IS NULL AND removed_at IS NULL").Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count admins: %w", err)
	}
	return n, nil
}

// Two admins who remove each other at the same moment must not both succeed.
func TestAdminsCannotRemoveEachOtherAtOnce(t *testing.T) {
	for range 5 {
		s, _ := newTest(t)
		a, b := create(t, s, "ada", RoleAdmin), create(t, s, "bob", RoleAdmin)
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i, id := range []int64{a.ID, b.ID} {
			wg.Go(func() { errs[i] = s.Remove(t.Context(), id) })
		}
		wg.Wait()
		if n, err := countAdmins(t.Context(), s); err != nil || n != 1 {
			t.Fatalf("%d admins left, %v; %v", n, err, errs)
		}
	}
}

func TestSetProfile(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	if err := s.SetProfile(t.Context(), u.ID, "Ada L.", "ada@example.org"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ByID(t.Context(), u.ID); err != nil || got.Name != "Ada L." || got.Email != "ada@example.org" {
		t.Errorf("%+v, %v", got, err)
	}
	wantErr(t, s.SetProfile(t.Context(), u.ID, "x\ny", ""), ErrNameInvalid)
	wantErr(t, s.SetProfile(t.Context(), 99, "x", ""), ErrNotFound)
}

func TestAudit(t *testing.T) {
	s, c := newTest(t)
	if err := s.AuditLog().Record(t.Context(),
		audit.Entry{Actor: "ada", Action: "user.remove", Target: "eve\x1b[31m", Detail: strings.Repeat("x", 5000),
			Remote: "192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	c.add(time.Second)
	if err := s.AuditLog().Record(t.Context(), audit.Entry{Actor: "root", Action: "user.add"}); err != nil {
		t.Fatal(err)
	}
	log, err := s.AuditLog().List(t.Context(), audit.Filter{Limit: 10})
	if err != nil || len(log) != 2 || log[0].Action != "user.add" || !log[0].At.Equal(c.now()) {
		t.Fatalf("%+v, %v", log, err)
	}
	if log[1].Target != "eve[31m" || len(log[1].Detail) != 1000 {
		t.Errorf("not tidied: %q, %d", log[1].Target, len(log[1].Detail))
	}
	if log, _ := s.AuditLog().List(t.Context(), audit.Filter{Limit: 1}); len(log) != 1 {
		t.Errorf("limit ignored: %d", len(log))
	}
}

func TestCancelledContextIsOurError(t *testing.T) {
	s, _ := newTest(t)
	u := create(t, s, "ada", RoleMember)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.ByID(ctx, u.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("ByID: %v", err)
	}
	_, err := s.Authenticate(ctx, "ada", goodPassword, "")
	if _, forPeople := Message(err); !errors.Is(err, context.Canceled) || forPeople {
		t.Errorf("Authenticate: %v", err)
	}
	if err := s.Run(ctx); err != nil {
		t.Errorf("Run: %v", err)
	}
}
