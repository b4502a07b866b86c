//go:build e2e

package bench

import (
	"context"
	"encoding/csv"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

var (
	people  = flag.Int("people", 200, "people who sign in and launch at the same time")
	perSec  = flag.Int("rate", 20, "how many of them begin in a second")
	running = flag.Duration("running", 2*time.Minute, "how long after the first sign-in the running notebooks are counted")
)

// TestRush prints how a lab does when a whole school signs in at once and
// everybody starts a small notebook: from one address, as behind a router.
func TestRush(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	l := newLab(t)
	l.WriteFile("/etc/gpulab/config.yaml", `
gpus: simulated
profiles:
  - {slug: tiny, title: Tiny, description: For exercises., cpus: 1, memory: 512Mi, cpuRequest: 0.01, memoryRequest: 64Mi}
`)
	_, printed := initialise(ctx, t, l)
	admin := signUp(ctx, t, l, printed)
	crowd := newCrowd(ctx, t, l)

	alone := crowd[0].rush(ctx)
	if alone.err != nil {
		t.Fatal(alone.err)
	}
	crowd = crowd[1:]
	began := time.Now()
	results := make([]rushed, len(crowd))
	var all sync.WaitGroup
	for i := range crowd {
		time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(*perSec))))
		all.Go(func() { results[i] = crowd[i].rush(ctx) })
	}
	all.Wait()
	fmt.Printf("\n%d people sign in and launch, %d beginning in a second, all done after %.1f s. Milliseconds.\n", len(crowd), *perSec, time.Since(began).Seconds())
	fmt.Printf("  %-28s %8s %8s %8s %8s %10s\n", "", "alone", "median", "p99", "slowest", "p99/alone")
	for _, row := range []struct {
		name string
		of   func(rushed) time.Duration
	}{
		{"the sign-in page", func(r rushed) time.Duration { return r.page }},
		{"the sign-in", func(r rushed) time.Duration { return r.signIn }},
		{"the home page", func(r rushed) time.Duration { return r.home }},
		{"launch, until it is decided", func(r rushed) time.Duration { return r.launch }},
	} {
		var took []time.Duration
		for _, r := range results {
			took = append(took, row.of(r))
		}
		slices.Sort(took)
		p99 := took[len(took)*99/100]
		fmt.Printf("  %-28s %8.0f %8.0f %8.0f %8.0f %10.1f\n", row.name, milliseconds(row.of(alone)), milliseconds(median(took)), milliseconds(p99),
			milliseconds(took[len(took)-1]), p99.Seconds()/row.of(alone).Seconds())
	}
	failed := 0
	for i, r := range results {
		if r.err != nil {
			if failed++; failed <= 5 {
				fmt.Printf("  person %d: %v\n", i, r.err)
			}
		}
	}
	fmt.Printf("  %d of %d met an error.\n", failed, len(crowd))
	if failed > 0 {
		t.Errorf("%d people met an error", failed)
	}
	time.Sleep(time.Until(began.Add(*running)))
	_, home := admin.get(ctx, pages+"/")
	fmt.Printf("  %s after the first began: %d notebooks run, %d wait or start; %s\n", *running,
		strings.Count(home, ">running<"), strings.Count(home, ">waiting<")+strings.Count(home, ">starting<"), memoryLeft(ctx, l))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func memoryLeft(ctx context.Context, l *lab.Lab) string {
	return strings.Join(strings.Fields(l.MustRun(ctx, "grep", "MemAvailable", "/proc/meminfo")), " ")
}

// person is one of the crowd.
type person struct {
	client           *http.Client
	handle, password string
}

// rushed is how long each step took.
type rushed struct {
	page, signIn, home, launch time.Duration
	err                        error
}

// newCrowd imports a list, one longer than the crowd, and lets everybody choose a password.
func newCrowd(ctx context.Context, t *testing.T, l *lab.Lab) []*person {
	t.Helper()
	list := "handle,name\n"
	for i := range *people + 1 {
		list += fmt.Sprintf("student-%d,Student %d\n", i, i)
	}
	l.WriteFile("/root/class.csv", list)
	l.MustGpulab(ctx, "user", "import", "/root/class.csv", "--links", "/root/links.csv")
	rows, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(l.MustRun(ctx, "cat", "/root/links.csv"), "\ufeff"))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	authority := []byte(l.MustGpulab(ctx, "ca"))
	var crowd []*person
	for _, row := range rows[1:] { // name, handle, e-mail address, link, its end
		handle, link := row[1], row[3]
		address, err := url.Parse(link)
		if err != nil {
			t.Fatal(err)
		}
		p := &person{l.HTTPClient(authority), handle, "a password for " + handle}
		page, err := p.send(ctx, http.MethodGet, link, nil)
		if err == nil {
			_, err = p.send(ctx, http.MethodPost, pages+"/welcome", url.Values{"csrf": {csrf(t, page)}, "token": {address.Query().Get("token")},
				"password": {p.password}, "again": {p.password}})
		}
		if err != nil {
			t.Fatalf("%s chooses a password: %v", p.handle, err)
		}
		p.client = l.HTTPClient(authority) // signed out again
		crowd = append(crowd, p)
	}
	if len(crowd) != *people+1 {
		t.Fatalf("%d people of %d have a link", len(crowd), *people+1)
	}
	return crowd
}

// rush is what one of the crowd does.
func (p *person) rush(ctx context.Context) (r rushed) {
	step := func(took *time.Duration, method, address string, form url.Values) (body string) {
		if r.err != nil {
			return ""
		}
		began := time.Now()
		body, r.err = p.send(ctx, method, address, form)
		*took = time.Since(began)
		return body
	}
	token := func(page string) string {
		found := csrfField.FindStringSubmatch(page)
		if found == nil {
			if r.err == nil {
				r.err = errors.New("a page without a CSRF token")
			}
			return ""
		}
		return found[1]
	}
	page := step(&r.page, http.MethodGet, pages+"/login", nil)
	step(&r.signIn, http.MethodPost, pages+"/login", url.Values{"csrf": {token(page)}, "handle": {p.handle}, "password": {p.password}})
	home := step(&r.home, http.MethodGet, pages+"/", nil)
	step(&r.launch, http.MethodPost, pages+"/launch", url.Values{"csrf": {token(home)}, "profile": {"tiny"}, "title": {"Exercise"}})
	return r
}

// send sends one request; an answer that is neither a page nor leads to one is an error.
func (p *person) send(ctx context.Context, method, address string, form url.Values) (string, error) {
	status, body, _, err := send(ctx, p.client, method, address, form)
	if err != nil {
		return "", err
	}
	if status >= 400 || method == http.MethodPost && status != http.StatusSeeOther {
		return "", fmt.Errorf("%s %s: status %d: %.300s", method, address, status, body)
	}
	return body, nil
}
