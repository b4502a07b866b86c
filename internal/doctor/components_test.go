package doctor

import "testing"

func TestComponents(t *testing.T) {
	h := machine(t, nil)
	if found := look(t, h, "components", labSays(Lab{}, ErrNoDaemon)); len(found) != 0 {
		t.Errorf("without a lab: %v", found)
	}
	finds(t, h, "components", labSays(Lab{Parts: []Part{{Name: "k3s", State: OK}, {Name: "files", State: Off, NextStep: "to take some: …"}}}, nil), OK, "All 2 parts")
	found := look(t, h, "components", labSays(Lab{Parts: []Part{
		{Name: "k3s", State: Fail, Detail: "it ended: exit code 1", NextStep: "gpulab starts it again by itself; see `gpulab logs k3s`"},
		{Name: "hub", State: Starting, Detail: "its pod is not ready"},
		{Name: "disk", State: Warn, Detail: "1 GiB of 10 GiB free", NextStep: "make room"},
		{Name: "database", State: OK},
	}}, nil))
	if len(found) != 3 || found[0].State != Fail || found[1].State != Warn || found[2].State != Warn {
		t.Fatalf("got %v", found)
	}
	for i, want := range []string{
		"The part \"k3s\" does not work: it ended: exit code 1. The lab does not work as it should. Gpulab starts it again by itself; see `gpulab logs k3s`.",
		"The part \"hub\" is not ready: its pod is not ready. It needs a minute after a start. If it stays like that, notebooks cannot be started. Look at `gpulab status` and `gpulab logs`.",
		"The part \"disk\" needs a look: 1 GiB of 10 GiB free. The lab works all the same. Make room.",
	} {
		if got := found[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
