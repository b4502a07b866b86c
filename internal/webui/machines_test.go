package webui_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/webui"
)

func TestMachines(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/machines").want(t, http.StatusOK, "gpu-box", "head", "gpu-two", "ready", "simulated", "of 16 cores", "clock right", "heard of now", "10.0.0.2",
		"/launches/2", "ben’s gpu", "/events?view=pool", "Make the line")
	if body := c.get("/machines").body; strings.Contains(body, "/machines/gpu-box/remove") || strings.Contains(body, "This lab is one machine") {
		t.Error("the head can be removed, or the lab is called one machine")
	}
	l.machines.Edit(func(m *ctl.Machines) {
		n, behind := &m.Nodes[1], -75.0
		n.State, n.Detail, n.LastContact, n.ClockOffset, n.Host = ctl.NodeLost, "gpu-two has not been heard since 10:00", time.Now().Add(-2*time.Minute), &behind, nil
	})
	c.get("/machines").want(t, http.StatusOK, "lost", "has not been heard since 10:00", "last heard of 2 min ago", "clock 1 min 15 s behind the head’s", "when it is back")

	// One that cannot get what the lab has says so, and as a warning once it stands still.
	for _, c := range []struct {
		state ctl.NodeEnvironments
		tone  string
	}{{ctl.NodeEnvironments{Loading: "vision/1", Failed: "x"}, "info"}, {ctl.NodeEnvironments{Failed: "x"}, "warn"}} {
		l.machines.Edit(func(m *ctl.Machines) {
			n := &m.Nodes[1]
			n.State, n.Detail, n.Environments = ctl.NodeReady, "gpu-two and its environments", &c.state
		})
		banner := regexp.MustCompile(`<div class="banner (\w+)"[^>]*>\s*(?:<[^>]*>\s*)*gpu-two and its environments`).FindStringSubmatch(l.client(t, "ada").get("/machines").body)
		if banner == nil || banner[1] != c.tone {
			t.Errorf("%+v: the banner is %q, want %s", c.state, banner, c.tone)
		}
	}

	// An empty pool says what others would bring.
	l.machines.Edit(func(m *ctl.Machines) { m.Nodes = m.Nodes[:1] })
	c.get("/machines").want(t, http.StatusOK, "This lab is one machine.")
}

var joinLine = regexp.MustCompile(`value="(sudo gpulab join gl1[a-z0-9]+)"`)

func TestInviteMachine(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	got := c.post("/machines", "/machines/invite", nil)
	got.want(t, http.StatusOK, "It works once, until", "10.0.0.1:8444", `data-copy="join-line"`, `class="qr"`, "Open invitations")
	line := joinLine.FindStringSubmatch(got.body)
	if line == nil {
		t.Fatalf("no line on the page:\n%s", visible(got.body))
	}
	again := c.get("/machines")
	again.want(t, http.StatusOK, "Open invitations")
	if strings.Contains(again.body, line[1]) || strings.Contains(again.body, "gl1") {
		t.Error("the code is shown a second time")
	}
	c.post("/machines", "/machines/invitations/0000000000000001/withdraw", nil).want(t, http.StatusSeeOther)
	c.post("/machines", "/machines/invitations/0000000000000001/withdraw", nil).want(t, http.StatusNotFound, "is not open any more")
	if strings.Contains(c.get("/machines").body, "Withdraw") {
		t.Error("a withdrawn invitation is on the page")
	}
	audit := c.get("/audit").body
	for _, want := range []string{"made a code with which a machine can join", "withdrew a code"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit log lacks %q", want)
		}
	}
	if strings.Contains(audit, "gl1") {
		t.Error("a code is in the audit log")
	}
}

func TestMachineAsksToBeLetIn(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/machines").want(t, http.StatusOK, "Asking to be let in", "012 345", "gpu-new", "at 10.0.0.9, asked 1 min ago", "Is 012 345 on the screen of gpu-new?")
	c.post("/machines", "/machines/requests/012346/accept", nil).want(t, http.StatusNotFound, "No machine asks with this number any more")
	c.post("/machines", "/machines/requests/012345/refuse", nil).want(t, http.StatusSeeOther)
	if body := c.get("/machines").body; strings.Contains(body, "Asking to be let in") || strings.Contains(body, "gpu-new") {
		t.Error("one that was refused is still there")
	}
	l.machines.Edit(func(m *ctl.Machines) {
		m.Requests = []ctl.NodeRequest{{Number: "777000", Name: "gpu-late", Address: "10.0.0.8"}}
	})
	c.post("/machines", "/machines/requests/777000/accept", nil).want(t, http.StatusSeeOther)
	c.post("/machines", "/machines/requests/777000/accept", nil).want(t, http.StatusNotFound)
	c.get("/machines").want(t, http.StatusOK, "gpu-late", "starting")
	c.get("/audit").want(t, http.StatusOK, "let a machine in that asked without a code", "gpu-late at 10.0.0.8", "did not let a machine in that asked without a code", "gpu-new at 10.0.0.9")
}

