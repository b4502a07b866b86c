package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// peopleDaemon is a running gpulab as far as people matter.
type peopleDaemon struct{ *appliance }

func (peopleDaemon) Status(context.Context) (ctl.Status, error) { return ctl.Status{}, nil }

// commandLab is peopleLab, reached by commands through a socket. do runs one
// that is to work and returns what it printed.
func commandLab(t *testing.T) (p *people, c *cluster, do func(line string) string, refused func(line string, code int, says string)) {
	t.Helper()
	needRoot(t)
	p, c, _ = peopleLab(t)
	l := &appliance{people: p.Service}
	l.cfg.DataDir = "/var/lib/gpulab"
	l.attached.Store(&attached{people: p})
	socket := serve(t, peopleDaemon{l})
	command := func(line string) (int, string, string) {
		return gpulab(t, append(strings.Split(line, " "), "--socket", socket)...)
	}
	do = func(line string) string {
		t.Helper()
		code, out, stderr := command(line)
		if code != exitOK || stderr != "" {
			t.Fatalf("%s: exit code %d\n%s%s", line, code, out, stderr)
		}
		return out
	}
	refused = func(line string, want int, says string) {
		t.Helper()
		code, out, stderr := command(line)
		if code != want || out != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, says) {
			t.Errorf("%s: exit code %d\n%s%s", line, code, out, stderr)
		}
	}
	return p, c, do, refused
}

func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("does not say %q:\n%s", w, text)
		}
	}
}

func TestUserCommands(t *testing.T) {
	p, c, do, refused := commandLab(t)
	says(t, do("user show ben"), "handle        ben", "role          member", "groups        none", "state         invited", "last sign-in  never")
	says(t, do("user set ben --name Ben --email ben@example.org --role guest"), "ben@example.org", "guest")
	says(t, do("user set ben --email="), "e-mail        none", "name          Ben")
	refused("user set ben", exitUsage, "--name, --email or --role")
	refused("user set ben --role king --name King", exitFailure, "There is no role")
	says(t, do("user show ben"), "name          Ben") // all or nothing
	refused("user set ada --role member", exitFailure, "only admin")
	refused("user show nobody", exitFailure, "There is no such user")

	says(t, do("user suspend ben"), "ben is suspended", "gpulab user resume ben")
	if len(c.running) != 0 {
		t.Errorf("running: %v", c.running)
	}
	says(t, do("user show ben"), "suspended since 20")
	says(t, do("user list"), "HANDLE", "suspended", "active")
	says(t, do("user resume ben"), "can sign in again")
	refused("user suspend ada", exitFailure, "only admin")

	says(t, do("user list ben"), "ben")
	if out := do("user list ben"); strings.Contains(out, "ada") {
		t.Errorf("a search finds everybody:\n%s", out)
	}
	says(t, do("user list nobody-at-all"), "Nobody fits.")
	refused("user list --group none", exitFailure, "There is no group")
	var listed []users.Person
	if err := json.Unmarshal([]byte(do("user list --json")), &listed); err != nil || len(listed) != 2 || listed[1].Handle != "ben" {
		t.Errorf("%v, %+v", err, listed)
	}

	var actions []string
	log, err := p.AuditLog().List(t.Context(), audit.Filter{})
	for _, e := range log {
		if e.Actor == "root" {
			actions = append(actions, e.Action+" "+e.Target)
		}
	}
	if want := "user.resume ben, user.suspend ben, user.change ben, user.role ben, user.change ben"; err != nil || strings.Join(actions, ", ") != want {
		t.Errorf("audit: %q, %v, want %q", actions, err, want)
	}
}

