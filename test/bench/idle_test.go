//go:build e2e

package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// idleFor is how long an idle lab's use of processors is watched.
const idleFor = time.Minute

// ticks is the processor time of a process and of its children that have ended,
// in the kernel's hundredths of a second.
type ticks struct {
	part string
	used int
}

// ticksPerSecond is USER_HZ, which is 100 on every Linux that Go knows.
const ticksPerSecond = 100

// processorTime reads what each process of the host has used so far.
func processorTime(l *lab.Lab) map[string]ticks {
	used := map[string]ticks{}
	folders, _ := filepath.Glob(l.Path("/proc") + "/[0-9]*")
	for _, folder := range folders {
		part := partOf(folder)
		content, err := os.ReadFile(filepath.Join(folder, "stat"))
		if part == "" || err != nil {
			continue
		}
		// The name of the program may hold anything, blanks too.
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		const utime, cstime = 11, 14 // counted behind the name
		sum := ticks{part: part}
		for _, field := range fields[utime : cstime+1] {
			n, _ := strconv.Atoi(field)
			sum.used += n
		}
		used[filepath.Base(folder)] = sum
	}
	return used
}

// processors is how much of one processor an idle lab uses, in %, by part.
type processors map[string]float64

func (p processors) all() (sum float64) {
	for _, used := range p {
		sum += used
	}
	return sum
}

func idleProcessors(ctx context.Context, t *testing.T, l *lab.Lab) processors {
	t.Helper()
	before, began := processorTime(l), time.Now()
	select {
	case <-time.After(idleFor):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	took := time.Since(began).Seconds()
	percent := processors{}
	for pid, now := range processorTime(l) {
		percent[now.part] += 100 * float64(now.used-before[pid].used) / ticksPerSecond / took
	}
	return percent
}

// printIdle prints what an idle lab uses, part by part, and k3s alone beside it.
func printIdle(ours, alone processors) {
	fmt.Printf("\nProcessors of an idle lab, over %s, in %% of one\n", idleFor)
	row := func(name string, used float64) { fmt.Printf("  %-40s %8.1f\n", name, used) }
	for _, part := range slices.SortedFunc(maps.Keys(ours), func(a, b string) int { return cmp.Compare(ours[b], ours[a]) }) {
		row(part, ours[part])
	}
	row("everything", ours.all())
	if alone == nil {
		return
	}
	row("k3s and containerd, alone without a pod", alone.all())
	fmt.Printf("  %-40s %8.2f ×\n", "everything / k3s alone", ours.all()/alone.all())
}
