package nvidiadriver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func logFile(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestRun(t *testing.T) {
	var told []string
	i := Installer{Root: "/", Log: logFile(t), Env: []string{"http_proxy=http://proxy.example:3128"}, Progress: func(percent float64, what string) {
		told = append(told, what)
		if percent != 12.5 {
			t.Errorf("%s: %v %%", what, percent)
		}
	}}
	// What apt would be told stands in the file that APT_CONFIG names; its progress comes by the third descriptor.
	output, err := i.run(t.Context(), Step{Why: "try", Command: `
		echo "to $http_proxy"; cat "$APT_CONFIG"; echo "E: some error" >&2
		echo "pmstatus:dpkg:12.5:Unpacking a (1:2)" >&3; echo "noise" >&3; exit 3`})
	if err == nil || !strings.Contains(output, "to http://proxy.example:3128") || !strings.Contains(output, "E: some error") {
		t.Errorf("%v\n%s", err, output)
	}
	if !slices.Equal(told, []string{"Unpacking a (1:2)"}) {
		t.Errorf("progress: %q", told)
	}
	log, err := os.ReadFile(i.Log.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"# try", `DPkg::Lock::Timeout "600"`, "--force-confold", "E: some error"} {
		if !strings.Contains(string(log), words) {
			t.Errorf("%q is not in the log:\n%s", words, log)
		}
	}
}

// Whoever interrupts gets no half-ended command behind: it is asked to end, and waited for.
func TestInterruptedRun(t *testing.T) {
	ended := filepath.Join(t.TempDir(), "ended")
	ctx, cancel := context.WithCancel(t.Context())
	began := make(chan struct{})
	i := Installer{Log: logFile(t), Progress: func(float64, string) { close(began) }}
	go func() {
		<-began
		cancel()
	}()
	_, err := i.run(ctx, Step{Command: `trap 'sleep 0.2; echo in order >` + ended + `; exit 1' INT; echo pmstatus:a:1:a >&3; sleep 5 & wait`})
	if data, _ := os.ReadFile(ended); err == nil || strings.TrimSpace(string(data)) != "in order" {
		t.Errorf("%v, %q", err, data)
	}
}

// A service that a package has started and that keeps descriptors open does not keep gpulab waiting.
func TestRunThatLeavesAService(t *testing.T) {
	began := time.Now()
	i := Installer{Log: logFile(t)} // it holds the log and the descriptor of the progress
	if _, err := i.run(t.Context(), Step{Command: "sleep 45 & true"}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestExplain(t *testing.T) {
	const missing = "E: Unable to locate package nvidia-driver\nE: Couldn't find any package by glob 'nvidia-driver'"
	for name, c := range map[string]struct{ output, lists, want string }{
		"no network":          {"E: Failed to fetch http://deb.debian.org/x.deb  Temporary failure resolving 'deb.debian.org'\n", "", "does not reach the servers"},
		"no lists":            {missing, "W: Failed to fetch http://deb.debian.org/dists  Could not connect to 10.0.0.9:80 (10.0.0.9). - connect (111: Connection refused)", "does not reach the servers"},
		"a source of many":    {"E: Sub-process /usr/bin/dpkg returned an error code (1)", "W: Failed to fetch http://other.example  Could not resolve 'other.example'", "apt-get: Sub-process"},
		"a proxy's password":  {missing, "Err:1 http://deb.debian.org bookworm InRelease\n  407  Proxy Authentication Required [IP: 10.0.0.2 3128]", "a name and a password of apt"},
		"no such package":     {missing, "", "apt knows no package nvidia-driver"},
		"no candidate":        {"E: Package 'nvidia-driver' has no installation candidate", "", "apt knows no package nvidia-driver"},
		"headers are gone":    {"E: Unable to locate package linux-headers-6.1.0-28-amd64", "", "there is a newer kernel by now"},
		"no space":            {"dpkg: error processing archive (--unpack):\n cannot copy extracted data: failed to write (No space left on device)\nE: Sub-process /usr/bin/dpkg returned an error code (1)", "", "no space left"},
		"something else":      {"modprobe: FATAL: Module nvidia not found\n", "", "apt-get: modprobe: FATAL"},
		"nothing said at all": {"", "", "apt-get: exit status 100"},
	} {
		err := explain(Step{Command: "apt-get install --yes nvidia-driver"}, c.output, c.lists, errors.New("exit status 100"))
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHold(t *testing.T) {
	parts, _ := recorded(t)
	root := lay(t, parts, record{Of: []string{"installed12"}})
	if _, err := Hold(lay(t, parts, record{Of: []string{"debian12"}})); !errors.Is(err, ErrNoPackages) {
		t.Errorf("without the driver: %v", err)
	}
	for range 2 {
		held, err := Hold(root)
		if err != nil || len(held) != 3 {
			t.Fatalf("%v, %v", held, err)
		}
	}
	// What was taken off again, and what is not the driver's, is not held.
	if got := strings.Join(Held(root), " "); got != "libcuda1 nvidia-driver nvidia-kernel-dkms" {
		t.Errorf("held: %s", got)
	}
	text, err := os.ReadFile(filepath.Join(root, HoldFile))
	if err != nil || !strings.Contains(string(text), "\nPackage: libcuda1 nvidia-driver nvidia-kernel-dkms\nPin: version 535.261.03-1\nPin-Priority: 995\n") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, want := range []bool{true, false} {
		if was, err := Unhold(root); was != want || err != nil {
			t.Errorf("%v, %v", was, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(root, "etc/apt/preferences.d/*")); len(left) > 0 || len(Held(root)) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Ready-made modules belong to one kernel: a newer one would start without the GPUs. Modules that are built here belong to none.
func TestHoldKernel(t *testing.T) {
	parts, _ := recorded(t)
	for part, want := range map[string]string{
		"readymade24": "linux-generic linux-headers-generic linux-image-generic linux-modules-nvidia-580-server-open-6.8.0-85-generic " +
			"linux-modules-nvidia-580-server-open-generic nvidia-utils-580-server",
		"hwe24":         "linux-image-generic-hwe-24.04 linux-modules-nvidia-580-open-generic-hwe-24.04 nvidia-utils-580",
		"virtual24":     "linux-image-generic-hwe-24.04 linux-image-virtual linux-modules-nvidia-580-6.8.0-85-generic nvidia-utils-580",
		"builtbeside24": "linux-modules-nvidia-570-generic nvidia-dkms-580-server",
		"installed24":   "nvidia-dkms-580-server nvidia-driver-580-server",
	} {
		root := lay(t, parts, record{Of: []string{part}})
		if _, err := Hold(root); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(Held(root), " "); got != want {
			t.Errorf("%s: held %s, want %s", part, got, want)
		}
	}
}

func TestSourcesInOneLine(t *testing.T) {
	for line, want := range map[string]source{
		"deb http://a/debian bookworm main contrib # x":                      {"http://a/debian", "bookworm", "main contrib", ""},
		"deb [arch=amd64 signed-by=/k.gpg] http://a/debian bookworm main":    {"http://a/debian", "bookworm", "main", "/k.gpg"},
		"deb  [ arch=amd64 ]  http://a/debian  bookworm  main":               {"http://a/debian", "bookworm", "main", ""},
		"# deb http://a/debian bookworm main":                                {},
		"deb-src http://a/debian bookworm main":                              {},
		"deb http://a/debian ./":                                             {},
		"deb [signed-by=/k.gpg arch=amd64] cdrom:[Debian 12]/ bookworm main": {"cdrom:[Debian", "12]/", "bookworm main", "/k.gpg"},
	} {
		got, ok := oneLine(line)
		if got != want && strings.HasPrefix(want.uris, "http") || ok != (want.uris != "") {
			t.Errorf("%s: %+v, %v", line, got, ok)
		}
	}
}
