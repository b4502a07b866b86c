//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/mail/mailtest"
	"github.com/gpulab/gpulab/test/lab"
)

// The people of the story.
const (
	adminHandle   = "ada"
	adminPassword = "a quiet green lamp"
	guestHandle   = "ben"
	guestPassword = "two loud red bells"
)

// appliance is one lab that the tests below share, in their order: a cluster
// is expensive, and a real one lives through all of this too.
type appliance struct {
	*lab.Lab
	ctx     context.Context
	lifeOf  *testing.T   // the test whose chapters these are
	before  lab.Snapshot // of the host before the first init
	ca      []byte
	link    string       // the administrator's, as init printed it
	browser *lab.Browser // the administrator's, once it has run
	guest   *lab.Browser
	third   *lab.Browser // of a third person, where a story has one
	first   *kernel      // of the administrator's first notebook, in browser
	second  *kernel      // of the guest's
	waiting string       // the progress page of a launch that waits for a GPU
	hoard   string       // the progress page of a notebook that fills its disk
	crowd   string       // the same of one with too many files
	kept    bool         // the logs of a failure

	adminClient *http.Client // see admin
	foldersOf   map[string]*kernel
	mail        *mailtest.Server // where a story has one
	index       *packageIndex    // where a test has one
}

// pages is where the lab's pages are, hub where its notebooks are.
const (
	pages = "https://" + lab.Address
	hub   = "https://" + lab.Address + ":8443" // leads on to each person's own port
)

// chapter is one part of a lab's life. When it fails and is vital, because
// others build on it, the rest is not run.
type chapter struct {
	name  string
	run   func(*testing.T, *appliance)
	vital bool
}

// TestAppliance is the life of a lab, from a machine that has never seen
// gpulab until nothing of it is left.
//
//test:gate
func TestAppliance(t *testing.T) {
	t.Parallel()
	var saved backupStory
	a := fresh(t)
	a.before = a.Snapshot(a.ctx)
	a.live(t, []chapter{
		{"commands without a lab", testCommandsWithoutLab, false},
		{"questions", testQuestions, false},
		{"preflight", testPreflight, false},
		{"init interrupted", testInitInterrupted, true},
		{"init again", testInitAgain, false},
		{"admin link", testAdminLink, true},
		{"home", testHome, false},
		{"first notebook", testFirstNotebook, true},
		{"user packages", testUserPackages, false},
		{"second person", testSecondPerson, true},
		{"all GPUs taken", testAllTaken, true},
		{"readings", testReadings, false},
		{"kill the GPU probe", testKillProbe, false},
		{"kill gpulab", testKillGpulab, true},
		{"kill Kubernetes", testKillKubernetes, true},
		{"next in the queue", testNextInQueue, false},
		{"stop and start again", testStopAndRelaunch, false},
		{"secrets", testSecrets, false},
		{"untrusted certificate", testUntrusted, false},
		{"forms and sign-in", testFormsAndSignIn, false},
		{"remove a person", testRemovePerson, false},
		{"trust on this machine", testTrustHere, false},
		{"backup", saved.save, false},
		{"reset", testReset, true},
		{"init after reset", testInitAfterReset, true},
		{"restore", saved.restore, false},
	})
}

// live runs the chapters on the lab, in their order.
func (a *appliance) live(t *testing.T, chapters []chapter) {
	for _, c := range chapters {
		if t.Run(c.name, func(t *testing.T) { c.run(t, a) }) {
			continue
		}
		a.keepLogs(t) // later chapters begin logs anew
		if c.vital {
			t.Fatalf("the rest builds on %q", c.name)
		}
	}
}

// byHand are chapters that are lived through with GPULAB_BY_HAND=1 only; others are told of them.
func byHand(t *testing.T, chapters ...chapter) []chapter {
	if os.Getenv("GPULAB_BY_HAND") != "" {
		return chapters
	}
	for _, c := range chapters {
		t.Logf("left out, GPULAB_BY_HAND=1 brings it in: %s", c.name)
	}
	return nil
}

// beside starts a second machine on the lab's network. It ends with t.
func (a *appliance) beside(t *testing.T, name, address string) *lab.Lab {
	machine := lab.NewBeside(t, a.Lab, name, address)
	a.keepLogsBeside(t, machine, name)
	return machine
}

// keepLogsBeside copies what gpulab said on a second machine when t has failed.
func (a *appliance) keepLogsBeside(t *testing.T, machine *lab.Lab, name string) {
	t.Cleanup(func() {
		if a.kept {
			return
		}
		keepLogs(t, machine, a.lifeOf.Name()+"/"+name, map[string]string{
			"gpulab.log": "cat /var/lib/gpulab/log/*",
			"status.txt": a.Binary() + " status",
			"pods.log":   "tail -n 100 /var/log/pods/*/*/*.log",
			"rules.txt":  "iptables-save; ipset list -terse",
			"ps.txt":     "ps axo pid,ppid,etime,rss,args",
		})
	})
}

