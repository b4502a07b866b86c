package signin_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/internal/users"
)

func ldapConfig(d *signintest.Directory) signin.Config {
	return signin.Config{Name: "directory", Type: "ldap", Title: "Example Directory", URL: d.URL, CAFile: d.Authority.File,
		BindDN: d.BindDN, BindPasswordFile: d.PasswordFile, UserBase: d.UserBase, GroupBase: d.GroupBase,
		Rules: []signin.Rule{{Groups: []string{"GPU-Admins"}, Role: users.RoleAdmin}, {Groups: []string{"cn=gpu-users,ou=groups,dc=example,dc=org"}, Role: users.RoleMember, Group: "vision"},
			{Claim: "departmentnumber", Values: []string{"physics"}, Group: "physics"}}}
}

func TestOpenLDAP(t *testing.T) {
	var touched atomic.Int32
	elsewhere, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	go func() {
		for {
			conn, err := elsewhere.Accept()
			if err != nil {
				return
			}
			touched.Add(1)
			conn.Close()
		}
	}()
	d := signintest.StartDirectory(t, "ldap://"+elsewhere.Addr().String())
	for name, edit := range map[string]func(*signin.Config){
		"ldaps":    func(*signin.Config) {},
		"StartTLS": func(c *signin.Config) { c.URL, c.StartTLS = d.PlainURL, true },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := ldapConfig(d)
			edit(&cfg)
			s, log := newService(t, cfg)
			o, err := s.SignIn(t.Context(), "directory", "ada", signintest.DirectoryPassword("ada"))
			if err != nil || o == nil {
				t.Fatalf("%+v, %v\n%s", o, err, log)
			}
			if len(o.Subject) != 36 || o.Username != "ada" || o.Name != "Ada Lovelace" || o.Email != "ada@example.org" || o.Role != users.RoleAdmin || len(o.Groups) != 2 || o.Groups[1].Name != "physics" {
				t.Errorf("%+v", o)
			}
			if o, err := s.SignIn(t.Context(), "directory", "o'neil", signintest.DirectoryPassword("o'neil")); err != nil || o == nil || o.Role != users.RoleMember {
				t.Errorf("%+v, %v", o, err)
			}
			for what, try := range map[string][2]string{
				"wrong password": {"ada", "wrong"}, "empty password": {"ada", ""}, "unknown name": {"nobody", "x"}, "empty name": {"", "x"},
				"any name": {"*", signintest.DirectoryPassword("ada")}, "injection": {"ada)(uid=*", signintest.DirectoryPassword("ada")},
				"injection into an or": {"*)(|(uid=ada", signintest.DirectoryPassword("ada")}, "a zero": {"ada\x00", signintest.DirectoryPassword("ada")},
				"a DN":       {"uid=ada,ou=people,dc=example,dc=org", signintest.DirectoryPassword("ada")},
				"two people": {"x)(|(uid=ada)(uid=ben)", signintest.DirectoryPassword("ada")},
				"another's":  {"ben", signintest.DirectoryPassword("ada")},
				"too long":   {strings.Repeat("a", 300), "x"},
				"a password that some servers take for an empty one": {"ada", "\x00"},
				"the service": {"gpulab", "for searching only"},
			} {
				if o, err := s.SignIn(t.Context(), "directory", try[0], try[1]); err != nil || o != nil {
					t.Errorf("%s: %+v, %v", what, o, err)
				}
			}
			if strings.Contains(log.String(), "-directory\"") || strings.Contains(log.String(), "for searching only") {
				t.Errorf("the log holds a password:\n%s", log)
			}
		})
	}
	if n := touched.Load(); n != 0 {
		t.Errorf("the lab followed the directory to another server %d times", n)
	}
	// A filter that fits several people signs nobody in.
	cfg := ldapConfig(d)
	cfg.UserFilter = "(|(uid={username})(objectClass=inetOrgPerson))"
	s, _ := newService(t, cfg)
	if o, err := s.SignIn(t.Context(), "directory", "ada", signintest.DirectoryPassword("ada")); err != nil || o != nil {
		t.Errorf("one of several: %+v, %v", o, err)
	}
	// A group that calls itself by the DN of another is not that one.
	cfg = ldapConfig(d)
	cfg.Rules = []signin.Rule{{Groups: []string{"cn=gpu-admins,ou=groups,dc=example,dc=org"}, Role: users.RoleAdmin}, {Groups: []string{"own"}, Role: users.RoleMember}}
	s, _ = newService(t, cfg)
	for name, role := range map[string]users.Role{"ada": users.RoleAdmin, "mia": users.RoleMember} {
		if o, err := s.SignIn(t.Context(), "directory", name, signintest.DirectoryPassword(name)); err != nil || o == nil || o.Role != role {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	// People below a referral are asked for nowhere.
	cfg = ldapConfig(d)
	cfg.UserBase = "ou=elsewhere," + d.UserBase
	s, _ = newService(t, cfg)
	if o, err := s.SignIn(t.Context(), "directory", "ada", signintest.DirectoryPassword("ada")); err == nil || o != nil || touched.Load() != 0 {
		t.Errorf("below a referral: %+v, %v, %d connections elsewhere", o, err, touched.Load())
	}
}

// A directory whose answer never ends takes a bounded part of the lab's memory.
func TestDirectoryThatNeverEnds(t *testing.T) {
	authority := signintest.NewAuthority(t)
	l, err := tls.Listen("tcp", "127.0.0.1:0", authority.Server(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var sent atomic.Int64
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				// One message of almost 2 GiB, whose only part is as long.
				piece := append([]byte{0x30, 0x84, 0x7f, 0xff, 0xff, 0xf0, 0x04, 0x84, 0x7f, 0xff, 0xff, 0x00}, make([]byte, 1<<20)...)
				for sent.Load() < 200<<20 {
					n, err := conn.Write(piece)
					if sent.Add(int64(n)); err != nil {
						return
					}
					piece = piece[len(piece)-1<<20:]
				}
			}()
		}
	}()
	for _, password := range []string{"", filepath.Join(t.TempDir(), "password")} {
		cfg := signin.Config{Name: "directory", Type: "ldap", Title: "Directory", URL: "ldaps://" + l.Addr().String(), CAFile: authority.File,
			UserBase: "ou=people,dc=example,dc=org", BindPasswordFile: password}
		if password != "" {
			cfg.BindDN = "cn=gpulab,dc=example,dc=org"
			if err := os.WriteFile(password, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, _ := newService(t, cfg)
		if o, err := s.SignIn(t.Context(), "directory", "ada", "x"); err == nil || o != nil {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes were taken in", n)
	}
}

func TestDirectoryThatCannotBeUsed(t *testing.T) {
	d, other := signintest.StartDirectory(t, ""), signintest.NewAuthority(t)
	try := func(edit func(*signin.Config)) error {
		cfg := ldapConfig(d)
		edit(&cfg)
		s, _ := newService(t, cfg)
		o, err := s.SignIn(t.Context(), "directory", "ada", signintest.DirectoryPassword("ada"))
		if o != nil {
			t.Errorf("signed in %+v", o)
		}
		return err
	}
	for what, edit := range map[string]func(*signin.Config){
		"another authority":           func(c *signin.Config) { c.CAFile = other.File },
		"another authority, StartTLS": func(c *signin.Config) { c.URL, c.StartTLS, c.CAFile = d.PlainURL, true, other.File },
		"no authority":                func(c *signin.Config) { c.CAFile = "" },
		"wrong bind password":         func(c *signin.Config) { c.BindPasswordFile = signintest.SecretFile(t, "wrong") },
		"no bind password":            func(c *signin.Config) { c.BindPasswordFile = "/nonexistent" },
		"no such base":                func(c *signin.Config) { c.UserBase = "ou=nothing,dc=example,dc=org" },
		"an ID that nobody has":       func(c *signin.Config) { c.Claims.ID = "employeeNumber" },
	} {
		if err := try(edit); !errors.Is(err, signin.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// One that accepts and says nothing is not waited for long.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	begun := time.Now()
	err = try(func(c *signin.Config) { c.URL = "ldaps://" + silent.Addr().String() })
	if took := time.Since(begun); !errors.Is(err, signin.ErrUnavailable) || took > 8*time.Second {
		t.Errorf("after %s: %v", took, err)
	}
	// And not asked again at once.
	s, _ := newService(t, ldapConfig(d))
	d.Stop()
	for range 2 {
		if _, err := s.SignIn(t.Context(), "directory", "ada", "x"); !errors.Is(err, signin.ErrUnavailable) {
			t.Error(err)
		}
	}
}

// The steps, and so about the time, are the same for somebody who is there and somebody who is not.
func TestUnknownNamesCostTheSame(t *testing.T) {
	d := signintest.StartDirectory(t, "")
	s, _ := newService(t, ldapConfig(d))
	steps := func(name string) (binds, searches int) {
		binds, searches = d.Binds(), d.Searches()
		if o, err := s.SignIn(t.Context(), "directory", name, "wrong"); err != nil || o != nil {
			t.Fatalf("%+v, %v", o, err)
		}
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && d.Binds()-binds < 2; time.Sleep(10 * time.Millisecond) {
			continue // what it says of itself comes a moment later
		}
		return d.Binds() - binds, d.Searches() - searches
	}
	binds, searches := steps("ada")
	if binds < 2 || searches < 1 {
		t.Errorf("%d binds and %d searches for somebody who is there", binds, searches)
	}
	if b, n := steps("nobody"); b != binds || n != searches {
		t.Errorf("%d binds and %d searches for nobody, %d and %d for somebody who is there", b, n, binds, searches)
	}
}
