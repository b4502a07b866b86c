package nodes

import (
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
)

var door = []netip.AddrPort{netip.MustParseAddrPort("10.1.2.3:8444"), netip.MustParseAddrPort("[fd00::7]:8444")}

func newRegistry(t *testing.T) (*Registry, *Authority) {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	a, err := LoadAuthority(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return New(s.DB()), a
}

func TestCode(t *testing.T) {
	c := newCode(sha256.Sum256([]byte("authority")), door)
	text := c.String()
	for _, given := range []string{text, " " + text + "\n", "sudo gpulab join " + text, strings.ToUpper(text)} {
		got, err := ParseCode(given)
		if err != nil || got.String() != text || len(got.Addresses) != 2 || got.Addresses[1] != door[1] || got.Secret != c.Secret {
			t.Errorf("%q: %+v, %v", given, got, err)
		}
	}
	for cut := range len(text) {
		if _, err := ParseCode(text[:cut]); !errors.Is(err, ErrCode) {
			t.Fatalf("cut off after %d: %v", cut, err)
		}
	}
	for i := range text {
		changed := []byte(text)
		if changed[i]++; changed[i] == 'z'+1 {
			changed[i] = 'a'
		}
		if _, err := ParseCode(string(changed)); err == nil {
			t.Errorf("%q is taken, whose character %d is another", changed, i)
		}
	}
}

// application is for a code, with a key of its own.
func application(t *testing.T, c Code, name string) (Application, *x509.CertificateRequest) {
	t.Helper()
	key, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := ParseRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := KeyHash(request.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return Application{CodeID: c.ID, Secret: c.Secret, KeyHash: hash, Name: name, Machine: "id of " + name, Address: "10.1.2.4", Version: "1", GPUs: "none"}, request
}

func TestJoin(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	now := time.Now()
	r.now = func() time.Time { return now }
	if open, err := r.Open(ctx); open || err != nil {
		t.Errorf("open with nobody invited: %v, %v", open, err)
	}
	invite := func() Code {
		t.Helper()
		c, expires, err := r.Invite(ctx, authority.Fingerprint(), door)
		if err != nil || !expires.Equal(now.Add(time.Hour)) {
			t.Fatal(expires, err)
		}
		return c
	}
	code := invite()
	if open, err := r.Open(ctx); !open || err != nil {
		t.Errorf("open with somebody invited: %v, %v", open, err)
	}
	a, request := application(t, code, "b")
	wrong := a
	wrong.Secret[0]++
	if _, _, err := r.Join(ctx, wrong); !errors.Is(err, ErrCodeUnknown) {
		t.Errorf("a guessed secret: %v", err)
	}
	wrong = a
	wrong.CodeID[0]++
	if _, _, err := r.Join(ctx, wrong); !errors.Is(err, ErrCodeUnknown) {
		t.Errorf("a guessed code: %v", err)
	}
	try := a
	try.Try = true
	if _, _, err := r.Join(ctx, try); err != nil {
		t.Error(err)
	}
	n, _, err := r.Join(ctx, a)
	if err != nil || n.Name != "b" {
		t.Fatal(n, err)
	}
	if again, _, err := r.Join(ctx, a); err != nil || again.ID != n.ID {
		t.Errorf("an interrupted join goes on: %+v, %v", again, err)
	}
	other, _ := application(t, code, "c")
	if _, _, err := r.Join(ctx, other); !errors.Is(err, ErrCodeUsed) {
		t.Errorf("a used code: %v", err)
	}
	late := invite()
	now = now.Add(time.Hour)
	other, _ = application(t, late, "c")
	if _, _, err := r.Join(ctx, other); !errors.Is(err, ErrCodeExpired) {
		t.Errorf("a code of an hour ago: %v", err)
	}

	certificate := func(request *x509.CertificateRequest, name string) *x509.Certificate {
		t.Helper()
		text, err := authority.Sign(request, name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := ParseCertificate(text)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if who, err := r.Who(ctx, certificate(request, "b")); err != nil || who.ID != n.ID {
		t.Errorf("%+v, %v", who, err)
	}
	if _, err := r.Who(ctx, certificate(request, "head")); !errors.Is(err, ErrUnknown) {
		t.Errorf("a name that is not the key's: %v", err)
	}

	// Installed anew, under the name, and as a copy.
	anew, request2 := application(t, invite(), "b")
	anew.Machine = "another"
	if _, _, err := r.Join(ctx, anew); !errors.As(err, new(*NameTakenError)) || !strings.Contains(err.Error(), "--replace") {
		t.Errorf("a name that is taken: %v", err)
	}
	anew.Replace = true
	if _, replaced, err := r.Join(ctx, anew); err != nil || !replaced {
		t.Error(replaced, err)
	}
	if _, err := r.Who(ctx, certificate(request, "b")); !errors.Is(err, ErrRemoved) {
		t.Errorf("the machine before: %v", err)
	}
	copied, _ := application(t, invite(), "d")
	copied.Machine = "another"
	if _, _, err := r.Join(ctx, copied); !errors.As(err, new(*CopyError)) {
		t.Errorf("a copy: %v", err)
	}
	if _, err := r.Remove(ctx, "b"); err != nil {
		t.Error(err)
	}
	if _, err := r.Who(ctx, certificate(request2, "b")); !errors.Is(err, ErrRemoved) {
		t.Errorf("removed: %v", err)
	}
	if _, _, err := r.Join(ctx, anew); !errors.Is(err, ErrCodeUsed) {
		t.Errorf("its code and key once more: %v", err)
	}
	// A head that was restored from before it joined has the same authority.
	before, _ := newRegistry(t)
	if _, err := before.Who(ctx, certificate(request2, "b")); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "gpulab leave") {
		t.Errorf("a head that is older: %v", err)
	}
	if _, err := r.Remove(ctx, "b"); !errors.Is(err, ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
	// All machines were removed and told so. The door waits a while for them to ask again, and for no more than that.
	for _, i := range must(r.Invitations(ctx)) {
		if err := r.Withdraw(ctx, i.ID); err != nil {
			t.Error(err)
		}
	}
	if open, err := r.Open(ctx); !open || err != nil {
		t.Errorf("right after they were told: %v, %v", open, err)
	}
	now = now.Add(toldLife + time.Second)
	if open, err := r.Open(ctx); open || err != nil {
		t.Errorf("an hour after all were told: %v, %v", open, err)
	}
	if list, err := r.List(ctx); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A machine that was removed and has not heard of it is waited for.
func TestOpenForARemovedMachine(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	now := time.Now()
	r.now = func() time.Time { return now }
	code, _, err := r.Invite(ctx, authority.Fingerprint(), door)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := application(t, code, "b")
	n, _, err := r.Join(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(24 * time.Hour)
	if _, err := r.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	now = now.Add(30 * 24 * time.Hour)
	if open, err := r.Open(ctx); !open || err != nil {
		t.Errorf("it was not told yet: %v, %v", open, err)
	}
	if err := r.Told(ctx, n.ID); err != nil {
		t.Fatal(err)
	}
	now = now.Add(toldLife + time.Second)
	if open, err := r.Open(ctx); open || err != nil {
		t.Errorf("it was told: %v, %v", open, err)
	}
}

// A code for one key is worth nothing with another, as long as it lasts and whoever asks: nothing but the code itself
// has to be remembered for that.
func TestCodeForOneKey(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	now := time.Now()
	r.now = func() time.Time { return now }
	_, other := application(t, Code{}, "thief")
	key := must(KeyHash(other.PublicKey))
	a, _ := application(t, Code{}, "b")
	code, _, err := r.InviteKey(ctx, authority.Fingerprint(), door, a.KeyHash)
	if err != nil {
		t.Fatal(err)
	}
	a.CodeID, a.Secret = code.ID, code.Secret
	thief := a
	thief.KeyHash = key
	for range 2 {
		if _, _, err := r.Join(ctx, thief); !errors.Is(err, ErrCodeUnknown) {
			t.Errorf("the code with another key: %v", err)
		}
		now = now.Add(RequestLife + time.Minute) // by now the request is forgotten
	}
	if _, _, err := r.Join(ctx, a); err != nil {
		t.Errorf("the code with its key: %v", err)
	}
	if _, _, err := r.Join(ctx, thief); !errors.Is(err, ErrCodeUnknown) {
		t.Errorf("a used code with another key: %v", err)
	}
}

func TestAuthority(t *testing.T) {
	dir := t.TempDir()
	a, err := LoadAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	b, err := LoadAuthority(dir)
	if err != nil || a.Fingerprint() != b.Fingerprint() {
		t.Errorf("it is another one after a start: %v", err)
	}
	now := time.Now()
	first, err := a.headCertificate(now)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := a.headCertificate(now.Add(29 * 24 * time.Hour)); err != nil || same != first {
		t.Errorf("within a month the head has the same certificate: %v", err)
	}
	later, err := a.headCertificate(now.Add(31 * 24 * time.Hour))
	if err != nil || later == first {
		t.Errorf("a month later it has another: %v", err)
	}
	// A machine's certificate is not good for being the head.
	_, request := application(t, newCode(a.Fingerprint(), door), "b")
	text, err := a.Sign(request, HeadName)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.certificate)
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err == nil {
		t.Error("a machine can be the head")
	}
	if _, err := c.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
}

func TestWithdraw(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	now := time.Now()
	r.now = func() time.Time { return now }
	first, _, err := r.Invite(ctx, authority.Fingerprint(), door)
	if err != nil {
		t.Fatal(err)
	}
	now = now.Add(30 * time.Minute)
	second, _, err := r.Invite(ctx, authority.Fingerprint(), door)
	if err != nil {
		t.Fatal(err)
	}
	open, err := r.Invitations(ctx)
	if err != nil || len(open) != 2 || !open[0].Made.After(open[1].Made) || open[1].Expires.Sub(open[1].Made) != CodeLife {
		t.Fatalf("%+v, %v", open, err)
	}
	if err := r.Withdraw(ctx, open[0].ID); err != nil {
		t.Fatal(err)
	}
	a, _ := application(t, second, "b")
	if _, _, err := r.Join(ctx, a); !errors.Is(err, ErrCodeUnknown) {
		t.Errorf("a withdrawn code: %v", err)
	}
	a, _ = application(t, first, "b")
	if _, _, err := r.Join(ctx, a); err != nil {
		t.Errorf("the other one: %v", err)
	}
	for _, id := range []string{open[0].ID, open[1].ID, "no", ""} { // withdrawn, used, none
		if err := r.Withdraw(ctx, id); !errors.Is(err, ErrNoInvitation) {
			t.Errorf("withdraw %q: %v", id, err)
		}
	}
	if open, err := r.Invitations(ctx); err != nil || len(open) != 0 {
		t.Errorf("%+v, %v", open, err)
	}
}

func TestCordons(t *testing.T) {
	r, authority := newRegistry(t)
	ctx := t.Context()
	now := time.Now().Truncate(time.Millisecond)
	r.now = func() time.Time { return now }
	one := func() Cordon {
		t.Helper()
		list, err := r.Cordons(ctx)
		if err != nil || len(list) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		return list["b"]
	}
	for _, err := range []error{r.Uncordon(ctx, "b"), r.Keep(ctx, "b")} {
		if !errors.Is(err, ErrNotCordoned) {
			t.Errorf("of one that takes work: %v", err)
		}
	}
	if err := r.Cordon(ctx, "b", "ada", "new disk"); err != nil {
		t.Fatal(err)
	}
	began := now
	if got, want := one(), (Cordon{Machine: "b", Since: now, By: "ada", Reason: "new disk"}); got != want {
		t.Errorf("%+v", got)
	}
	now = now.Add(time.Minute)
	end := now.Add(2 * time.Hour)
	if err := r.Drain(ctx, "b", "root", "", end); err != nil {
		t.Fatal(err)
	}
	if got, want := one(), (Cordon{Machine: "b", Since: began, By: "root", Reason: "new disk", EmptyAt: end}); got != want {
		t.Errorf("%+v", got)
	}
	if err := r.Cordon(ctx, "b", "ada", "a new power supply"); err != nil || one().EmptyAt != end || one().Reason != "a new power supply" {
		t.Errorf("%+v, %v", one(), err)
	}
	if err := r.Keep(ctx, "b"); err != nil || !one().EmptyAt.IsZero() {
		t.Errorf("%+v, %v", one(), err)
	}
	if err := r.Uncordon(ctx, "b"); err != nil {
		t.Error(err)
	}
	// What is removed takes no cordon along for the next of its name.
	code, _, err := r.Invite(ctx, authority.Fingerprint(), door)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := application(t, code, "b")
	if _, _, err := r.Join(ctx, a); err != nil {
		t.Fatal(err)
	}
	if err := r.Cordon(ctx, "b", "ada", ""); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Remove(ctx, "b"); err != nil {
		t.Fatal(err)
	}
	if list, err := r.Cordons(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
