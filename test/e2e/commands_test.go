//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/wireguard"
	"github.com/gpulab/gpulab/test/lab"
)

// Exit codes, as `gpulab exit-codes` lists them.
const (
	exitFailure    = 1
	exitUsage      = 2
	exitNotRoot    = 3
	exitPreflight  = 4
	exitNotRunning = 5
)

// testCommandsWithoutLab: on a machine without a lab every command ends with one sentence that says what to do, and
// leaves no trace. TestWrongUse of cmd/gpulab tests mistakes in the command line.
func testCommandsWithoutLab(t *testing.T, a *appliance) {
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"init", "--proxy", "proxy.example.org"}, exitUsage, "write it like http://proxy.example.org:3128"},
		{[]string{"init", "--driver", "install"}, exitPreflight, "nothing to install a driver for"},
		{[]string{"driver", "hold"}, exitFailure, "nothing to hold"},
		{[]string{"frobnicate"}, exitUsage, "frobnicate"},
		{[]string{"status"}, exitNotRunning, "gpulab init"},
		{[]string{"admin-link"}, exitNotRunning, "gpulab init"},
		{[]string{"user", "list"}, exitNotRunning, "gpulab init"},
		{[]string{"gpus"}, exitNotRunning, "gpulab init"},
		{[]string{"charts"}, exitNotRunning, "gpulab init"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			checkFailure(t, a.Gpulab(a.ctx, test.args...), test.code, test.says)
		})
	}
	t.Run("as nobody", func(t *testing.T) {
		for _, command := range []string{"init", "serve", "status", "reset", "admin-link", "user list", "user add x", "user passwd x",
			"user remove x", "gpus", "charts", "logs", "logs hub", "kubectl version", "ca", "ca --trust", "driver", "driver install"} {
			args := append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", a.Binary()}, strings.Fields(command)...)
			checkFailure(t, a.Run(a.ctx, "setpriv", args...), exitNotRoot, "sudo gpulab "+strings.Fields(command)[0])
		}
	})
	t.Run("doctor", func(t *testing.T) { testDoctorWithoutLab(t, a) })
	for _, args := range [][]string{{"version"}, {"help"}, {"completion", "bash"}} {
		if result := a.Gpulab(a.ctx, args...); result.Code != 0 || result.Stdout == "" {
			t.Errorf("gpulab %s: exit code %d\n%s", strings.Join(args, " "), result.Code, result.Stderr)
		}
	}
	if added := a.before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
		t.Errorf("these commands left:\n%s", strings.Join(added, "\n"))
	}
}

// testQuestions: on a terminal init asks what it cannot know, before it does
// anything.
func testQuestions(t *testing.T, a *appliance) {
	const other = "10.99.0.2"
	defer func() { // after what the test itself has put there is gone
		if added := a.before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
			t.Errorf("questions left:\n%s", strings.Join(added, "\n"))
		}
	}()
	a.MustRun(a.ctx, "ip", "address", "add", other+"/24", "dev", "eth0")
	defer a.MustRun(a.ctx, "ip", "address", "del", other+"/24", "dev", "eth0")
	asked := func(answers string, args ...string) lab.Result {
		return a.Run(a.ctx, "sh", "-c", "printf '"+answers+"' | script -qec '"+a.Binary()+" init "+strings.Join(args, " ")+"' /dev/null")
	}
	// A port that is taken ends init after its questions.
	squatter := a.Command(a.ctx, "python3", "-m", "http.server", "6443")
	if err := squatter.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = squatter.Cancel()
		_ = squatter.Wait()
	}()
	a.eventually(t, "the port is taken", func() bool { return a.Run(a.ctx, "ss", "-Hltn", "sport = :6443").Stdout != "" })
	result := asked(`\nseven\n2\nperhaps\nn\ny\n`)
	checkFailure(t, result, exitPreflight, "What is the lab called? [GPU lab]", "several addresses", "2  "+other, `"seven" is neither a number from 1 to 2`,
		"no NVIDIA card. Use 2 simulated GPUs", `"perhaps" is neither yes nor no`, "Install man, Graphviz, FFmpeg and Pandoc for all notebooks", "Port 6443 is taken")
	if strings.Contains(result.Stdout, "trust") {
		t.Errorf("four questions are the most:\n%s", result.Stdout)
	}
	// Every question has a flag.
	result = asked("", "--lab Kino --address "+other+" --gpus none --programs=false")
	if checkFailure(t, result, exitPreflight, "Port 6443 is taken"); strings.Contains(result.Stdout, "?") {
		t.Errorf("init asks what it was told:\n%s", result.Stdout)
	}
	// Whoever closes the terminal at a question has said yes to nothing.
	checkFailure(t, asked(`Kino\n`), exitFailure, "the terminal was closed before every question was answered; nothing was changed")
	result = a.Gpulab(a.ctx, "init", "--address", "203.0.113.1")
	checkFailure(t, result, exitPreflight, "203.0.113.1 is not an address of this machine")
	if strings.Contains(result.Stdout, "?") {
		t.Errorf("without a terminal init asks:\n%s", result.Stdout)
	}
	// The campus' proxy is found where root's programs find theirs; one with a password is for nobody else to see.
	for proxy, says := range map[string]string{
		"http://proxy.example.org:3128":            "go through the proxy http://proxy.example.org:3128, as the environment says",
		"http://ada:geheim@proxy.example.org:3128": "is not taken for notebooks: network.proxy holds a name or a password",
	} {
		result := a.Run(a.ctx, "env", "https_proxy="+proxy, a.Binary(), "init", "--yes", "--gpus", "none")
		if checkFailure(t, result, exitPreflight, says); strings.Contains(result.Stdout+result.Stderr, "geheim") {
			t.Errorf("the password is shown:\n%s%s", result.Stdout, result.Stderr)
		}
	}
}

