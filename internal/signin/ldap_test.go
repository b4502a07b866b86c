package signin_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-ldap/ldap/v3"

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

// asRoot changes a directory as its administrators do.
func asRoot(t *testing.T, d *signintest.Directory, do func(conn *ldap.Conn) error) {
	t.Helper()
	conn, err := ldap.DialURL(d.URL, ldap.DialWithTLSConfig(&tls.Config{RootCAs: d.Authority.Pool, MinVersion: tls.VersionTLS12}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Bind(signintest.RootDN, signintest.RootPassword); err != nil {
		t.Fatal(err)
	}
	if err := do(conn); err != nil {
		t.Fatal(err)
	}
}

func fromDirectory(t *testing.T, cfg signin.Config, name, password string) users.Outside {
	t.Helper()
	s, log := newService(t, cfg)
	o, err := s.SignIn(t.Context(), "directory", name, password)
	if err != nil || o == nil {
		t.Fatalf("%s: %+v, %v\n%s", name, o, err, log)
	}
	return *o
}

// pia has a primary group only, and sam is in a group by another of his names. Both may type their names in upper case.
const posixPeople = `
dn: uid=pia,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
objectClass: posixAccount
uid: pia
cn: Pia Primary
sn: Primary
uidNumber: 5001
gidNumber: 5000
homeDirectory: /home/pia
userPassword: pia-directory

dn: uid=sam,ou=people,dc=example,dc=org
objectClass: inetOrgPerson
uid: sam
uid: samuel
cn: Sam Alias
sn: Alias
departmentNumber: Physics
userPassword: sam-directory

dn: cn=cluster,ou=groups,dc=example,dc=org
objectClass: posixGroup
cn: cluster
gidNumber: 5000

dn: cn=others,ou=groups,dc=example,dc=org
objectClass: posixGroup
cn: others
gidNumber: 5002
memberUid: samuel
`

func TestPrimaryGroupsAndAliases(t *testing.T) {
	at := signintest.Loopback(t)
	at.Entries = posixPeople
	d := signintest.StartDirectoryAt(t, at, "")
	cfg := ldapConfig(d)
	cfg.Rules = []signin.Rule{{Groups: []string{"CN=Cluster, OU=groups, DC=example, DC=org"}, Role: users.RoleLead}, {Groups: []string{"OTHERS"}, Role: users.RoleMember},
		{Claim: "departmentNumber", Values: []string{"physics"}, Group: "physics"}}
	if o := fromDirectory(t, cfg, "pia", "pia-directory"); o.Role != users.RoleLead || !o.Told {
		t.Errorf("by the primary group: %+v", o)
	}
	if o := fromDirectory(t, cfg, "mia", signintest.DirectoryPassword("mia")); o.Role != users.RoleMember || len(o.Groups) != 1 || o.Refused != "" {
		t.Errorf("in none of them, but of the department: %+v", o) // of the rules that fit, none gives a role
	}
	subject := ""
	for _, name := range []string{"sam", "samuel", "SAM", "Samuel"} {
		o := fromDirectory(t, cfg, name, "sam-directory")
		if o.Role != users.RoleMember || len(o.Groups) != 1 || subject != "" && o.Subject != subject {
			t.Errorf("%s: %+v", name, o)
		}
		subject = o.Subject
	}
	// A filter that the lab configures does not find primary groups.
	cfg.GroupFilter = "(&(objectClass=posixGroup)(memberUid={username}))"
	if o := fromDirectory(t, cfg, "pia", "pia-directory"); o.Role != users.RoleLead {
		t.Errorf("with a filter: %+v", o)
	}
}

func TestRenamedInADirectory(t *testing.T) {
	d := signintest.StartDirectory(t, "")
	before := fromDirectory(t, ldapConfig(d), "ben", signintest.DirectoryPassword("ben"))
	asRoot(t, d, func(conn *ldap.Conn) error {
		return conn.ModifyDN(ldap.NewModifyDNRequest("uid=ben,ou=people,dc=example,dc=org", "uid=benjamin", true, ""))
	})
	cfg := ldapConfig(d)
	cfg.UserBase = "OU=people,  dc=example,dc=org"
	after := fromDirectory(t, cfg, "benjamin", signintest.DirectoryPassword("ben"))
	if after.Subject != before.Subject || after.Username != "benjamin" {
		t.Errorf("ben is %+v, benjamin %+v", before, after)
	}
}

// A person whose groups a directory leaves out, all or some of them, does not count as a person without groups.
func TestDirectoryThatTellsNotAllGroups(t *testing.T) {
	at := signintest.Loopback(t)
	at.Config = "sizelimit 1"
	d := signintest.StartDirectoryAt(t, at, "ldap://127.0.0.1:1")
	ada := func(edit func(*signin.Config)) users.Outside {
		t.Helper()
		cfg := ldapConfig(d)
		cfg.Rules = []signin.Rule{{Groups: []string{"of-another-name"}, Role: users.RoleMember}}
		edit(&cfg)
		return fromDirectory(t, cfg, "ada", signintest.DirectoryPassword("ada"))
	}
	for what, tc := range map[string]struct {
		edit func(*signin.Config)
		why  string
		none bool
	}{
		"limit":       {func(*signin.Config) {}, "Limit Exceeded", false},
		"no base":     {func(c *signin.Config) { c.GroupBase = "" }, "no memberOf", true},
		"none there":  {func(c *signin.Config) { c.GroupBase = "ou=gone," + d.GroupBase }, "No Such Object", false},
		"referred to": {func(c *signin.Config) { c.GroupBase = "ou=elsewhere," + d.UserBase }, "Referral", false},
	} {
		o := ada(tc.edit)
		if !strings.Contains(o.Untold, tc.why) || o.MayBeNone != tc.none || o.Told || !strings.Contains(o.Refused, "did not send all of your groups") {
			t.Errorf("%s: %+v", what, o)
		}
	}
	if o := ada(func(c *signin.Config) { c.GroupFilter = "(cn=none)" }); o.Untold != "" || !o.Told || !strings.Contains(o.Refused, "is not in a group") {
		t.Errorf("in no group: %+v", o)
	}
	cfg := ldapConfig(d)
	if r, text := findings(t, cfg, "ada"); !strings.Contains(text, "warning groups: some groups of this person are missing: the search below") {
		t.Errorf("%+v\n%s", r, text)
	}
}

// If a directory sends the groups of others, a person without groups is in none: from this sign-in on.
func TestDirectoryThatSendsGroupsOfOthers(t *testing.T) {
	at := signintest.Loopback(t)
	at.Config = "moduleload memberof"
	at.Entries = "\ndn: uid=eve,ou=people,dc=example,dc=org\nobjectClass: inetOrgPerson\nuid: eve\ncn: Eve\nsn: Eve\nuserPassword: eve-directory\n" +
		"memberOf: cn=gpu-users,ou=groups,dc=example,dc=org\n"
	cfg := ldapConfig(signintest.StartDirectoryAt(t, at, ""))
	cfg.GroupBase = ""
	if o := fromDirectory(t, cfg, "eve", "eve-directory"); o.Role != users.RoleMember || !o.Told {
		t.Errorf("eve: %+v", o)
	}
	cfg.Rules = cfg.Rules[:2]
	if o := fromDirectory(t, cfg, "ada", signintest.DirectoryPassword("ada")); o.Untold != "" || !o.Told || !strings.Contains(o.Refused, "is not in a group") {
		t.Errorf("ada: %+v", o)
	}
}

// Attributes of Active Directory, in another directory's schema.
const adSchema = `
attributetype ( 1.2.840.113556.1.4.146 NAME 'objectSid' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.98 NAME 'primaryGroupID' EQUALITY integerMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.27 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.2 NAME 'objectGUID' EQUALITY octetStringMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.40 SINGLE-VALUE )
attributetype ( 1.2.840.113556.1.4.221 NAME 'sAMAccountName' EQUALITY caseIgnoreMatch SYNTAX 1.3.6.1.4.1.1466.115.121.1.15 SINGLE-VALUE )
objectclass ( 1.3.6.1.4.1.4203.666.11.1 NAME 'adEntry' SUP top AUXILIARY MAY ( objectSid $ primaryGroupID $ objectGUID $ sAMAccountName ) )
`

func TestPrimaryGroupOfActiveDirectory(t *testing.T) {
	sid := func(last uint32) string {
		b := binary.LittleEndian.AppendUint32([]byte{1, 5, 0, 0, 0, 0, 0, 5, 21, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, last)
		return base64.StdEncoding.EncodeToString(b)
	}
	at := signintest.Loopback(t)
	at.Config = adSchema
	at.Entries = "\ndn: cn=Zoe,ou=people,dc=example,dc=org\nobjectClass: inetOrgPerson\nobjectClass: adEntry\ncn: Zoe\nsn: Zoe\nsAMAccountName: zoe\nobjectGUID:: " +
		base64.StdEncoding.EncodeToString([]byte("0123456789abcdef")) + "\nobjectSid:: " + sid(1104) + "\nprimaryGroupID: 513\nuserPassword: zoe-directory\n" +
		"\ndn: cn=Domain Users,ou=people,dc=example,dc=org\nobjectClass: organizationalRole\nobjectClass: adEntry\ncn: Domain Users\nobjectSid:: " + sid(513) + "\n"
	d := signintest.StartDirectoryAt(t, at, "")
	cfg := ldapConfig(d)
	cfg.Type, cfg.UserFilter = "activedirectory", "(sAMAccountName={username})"
	cfg.Rules = []signin.Rule{{Groups: []string{"domain users"}, Role: users.RoleMember}}
	for what, base := range map[string]string{"elsewhere": d.GroupBase, "in the domain": "dc=example,dc=org", "no base": ""} {
		cfg.GroupBase = base
		if o := fromDirectory(t, cfg, "ZOE", "zoe-directory"); o.Role != users.RoleMember || o.Refused != "" || o.Subject != "30313233343536373839616263646566" {
			t.Errorf("%s: %+v", what, o)
		}
	}
}
