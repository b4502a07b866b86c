//go:build e2e

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// measureLaunches prints how long a notebook takes when its image has been used
// before: from the click on Launch to the notebook, beside JupyterHub alone.
func measureLaunches(ctx context.Context, t *testing.T, l *lab.Lab, v *visitor) {
	for _, profile := range []string{"gpu", "cpu"} {
		stop(ctx, v, launch(ctx, v, profile).id) // reads the image from disk once
	}
	if *launches == 0 {
		return
	}
	var ready, usable, byHub, inChromium []time.Duration
	hub := hubClient(ctx, t, l)
	browser := signInChromium(ctx, t, l)
	for range *launches {
		notebook := launch(ctx, v, "gpu")
		ready, usable = append(ready, notebook.ready), append(usable, notebook.usable)
		stop(ctx, v, notebook.id)
		byHub = append(byHub, hub.launch(ctx, t))
		inChromium = append(inChromium, launchInChromium(browser))
		stop(ctx, v, lastLaunch(ctx, v))
	}
	fmt.Printf("\nLaunch of a GPU notebook whose image has been used before, median of %d\n", *launches)
	for _, row := range []struct {
		name string
		took []time.Duration
	}{
		{"click to \"Running\" on its page", ready},
		{"click to JupyterLab's page and API", usable},
		{"click to JupyterLab drawn by Chromium", inChromium},
		{"Hub API alone, request to \"ready\"", byHub},
	} {
		fmt.Printf("  %-40s %8.2f   of", row.name, median(row.took).Seconds())
		for _, d := range row.took {
			fmt.Printf(" %.2f", d.Seconds())
		}
		fmt.Println()
	}
	fmt.Printf("  %-40s %8.2f ×\n", "click to JupyterLab / Hub API alone", median(usable).Seconds()/median(byHub).Seconds())
}

// launched is a launch through the front door.
type launched struct {
	id            string
	ready, usable time.Duration // since the click
}

var notebookPath = regexp.MustCompile(`^/user/[^/]+/[^/]+/`)

// openLink is where the progress page leads once the notebook is ready.
var openLink = regexp.MustCompile(`href="([^"]+)"[^>]*data-open-when-ready="(\d+)"`)

// launch sends the form of the home page, follows the progress page's live
// updates, and goes where they lead, as a browser does: through the hub's
// sign-in to JupyterLab's page, and its API.
func launch(ctx context.Context, v *visitor, profile string) launched {
	v.t.Helper()
	_, home := v.get(ctx, pages+"/")
	form := url.Values{"csrf": {csrf(v.t, home)}, "profile": {profile}, "title": {"Bench"}}

	clicked := time.Now()
	status, answer, progress := v.send(ctx, http.MethodPost, pages+"/launch", form)
	if status != http.StatusSeeOther {
		v.t.Fatalf("launch: status %d\n%.600s", status, answer)
	}
	n := launched{id: progress[strings.LastIndexByte(progress, '/')+1:]}
	v.get(ctx, progress)
	notebook := v.waitReady(ctx, n.id)
	n.ready = time.Since(clicked)
	status, page := v.get(ctx, notebook)
	if status != http.StatusOK || !strings.Contains(page, "jupyter-config-data") {
		v.t.Fatalf("%s is not JupyterLab: status %d\n%.600s", notebook, status, page)
	}
	api := notebook[:strings.Index(notebook, "/user/")] + notebookPath.FindString(notebook[strings.Index(notebook, "/user/"):]) + "api/status"
	status, answer, _ = v.send(ctx, http.MethodGet, api, nil)
	if status != http.StatusOK || !strings.Contains(answer, "kernels") {
		v.t.Fatalf("%s: status %d\n%.600s", api, status, answer)
	}
	n.usable = time.Since(clicked)
	return n
}

// waitReady reads the progress page's events until they hold the notebook's address.
func (v *visitor) waitReady(ctx context.Context, id string) string {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, lab.Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, pages+"/events?view=launch&id="+id, nil)
	if err != nil {
		v.t.Fatal(err)
	}
	client := *v.client
	client.Timeout = 0
	response, err := client.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer response.Body.Close()
	last := ""
	scanner := bufio.NewScanner(response.Body)
	for scanner.Buffer(nil, 1<<20); scanner.Scan(); {
		if found := openLink.FindStringSubmatch(scanner.Text()); found != nil && found[2] == id {
			return html.UnescapeString(found[1])
		}
		if scanner.Text() != "" {
			last = scanner.Text()
		}
	}
	v.t.Fatalf("launch %s did not become ready: %v\n%.600s", id, scanner.Err(), last)
	return ""
}

// lastLaunch is the person's only active launch.
func lastLaunch(ctx context.Context, v *visitor) string {
	v.t.Helper()
	_, home := v.get(ctx, pages+"/")
	found := regexp.MustCompile(`/launches/(\d+)`).FindStringSubmatch(home)
	if found == nil {
		v.t.Fatal("the home page shows no launch")
	}
	return found[1]
}

