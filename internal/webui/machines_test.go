package webui_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
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
