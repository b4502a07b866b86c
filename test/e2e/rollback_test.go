//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// The versions of this story: what was built by hand, and what is built later.
const newerVersion = "99.0.1"

// frontProgram is what people on the host call gpulab.
const frontProgram = "/opt/lab/gpulab"

// rolledLab is a lab whose gpulab somebody builds anew, and takes back.
type rolledLab struct {
	*lab.Lab
	ctx   context.Context
	older string // the version in bin
}

// TestRollback goes from one gpulab to a newer one, back and forth again, while
// a pod counts; and has both directions killed at random moments.
//
//test:about internal/upgrade internal/store
func TestRollback(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	newer := lab.Newer(t, newerVersion)
	r := &rolledLab{Lab: lab.New(t), ctx: ctx}
	r.MustRun(ctx, "mkdir", "-p", filepath.Dir(frontProgram), "/srv/out")
	r.MustRun(ctx, "chmod", "777", "/srv/out")
	r.MustRun(ctx, "ln", "-s", filepath.Join(filepath.Dir(r.Binary()), "images"), filepath.Join(filepath.Dir(frontProgram), "images"))
	r.build(t, r.Binary())
	r.must(t, "init", "--yes", "--gpus", "simulated")
	r.older = r.version(t)
	r.must(t, "user", "add", "ada", "--name", "Ada")
	r.count(t)

	r.build(t, newer)
	r.must(t, "init", "--yes")
	r.is(t, newerVersion, "an upgrade", "ada")
	r.must(t, "user", "add", "ben", "--name", "Ben")
	if out := r.must(t, "status"); !strings.Contains(out, "`gpulab rollback` leads to "+r.older) {
		t.Errorf("status does not say where a rollback leads:\n%s", out)
	}
	t.Run("a plan changes nothing", r.plan)
	t.Run("a key that the version before does not know", r.unknownKey)

	began := time.Now()
	t.Log(r.must(t, "rollback", "--yes"))
	t.Logf("back after %s", time.Since(began).Round(100*time.Millisecond))
	r.is(t, r.older, "a rollback", "ada")
	if out := r.must(t, "audit", "list", "--action", "gpulab.rollback"); !strings.Contains(out, r.older) || !strings.Contains(out, newerVersion) {
		t.Errorf("the audit log does not know of the rollback:\n%s", out)
	}
	// The program on the disk is the newer one, and does not go forth by itself.
	if out := r.must(t, "init", "--yes"); !strings.Contains(out, "nothing changed") {
		t.Errorf("init after a rollback:\n%s", out)
	}
	r.must(t, "user", "add", "cleo", "--name", "Cleo")
	t.Run("no number is given twice", r.numbers)

	r.must(t, "rollback", "--yes")
	r.is(t, newerVersion, "the way forth", "ada", "ben")
	t.Run("killed", r.killed)
}

