//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

// terminal is where somebody's own program and its login lie.
const terminal = "/root/laptop"

// inTerminal is the program for people's own computers, as the lab offers it, on a command line.
func (a *appliance) inTerminal(ctx context.Context, args ...string) *exec.Cmd {
	return a.Command(ctx, "env", append([]string{"GPULAB_LOGIN=" + terminal + "/login.json", "SSH_CONNECTION=", terminal + "/gpulab"}, args...)...)
}

// terminalSays runs it, and wants exit code 0 and some words in what it prints.
func (a *appliance) terminalSays(t *testing.T, args []string, words ...string) string {
	t.Helper()
	cmd := a.inTerminal(a.ctx, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("gpulab %v: %v\n%s%s", args, err, out, errs.String())
	}
	for _, word := range words {
		if !strings.Contains(string(out), word) {
			t.Errorf("gpulab %v does not say %q:\n%s", args, word, out)
		}
	}
	return string(out)
}

var deviceAddress = regexp.MustCompile(`https://\S+/device\?code=([A-Z]{4}-[A-Z]{4})`)

// testStudentTerminal: somebody fetches the program from the lab, signs in with the browser, and launches a notebook
// from the terminal until it runs.
func testStudentTerminal(t *testing.T, a *appliance) {
	a.MustRun(a.ctx, "sh", "-c", "mkdir -p "+terminal+" && curl -fsSko "+terminal+"/gpulab "+pages+"/cli/gpulab-linux-$(dpkg --print-architecture) && chmod +x "+terminal+"/gpulab")
	fingerprint := strings.TrimSpace(a.MustGpulab(a.ctx, "ca", "--fingerprint"))
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Minute)
	defer cancel()

	wrong := a.inTerminal(ctx, "login", pages, "--fingerprint", strings.Repeat("00:", 31)+"00")
	if out, err := wrong.CombinedOutput(); err == nil || !strings.Contains(string(out), "not the one that you gave") {
		t.Errorf("another fingerprint: %v\n%s", err, out)
	}

	login := a.inTerminal(ctx, "login", pages, "--fingerprint", fingerprint, "--no-browser")
	words, err := login.StderrPipe()
	if err == nil {
		err = login.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var address []string
	said := ""
	for lines := bufio.NewScanner(words); address == nil && lines.Scan(); {
		said += lines.Text() + "\n"
		address = deviceAddress.FindStringSubmatch(lines.Text())
	}
	if address == nil {
		t.Fatalf("login names no page: %v\n%s", login.Wait(), said)
	}
	b := a.guest.For(t)
	b.Open(address[0])
	b.WaitText("main", address[1])
	b.WaitText("main", "Did you start it yourself")
	b.Pictures("device")
	b.Click("main", "Allow")
	b.WaitText("main", "It is let in")
	if err := login.Wait(); err != nil {
		t.Fatalf("login: %v\n%s", err, said)
	}
	a.terminalSays(t, []string{"whoami"}, guestHandle, "launch")
	if mode := strings.TrimSpace(a.MustRun(a.ctx, "stat", "-c", "%a", terminal+"/login.json")); mode != "600" {
		t.Errorf("the login has mode %s", mode)
	}
	a.terminalSays(t, []string{"profiles"}, "cpu", "starts at once")
	began := time.Now()
	url := strings.TrimSpace(a.terminalSays(t, []string{"launch", "cpu", "--title", "From a terminal", "--wait"}))
	t.Logf("launch --wait took %s", time.Since(began).Round(100*time.Millisecond))
	if !strings.HasPrefix(url, a.notebooksOf(t, guestHandle)+"/user/"+guestHandle+"/") {
		t.Errorf("launch --wait ends with %q", url)
	}
	a.terminalSays(t, []string{"ps"}, "From a terminal", "running")
	if got := strings.TrimSpace(a.terminalSays(t, []string{"open", "From a terminal", "--print"})); got != url {
		t.Errorf("open --print: %q, want %q", got, url)
	}
	b.Open(url)
	waitJupyterLab(b, guestHandle)
	a.terminalSays(t, []string{"quota"})
	a.terminalSays(t, []string{"stop", "From a terminal"}, "is being stopped")
	a.eventually(t, "it is stopped", func() bool { return !strings.Contains(a.terminalSays(t, []string{"ps"}), "From a terminal") })
	a.terminalSays(t, []string{"logout"}, "Signed out")
	if out, err := a.inTerminal(ctx, "ps").CombinedOutput(); err == nil || !strings.Contains(string(out), "not signed in") {
		t.Errorf("after logout: %v\n%s", err, out)
	}
}
