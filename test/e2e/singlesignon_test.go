//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/signin/signintest"
	"github.com/gpulab/gpulab/test/lab"
)

// foreign is a university beside the lab: its identity provider and its
// directory, both with certificates of authorities that the machine does not
// know, on the wire that the lab is on.
type foreign struct {
	*appliance
	uni     *signintest.Provider
	dir     *signintest.Directory
	browser *lab.Browser // a Chromium that knows the authorities of lab and provider
	zoe     *lab.Browser // hers, signed in
	plain   string       // the configuration without it
}

// What the lab calls them.
const (
	uniTitle = "Example University"
	dirTitle = "Department account"
)

const foreignPort = "9443"

// TestSingleSignOn: people sign in with accounts from elsewhere, through the
// front door, from the configuration on.
//
//test:about internal/signin internal/oidc
func TestSingleSignOn(t *testing.T) {
	t.Parallel()
	s := newForeign(t, ready(t, foldersConfig))
	if !t.Run("the configuration is tried and put to use", s.testConfigured) {
		return
	}
	if !t.Run("a student of the university", s.testStudent) {
		return
	}
	t.Run("another role, and no way in", s.testClaimsChange)
	t.Run("somebody of the directory", s.testDirectory)
	t.Run("an account that links another", s.testLink)
	t.Run("a student no more", s.testNoStudentAnyMore)
	t.Run("both are away", s.testAway)
	t.Run("what logs and command lines hold", s.testForeignSecrets)
}

// localPages are the lab's pages by its name on the local network.
const localPages = "https://gpulab.local"

// providerPassword is what somebody signs in with at the provider.
func providerPassword(name string) string { return "the university's " + name }

func newForeign(t *testing.T, a *appliance) *foreign {
	t.Helper()
	listener, err := a.Listen("tcp", ":"+foreignPort)
	if err != nil {
		t.Fatal(err)
	}
	person := func(id, name, full, email string, groups ...string) *signintest.Person {
		return &signintest.Person{ID: id, Username: name, Password: providerPassword(name), Name: full, Email: email, Groups: groups}
	}
	s := &foreign{appliance: a}
	s.uni = signintest.StartProviderAt(t, listener, lab.VisitorAddress,
		person("1", "zoe", "Zoë Ünal", "zoe@example.org", "students"),
		person("2", guestHandle, "Benjamin Okafor", "ben@example.org", "students"),
		person("3", "eve", "Eve Stranger", "eve@evil.example", "students"))
	s.uni.Register(pages+"/signin/university/callback", localPages+"/signin/university/callback")
	s.dir = signintest.StartDirectoryAt(t, signintest.Place{
		Host: lab.VisitorAddress, Address: lab.VisitorAddress, TLSPort: "9636", PlainPort: "9389",
		Command: func(name string, args ...string) *exec.Cmd { return a.VisitorCommand(a.ctx, name, args...) },
		Dial:    func(network, address string) (net.Conn, error) { return a.Dial(a.ctx, network, address) },
	}, "")
	authority, err := os.ReadFile(s.uni.Authority.File)
	if err != nil {
		t.Fatal(err)
	}
	s.browser = a.Browser(append(authority, a.ca...))
	return s
}

// foreignConfig is what the admin writes below signin.
func (s *foreign) foreignConfig() string {
	return fmt.Sprintf(`
  - name: university
    type: oidc
    title: %s
    issuer: %s
    clientID: %s
    clientSecretFile: /etc/gpulab/university.secret
    caFile: /etc/gpulab/university-ca.pem
    help: the service desk
    names: [gpulab.local]
    domains: [example.org]
    noMatch: suspend
    rules:
      - {groups: [gpu-admins], role: admin}
      - {groups: [students], role: member, group: vision}
  - name: directory
    type: ldap
    title: %s
    url: %s
    caFile: /etc/gpulab/directory-ca.pem
    bindDN: %s
    bindPasswordFile: /etc/gpulab/directory.secret
    userBase: %s
    groupBase: %s
    rules:
      - {groups: [gpu-users], role: guest}
`, uniTitle, s.uni.Issuer, signintest.ClientID, dirTitle, s.dir.URL, s.dir.BindDN, s.dir.UserBase, s.dir.GroupBase)
}

