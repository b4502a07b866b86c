//go:build e2e

package bench

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// How often each thing is measured; the median counts.
var (
	starts   = flag.Int("starts", 3, "starts of a lab, and of k3s alone")
	launches = flag.Int("launches", 7, "launches of a notebook, each way")
)

// The person who launches.
const (
	handle   = "ada"
	password = "a quiet green lamp"
)

// pages is where the lab's pages are.
const (
	pages = "https://" + lab.Address
)

// TestBench prints the figures of one lab after the other, each a machine that
// has never seen gpulab.
func TestBench(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 45*time.Minute)
	defer cancel()
	fmt.Printf("\n%d processors, load %s before the first figure. Times in seconds.\n", runtime.NumCPU(), load(t))
	kept := t.TempDir()
	var memory []process
	var idle processors
	t.Run("lab", func(t *testing.T) {
		l := newLab(t)
		cold, printed := initialise(ctx, t, l)
		printStages("Start from nothing", []start{cold})
		keepRuntime(t, l, kept)
		v := signUp(ctx, t, l, printed)
		memory = settledMemory(ctx, t, l)
		idle = idleProcessors(ctx, t, l)
		measureLaunches(ctx, t, l, v)
	})
	var staged, alone []start
	for range *starts {
		t.Run("start", func(t *testing.T) { staged = append(staged, startStaged(ctx, t, kept)) })
		t.Run("k3s alone", func(t *testing.T) {
			one, processes, idleAlone := startAlone(ctx, t, kept, len(alone) == *starts-1)
			alone = append(alone, one)
			if processes != nil {
				printMemory(memory, processes)
				printIdle(idle, idleAlone)
			}
		})
	}
	if *starts == 0 {
		printIdle(idle, nil)
	}
	if t.Failed() || *starts == 0 {
		return
	}
	printStages(fmt.Sprintf("Start with the runtime bundle staged and no image imported, median of %d", *starts), staged)
	printStages(fmt.Sprintf("k3s alone, same program and configuration, until the node is ready, median of %d", *starts), alone)
	fmt.Printf("%-34s %8.1f ×\n", "gpulab / k3s alone", total(staged).Seconds()/total(alone).Seconds())
}

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	l := lab.New(t)
	if _, err := os.Stat(l.Binary()); err != nil {
		t.Fatalf("there is no %s: run `go tool task build`", l.Binary())
	}
	return l
}

// load is the machine's load average over the last minute.
func load(t *testing.T) string {
	t.Helper()
	average, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(average))[0]
}

// copyTree copies a folder as it is.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
}

func median[T cmp.Ordered](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// visitor is somebody who is signed in, as a browser is.
type visitor struct {
	t      *testing.T
	client *http.Client
}

var linkPattern = regexp.MustCompile(`https://\S+/setup\?token=\S+`)

// signUp uses the administrator's link that init has printed.
func signUp(ctx context.Context, t *testing.T, l *lab.Lab, printed string) *visitor {
	t.Helper()
	v := &visitor{t, l.HTTPClient([]byte(l.MustGpulab(ctx, "ca")))}
	link := linkPattern.FindString(printed)
	if link == "" {
		t.Fatalf("init printed no link:\n%s", printed)
	}
	address, err := url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	_, form := v.get(ctx, link)
	status, answer, _ := v.send(ctx, http.MethodPost, pages+"/setup", url.Values{
		"csrf": {csrf(t, form)}, "token": {address.Query().Get("token")},
		"name": {"Ada"}, "handle": {handle}, "password": {password}, "again": {password},
	})
	if status != http.StatusSeeOther {
		t.Fatalf("setting up the administrator: status %d\n%.600s", status, answer)
	}
	return v
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

func csrf(t *testing.T, page string) string {
	t.Helper()
	field := csrfField.FindStringSubmatch(page)
	if field == nil {
		t.Fatalf("no CSRF token in the page:\n%.500s", page)
	}
	return field[1]
}

// send sends one request as a browser would and returns status, body, Location.
func (v *visitor) send(ctx context.Context, method, address string, form url.Values) (int, string, string) {
	v.t.Helper()
	status, body, location, err := send(ctx, v.client, method, address, form)
	if err != nil {
		v.t.Fatal(err)
	}
	return status, body, location
}

// send asks for a page or sends a form as a browser does, and returns where it leads on, "" for nowhere.
func send(ctx context.Context, client *http.Client, method, address string, form url.Values) (status int, body, location string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return 0, "", "", err
	}
	r.Header.Set("Accept", "text/html")
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", pages)
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if at, locationErr := response.Location(); locationErr == nil {
		location = at.String()
	}
	return response.StatusCode, string(content), location, err
}

// get opens a page and follows where it leads.
func (v *visitor) get(ctx context.Context, address string) (int, string) {
	v.t.Helper()
	for range 15 {
		status, body, location := v.send(ctx, http.MethodGet, address, nil)
		if status/100 != 3 {
			return status, body
		}
		address = location
	}
	v.t.Fatalf("%s leads in circles", address)
	return 0, ""
}