// keepLogs copies what gpulab and Kubernetes said when a test has failed, as it
// was after the first failure.
func (a *appliance) keepLogs(t *testing.T) {
	if a.kept {
		return
	}
	a.kept = t.Failed()
	keepLogs(t, a.Lab, t.Name(), map[string]string{
		"gpulab.log":   "cat /var/lib/gpulab/log/*",
		"status.txt":   a.Binary() + " status; " + a.Binary() + " charts",
		"pods.txt":     a.Binary() + " kubectl get pods -A -o wide; " + a.Binary() + " kubectl get events -A --sort-by=.lastTimestamp",
		"describe.txt": a.Binary() + " kubectl describe pods -A",
		"hub.log":      a.Binary() + " kubectl -n gpulab-system logs deploy/hub --tail=500",
		"pods.log":     "tail -n 100 /var/log/pods/*/*/*.log",
		"rules.txt":    "iptables-save; ipset list -terse",
		"ps.txt":       "ps axo pid,ppid,etime,rss,args",
	})
}

// keepLogs writes what the commands say on the machine into files of these
// names in a folder of the tests' output when the test has failed.
func keepLogs(t *testing.T, machine *lab.Lab, folder string, commands map[string]string) {
	if !t.Failed() {
		return
	}
	output := os.Getenv("GPULAB_TEST_OUTPUT")
	if output == "" {
		output = machine.Repository() + "/test/output"
	}
	folder = output + "/" + folder
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Log(err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for name, command := range commands {
		result := machine.Run(ctx, "sh", "-c", command)
		if err := os.WriteFile(folder+"/"+name, []byte(result.Stdout+result.Stderr), 0o644); err != nil {
			t.Log(err)
		}
	}
	t.Logf("logs: %s", folder)
}

// status is the part of `gpulab status --json` that the tests read.
type status struct {
	Ready      bool
	URL        string
	LocalURL   string
	GPUs       []struct{ GPUs []gpu }
	Components []struct{ Name, State, Detail, NextStep string }
}

type gpu struct {
	UUID      string
	Simulated bool
	Holders   []struct{ User, Notebook string }
}

func (a *appliance) status(t *testing.T) status {
	t.Helper()
	result := a.Gpulab(a.ctx, "status", "--json")
	var s status
	if err := json.Unmarshal([]byte(result.Stdout), &s); err != nil {
		t.Fatalf("status --json (exit code %d): %v\n%s%s", result.Code, err, result.Stdout, result.Stderr)
	}
	return s
}

// gpus returns the GPUs of the pool.
func (a *appliance) gpus(t *testing.T) []gpu {
	t.Helper()
	var all []gpu
	for _, node := range a.status(t).GPUs {
		all = append(all, node.GPUs...)
	}
	return all
}

// waitReady waits until gpulab says that the lab is ready.
func (a *appliance) waitReady(t *testing.T) {
	t.Helper()
	a.eventually(t, "the lab is ready", func() bool {
		return a.Gpulab(a.ctx, "status", "--json").Code == 0
	})
}

// eventually waits for a condition, and ends the test when it does not come.
func (a *appliance) eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	a.within(t, lab.Patience, what, condition)
}

// within is eventually with another patience.
func (a *appliance) within(t *testing.T, patience time.Duration, what string, condition func() bool) {
	t.Helper()
	defer lab.NoteWait(time.Now())
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s it is not so: %s", patience, what)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

var linkPattern = regexp.MustCompile(`https://\S+/setup\?token=\S+`)

// findLink reads the one-time link out of what a command printed.
func findLink(t *testing.T, output string) string {
	t.Helper()
	link := linkPattern.FindString(output)
	if link == "" {
		t.Fatalf("no one-time link in:\n%s", output)
	}
	return link
}

// checkFailure checks how a command refused: its exit code, and one sentence
// that holds every given part.
func checkFailure(t *testing.T, result lab.Result, code int, says ...string) {
	t.Helper()
	if result.Code != code {
		t.Errorf("exit code %d, want %d", result.Code, code)
	}
	for _, part := range says {
		if !strings.Contains(result.Stdout+result.Stderr, part) {
			t.Errorf("%q is not in what it said:\n%s%s", part, result.Stdout, result.Stderr)
		}
	}
	if strings.Contains(result.Stderr, "panic") || strings.Contains(result.Stderr, "goroutine ") {
		t.Errorf("it crashed:\n%s", result.Stderr)
	}
}
