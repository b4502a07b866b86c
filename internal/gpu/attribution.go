package gpu

import (
	"bytes"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Pods tells which pods run on this node. The one who watches the cluster
// provides it; its methods are called once a second and must not block.
type Pods interface {
	// ByUID finds a pod by its UID.
	ByUID(uid string) (PodRef, bool)
	// ByName finds a pod by its name, and tells when it started: the zero time
	// if it has not.
	ByName(namespace, name string) (ref PodRef, started time.Time, ok bool)
}

// noPods is used before there is a cluster.
type noPods struct{}

func (noPods) ByUID(string) (PodRef, bool)                     { return PodRef{}, false }
func (noPods) ByName(string, string) (PodRef, time.Time, bool) { return PodRef{}, time.Time{}, false }

// podUID matches a pod's part of a control group's path, whichever driver made
// it: kubepods-burstable-pod1b4e_….slice (systemd) or kubepods/burstable/pod1b4e-…
// (cgroupfs). Nothing anchors it, because the kubelet's groups may lie below
// others. Mirror pods have a hash of 32 digits for a UID.
var podUID = regexp.MustCompile(`pod([0-9a-f]{8}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{4}[_-][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)`)

// podUIDs returns the UIDs in the content of /proc/PID/cgroup, outermost
// first, each once. A cluster inside a pod has more than one.
func podUIDs(cgroup []byte) []string {
	var uids []string
	seen := make(map[string]bool)
	for line := range bytes.Lines(cgroup) {
		for _, m := range podUID.FindAllSubmatch(bytes.TrimSpace(line), -1) {
			uid := strings.ReplaceAll(string(m[1]), "_", "-")
			if !seen[uid] {
				seen[uid] = true
				uids = append(uids, uid)
			}
		}
	}
	return uids
}

// attribute adds to each process its name, its user and its pod. A process
// that has ended meanwhile keeps what the driver said about it.
func attribute(procRoot string, pods Pods, processes []Process) {
	for i := range processes {
		p := &processes[i]
		dir := filepath.Join(procRoot, strconv.Itoa(p.PID))
		if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			p.Name = strings.TrimSpace(string(comm))
		}
		if status, err := os.ReadFile(filepath.Join(dir, "status")); err == nil {
			p.UnixUser = unixUser(status)
		}
		cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		p.Pod = podOf(pods, podUIDs(cgroup))
	}
}

// podOf returns the outermost pod the cluster knows. A pod it does not know
// (yet) is still a pod: its UID is kept.
func podOf(pods Pods, uids []string) PodRef {
	for _, uid := range uids {
		if ref, ok := pods.ByUID(uid); ok {
			return ref
		}
	}
	if len(uids) > 0 {
		return PodRef{UID: uids[0]}
	}
	return PodRef{}
}

// unixUser finds the effective user in /proc/PID/status: its name, or its
// number if this host has no name for it.
func unixUser(status []byte) string {
	for line := range bytes.Lines(status) {
		fields := bytes.Fields(line)
		if len(fields) < 3 || string(fields[0]) != "Uid:" {
			continue
		}
		id := string(fields[2])
		if u, err := user.LookupId(id); err == nil {
			return u.Username
		}
		return id
	}
	return ""
}
