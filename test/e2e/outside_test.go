//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// testOutside: what somebody on the network tries who has no account, or who
// had more rights a moment ago. The attacker has an address of their own.
func testOutside(t *testing.T, a *appliance) {
	t.Run("one password and many names", func(t *testing.T) { testSpraying(t, a) })
	t.Run("requests that are none", func(t *testing.T) { testMalformed(t, a) })
	t.Run("paths that lead elsewhere", func(t *testing.T) { testPaths(t, a) })
	t.Run("visitors who send next to nothing", func(t *testing.T) { testSlowVisitors(t, a) })
	t.Run("an invitation in a race", func(t *testing.T) { testInvitationRace(t, a) })
	t.Run("a role that is gone", func(t *testing.T) { testRoleGone(t, a) })
}

// attacker and bystander are addresses on the visitor's computer.
const (
	attacker  = "10.99.0.66"
	bystander = "10.99.0.67"
)

// from returns a client with an address of its own.
func (a *appliance) from(t *testing.T, address string) *http.Client {
	t.Helper()
	a.addVisitorAddress(t, address)
	client := a.HTTPClient(a.ca)
	client.Transport.(*http.Transport).DialContext = a.DialFrom(address)
	return client
}

func (a *appliance) addVisitorAddress(t *testing.T, address string) {
	t.Helper()
	a.MustRunVisitor(a.ctx, "ip", "address", "replace", address+"/32", "dev", "br0")
}

// testSpraying: whoever tries a password with every name is stopped, and it is
// not told which names exist.
func testSpraying(t *testing.T, a *appliance) {
	client := a.from(t, attacker)
	csrf := formToken(t, client, "/login")
	try := func(handle, password string) (int, string) {
		status, body, _ := request(t, client, "POST", pages+"/login", url.Values{"handle": {handle}, "password": {password}, "csrf": {csrf}})
		return status, errorText(body)
	}
	_, unknown := try("mallory", "summer of twenty 26")
	_, known := try(guestHandle, "summer of twenty 26")
	if unknown != known || known == "" {
		t.Errorf("for a name that nobody has: %q, for one that somebody has: %q", unknown, known)
	}
	looked := 2
	for i := range 150 {
		if status, _ := try(fmt.Sprintf("student-%d", i), "summer of twenty 26"); status == http.StatusUnauthorized {
			looked++
		}
	}
	// 100 are left to a class that mistypes behind one router.
	if looked > 105 {
		t.Errorf("%d of 152 passwords were looked at", looked)
	}
	if status, text := try("student-200", guestPassword); status != http.StatusTooManyRequests || !strings.Contains(text, "Try again in") {
		t.Errorf("the attacker goes on: status %d, %q", status, text)
	}
	if status, body := tryPassword(t, a.from(t, bystander), guestHandle, guestPassword); status != http.StatusSeeOther {
		t.Errorf("somebody else signs in: status %d\n%.500s", status, body)
	}
}

var bannerText = regexp.MustCompile(`(?s)<div class="banner bad">(.*?)</div></div>`)

// errorText is what the banner of a page says, without its elements.
func errorText(body string) string {
	found := bannerText.FindStringSubmatch(body)
	if found == nil {
		return ""
	}
	return strings.Join(strings.Fields(element.ReplaceAllString(found[1], " ")), " ")
}

var element = regexp.MustCompile(`<[^>]*>`)