// configure writes the configuration, as an admin does with an editor.
func (s *foreign) configure(t *testing.T, signin string) {
	t.Helper()
	const path = "/etc/gpulab/config.yaml"
	if s.plain == "" {
		s.plain = s.MustRun(s.ctx, "cat", path)
	}
	edited := strings.Replace(s.plain, "\nsignin: []\n", "\nsignin:"+signin, 1)
	if edited == s.plain {
		t.Fatalf("there is no place for signin in\n%s", s.plain)
	}
	s.WriteFile(path, edited)
}

// testConfigured: a wrong setting is explained before it does harm; the right
// one is taken while a notebook goes on computing.
func (s *foreign) testConfigured(t *testing.T) {
	for path, from := range map[string]string{"university-ca.pem": s.uni.Authority.File, "directory-ca.pem": s.dir.Authority.File, "directory.secret": s.dir.PasswordFile} {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		s.WriteFile("/etc/gpulab/"+path, string(data))
	}
	s.WriteFile("/etc/gpulab/university.secret", signintest.ClientSecret+"\n")
	config := s.foreignConfig()
	check := func(args ...string) lab.Result {
		return s.Gpulab(s.ctx, append([]string{"signin", "check"}, args...)...)
	}

	s.configure(t, strings.Replace(config, "issuer: "+s.uni.Issuer, "issuer: "+s.uni.Issuer+"/realms/staff", 1))
	checkFailure(t, check(), 1, "it answered 404 Not Found", "Check issuer: the provider has to tell about itself at "+s.uni.Issuer+"/realms/staff/.well-known/openid-configuration.",
		"ok       bind", "1 of 2 identity providers cannot be used")
	s.configure(t, strings.ReplaceAll(config, "university-ca.pem", "directory-ca.pem"))
	checkFailure(t, check("university"), 1, "unknown authority", "Another authority than that in /etc/gpulab/directory-ca.pem has signed it")
	s.configure(t, strings.Replace(config, "type: oidc", "type: openid", 1))
	checkFailure(t, s.Gpulab(s.ctx, initArgs...), 2, "the type of university is", "line ")
	s.configure(t, config)
	checkFailure(t, check(), 0, "others on this machine may read /etc/gpulab/university.secret", "chmod 600 /etc/gpulab/university.secret",
		"a rule names the group vision", "gpulab group add vision", pages+"/signin/university/callback", "and to "+localPages+"/signin/university/callback")
	s.MustRun(s.ctx, "chmod", "600", "/etc/gpulab/university.secret", "/etc/gpulab/directory.secret")
	s.MustGpulab(s.ctx, "group", "add", "vision")
	result := check("--person", "mia")
	checkFailure(t, result, 0, s.uni.Issuer+" answers", "mia@example.org", "would come in with the role guest")
	if strings.Contains(result.Stdout, "may read") || strings.Contains(result.Stdout, "vision") {
		t.Errorf("what was mended is said again:\n%s", result.Stdout)
	}
	if s.offered(t) {
		t.Error("a configuration that nobody has put to use is in use")
	}

	if s.second == nil {
		s.second = work(s.guest.For(t), guestHandle, "Computing")
	}
	s.second.in(t).run(t, "precious = 6 * 7")
	pods, before := s.notebookPods(t), s.Processes(s.ctx, "gpulab")
	result = s.Gpulab(s.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	t.Logf("the configuration is in use after %s", result.Took.Round(100*time.Millisecond))
	if after := s.Processes(s.ctx, "gpulab"); fmt.Sprint(after) == fmt.Sprint(before) {
		t.Errorf("gpulab was %v and still is: it cannot have read the configuration", before)
	}
	if now := s.notebookPods(t); now != pods {
		t.Errorf("the notebooks' pods were\n%s\nand are\n%s", pods, now)
	}
	if got := s.second.in(t).run(t, "print(precious)"); got != "42" {
		t.Errorf("the kernel's variable is %q", got)
	}
	if !s.offered(t) {
		t.Error("the sign-in page has no button for the provider")
	}
}

// offered tells whether the sign-in page has the provider's button.
func (s *foreign) offered(t *testing.T) bool {
	t.Helper()
	_, body, _ := request(t, s.HTTPClient(s.ca), "GET", pages+"/login", nil)
	return strings.Contains(body, "Sign in with "+uniTitle)
}

// somebody is a browser window of nobody's yet.
func (s *foreign) somebody(t *testing.T) *lab.Browser {
	t.Helper()
	return s.browser.Private().For(t)
}

// withUniversity clicks on the provider's button and signs in on its page.
func (s *foreign) withUniversity(b *lab.Browser, name string) {
	b.Open(pages + "/login")
	b.Click("main", "Sign in with "+uniTitle)
	s.atUniversity(b, name)
}

func (s *foreign) atUniversity(b *lab.Browser, name string) {
	b.WaitFor("the provider's page", fmt.Sprintf(`location.origin === %q && document.querySelector("input[name=username]")`, s.uni.Issuer))
	b.Fill("Username", name)
	b.Fill("Password", providerPassword(name))
	b.Click("form", "Login")
}

func signOut(b *lab.Browser) {
	b.Open(pages + "/")
	b.Click(".who", "Sign out")
	b.WaitText("main", "You are signed out")
}

// shows checks what `gpulab user show` says of somebody.
func (s *foreign) shows(t *testing.T, handle string, words ...string) {
	t.Helper()
	got := s.MustGpulab(s.ctx, "user", "show", handle)
	for _, word := range words {
		if !strings.Contains(strings.Join(strings.Fields(got), " "), word) {
			t.Errorf("user show %s does not say %q:\n%s", handle, word, got)
		}
	}
}

// testStudent: somebody whom the lab has never seen signs in with the button,
// and works.
func (s *foreign) testStudent(t *testing.T) {
	b := s.somebody(t)
	b.Open(pages + "/login")
	b.Pictures("login-university")
	s.withUniversity(b, "zoe")
	waitHome(b)
	b.WaitText(".who", "Zoë Ünal")
	// By another of the lab's names she comes back to that one.
	local := s.somebody(t)
	local.Open(localPages + "/login?next=/account")
	local.Click("main", "Sign in with "+uniTitle)
	s.atUniversity(local, "zoe")
	local.WaitFor("signed in by the other name", fmt.Sprintf(`location.href === %q && document.querySelector(".who").innerText.includes("Zoë Ünal")`, localPages+"/account"))
	s.shows(t, "zoe", "e-mail zoe@example.org", "role member", "groups vision", "sign-in university zoe")
	k := work(b, "zoe", "Thesis")
	if got := k.run(t, "import os; home = os.path.expanduser('~'); print(6 * 7, home, os.stat(home).st_uid == os.getuid())"); got != "42 /home/zoe True" {
		t.Errorf("her cell says %q", got)
	}
	// The lab reaches them; notebooks do not, though they reach the internet.
	targets, err := json.Marshal([][2]any{{lab.VisitorAddress, 9443}, {lab.VisitorAddress, 9636}, {lab.InternetAddress, 9443}})
	if err != nil {
		t.Fatal(err)
	}
	if got := k.run(t, fmt.Sprintf(connect, targets)); got != "[false, false, true]" {
		t.Errorf("provider, directory and the internet are reached from a notebook: %s", got)
	}
	signOut(b)
	s.zoe = b
}

// testClaimsChange: at the next sign-in it is the same account with other
// rights; somebody of another domain is told why they have none.
func (s *foreign) testClaimsChange(t *testing.T) {
	s.uni.SetGroups("1", "gpu-admins")
	admin := s.zoe.For(t)
	s.withUniversity(admin, "zoe")
	waitHome(admin)
	admin.WaitText("#mine", "Thesis")
	admin.Open(pages + "/users")
	admin.WaitText("table", guestHandle)
	s.shows(t, "zoe", "role admin", "groups none")
	if n := strings.Count(s.MustGpulab(s.ctx, "user", "list"), "Zoë Ünal"); n != 1 {
		t.Errorf("zoe has %d accounts", n)
	}
	s.uni.SetGroups("1", "students")
	b := s.somebody(t)
	s.withUniversity(b, "zoe")
	waitHome(b)
	b.Open(pages + "/users")
	b.WaitText("main", "Your account does not allow this")
	s.shows(t, "zoe", "role member", "groups vision")
	admin.Open(pages + "/users")
	admin.WaitFor("the session of the admin to be over", `location.pathname === "/login"`)
	s.zoe = b

	eve := s.somebody(t)
	s.withUniversity(eve, "eve")
	eve.WaitText("main", "Your account may not use this lab")
	eve.WaitText("main", "has an e-mail address of another domain than example.org, which this lab is for. Ask the service desk.")
	eve.Pictures("not-admitted")
	if got := s.Gpulab(s.ctx, "user", "show", "eve"); got.Code == 0 {
		t.Errorf("an account was made:\n%s", got.Stdout)
	}
}

// guesser is an address of whoever tries passwords of the directory.
const guesser = "10.99.0.68"

// testDirectory: name and password of the directory, in the usual form; its
// groups give the role, and guessing is stopped.
func (s *foreign) testDirectory(t *testing.T) {
	b := s.somebody(t)
	try := func(password string) {
		b.Open(pages + "/login")
		b.WaitText("main", "Name and password of "+dirTitle+" work here too.")
		b.Fill("Sign-in name", "mia")
		b.Fill("Password", password)
		b.Click("form", "Sign in")
	}
	try("not hers")
	b.WaitText("[role=alert]", "Name or password is wrong.")
	try(signintest.DirectoryPassword("mia"))
	waitHome(b)
	b.WaitText(".who", "Mia Sato")
	s.shows(t, "mia", "role guest", "sign-in directory mia")

	client := s.from(t, guesser)
	for range 20 {
		if status, body := tryPassword(t, client, "mia", "a guess"); status == http.StatusSeeOther {
			t.Fatalf("a guess is taken:\n%.300s", body)
		}
	}
	if status, _ := tryPassword(t, client, "mia", signintest.DirectoryPassword("mia")); status != http.StatusTooManyRequests {
		t.Errorf("after 20 guesses: status %d", status)
	}
	if got := s.MustGpulab(s.ctx, "audit", "export", "--json"); !strings.Contains(got, `"sign-in.failed"`) || !strings.Contains(got, `"sign-in.locked"`) || !strings.Contains(got, guesser) {
		t.Error("the audit log does not tell of the guesses")
	}
}

// testLink: the same name and the same e-mail address open nothing; what
// somebody has linked while signed in does.
func (s *foreign) testLink(t *testing.T) {
	s.MustGpulab(s.ctx, "user", "set", guestHandle, "--email", "ben@example.org")
	before := s.MustGpulab(s.ctx, "user", "list")
	b := s.somebody(t)
	s.withUniversity(b, guestHandle)
	b.WaitFor("a name to choose", `location.pathname === "/handle/choose"`)
	b.WaitText("main", "Only the name "+guestHandle+" cannot be had here")
	b.WaitText("main", "Do you have an account here already? Then make no second one")
	b.Pictures("choose-name")
	if after := s.MustGpulab(s.ctx, "user", "list"); after != before {
		t.Errorf("the people were\n%s\nand are\n%s", before, after)
	}

	signInBrowser(b, pages, guestHandle, guestPassword)
	b.Open(pages + "/account")
	b.Click("main", "Link "+uniTitle)
	b.Fill("Your password here", guestPassword)
	b.Click("form", "Link "+uniTitle)
	s.atUniversity(b, guestHandle)
	b.WaitText("main", "It is linked.")
	signOut(b)
	s.withUniversity(b, guestHandle)
	waitHome(b)
	b.Open(pages + "/account")
	b.WaitText("main", "Sign-in name "+guestHandle+", role member.")
	s.shows(t, guestHandle, "sign-in password, university "+guestHandle, "vision")
}

// testNoStudentAnyMore: whom no rule fits any more, and noMatch wants
// suspended, has neither session nor notebook from that sign-in on.
func (s *foreign) testNoStudentAnyMore(t *testing.T) {
	s.zoe.For(t).Open(pages + "/")
	waitHome(s.zoe.For(t))
	s.uni.SetGroups("1")
	b := s.somebody(t)
	s.withUniversity(b, "zoe")
	b.WaitText("main", "Your account at "+uniTitle+" is not in a group that may use this lab. Ask the service desk.")
	s.eventually(t, "the notebook is ended", func() bool {
		return !strings.Contains(s.MustGpulab(s.ctx, "kubectl", "-n", "user-zoe", "get", "pods", "-o", "name"), "pod/")
	})
	zoe := s.zoe.For(t)
	zoe.Open(pages + "/")
	zoe.WaitFor("the session to be over", `location.pathname === "/login"`)
	s.shows(t, "zoe", "state suspended", "groups none")
	// A suspension is ended by an admin, not by the provider.
	s.uni.SetGroups("1", "students")
	s.withUniversity(b, "zoe")
	b.WaitText("main", "This account is suspended. Ask an admin of the lab.")
	if !strings.Contains(s.MustGpulab(s.ctx, "audit", "export", "--json"), "no rule for the outside account fits") {
		t.Error("the audit log does not say why")
	}
}

// begin is what the button answers: 200 with the way to the provider, or why
// there is none.
func (s *foreign) begin(t *testing.T) int {
	t.Helper()
	status, _ := sendForm(t, s.HTTPClient(s.ca), "/login", "/signin/university", url.Values{})
	return status
}

// testAway: neither provider nor directory answers. Who has a password of the
// lab comes in as always, the others are told; and it is over by itself.
func (s *foreign) testAway(t *testing.T) {
	s.uni.Stop()
	s.dir.Stop()
	s.eventually(t, "the lab knows that the provider is away", func() bool { return s.begin(t) == http.StatusBadGateway })
	b := s.somebody(t)
	b.Open(pages + "/login")
	b.Click("main", "Sign in with "+uniTitle)
	b.WaitText("main", uniTitle+" does not answer this lab at the moment. Try again in a few minutes; accounts with a password of this lab sign in as always.")
	b.Pictures("provider-away")
	b.Click("main", "Back to sign-in")
	b.Fill("Sign-in name", "o'neil")
	b.Fill("Password", signintest.DirectoryPassword("o'neil"))
	b.Click("form", "Sign in")
	b.WaitText("[role=alert]", dirTitle+", which does not answer at the moment.")
	signInBrowser(b, pages, adminHandle, adminPassword)
	signIn(t, s.appliance, guestHandle, guestPassword)

	checkFailure(t, s.Gpulab(s.ctx, "signin", "check"), 1, "connection refused", "2 of 2 identity providers cannot be used")
	part := s.signInPart(t)
	for _, word := range []string{uniTitle + " did not answer", dirTitle + " did not answer", "connection refused"} {
		if !strings.Contains(part.Detail, word) {
			t.Errorf("status does not say %q: %+v", word, part)
		}
	}
	if part.State != "warning" || !strings.Contains(part.NextStep, "gpulab signin check") || !s.status(t).Ready {
		t.Errorf("%+v; the lab itself is ready", part)
	}

	listener, err := s.Listen("tcp", ":"+foreignPort)
	if err != nil {
		t.Fatal(err)
	}
	s.uni.Resume(listener)
	s.eventually(t, "the button works again", func() bool { return s.begin(t) == http.StatusOK })
	b = s.somebody(t)
	s.withUniversity(b, guestHandle)
	waitHome(b)
	if part := s.signInPart(t); !strings.Contains(part.Detail, uniTitle+" answers") {
		t.Errorf("status: %+v", part)
	}
}

// signInPart is what `gpulab status` says of providers and directories.
func (s *foreign) signInPart(t *testing.T) (part struct{ Name, State, Detail, NextStep string }) {
	t.Helper()
	for _, c := range s.status(t).Components {
		if c.Name == "sign-in" {
			part = c
		}
	}
	if part.Name == "" {
		t.Error("status has no part sign-in")
	}
	return part
}

// testForeignSecrets: what opens doors elsewhere stands in no log, no command
// line, and no database.
func (s *foreign) testForeignSecrets(t *testing.T) {
	bind, err := os.ReadFile(s.dir.PasswordFile)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{signintest.ClientSecret, strings.TrimSpace(string(bind)), url.QueryEscape(signintest.ClientSecret),
		signintest.DirectoryPassword("mia"), signintest.DirectoryPassword("o'neil"), providerPassword("zoe"), "/signin/university/callback?"}
	s.WriteFile("/root/foreign-secrets", strings.Join(secrets, "\n")+"\n")
	defer s.MustRun(s.ctx, "rm", "/root/foreign-secrets")
	for what, look := range map[string]string{
		"command lines": `for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -qaF -f /root/foreign-secrets && cat $p/comm; done`,
		"logs":          `grep -rlaF -f /root/foreign-secrets /var/lib/gpulab/log /var/log/pods`,
		"databases":     `grep -laF -f /root/foreign-secrets /var/lib/gpulab/*.db*`,
		"configuration": `grep -laF -f /root/foreign-secrets /etc/gpulab/config.yaml`,
	} {
		if found := s.Run(s.ctx, "sh", "-c", look).Stdout; found != "" {
			t.Errorf("a secret stands in %s:\n%s", what, found)
		}
	}
	// The look itself finds what there is.
	if s.Run(s.ctx, "grep", "-qaF", "-f", "/root/foreign-secrets", "/etc/gpulab/university.secret").Code != 0 {
		t.Error("this test finds nothing")
	}
}
