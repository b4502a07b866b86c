//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// TestNames is a lab that is reached by names, and whose name servers fail.
//
//test:about internal/discover internal/webca
func TestNames(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, []chapter{
		{"names", testNames, false},
		{"notebooks by name", testNotebooksByName, false},
		{"name servers", testNameServers, false},
	})
}

// TestLaptop is the life of a lab whose machine is carried about, and not always
// ready when it starts.
//
//test:about internal/discover internal/power
func TestLaptop(t *testing.T) {
	t.Parallel()
	ready(t, "").live(t, []chapter{
		{"a browser that is closed", testClosedBrowser, false},
		{"no network at boot", testNoNetworkAtBoot, true},
		{"the old address", testOldAddress, true},
	})
}

// TestStartThatFails is a machine whose first start does not succeed.
//
//test:about internal/charts
func TestStartThatFails(t *testing.T) {
	t.Parallel()
	testStartThatFails(t, fresh(t))
}

// components are the parts of status by name: their states and details.
func (a *appliance) components(t *testing.T) map[string]string {
	t.Helper()
	parts := map[string]string{}
	for _, c := range a.status(t).Components {
		parts[c.Name] = strings.Join([]string{c.State, c.Detail, c.NextStep}, "; ")
	}
	return parts
}

// configBlob is where the configuration of an image lies in the folder of images.
func (a *appliance) configBlob(t *testing.T, image string) string {
	t.Helper()
	blob := func(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }
	data, err := os.ReadFile(filepath.Join(filepath.Dir(a.Binary()), "images", blob(a.image(t, image).Digest)))
	if err != nil {
		t.Fatal(err)
	}
	var manifest struct{ Config struct{ Digest string } }
	if err := json.Unmarshal(data, &manifest); err != nil || manifest.Config.Digest == "" {
		t.Fatalf("the manifest of %s: %v\n%s", image, err, data)
	}
	return blob(manifest.Config.Digest)
}

// testStartThatFails: a part of an image is damaged, which its size does not tell.
// init says so and is done; gpulab goes on trying, says when, and gets there as
// soon as it is whole.
func testStartThatFails(t *testing.T, a *appliance) {
	const folder = "/srv/images"
	good := filepath.Join(filepath.Dir(a.Binary()), "images")
	part := a.configBlob(t, "hub")
	a.MustRun(a.ctx, "sh", "-ec", fmt.Sprintf(`good=$(readlink -f %s) && mkdir -p %[2]s/blobs/sha256 && cd %[2]s
		for f in "$good"/*; do [ -d "$f" ] || ln -s "$f" .; done
		ln -s "$good"/blobs/sha256/* blobs/sha256/
		size=$(stat -Lc %%s %[3]s) && rm %[3]s && head -c $size /dev/zero >%[3]s`, good, folder, part))
	a.WriteFile("/etc/gpulab/config.yaml", "imagesDir: "+folder+"\n")
	result := a.Gpulab(a.ctx, initArgs...)
	checkFailure(t, result, 1, "hub", "again by itself at ")
	t.Logf("init: %s", strings.TrimSpace(result.Stderr))
	parts := a.components(t)
	if start := parts["start"]; !strings.Contains(start, "hub") || !strings.Contains(start, "again") && !strings.Contains(start, "try ") {
		t.Errorf("status says of the start: %q\n%v", start, parts)
	}
	a.ca = []byte(a.MustGpulab(a.ctx, "ca"))
	if !strings.HasPrefix(parts["images"], "ok") { // the pages are not there yet
		response, err := a.HTTPClient(a.ca).Get(pages + "/")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Refresh") == "" {
			t.Errorf("the page before the lab is ready: status %d", response.StatusCode)
		}
	}
	program := a.Processes(a.ctx, "gpulab")
	a.eventually(t, "another try was made", func() bool { return strings.Contains(a.Gpulab(a.ctx, "logs", "-n", "2000").Stdout, "try=2") })
	a.MustRun(a.ctx, "sh", "-ec", fmt.Sprintf(`ln -sf $(readlink -f %s)/%s %s/%[2]s`, good, part, folder))
	mended := time.Now()
	a.within(t, 6*time.Minute, "the lab is ready without a command", func() bool {
		return a.Gpulab(a.ctx, "status", "--json").Code == 0
	})
	t.Logf("ready %s after it was mended", time.Since(mended).Round(time.Second))
	if now := a.Processes(a.ctx, "gpulab"); fmt.Sprint(now) != fmt.Sprint(program) {
		t.Errorf("gpulab was %v and is %v", program, now)
	}
	if parts := a.components(t); parts["start"] != "" {
		t.Errorf("a lab that is ready still says of its start: %q", parts["start"])
	}
	if again := a.Gpulab(a.ctx, initArgs...); again.Code != 0 || !strings.Contains(again.Stdout, "nothing changed") {
		t.Errorf("init afterwards: exit code %d\n%s%s", again.Code, again.Stdout, again.Stderr)
	}
}

