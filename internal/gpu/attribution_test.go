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
		"v2, systemd":                 {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"v2, systemd, guaranteed":     {"0::/kubepods.slice/kubepods-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"v2, cgroupfs":                {"0::/kubepods/besteffort/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a77\n", []string{uid}},
		"v2, cgroupfs, guaranteed":    {"0::/kubepods/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a77\n", []string{uid}},
		"v2, the pod's own group":     {"0::/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427\n", []string{uid}},
		"v1, a line for a controller": {"9:name=systemd:/\n8:pids:/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n2:cpu,cpuacct:/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n", []string{uid}},
		"below a cgroup-root":         {"8:pids:/nodea/kubepods/burstable/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f2a\n", []string{uid}},
		"below k3s's service":         {"0::/system.slice/gpulab.service/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1b4e28ba_2fa1_41d2_883f_0016d3cca427.slice/cri-containerd-3f2a.scope\n", []string{uid}},
		"a static pod":                {"0::/kubepods/burstable/pod4bd9d3a4b30d1d9a7b7b8cc8d9a2c1f0/3f2a\n", []string{"4bd9d3a4b30d1d9a7b7b8cc8d9a2c1f0"}},
		"a cluster in a pod":          {"0::/kubepods/pod1b4e28ba-2fa1-41d2-883f-0016d3cca427/3f/kubelet/kubepods/podaaaaaaaa-2fa1-41d2-883f-0016d3cca427/77\n", []string{uid, "aaaaaaaa-2fa1-41d2-883f-0016d3cca427"}},
		"a login":                     {"0::/user.slice/user-1000.slice/session-2.scope\n", nil},
		"podman":                      {"0::/machine.slice/libpod-3f2a77b8c19d4e5f3f2a77b8c19d4e5f3f2a77b8c19d4e5f3f2a77b8c19d4e5f.scope\n", nil},
		"nothing":                     {"", nil},
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

func TestAttribute(t *testing.T) {
	proc := t.TempDir()
	for pid, cgroup := range map[string]string{
		"100": "0::/kubepods/burstable/pod" + annasPod.UID + "/3f\n",
		"101": "0::/kubepods/burstable/podaaaaaaaa-2fa1-41d2-883f-0016d3cca427/3f\n",
		"102": "0::/user.slice/user-1000.slice/session-2.scope\n",
	} {
		dir := filepath.Join(proc, pid)
		for name, content := range map[string]string{"cgroup": cgroup, "comm": "python3\n", "status": "Name:\tpython3\nUid:\t1\t0\t1\t1\n"} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	processes := []Process{{PID: 100}, {PID: 101}, {PID: 102}, {PID: 103}}
	attribute(proc, onePod{ref: annasPod}, processes)
	want := []Process{
		{PID: 100, Name: "python3", UnixUser: "root", Pod: annasPod},
		{PID: 101, Name: "python3", UnixUser: "root", Pod: PodRef{UID: "aaaaaaaa-2fa1-41d2-883f-0016d3cca427"}}, // not known yet
		{PID: 102, Name: "python3", UnixUser: "root"},
		{PID: 103}, // has ended meanwhile
	}
	if !slices.Equal(processes, want) {
		t.Errorf("got  %+v\nwant %+v", processes, want)
	}
}

func TestUnixUserWithoutName(t *testing.T) {
	if got := unixUser([]byte("Name:\tx\nUid:\t20001\t59001\t20001\t20001\n")); got != "59001" {
		t.Errorf("got %q, want the effective user's number", got)
	}
}
