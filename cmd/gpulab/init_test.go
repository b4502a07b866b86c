package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/gpu"
)

// Somebody who closes the terminal at a question has not said yes to it, nor to
// the ones after it.
func TestClosedTerminal(t *testing.T) {
	q := &asker{in: bufio.NewReader(strings.NewReader("Kino\n")), out: io.Discard}
	if got := q.line("What is the lab called?", "GPU lab"); got != "Kino" || q.closed {
		t.Errorf("%q, closed %v", got, q.closed)
	}
	q.yes("Use simulated GPUs?", true)
	if !q.closed || !q.silent {
		t.Errorf("closed %v, silent %v", q.closed, q.silent)
	}
}

func TestOneInitAtATime(t *testing.T) {
	a := &app{socket: filepath.Join(t.TempDir(), "run", "gpulab.sock")}
	unlock, err := lockInit(a)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockInit(a); err == nil || !strings.Contains(err.Error(), "another `gpulab init`") {
		t.Errorf("a second one: %v", err)
	}
	unlock()
	again, err := lockInit(a)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

// shared is a daemon whose GPUs are as a test says.
type shared struct {
	ctl.Daemon
	status ctl.Status
}

func (d shared) Status(context.Context) (ctl.Status, error) { return d.status, nil }

func TestSharingIsNotChangedUnderNotebooks(t *testing.T) {
	held := gpu.GPU{Device: gpu.Device{Slots: 3}, Holders: []gpu.Holder{{PodRef: gpu.PodRef{User: "ada", Notebook: "large"}}}}
	for name, c := range map[string]struct {
		g       gpu.GPU
		sharing int
		says    string
	}{
		"the same":          {held, 3, ""},
		"nobody holds one":  {gpu.GPU{Device: gpu.Device{Slots: 3}}, 1, ""},
		"fewer":             {held, 1, "from 3 to 1 while notebooks hold GPUs (ada/large)"},
		"more than alone":   {gpu.GPU{Holders: held.Holders}, 2, "from 1 to 2"},
		"alone, as it was":  {gpu.GPU{Holders: held.Holders}, 1, ""},
		"shared, as it was": {gpu.GPU{Device: gpu.Device{Slots: 2}, Holders: held.Holders}, 2, ""},
	} {
		a := &app{socket: serve(t, shared{status: ctl.Status{GPUs: []gpu.Snapshot{{GPUs: []gpu.GPU{c.g}}}}})}
		err := keepSharing(t.Context(), a, config.Config{GPUSharing: c.sharing})
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := keepSharing(t.Context(), &app{socket: filepath.Join(t.TempDir(), "none")},
		config.Config{GPUSharing: 4}); err != nil {
		t.Errorf("without a lab: %v", err)
	}
}

// One daemon at a time has the machine, and says by its file which one.
func TestLockDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "gpulab.sock.pid")
	for range 2 {
		unlock, err := lockDaemon(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lockDaemon(path); err == nil || !strings.Contains(err.Error(), "already runs on this machine") {
			t.Errorf("a second daemon: %v", err)
		}
		if pid, err := os.ReadFile(path); err != nil || string(pid) != strconv.Itoa(os.Getpid()) {
			t.Errorf("the file says %q, %v", pid, err)
		}
		unlock()
	}
	if _, err := lockFile(t.TempDir(), nil); err == nil {
		t.Error("a folder was locked as a file")
	}
}

// What init says of a lab is what `gpulab status` says.
func TestInitOfALabThatIsNotReady(t *testing.T) {
	was := failedTime
	failedTime = 0
	t.Cleanup(func() { failedTime = was })
	failed := ctl.Component{Name: "k3s", State: ctl.Failed, Detail: "it ended: exit status 1", NextStep: "see `gpulab logs k3s`"}
	a := &app{socket: serve(t, shared{status: ctl.Status{Components: []ctl.Component{{Name: "hub", State: ctl.OK}, failed}}})}
	var out bytes.Buffer
	err := settle(t.Context(), a, &out)
	var coded codedError
	if !errors.As(err, &coded) || coded.code != exitNotReady {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{"the lab is not ready", "k3s: it ended: exit status 1.", "gpulab logs k3s"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	if a.socket = serve(t, shared{status: ctl.Status{Ready: true}}); settle(t.Context(), a, &out) != nil {
		t.Error("a lab that is ready is not")
	}
	starting := ctl.Component{Name: "hub", State: ctl.Starting}
	if part, limit := unsettled(ctl.Status{Components: []ctl.Component{failed, starting}}); part.Name != "hub" || limit != settlingTime {
		t.Errorf("waits %s for %s", limit, part.Name)
	}
}