// testClosedBrowser: a cell prints while no browser is there. Whoever comes back
// finds every line, in JupyterLab and in the notebook's file.
func testClosedBrowser(t *testing.T, a *appliance) {
	const last = 130
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Long")
	waitJupyterLab(b, guestHandle)
	lab.TypeCell(b, fmt.Sprintf("import time\n_ = [print('line', i + 1, flush=True) or time.sleep(1) for i in range(%d)]", last))
	book := lab.Evaluate[string](b, `async () => location.origin + `+lab.NotebookBase+` + "lab/tree/Untitled.ipynb?reset"`)
	b.WaitText(".jp-OutputArea-output", "line 5")
	b.Close()
	left := time.Now()

	file := filepath.Join(a.homeOf(t, guestHandle), "Untitled.ipynb")
	line := func(i int) string { return fmt.Sprintf("\"line %d\\n\"", i) }
	a.eventually(t, "the file has lines that nobody saw", func() bool { return strings.Contains(a.Run(a.ctx, "cat", file).Stdout, line(30)) })
	time.Sleep(time.Until(left.Add(2 * time.Minute)))
	b = a.guest.For(t).Tab()
	b.Open(book)
	b.WaitText(".jp-OutputArea-output", fmt.Sprintf("line %d", last))
	shown := strings.Fields(b.Text(".jp-OutputArea-output"))
	if len(shown) != 2*last {
		t.Errorf("JupyterLab shows %d words of output, not %d: %v", len(shown), 2*last, shown)
	}
	for i := range last {
		if len(shown) == 2*last && shown[2*i+1] != fmt.Sprint(i+1) {
			t.Fatalf("line %d is shown as %q", i+1, shown[2*i+1])
		}
	}
	a.eventually(t, "the file has every line", func() bool {
		text := a.Run(a.ctx, "cat", file).Stdout
		for i := range last {
			if strings.Count(text, line(i+1)) != 1 {
				return false
			}
		}
		return true
	})
	b.Open(pages + "/")
	b.Click("#mine", "Stop Long")
	b.Click("dialog[open]", "Stop")
	waitGone(b, "Long")
}

// testNoNetworkAtBoot: the machine starts without an address, says so, and is a
// lab as soon as it has one, whichever.
func testNoNetworkAtBoot(t *testing.T, a *appliance) {
	for _, name := range []string{"gpulab", "k3s"} {
		a.Kill(a.ctx, "KILL", name)
	}
	a.MustRun(a.ctx, "ip", "address", "flush", "dev", "eth0")
	a.MustRun(a.ctx, "sh", "-c", "setsid "+a.Binary()+" serve >>/var/lib/gpulab/log/gpulab.log 2>&1 </dev/null &")
	a.eventually(t, "status says that there is no network", func() bool {
		result := a.Gpulab(a.ctx, "status")
		return result.Code == 6 && strings.Contains(result.Stdout, "no network address")
	})
	// It has an address again, but not the one it had.
	a.MustRun(a.ctx, "sh", "-ec", "ip address add "+otherAddress+"/24 dev eth0; ip route replace default via "+lab.VisitorAddress)
	began := time.Now()
	a.within(t, 6*time.Minute, "the lab is ready", func() bool { return a.Gpulab(a.ctx, "status", "--json").Code == 0 })
	t.Logf("a lab %s after the network came", time.Since(began).Round(time.Second))
	if got := a.status(t).URL; got != "https://"+otherAddress {
		t.Errorf("status says that the lab is at %s", got)
	}
	if words := a.components(t)["address"]; !strings.Contains(words, otherAddress) || !strings.Contains(words, "it was "+lab.Address) {
		t.Errorf("status says of the address: %q", words)
	}
	b := a.browser.Private().For(t)
	signInBrowser(b, "https://"+otherAddress, guestHandle, guestPassword)
	b.WaitText(".launches", "CPU notebook")
}

// testOldAddress: the machine gets its first address back, beside the one it has
// now. A page that is open at the other says where to go; what has the old
// address in it leads there when it still reaches the machine.
func testOldAddress(t *testing.T, a *appliance) {
	b := a.browser.Private().For(t)
	signInBrowser(b, "https://"+otherAddress, guestHandle, guestPassword)
	b.WaitText(".launches", "CPU notebook")
	a.MustRun(a.ctx, "sh", "-ec", `ip address add `+lab.Address+`/24 dev eth0
		echo 1 >/proc/sys/net/ipv4/conf/eth0/promote_secondaries
		ip route replace default via `+lab.VisitorAddress+` src `+lab.Address)
	if result := a.Gpulab(a.ctx, append(initArgs, "--address", lab.Address)...); result.Code != 0 {
		t.Fatalf("init --address: exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	b.WaitText("#moved", pages)
	link := a.MustGpulab(a.ctx, "user", "add", "cleo", "--name", "Cleo")
	if !strings.Contains(link, pages+"/") {
		t.Errorf("a new link is for elsewhere: %s", link)
	}
	// The address is another machine's now, which passes on what was for us.
	a.MustRun(a.ctx, "ip", "address", "del", otherAddress+"/24", "dev", "eth0")
	a.waitReady(t)
	client := a.HTTPClient(nil)
	client.Transport.(*http.Transport).TLSClientConfig.InsecureSkipVerify = true //nolint:gosec // the certificate is for the address it has now
	request, err := http.NewRequestWithContext(a.ctx, http.MethodGet, pages+"/welcome?token=abc", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = otherAddress
	a.eventually(t, "an old link leads to the new address", func() bool {
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		response.Body.Close()
		to, err := url.Parse(response.Header.Get("Location"))
		return err == nil && to.Host == lab.Address && to.RequestURI() == "/welcome?token=abc"
	})
}