// raw sends bytes over TLS and returns what comes back until the connection
// ends or is quiet.
func (a *appliance) raw(t *testing.T, address string, send io.Reader) string {
	t.Helper()
	plain, err := a.DialFrom(attacker)(a.ctx, "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	conn := tls.Client(plain, &tls.Config{InsecureSkipVerify: true}) // who answers is not the question
	go func() { _, _ = io.Copy(conn, send) }()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	var answer bytes.Buffer
	_, _ = io.Copy(&answer, io.LimitReader(conn, 1<<20))
	return answer.String()
}

// testMalformed: requests that no browser sends are refused, and each door goes
// on serving.
func testMalformed(t *testing.T, a *appliance) {
	a.addVisitorAddress(t, attacker)
	const host = "Host: " + lab.Address + "\r\n"
	for _, door := range []string{lab.Address + ":443", lab.Address + ":8443"} {
		for what, c := range map[string]struct {
			send io.Reader
			want string // "" where the connection may end without an answer
		}{
			"10 MB of headers": {io.MultiReader(strings.NewReader("GET / HTTP/1.1\r\n"+host), endless("X-Filler: "+strings.Repeat("x", 1000)+"\r\n", 10<<20)), "431"},
			"a path of 1 MB":   {strings.NewReader("GET /" + strings.Repeat("x", 1<<20) + " HTTP/1.1\r\n" + host + "\r\n"), "431"},
			"two lengths":      {strings.NewReader("POST /login HTTP/1.1\r\n" + host + "Content-Length: 4\r\nContent-Length: 40\r\n\r\nabcd"), "400"},
			"unknown coding":   {strings.NewReader("POST /login HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\nabcd"), "501"},
			"name with space":  {strings.NewReader("GET /login HTTP/1.1\r\n" + host + "Content-Length : 4\r\n\r\nabcd"), "400"},
			"no host":          {strings.NewReader("GET /login HTTP/1.1\r\n\r\n"), "400"},
			"two hosts":        {strings.NewReader("GET /login HTTP/1.1\r\n" + host + "Host: evil.example\r\n\r\n"), "400"},
			"zero byte":        {strings.NewReader("GET /login HTTP/1.1\r\n" + host + "X: a\x00b\r\n\r\n"), "400"},
			"no HTTP":          {strings.NewReader("\x16\x03\x01\x02\x00" + strings.Repeat("\xff", 512) + "\r\n\r\n"), "400"},
		} {
			got := a.raw(t, door, c.send)
			if first, _, _ := strings.Cut(got, "\r\n"); got != "" && !strings.Contains(first, " "+c.want+" ") || got == "" && c.want != "431" {
				t.Errorf("%s at %s: %.200q, want status %s", what, door, got, c.want)
			}
		}
		answer := a.raw(t, door, strings.NewReader("GET /login?next=/gpus HTTP/1.1\r\nHost: evil.example\r\nX-Forwarded-Host: evil.example\r\nConnection: close\r\n\r\n"))
		if location, ok := headerOf(t, answer, "Location"); ok && strings.Contains(location, "evil") {
			t.Errorf("a made-up host at %s leads to %q", door, location)
		}
		old := &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}
		plain, err := a.Dial(a.ctx, "tcp", door)
		if err != nil {
			t.Fatal(err)
		}
		if err := tls.Client(plain, old).Handshake(); err == nil {
			t.Errorf("%s speaks TLS 1.1", door)
		}
		plain.Close()
	}
	signIn(t, a, guestHandle, guestPassword)
}

// endless repeats a text up to so many bytes.
func endless(text string, size int64) io.Reader {
	return io.LimitReader(repeat(text), size)
}

type repeat string

func (r repeat) Read(p []byte) (int, error) { return copy(p, r), nil }

func headerOf(t *testing.T, answer, name string) (string, bool) {
	t.Helper()
	response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answer)), nil)
	if err != nil {
		t.Fatalf("%v:\n%.500s", err, answer)
	}
	response.Body.Close()
	value := response.Header.Get(name)
	return value, value != ""
}