// testPreflight: init stops before it has done anything where the machine does
// not fit, and says what mends it.
func testPreflight(t *testing.T, a *appliance) {
	t.Run("address of another machine", func(t *testing.T) {
		result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "simulated", "--address", "203.0.113.1")
		checkFailure(t, result, exitPreflight, "203.0.113.1 is not an address of this machine", lab.Address)
	})
	for _, port := range []string{"443", "6443"} {
		t.Run("port "+port, func(t *testing.T) {
			squatter := a.Command(a.ctx, "python3", "-m", "http.server", port)
			if err := squatter.Start(); err != nil {
				t.Fatal(err)
			}
			a.eventually(t, "the port is taken", func() bool {
				return a.Run(a.ctx, "ss", "-Hltn", "sport = :"+port).Stdout != ""
			})
			result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "simulated")
			_ = squatter.Cancel()
			_ = squatter.Wait()
			checkFailure(t, result, exitPreflight, "Port "+port+" is taken by python3")
		})
	}
	t.Run("small disk", func(t *testing.T) {
		a.MustRun(a.ctx, "sh", "-ec", "mkdir /srv/small; mount -t tmpfs -o size=9g tmpfs /srv/small")
		defer a.MustRun(a.ctx, "sh", "-ec", "umount /srv/small; rmdir /srv/small")
		a.WriteFile("/tmp/small.yaml", "dataDir: /srv/small/gpulab\n")
		defer a.MustRun(a.ctx, "rm", "/tmp/small.yaml")
		result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "simulated", "--config", "/tmp/small.yaml")
		checkFailure(t, result, exitPreflight, "10 GiB")
	})
	t.Run("encryption", func(t *testing.T) {
		a.WriteFile("/tmp/encrypt.yaml", "network: {encrypt: true}\n")
		defer a.MustRun(a.ctx, "rm", "/tmp/encrypt.yaml")
		result := a.Gpulab(a.ctx, "init", "--yes", "--gpus", "simulated", "--address", "203.0.113.1", "--config", "/tmp/encrypt.yaml")
		checkFailure(t, result, exitPreflight, "203.0.113.1 is not an address of this machine")
		if missing := wireguard.Look("/") != nil; missing != strings.Contains(result.Stdout+result.Stderr, "This machine's kernel has no WireGuard") {
			t.Errorf("the kernel is without WireGuard: %v\n%s%s", missing, result.Stdout, result.Stderr)
		}
	})
	t.Run("misspelt configuration", func(t *testing.T) {
		a.WriteFile("/tmp/wrong.yaml", "adresses: 10.99.0.1\n")
		defer a.MustRun(a.ctx, "rm", "/tmp/wrong.yaml")
		checkFailure(t, a.Gpulab(a.ctx, "init", "--config", "/tmp/wrong.yaml"), exitUsage, "/tmp/wrong.yaml", "adresses")
	})
	if added := a.before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
		t.Errorf("a refused init left:\n%s", strings.Join(added, "\n"))
	}
}
