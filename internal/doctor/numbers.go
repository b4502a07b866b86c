package doctor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The range of UIDs and GIDs that a lab gives to people and folders, with those of its own
// parts at both ends. A person who keeps the UID of a Linux account has one below this
// range. The head knows that UID, because the account is there.
const (
	firstGiven = 19999
	lastGiven  = 65001
)

// largestList is how many collisions a finding names.
const largestList = 5

// probeNumbers checks whether the machine or its directory uses UIDs or GIDs of the lab's
// people and folders for somebody else. gpulab gives out no number that the head uses, but
// the machine may get users and groups later.
func probeNumbers(h host, opts Options) []Finding {
	given, unseen := h.givenNumbers(opts)
	known, err := h.knownNumbers(given)
	if err != nil {
		return []Finding{{Probe: "numbers", State: Unseen,
			Seen: fmt.Sprintf("gpulab cannot look up which UIDs and GIDs this machine uses: %s.",
				strings.TrimSuffix(err.Error(), ".")),
			Mend: "Check whether `getent passwd 20000` returns at once. If it does not, check the directory service that is " +
				"named in /etc/nsswitch.conf."}}
	}
	if len(known) > 0 {
		return []Finding{{Probe: "numbers", State: Fail,
			Seen: "Users or groups of this machine have UIDs or GIDs that the lab has given to people or folders: " +
				collisions(known, given) + ".",
			Means: "Both owners of such a number can read each other's files on this machine and end each other's programs.",
			Mend: fmt.Sprintf("The lab's numbers never change. Change those of the machine's users and groups to numbers "+
				"below %d or above %d, with `usermod -u` and `groupmod -g` or in the directory. "+
				"Then run `find / -xdev -nouser -o -nogroup` to find files that still have the old numbers, and change "+
				"their owners.",
				firstGiven, lastGiven)}}
	}
	if later := h.localNumbers(given); opts.Joined != nil && len(later) > 0 {
		return []Finding{{Probe: "numbers", State: Warn,
			Seen: "Users or groups of this machine have UIDs or GIDs that the lab may give to people or folders: " +
				collisions(later, nil) + ".",
			Means: "The head assigns these numbers and does not know that this machine uses them. A person who gets one can " +
				"read its owner's files on this machine.",
			Mend: fmt.Sprintf("Change them to numbers below %d or above %d, with `usermod -u` and `groupmod -g`.", firstGiven,
				lastGiven)}}
	}
	if unseen {
		return []Finding{{Probe: "numbers", State: Unseen, Seen: "Only root can see which UIDs and GIDs the lab has given " +
			"to people and folders."}}
	}
	if len(given) == 0 && opts.Joined == nil {
		return nil
	}
	return []Finding{{Probe: "numbers", State: OK, Seen: fmt.Sprintf("No user or group of this machine has one of the "+
		"%d UIDs and GIDs that the lab uses.", len(given))}}
}

// collisions lists numbers, each with its owners in the lab and on the machine.
func collisions(known, given map[int]string) string {
	var list []string
	for _, n := range slices.Sorted(maps.Keys(known)) {
		text := fmt.Sprintf("%d is %s's", n, known[n])
		if of := given[n]; of != "" {
			text = fmt.Sprintf("%d, of %s, is %s's", n, of, known[n])
		}
		list = append(list, text)
	}
	if more := len(list) - largestList; more > 0 {
		list = append(list[:largestList], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, "; ")
}

// givenNumbers returns the UIDs and GIDs of the lab's people and folders, each with its owner
// if that is known. They come from the running gpulab and from the owners of homes and
// folders on disk. unseen reports that there may be more, which only root can see.
func (h host) givenNumbers(opts Options) (given map[int]string, unseen bool) {
	given = map[int]string{}
	add := func(n int, of string) {
		if n >= firstGiven && n <= lastGiven && given[n] == "" {
			given[n] = of
		}
	}
	if opts.Numbers != nil {
		numbers, err := opts.Numbers(h.ctx)
		unseen = errors.Is(err, ErrNotAllowed)
		for n, of := range numbers {
			add(n, of)
		}
	}
	places := []string{filepath.Join(opts.DataDir, "homes"), filepath.Join(opts.DataDir, "folders")}
	if opts.Joined != nil {
		places = append(places, opts.Joined.Exported...)
	}
	for _, dir := range places {
		entries, err := os.ReadDir(h.path(dir))
		unseen = unseen || errors.Is(err, os.ErrPermission) && !h.isRoot()
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				continue
			}
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				add(int(st.Uid), "")
				add(int(st.Gid), "")
			}
		}
	}
	return given, unseen
}

// knownNumbers returns those of the given numbers that the machine or its directory uses,
// each with the name of its user or group.
func (h host) knownNumbers(given map[int]string) (map[int]string, error) {
	known := map[int]string{}
	if len(given) == 0 {
		return known, nil
	}
	var numbers []string
	for _, n := range slices.Sorted(maps.Keys(given)) {
		numbers = append(numbers, strconv.Itoa(n))
	}
	for _, database := range []string{"passwd", "group"} {
		text, err := h.output(h.ctx, "getent", append([]string{database}, numbers...)...)
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 2) { // 2: some of the numbers are unknown
			return nil, err
		}
		for n, name := range NamesByNumber(text) {
			// A Linux account of the same name is taken for the same person's.
			if of, asked := given[n]; asked && name != of && known[n] == "" {
				known[n] = name
			}
		}
	}
	return known, nil
}

// localNumbers returns UIDs and GIDs in the machine's own files that a lab may still give out.
func (h host) localNumbers(given map[int]string) map[int]string {
	found := map[int]string{}
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		for n, name := range NamesByNumber(h.read(file)) {
			if _, now := given[n]; !now && n >= firstGiven && n <= lastGiven && found[n] == "" {
				found[n] = name
			}
		}
	}
	return found
}

// NamesByNumber reads lines in the format of passwd and group, and returns the name of each UID or GID.
func NamesByNumber(text string) map[int]string {
	names := map[int]string{}
	for line := range strings.Lines(text) {
		f := strings.Split(line, ":")
		if len(f) < 3 || f[0] == "" {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(f[2])); err == nil {
			names[n] = strings.Join(strings.Fields(f[0]), " ")
		}
	}
	return names
}
