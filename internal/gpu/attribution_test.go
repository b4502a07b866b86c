package gpu

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func TestPodUIDs(t *testing.T) {
	const uid = "1b4e28ba-2fa1-41d2-883f-0016d3cca427"
	for name, c := range map[string]struct {
		cgroup string
		want   []string
	}{
		"v2, systemd":                     {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"v2, systemd, guaranteed":         {"0::/kubepods.slice/kubepods-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"v2, cgroupfs":                    {"0::/kubepods/besteffort/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a77\n", []string{uid}},
		"v2, cgroupfs, guaranteed":        {"0::/kubepods/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a77\n", []string{uid}},
		"v2, the pod's own group":         {"0::/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427\n", []string{uid}},
		"v1, a line for a controller":     {"9:name=systemd:/\n8:pids:/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n2:cpu,cpuacct:/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n", []string{uid}},
		"below a cgroup-root":             {"8:pids:/nodea/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n", []string{uid}},
		"below k3s's service":             {"0::/system.slice/gpulab.service/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"a static pod":                    {"0::/kubepods/burstable/pod4bd9d3a4b30d1d9a7b7b8cc8d9a2c1f0/3f2a\n", []string{"4bd9d3a4b30d1d9a7b7b8cc8d9a2c1f0"}},
		"a cluster in a pod":              {"0::/kubepods/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f/kubelet/kubepods/podaaaaaaaa-2fa1-41d2-883f-0016d3cca427/77\n", []string{uid, "aaaaaaaa-2fa1-41d2-883f-0016d3cca427"}},
		"a login":                         {"0::/user.slice/user-1000.slice/session-2.scope\n", nil},
		"podman":                          {"0::/machine.slice/libpod-3f2a77b8c19d4e5f3f2a77b8c19d4e5f3f2a77b8c19d4e5f3f2a77b8c19d4e5f.scope\n", nil},
		"a login that calls itself a pod": {"0::/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/run-1.service\n", nil},
		"a login's own kubepods-…":        {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/kubepods-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/x.service\n", nil},
		"user.slice in a pod":             {"0::/kubepods/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f/user.slice/a.scope\n", []string{uid}},
		"nothing":                         {"", nil},
	} {
		if got := podUIDs([]byte(c.cgroup)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// onePod knows a single pod.
type onePod struct {
	ref     PodRef
	started time.Time
}

func (p onePod) ByUID(uid string) (PodRef, bool) { return p.ref, uid == p.ref.UID }

func (p onePod) ByName(namespace, name string) (PodRef, time.Time, bool) {
	if namespace != p.ref.Namespace || name != p.ref.Name {
		return PodRef{}, time.Time{}, false
	}
	return p.ref, p.started, true
}

var annasPod = PodRef{
	UID: "1b4e28ba-2fa1-41d2-883f-0016d3cca427", Namespace: "user-anna", Name: "jupyter-anna--work", User: "anna", Notebook: "work",
}

// process writes what /proc shows about a process.
func process(t *testing.T, proc, pid, name, uid, cgroup string) {
	t.Helper()
	dir := filepath.Join(proc, pid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{
		"cgroup": cgroup, "comm": name + "\n", "status": "Name:\tx\nUid:\t1\t" + uid + "\t1\t1\n", "stat": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

const (
	inAnnasPod = "0::/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f\n"
	inNoPod    = "0::/user.slice/user-1000.slice/session-2.scope\n"
)

func TestAttribution(t *testing.T) {
	proc := t.TempDir()
	process(t, proc, "100", "python3", "0", inAnnasPod)
	process(t, proc, "101", "a ) (b", "0", "0::/kubepods/burstable/podaaaaaaaa-2fa1-41d2-883f-0016d3cca427/3f\n")
	process(t, proc, "102", "python3", "54321", inNoPod)
	a := newAttribution(proc, onePod{ref: annasPod})
	look := func() []Process {
		gpus := []GPU{{Reading: Reading{Processes: []Process{{PID: 100}, {PID: 101}, {PID: 102}, {PID: 103}}}}, {Reading: Reading{Processes: []Process{{PID: 100}}}}}
		a.complete(gpus, time.Now())
		return slices.Concat(gpus[0].Processes, gpus[1].Processes)
	}
	want := []Process{
		{PID: 100, Name: "python3", UnixUser: "root", Pod: annasPod},
		{PID: 101, Name: "a ) (b", UnixUser: "root", Pod: PodRef{UID: "aaaaaaaa-2fa1-41d2-883f-0016d3cca427"}}, // not known yet
		{PID: 102, Name: "python3", UnixUser: "54321"},
		{PID: 103}, // had ended before it was ever looked at
		{PID: 100, Name: "python3", UnixUser: "root", Pod: annasPod},
	}
	if got := look(); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if err := os.RemoveAll(filepath.Join(proc, "100")); err != nil {
		t.Fatal(err)
	}
	if got := look(); !slices.Equal(got, want) {
		t.Errorf("after one has ended: got %+v\nwant %+v", got, want)
	}
}

// A process is read once, and anew when it is another one under its number or
// has been believed for long.
func TestAttributionRemembers(t *testing.T) {
	proc, now := t.TempDir(), time.Unix(1e9, 0)
	a := newAttribution(proc, onePod{ref: annasPod})
	look := func(after time.Duration) Process {
		now = now.Add(after)
		gpus := []GPU{{Reading: Reading{Processes: []Process{{PID: 100}}}}}
		a.complete(gpus, now)
		return gpus[0].Processes[0]
	}
	mine := Process{PID: 100, Name: "python3", UnixUser: "54321"}
	annas := mine
	annas.Pod = annasPod
	for i, step := range []struct {
		another bool // process, under the same number
		name    string
		cgroup  string
		after   time.Duration
		want    Process
	}{
		{true, "python3", inNoPod, 0, mine},
		{false, "sh", inAnnasPod, 59 * time.Second, mine},
		{false, "python3", inAnnasPod, time.Second, annas},
		{true, "python3", inNoPod, time.Second, mine},
		{false, "python3", inAnnasPod, time.Second, mine},
		{false, "python3", inAnnasPod, -time.Hour, annas}, // the clock was set back
		{true, "sh", inNoPod, time.Second, Process{PID: 100, Name: "sh", UnixUser: "54321"}},
	} {
		if step.another {
			if err := os.RemoveAll(filepath.Join(proc, "100")); err != nil {
				t.Fatal(err)
			}
		}
		process(t, proc, "100", step.name, "54321", step.cgroup)
		if got := look(step.after); got != step.want {
			t.Errorf("step %d: got %+v, want %+v", i, got, step.want)
		}
	}
	if a.complete([]GPU{{}}, now); len(a.known) != 0 {
		t.Errorf("%d processes are remembered though no GPU is used", len(a.known))
	}
}

func TestUnixUserWithoutName(t *testing.T) {
	if got := unixUser([]byte("Name:\tx\nUid:\t20001\t59001\t20001\t20001\n")); got != "59001" {
		t.Errorf("got %q, want the effective user's number", got)
	}
}