func TestUserRemoveAndUndelete(t *testing.T) {
	p, c, do, refused := commandLab(t)
	home := fmt.Sprintf("/var/lib/gpulab/homes/%d", 2)
	says(t, do("user list --removed"), "Nobody was removed")
	refused("user undelete ben", exitFailure, "is not removed")
	refused("user remove ben", exitUsage, "--yes")
	refused("user remove --purge ben", exitUsage, "for good")
	says(t, do("user remove --yes ben"), "ben is removed", home, "is kept until", "gpulab user undelete ben")
	says(t, do("user list --removed"), "ben", "DELETED FOR GOOD")
	says(t, do("user show ben"), "removed on 20", "deleted for good on 20")
	if out := do("user list"); strings.Contains(out, "ben") {
		t.Errorf("in the list:\n%s", out)
	}
	refused("user remove --yes ben", exitFailure, "--purge")
	refused("user suspend ben", exitFailure, "There is no such user")
	refused("user remove --yes ada", exitFailure, "only admin")
	says(t, do("user undelete ben"), "ben is back")
	says(t, do("user show ben"), "invited")
	if !c.homes["ben"] {
		t.Error("the home is gone")
	}

	var removal ctl.Removal
	if err := json.Unmarshal([]byte(do("user remove --yes --json ben")), &removal); err != nil || removal.Home != home || removal.Purge.IsZero() {
		t.Errorf("%v, %+v", err, removal)
	}
	says(t, do("user remove --yes --purge ben"), "ben is deleted, and so is the home "+home) // removed before
	if c.homes["ben"] || !c.homes["ada"] {
		t.Errorf("homes: %v", c.homes)
	}
	refused("user undelete ben", exitFailure, "deleted for good")
	if _, err := p.Create(t.Context(), users.NewUser{Handle: "eve"}); err != nil {
		t.Fatal(err)
	}
	c.homes["eve"] = true
	says(t, do("user remove --yes --purge eve"), "eve is deleted") // in use until now
	if c.homes["eve"] {
		t.Errorf("homes: %v", c.homes)
	}
}

// TestPurgeTakesTheHandle: yes is no answer to what cannot be taken back.
func TestPurgeTakesTheHandle(t *testing.T) {
	for answer, want := range map[string][2]bool{"ben\n": {false, true}, "yes\n": {true, false}, "": {false, false}, "BEN\n": {false, false}, "no\n": {false, false}} {
		for i, purge := range []bool{false, true} {
			var out bytes.Buffer
			q := &asker{in: bufio.NewReader(strings.NewReader(answer)), out: &out}
			if got := askToRemove(q, "ben", purge); got != want[i] {
				t.Errorf("%q, purge %v: %v\n%s", answer, purge, got, out.String())
			}
			if purge {
				says(t, out.String(), "home folder of ben")
			}
		}
	}
}

func TestGroupCommands(t *testing.T) {
	_, _, do, refused := commandLab(t)
	says(t, do("group list"), "No groups yet")
	says(t, do("group add vision --title Seeing"), "The group vision is there")
	refused("group add vision", exitFailure, "already")
	refused("group add ../x", exitFailure, "cannot be a group's")
	says(t, do("group show vision"), "vision: Seeing", "Nobody is in it")
	says(t, do("group member add vision ben"), "ben is in vision.")
	says(t, do("group member add vision ben --lead"), "ben leads vision.")
	says(t, do("group show vision"), "ben", "lead")
	says(t, do("user show ben"), "vision (lead)", "role          lead")
	says(t, do("user list --group vision"), "ben", "vision*")
	says(t, do("group list"), "vision  Seeing  1        ben")
	refused("group member add none ben", exitFailure, "There is no group")
	refused("group member add vision nobody", exitFailure, "nobody: There is no such user")
	refused("group member add vision", exitUsage, "--help")
	says(t, do("group member remove vision ben"), "ben is not in vision.")
	refused("group remove vision", exitUsage, "--yes")
	says(t, do("group remove --yes vision"), "removed", "stay in the lab")
	refused("group show vision", exitFailure, "There is no group")
	var g []users.Group
	if err := json.Unmarshal([]byte(do("group list --json")), &g); err != nil || g == nil || len(g) != 0 {
		t.Errorf("%v, %+v", err, g)
	}
}
