//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpulab/gpulab/test/lab"
)

// tries connects to each target again and again until its input ends, or for so
// many seconds, and then says how often it tried and when it got through, in
// seconds from the start.
const tries = `import json, select, socket, sys, time
began, seen = time.time(), {t: {"tries": 0, "open": []} for t in sys.argv[2:]}
while time.time() - began < float(sys.argv[1]) and not select.select([sys.stdin], [], [], 0.2)[0]:
    for target, was in seen.items():
        host, port = target.rsplit(":", 1)
        with socket.socket() as s:
            s.settimeout(0.3)
            was["tries"] += 1
            if s.connect_ex((host, int(port))) == 0:
                was["open"].append(round(time.time() - began, 1))
json.dump(seen, sys.stdout)`

// tried is what the program above says of one target.
type tried struct {
	Tries int
	Open  []float64
}

// checkWalls holds what was tried against what should be: all is closed but the
// hub, which shows that a way that opens is seen.
func checkWalls(t *testing.T, said, hub string, closed []string) {
	t.Helper()
	var seen map[string]tried
	if err := json.Unmarshal([]byte(said), &seen); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	if len(seen[hub].Open) == 0 {
		t.Errorf("not even the hub was reached: %v", seen)
	}
	for _, target := range closed {
		if got := seen[target]; got.Tries == 0 || len(got.Open) > 0 {
			t.Errorf("a notebook tried %s %d times and got through after these seconds: %v", target, got.Tries, got.Open)
		}
	}
}

// hubAddress is the hub's address and port among pods.
func (a *appliance) hubAddress(t *testing.T) string {
	t.Helper()
	return a.MustGpulab(a.ctx, "kubectl", "-n", "gpulab-system", "get", "pods", "-l", "app.kubernetes.io/component=hub", "-o", "jsonpath={.items[0].status.podIP}") + ":8081"
}

// watchWalls tries from inside the network of somebody's notebook, until the
// function it returns is called, to reach what is closed to it.
func (a *appliance) watchWalls(t *testing.T, handle string, closed ...string) (end func()) {
	t.Helper()
	hub := a.hubAddress(t)
	server, _, _ := strings.Cut(a.serverProcess(t, handle), " ")
	cmd := a.Command(a.ctx, "nsenter", slices.Concat([]string{"--target", server, "--net", "python3", "-c", tries, "600", hub}, closed)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceValue(func() error {
		stdin.Close()
		return cmd.Wait()
	})
	t.Cleanup(func() { _ = stop() })
	return func() {
		t.Helper()
		if err := stop(); err != nil {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		checkWalls(t, stdout.String(), hub, closed)
	}
}

// testFirstMoment: a program that is faster than its walls reaches no more than
// one that waits for them.
func testFirstMoment(t *testing.T, a *appliance) {
	namespace, notebook := a.podOf(t, adminHandle)
	neighbour := a.MustGpulab(a.ctx, "kubectl", "-n", namespace, "get", "pod", notebook, "-o", "jsonpath={.status.podIP}") + ":8888"
	hub, closed := a.hubAddress(t), []string{neighbour, "10.43.0.1:443", "10.42.0.1:10250", lab.Address + ":6443", lab.Address + ":443"}
	command, err := json.Marshal(slices.Concat([]string{"python3", "-c", tries, "5", hub}, closed))
	if err != nil {
		t.Fatal(err)
	}
	a.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: hasty, namespace: user-%s, labels: {app.kubernetes.io/component: notebook}}
spec:
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, runAsUser: 30000, seccompProfile: {type: RuntimeDefault}}
  containers:
    - name: hasty
      image: %s
      stdin: true
      command: %s
      securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
      resources: {limits: {memory: 128Mi, cpu: "1"}, requests: {memory: 64Mi, cpu: 10m}}
`, guestHandle, a.notebookImage(t), command))
	of := []string{"kubectl", "-n", "user-" + guestHandle}
	a.MustGpulab(a.ctx, append(of, "wait", "--timeout=60s", "--for=jsonpath={.status.phase}=Succeeded", "pod/hasty")...)
	checkWalls(t, a.MustGpulab(a.ctx, append(of, "logs", "hasty")...), hub, closed)
	a.MustGpulab(a.ctx, append(of, "delete", "pod", "hasty", "--grace-period=0", "--force")...)
}
