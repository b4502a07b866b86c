//go:build e2e

package e2e

import (
	"strings"
	"testing"

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

// testCommandsWithoutLab: on a machine without a lab every command ends with
// one sentence that says what to do, and leaves no trace.
func testCommandsWithoutLab(t *testing.T, a *appliance) {
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--bogus"}, exitUsage, "--help"},
		{[]string{"status", "--bogus"}, exitUsage, "gpulab status --help"},
		{[]string{"init", "surplus"}, exitUsage, "--help"},
		{[]string{"init", "--gpus", "imaginary"}, exitUsage, "real, simulated or none"},
		{[]string{"init", "--simulated-gpus", "many"}, exitUsage, "--help"},
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
			"user remove x", "gpus", "charts", "logs", "logs hub", "kubectl version", "ca", "ca --trust"} {
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
	const elsewhere = "203.0.113.1" // ends init after its questions
	answers := "printf 'Kino\\n\\nn\\n' | script -qec '" + a.Binary() + " init --address " + elsewhere + "' /dev/null"
	result := a.Run(a.ctx, "sh", "-c", answers)
	checkFailure(t, result, exitPreflight, "What is the lab called?", "no NVIDIA card. Use 2 simulated GPUs",
		"browsers and programs trust the lab's web certificates?", elsewhere+" is not an address of this machine")
	result = a.Gpulab(a.ctx, "init", "--address", elsewhere)
	checkFailure(t, result, exitPreflight, elsewhere)
	if strings.Contains(result.Stdout, "?") {
		t.Errorf("without a terminal init asks:\n%s", result.Stdout)
	}
	if added := a.before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
		t.Errorf("questions left:\n%s", strings.Join(added, "\n"))
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
	t.Run("misspelt configuration", func(t *testing.T) {
		a.WriteFile("/tmp/wrong.yaml", "adresses: 10.99.0.1\n")
		defer a.MustRun(a.ctx, "rm", "/tmp/wrong.yaml")
		checkFailure(t, a.Gpulab(a.ctx, "init", "--config", "/tmp/wrong.yaml"), exitUsage, "/tmp/wrong.yaml", "adresses")
	})
	if added := a.before.Added(a.Snapshot(a.ctx)); len(added) > 0 {
		t.Errorf("a refused init left:\n%s", strings.Join(added, "\n"))
	}
}