// testPaths: no path leads to a file of the machine, nor from one's own
// notebook to somebody else's.
func testPaths(t *testing.T, a *appliance) {
	client := signIn(t, a, guestHandle, guestPassword)
	var targets []string
	notebooks := a.notebooksOf(t, guestHandle)
	for _, up := range []string{"../", "..%2f", "%2e%2e/", "%2e%2e%2f", `..\`, "..%5c", "..%c0%af", "....//", "..;/", ".%00./"} {
		for _, start := range []string{"/", "/assets/", "/users/", "/launches/1/"} {
			targets = append(targets, pages+start+strings.Repeat(up, 8)+"etc/passwd", pages+start+strings.Repeat(up, 8)+"var/lib/gpulab/gpulab.db")
		}
		targets = append(targets, notebooks+"/user/"+guestHandle+"/play/"+strings.Repeat(up, 2)+adminHandle+"/work/api/contents",
			notebooks+"/user/"+guestHandle+"/"+up+adminHandle+"/work/api/contents", notebooks+"/hub/"+up+"user/"+adminHandle+"/work/api/contents",
			notebooks+"/user/"+guestHandle+"/play/files/"+strings.Repeat(up, 8)+"etc/passwd")
	}
	for _, target := range targets {
		address, err := url.Parse(target)
		if err != nil {
			continue // what the client cannot send
		}
		response, err := client.Do(&http.Request{Method: http.MethodGet, URL: address, Header: http.Header{}})
		if err != nil {
			t.Errorf("%s: %v", target, err)
			continue
		}
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
		response.Body.Close()
		for _, secret := range []string{"root:x:0", "SQLite format", `"content"`} {
			if bytes.Contains(body, []byte(secret)) {
				t.Errorf("%s: status %d, with %q:\n%.300s", target, response.StatusCode, secret, body)
			}
		}
		if response.StatusCode >= 500 {
			t.Errorf("%s: status %d", target, response.StatusCode)
		}
	}
}

// testSlowVisitors: many connections that send next to nothing neither slow
// anybody down nor stay.
func testSlowVisitors(t *testing.T, a *appliance) {
	a.addVisitorAddress(t, attacker)
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	const each = 200
	var left atomic.Int32
	var all, begun sync.WaitGroup
	for i := range 2 * each {
		begun.Add(1)
		all.Go(func() {
			plain, err := a.DialFrom(attacker)(ctx, "tcp", lab.Address+":443")
			if err != nil {
				begun.Done()
				t.Error(err)
				return
			}
			defer plain.Close()
			conn := plain
			if i%2 == 0 { // the others never say a word
				conn = tls.Client(plain, &tls.Config{InsecureSkipVerify: true})
				_, _ = io.WriteString(conn, "POST /login HTTP/1.1\r\nHost: "+lab.Address+"\r\nX-Long: ")
				go func() {
					for ctx.Err() == nil {
						if _, err := io.WriteString(conn, "x"); err != nil {
							return
						}
						time.Sleep(time.Second)
					}
				}()
			}
			begun.Done()
			left.Add(1)
			defer left.Add(-1)
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	begun.Wait()
	client := signIn(t, a, guestHandle, guestPassword)
	var took []time.Duration
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		began := time.Now()
		if status, body, _ := request(t, client, "GET", pages+"/", nil); status != http.StatusOK {
			t.Fatalf("the home page meanwhile: status %d\n%.500s", status, body)
		}
		took = append(took, time.Since(began))
	}
	answering(t, fmt.Sprintf("%d such visitors", left.Load()), took)
	a.eventually(t, "all of them are sent away", func() bool { return left.Load() == 0 })
	cancel()
	all.Wait()
}

var joinLink = regexp.MustCompile(`/join\?token=[A-Za-z0-9_-]+`)

// testInvitationRace: an invitation for one makes one account, however many
// use it at the same moment.
func testInvitationRace(t *testing.T, a *appliance) {
	status, body := sendForm(t, a.admin(t), "/invitations", "/invitations", url.Values{"role": {"member"}, "uses": {"1"}})
	link := joinLink.FindString(body)
	if status != http.StatusOK || link == "" {
		t.Fatalf("an invitation: status %d\n%.500s", status, body)
	}
	token := mustURL(t, pages+link).Query().Get("token")
	var in atomic.Int32
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range 12 {
		client := a.HTTPClient(a.ca)
		form := url.Values{"csrf": {formToken(t, client, link)}, "token": {token}, "name": {"Racer"}, "handle": {fmt.Sprintf("racer%d", i)},
			"password": {"seven grey old boats"}, "again": {"seven grey old boats"}}
		all.Go(func() {
			<-start
			switch status, body, _ := request(t, client, "POST", pages+"/join", form); status {
			case http.StatusSeeOther:
				in.Add(1)
			case http.StatusGone:
			default:
				t.Errorf("racer %d: status %d\n%.300s", i, status, body)
			}
		})
	}
	close(start)
	all.Wait()
	if n := strings.Count(a.MustGpulab(a.ctx, "user", "list"), "racer"); n != 1 || in.Load() != 1 {
		t.Errorf("%d got in, %d accounts were made; want one", in.Load(), n)
	}
}

// testRoleGone: rights end the moment they are taken, for pages that are open
// and for forms that were loaded before.
func testRoleGone(t *testing.T, a *appliance) {
	const handle, password = "carol", "four small iron keys"
	b := a.welcome(t, handle, "Carol", password)
	a.MustGpulab(a.ctx, "user", "set", handle, "--role", "admin")
	client := signIn(t, a, handle, password)
	form := url.Values{"csrf": {formToken(t, client, "/users")}, "name": {"Eve"}, "handle": {"eve"}, "role": {"admin"}}
	signInBrowser(b, pages, handle, password)
	a.MustGpulab(a.ctx, "user", "set", handle, "--role", "guest")
	if status, body, _ := request(t, client, "POST", pages+"/users", form); status != http.StatusUnauthorized {
		t.Errorf("a form that was open before: status %d\n%.300s", status, body)
	}
	if strings.Contains(a.MustGpulab(a.ctx, "user", "list"), "eve") {
		t.Error("the form made an account")
	}
	b.WaitFor("the open page to say that the session has ended", `location.pathname === "/login" || /sign in|signed out/i.test(document.querySelector(".banner, main")?.innerText ?? "")`)
	again := signIn(t, a, handle, password)
	for _, page := range []string{"/quotas", "/invitations", "/audit"} {
		if status, _, _ := request(t, again, "GET", pages+page, nil); status != http.StatusForbidden && status != http.StatusNotFound {
			t.Errorf("a guest opens %s: status %d", page, status)
		}
	}
}
