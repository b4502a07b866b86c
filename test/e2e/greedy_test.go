//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// testGreedyNotebook: a notebook that takes all the processor time and memory
// it can get leaves the lab usable, and its owner is told what happened.
func testGreedyNotebook(t *testing.T, a *appliance) {
	t.Run("the machine keeps something for itself", func(t *testing.T) {
		var node struct {
			Status struct{ Capacity, Allocatable map[string]string }
		}
		if err := json.Unmarshal([]byte(a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", "jsonpath={.items[0]}")), &node); err != nil {
			t.Fatal(err)
		}
		for _, resource := range []string{"cpu", "memory"} {
			have, free := quantity(t, node.Status.Capacity[resource]), quantity(t, node.Status.Allocatable[resource])
			if free <= 0 || free >= have {
				t.Errorf("of %s %.0f, pods may have %.0f", resource, have, free)
			}
		}
	})
	t.Run("a full disk is told", func(t *testing.T) {
		disk := func() string {
			for _, c := range a.status(t).Components {
				if c.Name == "disk" {
					return c.State
				}
			}
			return ""
		}
		a.eventually(t, "the disk is well", func() bool { return disk() == "ok" })
		const file = "/var/lib/gpulab/homes/filler"
		a.MustRun(a.ctx, "sh", "-ec", `fallocate -l $(($(df --output=avail -B1 /var/lib/gpulab | tail -1) - (1 << 30))) `+file)
		defer a.MustRun(a.ctx, "rm", "-f", file)
		a.eventually(t, "the disk with 1 GiB left is told of", func() bool { return disk() == "warning" })
		a.MustRun(a.ctx, "rm", file)
		a.eventually(t, "the disk is well again", func() bool { return disk() == "ok" })
	})
	b := a.guest.For(t).Tab()
	launch(b, "cpu", "Greedy")
	waitJupyterLab(b, guestHandle)
	k := newKernel(b)
	t.Run("two notebooks weigh as much as one of somebody else", func(t *testing.T) {
		weight := func(uid string) int {
			out := a.Run(a.ctx, "sh", "-c", podGroup, uid, "cpu.shares")
			if out.Code != 0 {
				out = a.Run(a.ctx, "sh", "-c", podGroup, uid, "cpu.weight")
			}
			n, err := strconv.Atoi(strings.TrimSpace(out.Stdout))
			if err != nil {
				t.Fatalf("the weight of the pod %s: %v", uid, err)
			}
			return n
		}
		theirs, others := a.podUIDs(t, guestHandle), a.podUIDs(t, adminHandle)
		if len(theirs) != 2 || len(others) != 1 {
			t.Fatalf("there are %v and %v", theirs, others)
		}
		a.eventually(t, "each has half of the weight", func() bool {
			whole := 0
			for _, uid := range others {
				whole = weight(uid)
			}
			for _, uid := range theirs {
				if half := weight(uid); 2*half < whole-2 || 2*half > whole+2 {
					return false
				}
			}
			return true
		})
	})
	t.Run("what it prints stays small", func(t *testing.T) {
		size := func() (n int) {
			out := a.MustRun(a.ctx, "sh", "-c", "du -s --apparent-size -B1 /var/log/pods/user-"+guestHandle+"_*"+a.podUIDs(t, guestHandle)["greedy"])
			n, err := strconv.Atoi(strings.Fields(out)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		printed := k.run(t, `import time
printed, end = 0, time.time() + 5
with open("/proc/1/fd/1", "wb", buffering=0) as out:
    while time.time() < end:
        printed += out.write(b"x" * 4000 + b"\n")
print(printed)`)
		t.Logf("it printed %s bytes; %d are kept", printed, size())
		if n, err := strconv.Atoi(strings.TrimSpace(printed)); err != nil || n < 50<<20 {
			t.Errorf("it printed too little to tell: %s", printed)
		}
		a.within(t, 3*time.Second, "no more than 40 MiB are kept", func() bool { return size() <= 41<<20 })
	})
	k.run(t, `import subprocess, sys
burn = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]`)
	burning := time.Now()
	eater := `import subprocess, sys
def eat():
    return subprocess.run([sys.executable, "-c", "keep = []\nwhile True: keep.append(b'x' * (64 << 20))"]).returncode
print(eat())`
	ended := make(chan error, 1)
	var got answer
	go func() {
		var err error
		got, err = k.try(eater)
		ended <- err
	}()
	client := signIn(t, a, guestHandle, guestPassword)
	var took []time.Duration
	for eating := true; eating || time.Since(burning) < 10*time.Second; {
		began := time.Now()
		if status, _, _ := request(t, client, http.MethodGet, pages+"/", nil); status != http.StatusOK {
			t.Errorf("the home page: status %d", status)
		}
		took = append(took, time.Since(began))
		select {
		case err := <-ended:
			eating = false
			// Where its whole container ends, there is nobody to answer.
			if err == nil && strings.TrimSpace(got.Output) != "-9" {
				t.Errorf("who takes all memory ends with %q %s", got.Output, got.Error)
			}
		case <-time.After(200 * time.Millisecond):
		}
	}
	answering(t, "a greedy notebook", took)
	if result := a.Gpulab(a.ctx, "status"); result.Code != 0 {
		t.Errorf("gpulab status after %s: exit code %d\n%s", result.Took, result.Code, result.Stdout)
	}
	home := a.guest.For(t).Tab()
	home.Open(pages + "/")
	home.WaitFor("words about the memory", `/memory/i.test(document.querySelector("#mine")?.innerText)`)
	home.Click("#mine", "Stop Greedy")
	home.Click("dialog[open]", "Stop")
	waitGone(home, "Greedy")
}

// quantity reads an amount as Kubernetes writes it.
func quantity(t *testing.T, s string) float64 {
	t.Helper()
	factor := 1.0
	for suffix, f := range map[string]float64{"m": 1e-3, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30} {
		if rest, ok := strings.CutSuffix(s, suffix); ok {
			s, factor = rest, f
			break
		}
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(fmt.Errorf("the amount %q: %w", s, err))
	}
	return n * factor
}
