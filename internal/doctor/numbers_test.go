package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// knows makes a machine whose getent knows these lines, by database.
func knows(h host, passwd, group string) host {
	h.output = func(ctx context.Context, name string, args ...string) (string, error) {
		if name != "getent" {
			return "", nil
		}
		var found string
		for line := range strings.Lines(map[string]string{"passwd": passwd, "group": group}[args[0]]) {
			if slices.Contains(args[1:], strings.Split(line, ":")[2]) {
				found += line
			}
		}
		// As getent ends when some of the numbers are unknown.
		return found, exec.CommandContext(ctx, "sh", "-c", "exit 2").Run()
	}
	return h
}

func TestNumbers(t *testing.T) {
	lab := Options{Numbers: func(context.Context) (map[int]string, error) {
		return map[int]string{20000: "ada", 20001: "ben", 1007: "cem", 60000: "the folder vision", 60001: "the folder vision"}, nil
	}}
	h := machine(t, nil)
	finds(t, knows(h, "cem:x:1007:1007::/:/bin/sh\nprof:x:20002:20002::/:/bin/sh\nada:x:20000:20000::/:/bin/sh\n", "ada:x:20000:\n"), "numbers", lab, OK, "the 4 UIDs and GIDs")
	finds(t, knows(h, "prof:x:20000:20000::/:/bin/sh\n", "prof:x:20000:\nlasers:x:60001:ada\n"), "numbers", lab, Fail,
		"20000, of ada, is prof's; 60001, of the folder vision, is lasers's.", "`usermod -u`", "above 65001")
	var many strings.Builder
	numbers := map[int]string{}
	for n := 30000; n < 30008; n++ {
		numbers[n] = fmt.Sprint("p", n)
		fmt.Fprintf(&many, "q%d:x:%d:1::/:/bin/sh\n", n, n)
	}
	finds(t, knows(h, many.String(), ""), "numbers", Options{Numbers: func(context.Context) (map[int]string, error) { return numbers, nil }}, Fail, "30004, of p30004, is q30004's; and 3 more.")

	// A machine without a lab, and one whose directory does not answer.
	if found := look(t, h, "numbers", Options{}); len(found) != 0 {
		t.Errorf("without a lab: %v", found)
	}
	h.output = func(context.Context, string, ...string) (string, error) { return "", errors.New("it was killed") }
	finds(t, h, "numbers", lab, Unseen, "it was killed", "/etc/nsswitch.conf")
	finds(t, h, "numbers", Options{Numbers: func(context.Context) (map[int]string, error) { return nil, ErrNotAllowed }}, Unseen, "Only root")
}

// On a machine that has joined, the mounted homes show which numbers the lab has given out.
// The probe also warns of numbers that it may give out later, because the head does not know
// this machine's accounts.
func TestNumbersOnJoinedMachines(t *testing.T) {
	h := machine(t, map[string]string{"/srv/lab/homes/1/x": "", "/etc/passwd": "root:x:0:0::/:/bin/sh\nprof:x:20500:100::/:/bin/sh\nfar:x:70000:100::/:/bin/sh\n", "/etc/group": "lasers:x:60500:\n"})
	joined := Options{Joined: &Joined{Exported: []string{"/srv/lab/homes"}}}
	finds(t, knows(h, "", ""), "numbers", joined, Warn, "20500 is prof's; 60500 is lasers's.", "The head")
	finds(t, knows(machine(t, nil), "", ""), "numbers", joined, OK)
	if os.Getuid() != 0 {
		t.Skip("giving files to others needs root")
	}
	if err := os.Chown(h.path("/srv/lab/homes/1"), 20500, 20500); err != nil {
		t.Fatal(err)
	}
	finds(t, knows(h, "prof:x:20500:100::/:/bin/sh\n", ""), "numbers", joined, Fail, "20500 is prof's.")
}
