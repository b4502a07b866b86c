package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/tenancy"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/webui"
)

// cluster stands for notebooks and places: it keeps who has something in it.
type cluster struct {
	running map[int64]string // user → handle
	places  map[string]bool
	homes   map[string]bool
	why     []string // StopUser was given
	away    bool     // the cluster does not answer
}

func (c *cluster) Active(context.Context) ([]notebooks.Launch, error) {
	var list []notebooks.Launch
	for id, handle := range c.running {
		list = append(list, notebooks.Launch{ID: id, UserID: id, Handle: handle, State: notebooks.Running})
	}
	return list, nil
}

func (c *cluster) StopUser(_ context.Context, id int64, why string) error {
	c.why = append(c.why, why)
	delete(c.running, id)
	return nil
}

func (c *cluster) DeleteHome(_ context.Context, u users.User) error {
	if c.places[u.Handle] {
		return tenancy.ErrPlaceInUse
	}
	delete(c.homes, u.Handle)
	return nil
}

func (c *cluster) Remove(_ context.Context, u users.User) error {
	if c.away {
		return errors.New("the Kubernetes API does not answer")
	}
	delete(c.places, u.Handle)
	return nil
}

func (c *cluster) Sweep(ctx context.Context, gone func(context.Context, string) (bool, error)) error {
	for handle := range c.places {
		if yes, err := gone(ctx, handle); err != nil {
			return err
		} else if yes {
			delete(c.places, handle)
		}
	}
	return nil
}

