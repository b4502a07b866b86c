//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestManyJobs is a lab with two hundred jobs in line.
//
//test:about internal/notebooks internal/queue
func TestManyJobs(t *testing.T) {
	t.Parallel()
	a := ready(t, jobsConfig)
	j := newJobs(t, a)
	a.live(t, []chapter{
		{"two hundred in line", j.twoHundred, false},
	})
}

// twoHundred: as many as two people may have in line keep their places when gpulab
// is killed, and are told of them again at once.
func (j *jobs) twoHundred(t *testing.T, a *appliance) {
	people := []*laptop{j.terminal, j.computers[guestHandle]}
	numbers := make([]string, len(people))
	for i, l := range people {
		numbers[i] = l.submit(t, "--gpus", "1", "--name", "many", "--array", "1-120", l.script(t, "many.sh", "sleep 600\n"))
	}
	// Of each one's hundred that are released, two in all have the GPUs.
	const inLine = 2*100 - 2
	standing := func() {
		said := ""
		defer func() {
			if t.Failed() {
				t.Log(said)
			}
		}()
		a.eventually(t, "all have a place", func() bool {
			places := map[int]bool{}
			for i, l := range people {
				cmd, out := l.command("jobs", "--array", numbers[i], "--json")
				var got struct{ Jobs []struct{ Position int } }
				if err := cmd.Run(); err != nil {
					said = out.String()
					return false
				}
				if err := json.Unmarshal(out.Bytes(), &got); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				for _, job := range got.Jobs {
					places[job.Position] = true
				}
			}
			for n := range inLine {
				if !places[n+1] {
					said = fmt.Sprintf("nobody is at place %d, of %d", n+1, len(places))
					return false
				}
			}
			return true
		})
	}
	// Made anew, they would be behind whoever came after them.
	workloads := func() []string {
		list := strings.Fields(a.MustGpulab(a.ctx, "kubectl", "get", "workloads", "-A", "-o", "jsonpath={.items[*].metadata.uid}"))
		slices.Sort(list)
		return list
	}
	began := time.Now()
	standing()
	t.Logf("%d had a place %s after they were submitted", inLine, time.Since(began).Round(100*time.Millisecond))
	before := workloads()
	if a.Kill(a.ctx, "KILL", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	a.MustGpulab(a.ctx, initArgs...)
	began = time.Now()
	standing()
	t.Logf("and again %s after gpulab was back", time.Since(began).Round(100*time.Millisecond))
	if after := workloads(); len(before) != inLine+2 || !slices.Equal(before, after) {
		t.Errorf("Kueue had %d launches, and has %d, of which some are new", len(before), len(after))
	}
	for i, l := range people {
		l.gpulab(t, 0, []string{"cancel", numbers[i]}, "cancelled")
	}
	a.eventually(t, "Kueue knows of none", func() bool { return strings.TrimSpace(a.workloads(t)) == "" })
}
