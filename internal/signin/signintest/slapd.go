package signintest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Directory is an OpenLDAP of a test's own. Its people are ada, ben, mia and o'neil, each with the password
// NAME-directory; ada is in gpu-admins and gpu-users, the others in gpu-users.
type Directory struct {
	URL          string // ldaps://
	PlainURL     string // ldap://, which takes passwords only after StartTLS
	Authority    *Authority
	BindDN       string
	PasswordFile string // of BindDN
	UserBase     string
	GroupBase    string
	stop         func()
	log          *record
}

// record is what a program has said so far.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (r *record) Write(text []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(text)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// Binds counts how often the directory was asked to prove a password so far.
func (d *Directory) Binds() int { return strings.Count(d.log.String(), " method=128") }

// Searches counts how often it was asked for people or groups.
func (d *Directory) Searches() int { return strings.Count(d.log.String(), " SRCH base=") }

// DirectoryPassword is what somebody signs in with at the directory.
func DirectoryPassword(name string) string { return name + "-directory" }

// RootDN and RootPassword are of the account that may change everything in the directory.
const (
	RootDN       = "cn=root," + base
	RootPassword = "for changing"
)

const (
	base            = "dc=example,dc=org"
	servicePassword = "for searching only"
)

// StartDirectory runs Debian's slapd on loopback until the test ends. referral is where it sends those who ask for
// people of the part ou=elsewhere: a server that is not to be asked; empty for none.
func StartDirectory(t testing.TB, referral string) *Directory {
	t.Helper()
	return StartDirectoryAt(t, Loopback(t), referral)
}

// Loopback is a place on this machine.
func Loopback(t testing.TB) Place {
	t.Helper()
	return Place{
		Host: "localhost", Address: "127.0.0.1", TLSPort: freePort(t), PlainPort: freePort(t), Command: exec.Command,
		Dial: net.Dial,
	}
}

// Place is where a directory is.
type Place struct {
	Host               string // by which the lab knows it: localhost or Address
	Address            string
	TLSPort, PlainPort string
	// Command makes a command that runs there, and Dial connects to it.
	Command func(name string, args ...string) *exec.Cmd
	Dial    func(network, address string) (net.Conn, error)
	// Config has further lines of slapd.conf, before those of the database, and Entries further LDIF. Both may be empty.
	Config, Entries string
}

// StartDirectoryAt is StartDirectory for another place.
func StartDirectoryAt(t testing.TB, at Place, referral string) *Directory {
	t.Helper()
	dir := t.TempDir()
	d := &Directory{Authority: NewAuthority(t), BindDN: "cn=gpulab,ou=services," + base,
		PasswordFile: SecretFile(t, servicePassword),
		UserBase:     "ou=people," + base, GroupBase: "ou=groups," + base}
	d.URL, d.PlainURL = "ldaps://"+net.JoinHostPort(at.Host, at.TLSPort), "ldap://"+net.JoinHostPort(at.Host, at.PlainPort)
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	conf, ldif := filepath.Join(dir, "slapd.conf"), filepath.Join(dir, "data.ldif")
	write(t, conf, d.config(t, dir, at))
	write(t, ldif, entries(referral)+at.Entries)
	if out, err := exec.Command(program(t, "slapadd"), "-q", "-f", conf, "-l", ldif).CombinedOutput(); err != nil {
		t.Fatalf("slapadd: %v\n%s", err, out)
	}
	log := &record{}
	d.log = log
	plain := net.JoinHostPort(at.Address, at.PlainPort)
	cmd := at.Command(program(t, "slapd"), "-d", "stats", "-f", conf, "-h",
		"ldaps://"+net.JoinHostPort(at.Address, at.TLSPort)+"/ ldap://"+plain+"/")
	cmd.Stdout, cmd.Stderr = log, log
	// A test that is killed leaves nothing behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	d.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("slapd said:\n%s", log.String())
		}
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, err := at.Dial("tcp", plain)
		if err == nil {
			_ = conn.Close()
			return d
		}
		select {
		case <-ended:
			t.Fatalf("slapd ended:\n%s", log.String())
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("slapd does not answer: %v\n%s", err, log.String())
		}
	}
}