func TestRenameMachine(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.post("/machines", "/machines/rename", url.Values{"machine": {"gpu-nine"}, "title": {"x"}}).want(t, http.StatusNotFound)
	c.post("/machines", "/machines/rename", url.Values{"machine": {"gpu-two"}, "title": {"gpu-box"}}).want(t, http.StatusUnprocessableEntity, "Another machine is called that.")
	c.post("/machines", "/machines/rename", url.Values{"machine": {"gpu-two"}, "title": {"By the <door>"}}).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, "By the &lt;door&gt;</h2>", "named gpu-two", "By the &lt;door&gt; (gpu-two)", "Take By the &lt;door&gt; out of the pool?", "/machines/gpu-two/remove")
	c.get("/audit").want(t, http.StatusOK, "changed what a machine is shown as", "By the &lt;door&gt;")
	c.post("/machines", "/machines/rename", url.Values{"machine": {"gpu-two"}, "title": {""}}).want(t, http.StatusSeeOther)
	if strings.Contains(c.get("/machines").body, "door") {
		t.Error("the title is still there")
	}

	// Where others read of machines, too.
	s := snapshotAt(time.Now(), 2)
	s.Title = "By the door"
	l.fleet.publish(s)
	ben := l.client(t, "ben")
	ben.get("/gpus").want(t, http.StatusOK, "By the door</h2>")
	ben.get("/gpus/"+testGPU).want(t, http.StatusOK, "of By the door")
}

// Many machines have an index, with the sum of them.
func TestManyMachines(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	if strings.Contains(c.get("/machines").body, "machine-index") {
		t.Error("two machines have an index")
	}
	l.machines.Edit(func(m *ctl.Machines) { m.Nodes = tenMachines(time.Now()) })
	c.get("/machines").want(t, http.StatusOK, "10 machines, 20 of 36 GPUs in use, 1 lost, 2 without new work.", `href="#machine-gpu-04"`, "gpu-06 has not been heard since")
}

func TestLimitMachine(t *testing.T) {
	barred := []string{}
	l := newLabWith(t, func(c *webui.Config) {
		c.Barred = func(userID int64) []string {
			if userID == 2 { // ben
				return barred
			}
			return nil
		}
	})
	c := l.client(t, "ada")
	c.post("/machines", "/machines/limit", url.Values{"machine": {"gpu-two"}, "for": {"guests"}}).want(t, http.StatusUnprocessableEntity, "nobody a machine can be for")
	c.post("/machines", "/machines/limit", url.Values{"machine": {"gpu-two"}, "for": {"group:vision, role:guest"}}).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, "for the group vision and guests")
	c.post("/machines", "/machines/limit", url.Values{"machine": {"gpu-two"}, "for": {" "}}).want(t, http.StatusSeeOther)
	if strings.Contains(c.get("/machines").body, "for the group vision") {
		t.Error("it is still for some only")
	}
	c.get("/audit").want(t, http.StatusOK, "changed whom a machine is for", "for everybody")

	// The cards of who may not use a machine do not count it.
	l.fleet.publish(snapshotAt(time.Now(), 2))
	l.client(t, "ben").get("/").want(t, http.StatusOK, "2 of 2")
	barred = []string{"gpu-box"}
	if body := l.client(t, "ben").get("/").body; strings.Contains(body, "2 of 2 GPUs free") {
		t.Errorf("a card counts them:\n%s", visible(body))
	}
}

func TestPlacing(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.post("/machines", "/machines/placing", url.Values{"cpu": {"sideways"}}).want(t, http.StatusUnprocessableEntity, "CPU notebooks run anywhere")
	c.post("/machines", "/machines/placing", url.Values{"cpu": {"require"}, "gpus": {"spread"}}).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, `<option value="require" selected`, `<option value="spread" selected`)
	c.get("/audit").want(t, http.StatusOK, "changed how machines are chosen for notebooks", "CPU notebooks: require, GPUs: spread")
}

// A notebook's page says where it runs, and why there, where there is a choice.
func TestWhereANotebookRuns(t *testing.T) {
	l := newLab(t)
	const why = "Of the machines with room for it, it had the most free GPUs."
	l.notebooks.change(func(list *[]notebooks.Launch) {
		*list = []notebooks.Launch{{ID: 1, UserID: 2, Handle: "ben", Profile: "gpu", GPUs: 1, State: notebooks.Running, Ready: time.Now(), Node: "gpu-two",
			Placement: notebooks.Placement{Prefer: []string{"gpu-two"}, Why: why}}}
	})
	s := snapshotAt(time.Now(), 1)
	l.fleet.publish(s)
	ben := l.client(t, "ben")
	if body := ben.get("/launches/1").body; strings.Contains(body, "It runs on") {
		t.Error("a lab of one machine says where a notebook runs")
	}
	s.Node, s.Title = "gpu-two", "By the door"
	l.fleet.publish(s)
	ben.get("/launches/1").want(t, http.StatusOK, "It runs on By the door. "+why)
}

