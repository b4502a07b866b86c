package main

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
)

// atTerminal asks on a real pseudo terminal. The answers are typed one after the other, each when a question waits.
func atTerminal(t *testing.T, ask func(*asker), answers ...string) (*asker, string) {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	q := &asker{ctx: t.Context(), in: bufio.NewReader(slave), out: slave, silent: !isTerminal(slave)}
	seen := newScreen(master)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer slave.Close()
		ask(q)
	}()
	for _, answer := range answers {
		seen.wait(t, "] ")
		seen.seen = seen.text.Len()
		fmt.Fprint(master, answer)
	}
	<-done
	seen.rest()
	return q, seen.String()
}

const ctrlD = "\x04"

func TestQuestionsOnATerminal(t *testing.T) {
	lab := ""
	_, shown := atTerminal(t, func(q *asker) {
		lab = q.valid("What is the lab called?", "GPU lab", config.CheckLab)
	}, strings.Repeat("x", 61)+"\n", "Kino\n")
	if lab != "Kino" || !strings.Contains(shown, "at most 60 characters") || strings.Count(shown, "[GPU lab]") != 2 {
		t.Errorf("%q\n%s", lab, shown)
	}

	two := []embedk8s.Candidate{{Address: netip.MustParseAddr("10.0.0.5"), Interface: "eth0"}, {Address: netip.MustParseAddr("192.168.1.7"), Interface: "ib0"}}
	for typed, want := range map[string]string{"\n": "", "1\n": "", "2\n": "192.168.1.7", "192.168.1.7\n": "192.168.1.7", "10.0.0.5\n": "", ctrlD: ""} {
		got := "?"
		q, shown := atTerminal(t, func(q *asker) { got = askAddress(q, two) }, typed)
		if got != want || q.closed != (typed == ctrlD) || !strings.Contains(shown, "2  192.168.1.7      ib0") {
			t.Errorf("%q: %q, closed %v\n%s", typed, got, q.closed, shown)
		}
	}
	got := ""
	if _, shown = atTerminal(t, func(q *asker) { got = askAddress(q, two) }, "3\n", "0\n", "lab.example\n", "2\n"); got != "192.168.1.7" || strings.Count(shown, "is neither a number from 1 to 2") != 3 {
		t.Errorf("%q\n%s", got, shown)
	}

	sim := true
	if _, shown = atTerminal(t, func(q *asker) { sim = q.yes("Simulate?", true) }, "perhaps\n", "NO\n"); sim || !strings.Contains(shown, `"perhaps" is neither yes nor no`) {
		t.Errorf("%v\n%s", sim, shown)
	}

	// Ctrl-C ends the waiting at once.
	ctx, stop := context.WithCancel(t.Context())
	q, _ := atTerminal(t, func(q *asker) {
		q.ctx = ctx
		stop()
		q.line("Name?", "x")
		q.line("Another?", "x")
	})
	if !q.closed || !strings.Contains(q.why, "interrupted") {
		t.Errorf("%+v", q)
	}
}

