package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/doctor"
)

// doctorOf runs the doctor on a lab whose state is in a folder of the test's.
func doctorOf(t *testing.T, socket string, args ...string) (code int, out, stderr, folder string) {
	t.Helper()
	folder = t.TempDir()
	config := filepath.Join(folder, "config.yaml")
	if err := os.WriteFile(config, []byte("dataDir: "+folder+"/state\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, stderr = gpulab(t, append([]string{"doctor", "--config", config, "--socket", socket}, args...)...)
	return code, out, stderr, folder
}

func TestDoctor(t *testing.T) {
	needRoot(t)
	for state, want := range map[ctl.State]int{ctl.OK: exitOK, ctl.Warning: exitOK, ctl.Starting: exitOK, ctl.Failed: exitPreflight} {
		socket := serve(t, &daemon{state: state})
		code, out, stderr, _ := doctorOf(t, socket, "components", "configuration")
		if code != want || !strings.Contains(out, "lab\n") || !strings.Contains(out, "2 probes looked.") || (want == exitOK) != (stderr == "") {
			t.Errorf("%s: exit code %d, want %d\n%s%s", state, code, want, out, stderr)
		}
		if state == ctl.Failed && (!strings.Contains(out, "✗ components") || !strings.Contains(out, "→ Wait a minute.") || !strings.Contains(stderr, "2 things have to be mended")) {
			t.Errorf("a part that does not work:\n%s%s", out, stderr)
		}
		code, out, _, _ = doctorOf(t, socket, "components", "--json")
		var r map[string]json.RawMessage
		var findings []map[string]string
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != want {
			t.Fatalf("%v, exit code %d:\n%s", err, code, out)
		}
		if keys := slices.Sorted(maps.Keys(r)); !slices.Equal(keys, []string{"failures", "findings", "ok", "unseen", "warnings"}) {
			t.Errorf("--json holds %v", keys)
		}
		if err := json.Unmarshal(r["findings"], &findings); err != nil || findings[0]["probe"] != "components" || string(r["ok"]) != fmt.Sprint(want == exitOK) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}

// TestDoctorEverywhere runs every probe where no lab is, and where the daemon
// is away or hangs.
func TestDoctorEverywhere(t *testing.T) {
	code, out, stderr, _ := doctorOf(t, "/nonexistent/socket", "--json")
	var r diagnosis
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK && code != exitPreflight {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, stderr)
	}
	about := map[string]bool{}
	for _, f := range r.Findings {
		about[f.Probe] = true
	}
	for _, p := range doctor.ProbesFor(false) {
		// These have nothing to say without a lab.
		if !about[p.Name] && !slices.Contains([]string{"gpus", "components", "pages", "timesync", "inotify", "capabilities", "inodes", "memory"}, p.Name) {
			t.Errorf("nothing was said about %s", p.Name)
		}
	}
	if f := finding(t, r, "daemon"); f.State != doctor.OK || !strings.Contains(f.Seen, "not a lab yet") {
		t.Errorf("without a lab: %s", f)
	}

	listener, err := net.Listen("unix", filepath.Join(shortDir(t), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() // it accepts, and never answers
	code, out, stderr, _ = doctorOf(t, listener.Addr().String(), "daemon", "components", "--json")
	r = diagnosis{}
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitPreflight {
		t.Fatalf("exit code %d, %v\n%s%s", code, err, out, stderr)
	}
	if f := finding(t, r, "daemon"); f.State != doctor.Fail || f.Seen != "gpulab runs, but does not answer." {
		t.Errorf("one that hangs: %s", f)
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpulab") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func finding(t *testing.T, r diagnosis, probe string) doctor.Finding {
	t.Helper()
	at := slices.IndexFunc(r.Findings, func(f doctor.Finding) bool { return f.Probe == probe })
	if at < 0 {
		t.Fatalf("nothing about %s in %v", probe, r.Findings)
	}
	return r.Findings[at]
}

func TestDoctorConfiguration(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("lab: x\nhttpsPotr: 443\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, _ := gpulab(t, "doctor", "configuration", "--config", config)
	if code != exitPreflight || !strings.Contains(out, "httpsPotr") || !strings.Contains(out, "`gpulab init`") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}

func TestDoctorNames(t *testing.T) {
	code, out, stderr := gpulab(t, "doctor", "firewal")
	if code != exitUsage || out != "" || !strings.Contains(stderr, `no probe "firewal"; did you mean firewall?`) {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	code, out, _ = gpulab(t, "doctor", "--list")
	if code != exitOK || strings.Count(out, "\n") != len(doctor.ProbesFor(false))+1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	var probes []doctor.Probe
	code, out, _ = gpulab(t, "doctor", "--list", "--json", "ports", "clock")
	if err := json.Unmarshal([]byte(out), &probes); err != nil || code != exitOK || len(probes) != 2 || probes[0].Name != "clock" || probes[1].Looks == "" {
		t.Errorf("exit code %d, %v:\n%s", code, err, out)
	}
	_, out, _ = gpulab(t, "__complete", "doctor", "clock", "")
	if strings.Contains(out, "clock\t") || !strings.Contains(out, "firewall\t") || !strings.HasSuffix(strings.Split(out, "Completion")[0], ":4\n") {
		t.Errorf("completion:\n%s", out)
	}
}

// TestDoctorDocumented: the page has each probe, as the program describes it.
func TestDoctorDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| probe | looks at | at `gpulab init` |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	group := ""
	for _, p := range doctor.Probes() {
		if p.Group != group {
			group = p.Group
			want = append(want, fmt.Sprintf("| **%s** | | |", group))
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", p.Name, p.Looks, orDash(p.Init)))
	}
	if !found || strings.TrimSpace(table) != strings.Join(want, "\n") {
		t.Errorf("docs/doctor.md should have this table:\n%s", strings.Join(want, "\n"))
	}
}