func TestRemoveMachine(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	c.get("/machines").want(t, http.StatusOK, "Take gpu-two out of the pool?", "These notebooks end")
	c.post("/machines", "/machines/gpu-two/remove", nil).want(t, http.StatusConflict, "notebooks run there")
	c.post("/machines", "/machines/gpu-box/remove", url.Values{"anyway": {"yes"}}).want(t, http.StatusConflict)
	c.post("/machines", "/machines/nobody/remove", url.Values{"anyway": {"yes"}}).want(t, http.StatusNotFound)
	c.post("/machines", "/machines/gpu-two/remove", url.Values{"anyway": {"yes"}}).want(t, http.StatusSeeOther)
	if strings.Contains(c.get("/machines").body, "gpu-two") {
		t.Error("it is still there")
	}
	c.get("/audit").want(t, http.StatusOK, "removed a machine from the pool", "gpu-two")
}

func TestCordonMachine(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ada")
	form := func(machine, ends string) url.Values {
		return url.Values{"machine": {machine}, "reason": {"new memory"}, "ends": {ends}}
	}
	c.post("/machines", "/machines/cordon", form("gpu-nine", "")).want(t, http.StatusNotFound)
	c.post("/machines", "/machines/cordon", form("gpu-two", "soon")).want(t, http.StatusBadRequest)
	c.post("/machines", "/machines/cordon", url.Values{"machine": {"gpu-two"}, "reason": {"a\x00b"}, "ends": {""}}).want(t, http.StatusUnprocessableEntity, "one line")
	c.post("/machines", "/machines/cordon", form("gpu-two", "")).want(t, http.StatusSeeOther)
	got := c.get("/machines")
	got.want(t, http.StatusOK, "It takes no new work: new memory.", "by ada, since", "Take work again")
	if strings.Contains(got.body, "Let notebooks stay") {
		t.Error("it is called one that is being emptied")
	}
	c.post("/machines", "/machines/gpu-two/keep", nil).want(t, http.StatusConflict)
	c.post("/machines", "/machines/cordon", form("gpu-two", "2h")).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, "It is being emptied: 1 notebook left", "Let notebooks stay")
	list, err := l.machines.Nodes(t.Context())
	if err != nil || time.Until(list.Nodes[1].Cordon.EmptyAt).Round(time.Minute) != 2*time.Hour {
		t.Errorf("%+v, %v", list.Nodes[1].Cordon, err)
	}
	// Or at once, which the page asks about first.
	c.get("/machines").want(t, http.StatusOK, "End the notebooks on gpu-two now?", "what is not saved in them is lost: ben’s gpu. Their owners can start them again.")
	c.post("/machines", "/machines/cordon", url.Values{"machine": {"gpu-two"}, "ends": {"now"}}).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, "It is being emptied now: 1 notebook left", "new memory")
	c.post("/machines", "/machines/gpu-two/keep", nil).want(t, http.StatusSeeOther)
	c.get("/machines").want(t, http.StatusOK, "It takes no new work: new memory.")
	c.post("/machines", "/machines/gpu-two/uncordon", nil).want(t, http.StatusSeeOther)
	if strings.Contains(c.get("/machines").body, "Take work again") {
		t.Error("it still takes no work")
	}
	audit := c.get("/audit").body
	for _, want := range []string{"let a machine take no new work", "began to empty a machine", "let the notebooks of a machine stay", "let a machine take work again", "new memory"} {
		if !strings.Contains(audit, want) {
			t.Errorf("the audit log lacks %q", want)
		}
	}
}

// Who works on a machine that is being emptied reads it at home; launch cards
// know which machines take work.
func TestCordonedMachineAtHome(t *testing.T) {
	l := newLabWith(t, func(c *webui.Config) {
		c.Emptying = func(handle string) []string {
			if handle != "ben" {
				return nil
			}
			return []string{"gpu-two is being emptied. Your notebook “Mine” there ends at 16:30: save your work."}
		}
	})
	l.client(t, "ben").get("/").want(t, http.StatusOK, "ends at 16:30: save your work")
	if strings.Contains(l.client(t, "lea").get("/").body, "being emptied") {
		t.Error("somebody else reads it too")
	}
	s := snapshotAt(time.Now(), 2)
	s.Cordoned = "gpu-box takes no new work: new memory."
	l.fleet.publish(s)
	got := l.client(t, "lea").get("/")
	got.want(t, http.StatusOK, "gpu-box takes no new work: new memory.", "would wait: no machine takes new work now")
	if strings.Contains(got.body, "starts at once") || strings.Contains(got.body, "2 of 2") {
		t.Errorf("a notebook would start:\n%s", visible(got.body))
	}
	other := snapshotAt(time.Now(), 0)
	other.Node = "cpu-box"
	l.fleet.publish(other)
	l.client(t, "lea").get("/").want(t, http.StatusOK, "starts at once", "would wait: its machines take no new work now")
	l.client(t, "lea").get("/gpus").want(t, http.StatusOK, "gpu-box takes no new work: new memory.")
}