// machineWith is a machine of Debian 12 with a card, and what else is given.
func machineWith(t *testing.T, files map[string]string) nvidiadriver.Situation {
	t.Helper()
	root := t.TempDir()
	all := map[string]string{
		"etc/os-release":                          "ID=debian\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n",
		"proc/sys/kernel/osrelease":               kernel,
		"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de",
		"sys/bus/pci/devices/0000:01:00.0/class":  "0x030000",
		"sys/bus/pci/devices/0000:01:00.0/device": "0x2684",
		"var/lib/dpkg/status":                     "",
	}
	for path, content := range files {
		all[path] = content
	}
	for path, content := range all {
		if content == "gone" {
			continue
		}
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return nvidiadriver.Look(root)
}

// What becomes of the GPUs, by what the machine has, what the flags say and what somebody answers.
func TestChoiceOfGPUs(t *testing.T) {
	none := map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "gone"}
	vfio := machineWith(t, nil)
	vfio.Kind = nvidiadriver.Reserved
	usable := machineWith(t, nil)
	usable.Kind = nvidiadriver.Working
	mismatch := machineWith(t, nil)
	mismatch.Kind = nvidiadriver.Mismatch
	for name, c := range map[string]struct {
		machine nvidiadriver.Situation
		flags   initFlags
		was     string // of the configuration, "" for a first init
		state   driverState
		typed   string // "" without a terminal
		gpus    string
		install bool
		await   string // "", yes, no
		says    string
		fails   string
	}{
		"no card":                                   {machine: machineWith(t, none), gpus: config.GPUsSimulated},
		"no card, no simulation":                    {machine: machineWith(t, none), typed: "n\n", gpus: config.GPUsNone, says: "has no NVIDIA card"},
		"no card, told":                             {machine: machineWith(t, none), flags: initFlags{gpus: config.GPUsNone}, gpus: config.GPUsNone, await: "no"},
		"no card, a driver":                         {machine: machineWith(t, none), flags: initFlags{driver: driverInstall}, fails: "nothing to install a driver for"},
		"a card of a virtual machine's":             {machine: vfio, gpus: config.GPUsSimulated},
		"a card that works":                         {machine: usable, gpus: config.GPUsReal, await: "no"},
		"a card that works, told otherwise":         {machine: usable, flags: initFlags{gpus: config.GPUsSimulated}, gpus: config.GPUsSimulated, await: "no"},
		"a card that works by now":                  {machine: usable, was: config.GPUsNone, state: driverState{Awaited: true}, gpus: config.GPUsReal, await: "no"},
		"a card that works, and nobody asked":       {machine: usable, was: config.GPUsNone, gpus: config.GPUsNone, await: "no"},
		"a card that works, and somebody simulates": {machine: usable, was: config.GPUsSimulated, gpus: config.GPUsSimulated, await: "no"},
		"no driver":                                 {machine: machineWith(t, nil), gpus: config.GPUsNone, await: "yes", says: "apt-get install --yes"},
		"no driver, Enter":                          {machine: machineWith(t, nil), typed: "\n", gpus: config.GPUsNone, await: "yes", says: "What now?"},
		"no driver, installed":                      {machine: machineWith(t, nil), typed: "install\n", gpus: config.GPUsNone, install: true, await: "yes"},
		"no driver, i":                              {machine: machineWith(t, nil), typed: "i\n", gpus: config.GPUsNone, install: true, await: "yes"},
		"no driver, skipped":                        {machine: machineWith(t, nil), typed: "Skip\n", gpus: config.GPUsNone, await: "no"},
		"no driver, told to install":                {machine: machineWith(t, nil), flags: initFlags{driver: driverInstall}, gpus: config.GPUsNone, install: true, await: "yes"},
		"no driver, told to install later":          {machine: machineWith(t, nil), flags: initFlags{driver: driverInstall}, was: config.GPUsSimulated, gpus: config.GPUsNone, install: true, await: "yes"},
		"no driver, told to skip":                   {machine: machineWith(t, nil), flags: initFlags{driver: driverSkip}, gpus: config.GPUsNone, await: "no"},
		"no driver, told to do without":             {machine: machineWith(t, nil), flags: initFlags{gpus: config.GPUsNone}, gpus: config.GPUsNone, await: "no"},
		"no driver, real GPUs wanted":               {machine: machineWith(t, nil), flags: initFlags{gpus: config.GPUsReal}, gpus: config.GPUsReal, await: "yes", says: "apt-get install"},
		"no driver, real GPUs wanted, installed":    {machine: machineWith(t, nil), flags: initFlags{gpus: config.GPUsReal, driver: driverInstall}, gpus: config.GPUsNone, install: true, await: "yes"},
		"no driver, init again":                     {machine: machineWith(t, nil), was: config.GPUsNone, gpus: config.GPUsNone},
		"no driver, still awaited":                  {machine: machineWith(t, nil), was: config.GPUsNone, state: driverState{Awaited: true}, gpus: config.GPUsNone, await: "yes", says: "apt-get install"},
		"a reboot is all":                           {machine: mismatch, typed: "", gpus: config.GPUsNone, await: "yes", says: "Reboot this machine. The lab goes on"},
		"a reboot is all, told to install":          {machine: mismatch, flags: initFlags{driver: driverInstall}, gpus: config.GPUsNone, await: "yes", says: "Reboot"},
	} {
		cfg := config.Config{DataDir: t.TempDir(), SimulatedGPUs: 2, GPUs: config.Word(c.was)}
		if err := changeDriverState(cfg.DataDir, func(s *driverState) { *s = c.state }); err != nil {
			t.Fatal(err)
		}
		var w wish
		var err error
		choose := func(q *asker) { w, err = chooseGPUs(q, c.machine, &cfg, &c.flags, c.was == "") }
		var shown strings.Builder
		if c.typed == "" {
			choose(&asker{in: bufio.NewReader(strings.NewReader("")), out: &shown, silent: true})
		} else {
			_, text := atTerminal(t, choose, c.typed)
			shown.WriteString(text)
		}
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		await := ""
		if w.await != nil {
			await = map[bool]string{true: "yes", false: "no"}[*w.await]
		}
		if err != nil || string(cfg.GPUs) != c.gpus || w.install != c.install || await != c.await ||
			!strings.Contains(shown.String(), c.says) {
			t.Errorf("%s: gpus %q, install %v, await %q, %v\n%s", name, cfg.GPUs, w.install, await, err, &shown)
		}
	}
}

func TestProxyIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		env, etc, apt string
		url, where    string
		direct        []string
	}{
		"none":         {},
		"environment":  {env: "HTTPS_PROXY=http://proxy.example.org:3128 NO_PROXY=localhost,127.0.0.1,.example.org,10.0.0.0/8", url: "http://proxy.example.org:3128", where: "the environment", direct: []string{".example.org", "10.0.0.0/8"}},
		"short":        {env: "http_proxy=proxy.example.org:3128/", url: "http://proxy.example.org:3128", where: "the environment"},
		"file":         {etc: "# PATH=x\nPATH=/bin\nexport http_proxy=\"http://10.1.1.1:8080\"\nno_proxy='nas.example.org'\n", apt: "Acquire::http::Proxy \"http://cache:3142\";", url: "http://10.1.1.1:8080", where: "etc/environment", direct: []string{"nas.example.org"}},
		"apt":          {apt: "Acquire { http { Proxy \"http://cache:3142\"; } };", url: "http://cache:3142", where: "apt's configuration"},
		"apt, without": {apt: "Acquire::http::Proxy \"DIRECT\";"},
	} {
		root := t.TempDir()
		for path, text := range map[string]string{"etc/environment": c.etc, "apt.conf": c.apt} {
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(path)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("APT_CONFIG", filepath.Join(root, "apt.conf"))
		found, ok := findProxy(t.Context(), func(name string) string {
			for kv := range strings.FieldsSeq(c.env) {
				if value, is := strings.CutPrefix(kv, name+"="); is {
					return value
				}
			}
			return ""
		}, root)
		if ok != (c.url != "") || found.url != c.url || !strings.HasSuffix(found.where, c.where) || !slices.Equal(found.noProxy, c.direct) || found.apt != (c.where == "apt's configuration") {
			t.Errorf("%s: %+v, %v", name, found, ok)
		}
	}
}

// A password in a proxy's address is refused, and stands in no message.
func TestProxyWithAPassword(t *testing.T) {
	for _, address := range []string{
		"http://ada:geheim@proxy.example.org:3128", "http://ada:geheim@proxy.example.org", "http://ada:ge heim@proxy.example.org:3128",
		"ada:geheim@proxy.example.org:3128", "http://ada:geheim%zz@proxy.example.org:3128", "socks5://ada:geheim@proxy.example.org:1",
	} {
		_, _, err := config.Network{Proxy: address}.ProxyAddress()
		if err == nil || !strings.Contains(err.Error(), "a name or a password") || strings.Contains(err.Error(), "heim") {
			t.Errorf("%s: %v", address, err)
		}
		if got := withoutSecret(address); strings.Contains(got, "heim") || !strings.Contains(got, "proxy.example.org") {
			t.Errorf("%s is shown as %s", address, got)
		}
	}
	if got := withoutSecret("http://proxy.example.org:3128"); got != "http://proxy.example.org:3128" {
		t.Error(got)
	}
	for _, address := range []string{"http://127.0.0.1:3128", "http://localhost:3128", "http://[::1]:3128"} {
		if _, _, err := (config.Network{Proxy: address}).ProxyAddress(); err == nil ||
			!strings.Contains(err.Error(), "the notebook itself") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestEnvironmentWithoutProxy(t *testing.T) {
	got := withoutProxy([]string{"PATH=/bin", "HTTP_PROXY=x", "https_proxy=x", "No_Proxy=x", "MYPROXY=x"})
	if !slices.Equal(got, []string{"PATH=/bin", "MYPROXY=x"}) {
		t.Error(got)
	}
}
