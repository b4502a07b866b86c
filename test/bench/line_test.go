//go:build e2e

package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/test/lab"
)

var (
	inLine   = flag.Int("line", 1000, "launches that wait in the line for GPUs")
	lineGPUs = flag.Int("gpus", 40, "GPUs that they wait for")
)

// upstreamRate is how many workloads a second Kueue's own test of its performance
// decides: 15,000 within 351 s (test/performance/scheduler in its repository).
const upstreamRate = 15000.0 / 351

// TestLine prints how soon the line for GPUs decides when a thousand launches of a
// hundred people come at once, and how much memory it takes. The line is gpulab's
// with the real Kueue; the GPUs exist in its books only, and no pod is started.
func TestLine(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	l := newLab(t)
	initialise(ctx, t, l)
	access, client := cluster(ctx, t, l)
	const people = 100
	for i := range people {
		namespace(ctx, t, client, place(i))
	}
	line := ownLine(ctx, t, l, access)
	before := managerMemory(l)

	state := queue.State{Stock: []queue.Stock{{Kind: "Model", GPUs: *lineGPUs}}}
	for i := range *inLine {
		state.Claims = append(state.Claims, queue.Claim{Launch: int64(1_000_000 + i), Namespace: place(i % people), GPUs: 1, Priority: int32(-i % 7)})
	}
	began := time.Now()
	line.Keep(state)
	var first, known time.Duration
	for known == 0 {
		wait(ctx, t, line)
		admitted, placed := 0, 0
		for _, c := range state.Claims {
			switch s := line.Standing(c.Launch); {
			case s.Admitted:
				admitted++
			case s.Position > 0:
				placed++
			}
		}
		if admitted > 0 && first == 0 {
			first = time.Since(began)
		}
		if admitted+placed == len(state.Claims) {
			known = time.Since(began)
		}
	}
	during := managerMemory(l)

	// Whoever is let in has done with it at once.
	began = time.Now()
	waiting := slices.Clone(state.Claims)
	for len(waiting) > 0 {
		waiting = slices.DeleteFunc(waiting, func(c queue.Claim) bool { return line.Standing(c.Launch).Admitted })
		line.Keep(queue.State{Stock: state.Stock, Claims: slices.Clone(waiting)})
		if len(waiting) > 0 {
			wait(ctx, t, line)
		}
	}
	took := time.Since(began)

	fmt.Printf("\nThe line for GPUs: %d launches of %d people for %d GPUs, load %s\n", *inLine, people, *lineGPUs, load(t))
	fmt.Printf("  %-46s %8.1f s\n", "until the first is let in", first.Seconds())
	fmt.Printf("  %-46s %8.1f s\n", "until each has a GPU or knows its place", known.Seconds())
	rate := float64(*inLine) / took.Seconds()
	fmt.Printf("  %-46s %8.1f /s, %.2f × Kueue's own %.1f\n", "decisions, each ending at once", rate, rate/upstreamRate, upstreamRate)
	fmt.Printf("  %-46s %8.0f MB, with all in line %.0f MB (PSS)\n", "memory of Kueue", before, during)
}

// cluster is how to reach the lab's Kubernetes once Kueue is ready.
func cluster(ctx context.Context, t *testing.T, l *lab.Lab) (*rest.Config, *kubernetes.Clientset) {
	t.Helper()
	content, err := os.ReadFile(l.Path("/var/lib/gpulab/kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	access, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	access.Dial = l.DialHost
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	for ready := false; !ready; time.Sleep(time.Second) {
		if ctx.Err() != nil {
			t.Fatal("Kueue does not get ready")
		}
		d, err := client.AppsV1().Deployments("gpulab-system").Get(ctx, "kueue-controller-manager", metav1.GetOptions{})
		ready = err == nil && d.Status.ReadyReplicas > 0
	}
	return access, client
}

func namespace(ctx context.Context, t *testing.T, client *kubernetes.Clientset, name string) {
	t.Helper()
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// ownLine is gpulab's line for GPUs in the place of the lab's own, which would
// take out of it what it has no launch of.
func ownLine(ctx context.Context, t *testing.T, l *lab.Lab, access *rest.Config) *queue.Line {
	t.Helper()
	if l.Kill(ctx, "STOP", "gpulab") == 0 {
		t.Fatal("gpulab does not run")
	}
	t.Cleanup(func() { l.Kill(context.WithoutCancel(ctx), "CONT", "gpulab") })
	line, err := queue.New(queue.Config{REST: access, Namespace: "gpulab-system"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = line.Run(ctx) }()
	return line
}

func place(person int) string { return fmt.Sprintf("bench-%d", person) }

// wait waits for the line to say something new.
func wait(ctx context.Context, t *testing.T, line *queue.Line) {
	t.Helper()
	select {
	case <-line.Changes():
	case <-time.After(time.Second):
	case <-ctx.Done():
		t.Fatalf("the line does not get on: %s", line.Trouble())
	}
}

// managerMemory is that of Kueue's process in MB.
func managerMemory(l *lab.Lab) float64 {
	folders, _ := filepath.Glob(l.Path("/proc") + "/[0-9]*")
	for _, folder := range folders {
		if content, err := os.ReadFile(filepath.Join(folder, "cmdline")); err != nil || !strings.HasPrefix(string(content), "/manager\x00") {
			continue
		}
		for line := range lines(filepath.Join(folder, "smaps_rollup")) {
			if mb := kilobytes(line, "Pss:"); mb > 0 {
				return mb
			}
		}
	}
	return 0
}