// build puts a program where somebody else's build would.
func (r *rolledLab) build(t *testing.T, program string) {
	t.Helper()
	data, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	path := r.Path(frontProgram)
	if err := os.WriteFile(path+".new", data, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func (r *rolledLab) must(t *testing.T, args ...string) string {
	t.Helper()
	result := r.Run(r.ctx, frontProgram, args...)
	if result.Code != 0 {
		t.Fatalf("gpulab %s: exit code %d\n%s%s", strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// version is the one of the gpulab that serves the lab.
func (r *rolledLab) version(t *testing.T) string {
	t.Helper()
	var status struct {
		Version string
		Ready   bool
	}
	if err := json.Unmarshal([]byte(r.must(t, "status", "--json")), &status); err != nil || !status.Ready {
		t.Fatalf("ready %v, %v", status.Ready, err)
	}
	return status.Version
}

// is checks which version serves the lab after something, whom it knows, and
// that the pod has counted on.
func (r *rolledLab) is(t *testing.T, version, after string, people ...string) {
	t.Helper()
	if now := r.version(t); now != version {
		t.Fatalf("after %s gpulab %s serves the lab, want %s", after, now, version)
	}
	list := r.must(t, "user", "list")
	for _, handle := range []string{"ada", "ben", "cleo"} {
		if want := slices.Contains(people, handle); strings.Contains(list, handle) != want {
			t.Errorf("after %s the lab knows %s: want %v\n%s", after, handle, want, list)
		}
	}
	r.longestGap(t, after)
}

// counter writes down every tenth of a second how long it stood still.
const counter = `apiVersion: v1
kind: Pod
metadata: {name: counter, namespace: default}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: counts
    image: IMAGE
    imagePullPolicy: Never
    command: [python3, -c]
    args:
    - |
      import time
      last = time.monotonic()
      while True:
          time.sleep(0.1)
          now = time.monotonic()
          open("/out/gaps", "a").write("%.3f\n" % (now - last))
          last = now
    volumeMounts: [{name: out, mountPath: /out}]
  volumes: [{name: out, hostPath: {path: /srv/out}}]
`

// count starts the pod that counts.
func (r *rolledLab) count(t *testing.T) {
	t.Helper()
	var list struct {
		Images []struct{ Name, Ref string }
	}
	data, err := os.ReadFile(filepath.Join(filepath.Dir(r.Binary()), "images/images.json"))
	if err == nil {
		err = json.Unmarshal(data, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range list.Images {
		if image.Name == "notebook" {
			r.WriteFile("/srv/counter.yaml", strings.ReplaceAll(counter, "IMAGE", image.Ref))
		}
	}
	r.must(t, "kubectl", "apply", "-f", "/srv/counter.yaml")
}

// longestGap prints how long the pod stood still at most since it was asked last.
func (r *rolledLab) longestGap(t *testing.T, what string) {
	t.Helper()
	path := r.Path("/srv/out/gaps")
	var gaps []float64
	for end := time.Now().Add(2 * time.Minute); len(gaps) < 20; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s the pod does not count", what)
		}
		data, _ := os.ReadFile(path)
		gaps = nil
		for _, line := range strings.Fields(string(data)) {
			if gap, err := strconv.ParseFloat(line, 64); err == nil {
				gaps = append(gaps, gap)
			}
		}
	}
	longest := slices.Max(gaps)
	t.Logf("longest gap of the pod over %s: %.2f s", what, longest)
	if longest > 5 {
		t.Errorf("over %s the pod stood still for %.2f s", what, longest)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// plan: what would happen and be lost is said, and nothing done.
func (r *rolledLab) plan(t *testing.T) {
	out := r.must(t, "rollback", "--dry-run")
	for _, want := range []string{"From gpulab " + newerVersion + " back to gpulab " + r.older, "new accounts 1, launches 0", "Notebooks  go on"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan does not say %q:\n%s", want, out)
		}
	}
	r.is(t, newerVersion, "a plan", "ada", "ben")
}

// unknownKey: a configuration with which the version before could not start is
// found before anything changes.
func (r *rolledLab) unknownKey(t *testing.T) {
	const config = "/etc/gpulab/config.yaml"
	r.MustRun(r.ctx, "cp", config, "/srv/config.yaml")
	r.MustRun(r.ctx, "sh", "-c", "echo '"+lab.Key+": x' >>"+config)
	result := r.Run(r.ctx, frontProgram, "rollback", "--yes")
	if result.Code == 0 || !strings.Contains(result.Stderr, lab.Key) || !strings.Contains(result.Stderr, "nothing was changed") {
		t.Errorf("exit code %d\n%s%s", result.Code, result.Stdout, result.Stderr)
	}
	r.is(t, newerVersion, "a refused rollback", "ada", "ben")
	r.MustRun(r.ctx, "cp", "/srv/config.yaml", config)
}

// numbers: somebody who comes after a rollback gets no home of somebody whom it took away.
func (r *rolledLab) numbers(t *testing.T) {
	uid := func(handle string) int {
		var person struct{ UID int }
		if err := json.Unmarshal([]byte(r.must(t, "user", "show", handle, "--json")), &person); err != nil {
			t.Fatal(err)
		}
		return person.UID
	}
	if ada, cleo := uid("ada"), uid("cleo"); cleo != ada+2 {
		t.Errorf("Ada has the number %d and Cleo %d; the one between was Ben's", ada, cleo)
	}
}

// killed: everything of gpulab and Kubernetes is killed at random moments of a
// rollback, and of the way forth. The next start has one of both versions, whole.
func (r *rolledLab) killed(t *testing.T) {
	began := time.Now()
	r.must(t, "rollback", "--yes")
	took := time.Since(began)
	people := map[string][]string{r.older: {"ada", "cleo"}, newerVersion: {"ada", "ben"}}
	was := r.version(t)
	r.is(t, r.older, "a rollback", people[r.older]...)
	for round := range 6 {
		ctx, cancel := context.WithCancel(r.ctx)
		command := r.Command(ctx, frontProgram, "rollback", "--yes")
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rand.Int64N(int64(took)))
		time.Sleep(after)
		cancel()
		_ = command.Wait()
		for _, name := range []string{"gpulab", "k3s", "k3s-server", "containerd"} {
			r.Kill(r.ctx, "KILL", name)
		}
		r.must(t, "init", "--yes")
		now := r.version(t)
		t.Logf("killed after %s: from gpulab %s to %s", after.Round(10*time.Millisecond), was, now)
		r.is(t, now, fmt.Sprintf("kill %d", round), people[now]...)
		was = now
	}
}