// stop stops a notebook and waits until nothing of it is left.
func stop(ctx context.Context, v *visitor, id string) {
	v.t.Helper()
	_, page := v.get(ctx, pages+"/launches/"+id)
	status, answer, _ := v.send(ctx, http.MethodPost, pages+"/launches/"+id+"/stop", url.Values{"csrf": {csrf(v.t, page)}})
	if status != http.StatusSeeOther {
		v.t.Fatalf("stop: status %d\n%.600s", status, answer)
	}
	for end := time.Now().Add(lab.Patience); !strings.Contains(page, "Stopped"); _, page = v.get(ctx, pages+"/launches/"+id) {
		if time.Now().After(end) {
			v.t.Fatalf("launch %s does not end:\n%.2000s", id, page)
		}
		time.Sleep(100 * time.Millisecond)
	}
	time.Sleep(2 * time.Second) // what the end leaves to do is not the next one's
}

// hubAPI speaks to JupyterHub without gpulab.
type hubAPI struct {
	client *http.Client
	base   string
	token  string
	uid    int
}

func hubClient(ctx context.Context, t *testing.T, l *lab.Lab) *hubAPI {
	t.Helper()
	secrets, err := os.ReadFile(l.Path(dataDir + "/hub-secrets.json"))
	if err != nil {
		t.Fatal(err)
	}
	var made struct{ ServiceToken string }
	if err := json.Unmarshal(secrets, &made); err != nil {
		t.Fatal(err)
	}
	var people []struct {
		Handle string
		UID    int
	}
	if err := json.Unmarshal([]byte(l.MustGpulab(ctx, "user", "list", "--json")), &people); err != nil || len(people) != 1 {
		t.Fatalf("user list: %v, %v", people, err)
	}
	address := l.MustGpulab(ctx, "kubectl", "-n", "gpulab-system", "get", "pod", "-l", "app.kubernetes.io/component=hub", "-o", "jsonpath={.items[0].status.podIP}")
	return &hubAPI{
		client: &http.Client{Transport: &http.Transport{DialContext: l.DialHost}},
		base:   "http://" + strings.TrimSpace(address) + ":8081/hub/api/users/" + handle + "/servers/alone",
		token:  made.ServiceToken, uid: people[0].UID,
	}
}

func (h *hubAPI) call(ctx context.Context, t *testing.T, method, path string, body any) *http.Response {
	t.Helper()
	content, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(ctx, method, h.base+path, bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "token "+h.token)
	r.Header.Set("Content-Type", "application/json")
	response, err := h.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return response
}

// launch starts the same notebook by the Hub API and stops it again.
func (h *hubAPI) launch(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, lab.Patience)
	defer cancel()
	began := time.Now()
	response := h.call(ctx, t, http.MethodPost, "", map[string]any{"user_options": map[string]any{"profile": "gpu", "uid": h.uid}})
	answer, _ := io.ReadAll(response.Body)
	response.Body.Close()
	if response.StatusCode/100 != 2 {
		t.Fatalf("Hub API: status %d: %s", response.StatusCode, answer)
	}
	progress := h.call(ctx, t, http.MethodGet, "/progress", nil)
	said, _ := io.ReadAll(progress.Body)
	progress.Body.Close()
	took := time.Since(began)
	if !bytes.Contains(said, []byte(`"ready": true`)) {
		t.Fatalf("the Hub API's launch failed:\n%s", said)
	}
	for {
		response := h.call(ctx, t, http.MethodDelete, "", nil)
		response.Body.Close()
		if response.StatusCode == http.StatusNoContent || response.StatusCode == http.StatusNotFound {
			time.Sleep(2 * time.Second)
			return took
		}
		time.Sleep(200 * time.Millisecond)
	}
}

func signInChromium(ctx context.Context, t *testing.T, l *lab.Lab) *lab.Browser {
	t.Helper()
	b := l.Browser([]byte(l.MustGpulab(ctx, "ca")))
	b.Open(pages + "/login")
	b.Fill("Sign-in name", handle)
	b.Fill("Password", password)
	b.Click("form", "Sign in")
	b.WaitFor("the home page", `location.pathname === "/" && document.querySelector(".launches")`)
	return b
}

// launchInChromium clicks on Launch and waits until JupyterLab is drawn.
func launchInChromium(b *lab.Browser) time.Duration {
	b.Open(pages + "/")
	b.WaitFor("the launch card", `document.querySelector('form:has(input[name=profile][value=gpu])')`)
	clicked := time.Now()
	b.WaitFor("the launch", `(() => {
		const form = document.querySelector('form:has(input[name=profile][value=gpu])');
		form.elements.title.value = "Bench";
		form.querySelector("button").click();
		return true;
	})()`)
	b.WaitJupyterLab(pages, handle)
	return time.Since(clicked)
}
