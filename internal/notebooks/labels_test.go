package notebooks

import (
	"context"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

func TestLabelNames(t *testing.T) {
	l := NewLabels([]string{"Lab.example.org", "gpu.internal"}, 443, []byte("key"), nil)
	for host, want := range map[string]int{
		"n21042.lab.example.org": 21042, "N21042.LAB.example.org": 21042, "n21042.gpu.internal": 21042,
		"n021042.lab.example.org": 0, "n+21042.lab.example.org": 0, "n-1.lab.example.org": 0, "n.lab.example.org": 0, "21042.lab.example.org": 0,
		"x.n21042.lab.example.org": 0, "n21042.lab.example.org.": 0, "n21042.example.org": 0, "lab.example.org": 0, "*.lab.example.org": 0, "": 0,
		"n99999999999999999999.lab.example.org": 0, "n21042": 0, "nn21042.lab.example.org": 0,
	} {
		if port, _, ok := l.parse(host); ok != (want != 0) || ok && port != want {
			t.Errorf("%q: %d, %v", host, port, ok)
		}
	}
	if _, _, ok := (*Labels)(nil).parse("n21042.lab.example.org"); ok {
		t.Error("a lab without wildcard names has labels")
	}
}

// Where a person's notebooks are, and whose are there, are the same relation.
func TestAuthority(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	u, err := users.New(st.DB()).Create(t.Context(), users.NewUser{Handle: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	for httpsPort, authorities := range map[int]map[string]string{
		443: {
			"lab.example.org": "n21000.lab.example.org", "LAB.example.org": "n21000.lab.example.org", "other.example.org": "other.example.org:21000",
			"192.0.2.7": "192.0.2.7:21000", "[2001:db8::7]": "[2001:db8::7]:21000", "2001:db8::7": "[2001:db8::7]:21000", "gpulab.tail.ts.net": "gpulab.tail.ts.net:21000",
		},
		4443: {"lab.example.org": "n21000.lab.example.org:4443", "192.0.2.7": "192.0.2.7:21000"},
	} {
		o, err := NewOrigins(t.Context(), st.DB(), ports(21000, 21009), func(int) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		o.UseLabels(NewLabels([]string{"lab.example.org"}, httpsPort, []byte("key"), nil))
		for host, want := range authorities {
			got, err := o.Authority(t.Context(), host, u.ID)
			if err != nil || got != want {
				t.Errorf("by %s: %q, %v", host, got, err)
			}
			if owner, _, ok := o.OwnerAt(got); !ok || owner != u.ID {
				t.Errorf("at %s are the notebooks of %d, %v", got, owner, ok)
			}
		}
	}
}

// A code is good for a minute, and a MAC of one kind is none of the other.
func TestCodesRunOut(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	l := NewLabels([]string{"lab.example.org"}, 443, []byte("key"), func(context.Context, string) (users.Session, error) { return users.Session{}, nil })
	l.now = func() time.Time { return now }
	const label = "n21042.lab.example.org"
	code := l.code(label, "SESSION", hashOf("nonce"))
	if id, ok := l.redeem(code, label, hashOf("nonce")); !ok || id != "SESSION" {
		t.Errorf("at once: %q, %v", id, ok)
	}
	other := NewLabels([]string{"lab.example.org"}, 443, []byte("another key"), nil)
	other.now = l.now
	if _, ok := other.redeem(code, label, hashOf("nonce")); ok {
		t.Error("another lab takes it")
	}
	for _, forged := range []string{"", "..", "SESSION", code + "A", "S" + code, l.child(label, "SESSION"), "SESSION.99999999999." + l.mac("child", label, "SESSION")} {
		if _, ok := l.redeem(forged, label, hashOf("nonce")); ok {
			t.Errorf("%q is taken", forged)
		}
	}
	if _, ok := l.childOf(label, code); ok {
		t.Error("a code passes for a credential")
	}
	now = now.Add(codeLife + time.Second)
	if _, ok := l.redeem(code, label, hashOf("nonce")); ok {
		t.Error("after a minute it is still taken")
	}
}