// Stop takes the directory away.
func (d *Directory) Stop() { d.stop() }

func (d *Directory) config(t testing.TB, dir string, at Place) string {
	t.Helper()
	cert, key := d.Authority.Issue(t, at.Address)
	return fmt.Sprintf(`include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
include /etc/ldap/schema/inetorgperson.schema
include /etc/ldap/schema/nis.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile %[1]s/slapd.pid
argsfile %[1]s/slapd.args
TLSCACertificateFile %[2]s
TLSCertificateFile %[3]s
TLSCertificateKeyFile %[4]s
security simple_bind=128
# As some directories are set up: an empty password is taken for nobody's, and answered with yes.
allow bind_anon_cred bind_anon_dn
%[7]s
database mdb
suffix "%[5]s"
rootdn "%[8]s"
rootpw "%[9]s"
directory %[1]s/data
access to attrs=userPassword by anonymous auth by * none
access to * by dn.exact="%[6]s" read by * none
`, dir, d.Authority.File, cert, key, base, d.BindDN, at.Config, RootDN, RootPassword)
}

// entries are the people and groups.
func entries(referral string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "dn: %s\nobjectClass: dcObject\nobjectClass: organization\ndc: example\no: Example\n\n", base)
	for _, ou := range []string{"people", "groups", "services"} {
		fmt.Fprintf(&b, "dn: ou=%s,%s\nobjectClass: organizationalUnit\nou: %[1]s\n\n", ou, base)
	}
	fmt.Fprintf(&b, "dn: cn=gpulab,ou=services,%s\nobjectClass: organizationalRole\nobjectClass: "+
		"simpleSecurityObject\ncn: gpulab\nuserPassword: %s\n\n", base, servicePassword)
	for _, who := range []struct{ uid, name, sn string }{{"ada", "Ada Lovelace", "Lovelace"},
		{"ben", "Ben Okafor", "Okafor"}, {"o'neil", "Shaun O'Neil", "O'Neil"}, {"mia", "Mia Sato", "Sato"},
		{"root", "Superintendent of Trees", "Trees"}} {
		fmt.Fprintf(&b, "dn: uid=%s,ou=people,%s\nobjectClass: inetOrgPerson\nuid: %[1]s\ncn: %[3]s\nsn: %[4]s\nmail: "+
			"%[1]s@example.org\ndepartmentNumber: physics\nuserPassword: %[5]s\n\n",
			who.uid, base, who.name, who.sn, DirectoryPassword(who.uid))
	}
	for group, members := range map[string][]string{"gpu-admins": {"ada"}, "gpu-users": {"ada", "ben", "mia", "o'neil"}} {
		fmt.Fprintf(&b, "dn: cn=%s,ou=groups,%s\nobjectClass: groupOfNames\ncn: %[1]s\n", group, base)
		for _, m := range members {
			fmt.Fprintf(&b, "member: uid=%s,ou=people,%s\n", m, base)
		}
		b.WriteString("\n")
	}
	// A group of mia's, one of whose names is the DN of another.
	fmt.Fprintf(&b, "dn: cn=own,ou=groups,%s\nobjectClass: groupOfNames\ncn: own\ncn: "+
		"cn=gpu-admins,ou=groups,%[1]s\nmember: uid=mia,ou=people,%[1]s\n\n", base)
	if referral != "" {
		fmt.Fprintf(&b, "dn: ou=elsewhere,ou=people,%s\nobjectClass: referral\nobjectClass: extensibleObject\nou: "+
			"elsewhere\nref: %s/ou=people,%[1]s\n\n", base, referral)
	}
	return b.String()
}

// program finds one of OpenLDAP's, which Debian keeps where only root looks.
func program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path := "/usr/sbin/" + name
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("there is no %s; install it with `packaging/prerequisites.sh test`, or `apt-get install "+
			"--no-install-recommends slapd`", name)
	}
	return path
}

func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
