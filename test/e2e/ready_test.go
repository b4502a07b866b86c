//go:build e2e

package e2e

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// person is somebody with an account.
type person struct{ Handle, Name, Password string }

// people are those of every ready lab: an admin, and a member.
var people = []person{{adminHandle, "Ada Lovelace", adminPassword}, {guestHandle, "Ben", guestPassword}}

// withPeople is a lab that nobody has configured, whose people have chosen their passwords.
// It has none of the quotas that a new lab begins with: on a test host they are small.
var withPeople = lab.Template{
	Name:   "people",
	Recipe: []any{1, people, initArgs},
	Make: func(tb testing.TB, hosts []*lab.Lab) {
		defer lab.Begin(tb)()
		t := tb.(*testing.T)
		a := &appliance{Lab: hosts[0], ctx: t.Context(), lifeOf: t}
		t.Cleanup(func() { a.keepLogs(t) })
		a.populate(t)
		a.kept = true // a test that fails later keeps logs of its own
	},
}

// populate makes the host a lab, and has the people choose their passwords.
func (a *appliance) populate(t *testing.T) {
	t.Helper()
	a.link = findLink(t, a.MustGpulab(a.ctx, initArgs...))
	a.ca = []byte(a.MustGpulab(a.ctx, "ca"))
	for _, p := range people {
		link := a.link
		if p.Handle != adminHandle {
			printed := a.MustGpulab(a.ctx, "user", "add", p.Handle, "--name", p.Name)
			link = strings.TrimSpace(printed[strings.Index(printed, "https://"):])
		}
		a.redeem(t, link, p)
	}
	for _, kind := range []string{"notebooks", "cpus", "memory"} {
		a.MustGpulab(a.ctx, "quota", "unset", "everybody", kind)
	}
}

// redeem opens a one-time link and chooses a password, as its person does in a browser.
func (a *appliance) redeem(t *testing.T, link string, p person) {
	t.Helper()
	address, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	form := url.Values{
		"token": {address.Query().Get("token")}, "name": {p.Name}, "handle": {p.Handle},
		"password": {p.Password}, "again": {p.Password},
	}
	status, body := sendForm(t, a.HTTPClient(a.ca), address.RequestURI(), address.Path, form)
	if status != http.StatusSeeOther {
		t.Fatalf("%s chooses a password: status %d\n%.500s", p.Handle, status, body)
	}
}

// ready is a lab with an admin and a member, both signed in, that has just been started with a
// configuration, "" for the one that init writes.
func ready(t *testing.T, config string) *appliance {
	t.Helper()
	began := time.Now()
	a := newAppliance(t, withPeople.Start(t)[0])
	t.Logf("host after %.1f s", time.Since(began).Seconds())
	if config != "" {
		a.WriteFile("/etc/gpulab/config.yaml", config)
	}
	a.start(t)
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	return a
}

// start makes the host of a template a lab again, and signs its people in.
func (a *appliance) start(t *testing.T) {
	t.Helper()
	a.init(t)
	a.ca = []byte(a.MustGpulab(a.ctx, "ca"))
	a.browser = a.Browser(a.ca)
	signInBrowser(a.browser, pages, adminHandle, adminPassword)
	a.guest = a.browser.Private()
	signInBrowser(a.guest, pages, guestHandle, guestPassword)
}

// init runs `gpulab init` while no other lab starts.
func (a *appliance) init(t *testing.T) lab.Result {
	t.Helper()
	defer lab.Begin(t)()
	result := a.Gpulab(a.ctx, initArgs...)
	if result.Code != 0 {
		t.Fatalf("init: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	return result
}

// fresh is a machine that has never seen gpulab.
func fresh(t *testing.T) *appliance {
	t.Helper()
	return newAppliance(t, lab.New(t))
}

// patience is how long one test may take.
const patience = 45 * time.Minute

func newAppliance(t *testing.T, l *lab.Lab) *appliance {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	a := &appliance{Lab: l, ctx: ctx, lifeOf: t}
	t.Cleanup(func() {
		a.keepLogs(t)
		cancel()
	})
	return a
}