// peopleLab has an admin, ada, and ben, who has a notebook and a place.
func peopleLab(t *testing.T) (*people, *cluster, users.User) {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	accounts := users.New(st.DB())
	token, err := accounts.CreateLink(t.Context(), users.Link{Purpose: users.PurposeAdminSetup}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := accounts.RedeemLink(t.Context(), token, "ada", "Ada", "a quiet green lamp"); err != nil {
		t.Fatal(err)
	}
	ben, err := accounts.Create(t.Context(), users.NewUser{Handle: "ben"})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{running: map[int64]string{ben.ID: "ben"}, places: map[string]bool{"ben": true, "ada": true}, homes: map[string]bool{"ben": true, "ada": true}}
	return &people{Service: accounts, notebooks: c, places: c, now: time.Now}, c, ben
}

// checkRemoved checks that nothing of ben is left, and that one line of the
// audit log says who did it.
func checkRemoved(t *testing.T, p *people, c *cluster, actor string) {
	t.Helper()
	if _, err := p.ByHandle(t.Context(), "ben"); !errors.Is(err, users.ErrNotFound) {
		t.Errorf("the account: %v", err)
	}
	if len(c.running) > 0 || c.places["ben"] || !c.places["ada"] || !c.homes["ben"] {
		t.Errorf("notebooks %v, places %v, homes %v", c.running, c.places, c.homes)
	}
	log, err := p.AuditLog().List(t.Context(), audit.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range log {
		if e.Action == "user.remove" {
			lines = append(lines, e.Actor+" "+e.Target)
		}
	}
	if strings.Join(lines, ", ") != actor+" ben" {
		t.Errorf("audit: %q", lines)
	}
}

func TestRemoveByCommand(t *testing.T) {
	p, c, _ := peopleLab(t)
	l := &appliance{people: p.Service}
	var daemon ctl.Daemon = l
	if _, err := daemon.RemoveUser(t.Context(), "ben", false); !errors.Is(err, errStarting) {
		t.Errorf("while the lab starts: %v", err)
	}
	l.attached.Store(&attached{people: p})
	if _, err := daemon.RemoveUser(t.Context(), "ben", false); err != nil {
		t.Fatal(err)
	}
	checkRemoved(t, p, c, "root")
}

// TestRemoveByPage sends the form of the users page.
func TestRemoveByPage(t *testing.T) {
	p, c, _ := peopleLab(t)
	pages, err := webui.New(pagesConfig(p))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(pages)
	defer server.Close()
	client := server.Client()
	client.Jar, _ = cookiejar.New(nil)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	post := func(page, path string, form url.Values) {
		t.Helper()
		form.Set("csrf", formToken(t, client, server.URL+page))
		response, err := client.PostForm(server.URL+path, form)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusSeeOther {
			body, _ := io.ReadAll(response.Body)
			t.Fatalf("%s: status %d\n%.500s", path, response.StatusCode, body)
		}
	}
	post("/login", "/login", url.Values{"handle": {"ada"}, "password": {"a quiet green lamp"}})
	post("/users", "/users/ben/remove", url.Values{})
	checkRemoved(t, p, c, "ada")
}

// pagesConfig is what openPages gives the pages, as far as people matter.
func pagesConfig(p *people) webui.Config {
	return webui.Config{
		Users: p, Audit: p.AuditLog(), Notebooks: struct{ webui.Notebooks }{}, Fleet: fleet.New(),
		Status:       struct{ webui.StatusSource }{},
		History:      struct{ webui.History }{},
		Quotas:       struct{ webui.Quotas }{},
		Storage:      struct{ webui.Storage }{},
		Machines:     struct{ webui.Machines }{},
		Environments: struct{ webui.Environments }{},
		CheckGPU:     func(context.Context) (string, error) { return "", errStarting },
		LendGPU:      func(context.Context, string, bool) error { return errStarting },
		NotebooksAt:  portsByID{}.Authority,
	}
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

func formToken(t *testing.T, client *http.Client, address string) string {
	t.Helper()
	response, err := client.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := csrfField.FindSubmatch(body)
	if found == nil {
		t.Fatalf("no form at %s:\n%.500s", address, body)
	}
	return string(found[1])
}

// TestRemoveWhileTheClusterIsAway: the account is gone at once, the rest as
// soon as the cluster is back.
func TestRemoveWhileTheClusterIsAway(t *testing.T) {
	p, c, ben := peopleLab(t)
	c.away = true
	if err := p.Remove(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	if !c.places["ben"] {
		t.Fatal("this test shows nothing")
	}
	c.running[ben.ID] = "ben" // as after a crash between the two
	c.away = false
	if err := p.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if len(c.running) > 0 || c.places["ben"] || !c.places["ada"] {
		t.Errorf("notebooks %v, places %v", c.running, c.places)
	}
}

// TestSuspend: a suspended account holds no notebook, and keeps the rest.
func TestSuspend(t *testing.T) {
	p, c, ben := peopleLab(t)
	if err := p.Suspend(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	if len(c.running) > 0 || !c.places["ben"] || !c.homes["ben"] || strings.Join(c.why, "|") != "The account was suspended." {
		t.Errorf("notebooks %v, places %v, why %q", c.running, c.places, c.why)
	}
	c.running[ben.ID] = "ben" // a launch that was under way
	if err := p.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if len(c.running) > 0 || !c.places["ben"] || strings.Join(c.why, "|") != "The account was suspended.|The account was suspended." {
		t.Errorf("notebooks %v, places %v, why %q", c.running, c.places, c.why)
	}
	if err := p.Resume(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	c.running[ben.ID] = "ben"
	if err := p.sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if len(c.running) != 1 {
		t.Error("a resumed account's notebook was stopped")
	}
}

// TestPurgeWhenItsTimeHasCome: account and home stay for 30 days, then go.
func TestPurgeWhenItsTimeHasCome(t *testing.T) {
	p, c, ben := peopleLab(t)
	if err := p.Remove(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	later := func(d time.Duration) {
		t.Helper()
		p.now = func() time.Time { return time.Now().Add(d) }
		if err := p.sweep(t.Context()); err != nil {
			t.Error(err)
		}
	}
	later(users.RemovedKept - time.Minute)
	if who, err := p.Person(t.Context(), "ben"); err != nil || who.Removed == nil || !c.homes["ben"] {
		t.Fatalf("too early: %+v, %v, homes %v", who, err, c.homes)
	}
	c.places["ben"] = true // pods that do not end
	later(users.RemovedKept)
	if _, err := p.Person(t.Context(), "ben"); !errors.Is(err, users.ErrPurged) {
		t.Errorf("the account: %v", err)
	}
	later(users.RemovedKept)
	if c.homes["ben"] || !c.homes["ada"] {
		t.Errorf("homes %v", c.homes)
	}
	if left, err := p.HomesToDelete(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
	purged := 0
	log, err := p.AuditLog().List(t.Context(), audit.Filter{})
	for _, e := range log {
		if e.Action == "user.purge" && e.Actor == "system" && e.Target == "ben" {
			purged++
		}
	}
	if err != nil || purged != 1 {
		t.Errorf("audit: %+v, %v", log, err)
	}
}

func TestPurgeAtOnce(t *testing.T) {
	p, c, ben := peopleLab(t)
	if _, err := p.Purge(t.Context(), ben.ID); !errors.Is(err, users.ErrNotRemoved) {
		t.Errorf("in use: %v", err)
	}
	if err := p.Remove(t.Context(), ben.ID); err != nil {
		t.Fatal(err)
	}
	if gone, err := p.Purge(t.Context(), ben.ID); !gone || err != nil || c.homes["ben"] || !c.homes["ada"] {
		t.Errorf("%v, %v, homes %v", gone, err, c.homes)
	}
	if err := p.Undelete(t.Context(), ben.ID); !errors.Is(err, users.ErrPurged) {
		t.Errorf("back: %v", err)
	}
}
