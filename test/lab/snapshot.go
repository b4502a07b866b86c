package lab

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Snapshot is what a program can leave on a machine, one set of lines per kind.
type Snapshot map[string][]string

// looks are commands whose lines are compared, by the kind of thing they list. Shells are what looks, and udev starts
// workers as devices come and go.
var looks = map[string]string{
	"processes": `for p in /proc/[0-9]*; do
		grep -qs '^State:.[^Z]' $p/status && n=$(cat $p/comm 2>/dev/null) || continue
		case $n in bash|sh|sleep|nsenter|grep|cat|tr|"(udev-worker)") ;; *) echo "$n $(tr '\0' ' ' <$p/cmdline 2>/dev/null)";; esac
	done`,
	"mounts":         `while read -r _ _ _ root point _; do echo "$point $root"; done </proc/self/mountinfo`,
	"interfaces":     `ip -oneline link show | sed 's/^[0-9]*: //; s/ .*//'`,
	"addresses":      `ip -oneline address show | awk '{ print $2, $4 }' | grep -v fe80`,
	"routes":         `ip route show table all | grep -v fe80; ip rule show`,
	"iptables":       `iptables-save | grep -v '^[#*:C]'; iptables-save | grep '^:' | sed 's/ \[.*//' | grep -vE ':(INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) '`,
	"ip6tables":      `ip6tables-save | grep -v '^[#*:C]'; ip6tables-save | grep '^:' | sed 's/ \[.*//' | grep -vE ':(INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) '`,
	"nftables":       `nft list ruleset | grep -E '^[[:space:]]*(chain|set|map) ' | grep -vE 'chain (INPUT|OUTPUT|FORWARD|PREROUTING|POSTROUTING) '`,
	"ipsets":         `ipset list -name`,
	"control groups": `find /sys/fs/cgroup -mindepth 1 -type d`,
	"namespaces":     `ls /run/netns 2>/dev/null`,
	"run files":      `find /run -xdev`,
	"device files":   `find /dev -xdev`,
}

// Snapshot records the state of the host. Its files are those that the host
// has changed since it was made.
func (l *Lab) Snapshot(ctx context.Context) Snapshot {
	l.t.Helper()
	snapshot := Look(func(script string) string { return l.Run(ctx, "sh", "-c", script).Stdout })
	snapshot["files"] = l.changedFiles()
	return snapshot
}

// Look records the state of a machine, but for its files, by shell scripts that
// run there and return what they print.
func Look(run func(script string) string) Snapshot {
	snapshot := Snapshot{}
	for kind, script := range looks {
		var lines []string
		for line := range strings.Lines(run(script)) {
			lines = append(lines, strings.TrimSpace(line))
		}
		slices.Sort(lines)
		snapshot[kind] = lines
	}
	return snapshot
}

// changedFiles lists what differs between the host's files and this machine's,
// which lie under them.
func (l *Lab) changedFiles() []string {
	var files []string
	walk := func(base string, look func(path, upper string, entry fs.DirEntry) string) {
		_ = filepath.WalkDir(base, func(upper string, entry fs.DirEntry, err error) error {
			if err == nil && upper != base {
				if line := look(strings.TrimPrefix(upper, base), upper, entry); line != "" {
					files = append(files, line)
				}
			}
			return nil
		})
	}
	seen := filepath.Join("/proc", strconv.Itoa(l.visitor), "root", l.dir)
	walk(filepath.Join(seen, "scratch/upper"), changedFile)
	// Below these the host has a disk of its own, which was empty.
	walk(filepath.Join(seen, "disk"), func(path, _ string, entry fs.DirEntry) string {
		if slices.Contains([]string{"/lost+found", "/var", "/var/lib", "/var/lib/gpulab", "/var/lib/kubelet"}, path) {
			return ""
		}
		return path
	})
	return files
}

// changedFile compares an entry of the overlay's upper folder with what it
// covers, and returns "" when the two are alike.
func changedFile(path, upper string, entry fs.DirEntry) string {
	below, err := os.Lstat(path)
	switch {
	case entry.Type()&fs.ModeCharDevice != 0 && err == nil:
		return path + " (deleted)" // an overlay's sign for it
	case entry.Type()&fs.ModeCharDevice != 0:
		return ""
	case err != nil:
		return path
	case entry.IsDir() && below.IsDir():
		return ""
	}
	one, err1 := os.ReadFile(upper)
	other, err2 := os.ReadFile(path)
	if err1 == nil && err2 == nil && bytes.Equal(one, other) {
		return ""
	}
	return path + " (changed)"
}

// Added returns the lines of after that s lacks, each with its kind. What s had
// and after lacks is found by exchanging the two.
func (s Snapshot) Added(after Snapshot) []string {
	var added []string
	for kind, lines := range after {
		for _, line := range lines {
			if !slices.Contains(s[kind], line) {
				added = append(added, kind+": "+line)
			}
		}
	}
	slices.Sort(added)
	return added
}
