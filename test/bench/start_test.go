//go:build e2e

package bench

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpulab/gpulab/test/lab"
)

// initArgs set up a lab with simulated GPUs and no question.
var initArgs = []string{"init", "--yes", "--gpus", "simulated"}

// What a start leaves on a machine and the next one finds: the runtime bundle,
// and k3s's configuration, by which k3s can be started alone. Nothing of it is
// state: no image, no cluster.
const (
	dataDir   = "/var/lib/gpulab"
	bundleDir = dataDir + "/bin"
)

var configuration = []string{
	dataDir + "/k3s.yaml",
	dataDir + "/containerd.toml",
	dataDir + "/k3s/agent/etc/containerd/config-v3.toml.tmpl",
	dataDir + "/k3s/server/manifests/gpulab-rbac.yaml",
}

// stage is one line of init's progress.
type stage struct {
	name        string
	began, took time.Duration // since the start
}

// start is one start of a lab.
type start struct {
	took   time.Duration
	stages []stage
}

func total(starts []start) time.Duration {
	took := make([]time.Duration, len(starts))
	for i, s := range starts {
		took[i] = s.took
	}
	return median(took)
}

var stageLine = regexp.MustCompile(`^✓ (\S+) +([0-9.]+) s`)

// initialise runs init to its end and notes when each stage ended. It returns
// what init printed, too.
func initialise(ctx context.Context, t *testing.T, l *lab.Lab) (start, string) {
	t.Helper()
	cmd := l.Command(ctx, l.Binary(), initArgs...)
	output, input := io.Pipe()
	cmd.Stdout, cmd.Stderr = input, input
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait(); input.Close() }()
	var s start
	printed := ""
	for lines := bufio.NewScanner(output); lines.Scan(); {
		printed += lines.Text() + "\n"
		if found := stageLine.FindStringSubmatch(lines.Text()); found != nil {
			seconds, _ := strconv.ParseFloat(found[2], 64)
			took := time.Duration(seconds * float64(time.Second))
			s.stages = append(s.stages, stage{found[1], max(0, time.Since(began)-took), took})
		}
	}
	s.took = time.Since(began)
	if err := <-ended; err != nil {
		t.Fatalf("init: %v\n%s", err, printed)
	}
	for _, kind := range []string{"notebooks", "cpus", "memory"} { // one person launches more than most labs allow
		l.MustGpulab(ctx, "quota", "unset", "everybody", kind)
	}
	return s, printed
}

// keepRuntime copies what a start can find on a machine.
func keepRuntime(t *testing.T, l *lab.Lab, kept string) {
	t.Helper()
	for _, path := range append(configuration, bundleDir) {
		copyTree(t, l.Path(path), filepath.Join(kept, path))
	}
}

// startStaged measures a start on a machine that has the runtime bundle and
// nothing else.
func startStaged(ctx context.Context, t *testing.T, kept string) start {
	l := newLab(t)
	copyTree(t, filepath.Join(kept, bundleDir), l.Path(bundleDir))
	s, _ := initialise(ctx, t, l)
	return s
}

// startAlone measures k3s without gpulab: the same program with the same
// configuration, until its node is ready. With settle it then waits until the
// memory has settled, and returns it and what processors it uses idle.
func startAlone(ctx context.Context, t *testing.T, kept string, settle bool) (start, []process, processors) {
	l := newLab(t)
	for _, path := range append(configuration, bundleDir) {
		copyTree(t, filepath.Join(kept, path), l.Path(path))
	}
	ctx, stop := context.WithTimeout(ctx, 3*time.Minute)
	defer stop()
	k3s := l.Command(ctx, "env", "PATH="+bundleDir+"/current:/usr/sbin:/usr/bin:/sbin:/bin",
		bundleDir+"/current/k3s", "server", "--config", dataDir+"/k3s.yaml")
	began := time.Now()
	if err := k3s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = k3s.Cancel(); _ = k3s.Wait() }()
	for !nodeReady(ctx, l) {
		if ctx.Err() != nil {
			t.Fatalf("k3s alone was not ready in time: %v", context.Cause(ctx))
		}
		time.Sleep(100 * time.Millisecond)
	}
	s := start{took: time.Since(began)}
	if !settle {
		return s, nil, nil
	}
	memory := settledMemory(ctx, t, l)
	return s, memory, idleProcessors(ctx, t, l)
}

func nodeReady(ctx context.Context, l *lab.Lab) bool {
	data, err := os.ReadFile(l.Path(dataDir + "/kubeconfig"))
	if err != nil {
		return false
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(data)
	if err != nil {
		return false
	}
	config.Host = "https://" + lab.Address + ":6443"
	config.Dial = l.Dial
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return false
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false
	}
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return true
			}
		}
	}
	return false
}

// printStages prints the stages of the start whose length is the median.
func printStages(title string, starts []start) {
	if len(starts) == 0 {
		return
	}
	middle := starts[0]
	for _, s := range starts {
		if s.took == total(starts) {
			middle = s
		}
	}
	fmt.Printf("\n%s\n", title)
	if len(middle.stages) > 0 {
		fmt.Printf("  %-32s %8s %8s %8s\n", "stage (some side by side)", "began", "took", "share")
	}
	for _, s := range middle.stages {
		fmt.Printf("  %-32s %8.1f %8.1f %7.0f%%\n", s.name, s.began.Seconds(), s.took.Seconds(), 100*s.took.Seconds()/middle.took.Seconds())
	}
	fmt.Printf("  %-32s %8s %8.1f", "in all", "", middle.took.Seconds())
	if len(starts) > 1 {
		fmt.Printf("   of")
		for _, s := range starts {
			fmt.Printf(" %.1f", s.took.Seconds())
		}
	}
	fmt.Println()
}
