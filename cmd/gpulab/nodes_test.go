package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/nodes"
)

func TestPrintNodes(t *testing.T) {
	now := time.Now()
	m := ctl.Machines{
		Nodes: []ctl.Node{
			{Name: "vm", Role: "head", State: ctl.NodeReady, Limit: &ctl.NodeLimit{For: []string{"role:guest"}}},
			{Name: "gpu-two", Title: "By the door", Role: "node", State: ctl.NodeLost, Detail: "not heard since", GPUs: 1, Simulated: true, LastContact: now.Add(-time.Minute),
				Cordon:    &ctl.Cordon{Since: now, By: "ada", Reason: "new memory", EmptyAt: now.Add(time.Minute)},
				Notebooks: []ctl.NodeNotebook{{User: "ben", Name: "one"}}},
		},
		Requests:    []ctl.NodeRequest{{Number: "012345", Name: "gpu-three"}, {Number: "111111", Name: "gpu-four"}},
		Invitations: []ctl.OpenInvitation{{ID: "0a0b", Expires: now}},
	}
	var out bytes.Buffer
	if err := printNodes(&out, m, now); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 (simulated)", "not heard since", "SHOWN AS", "vm is for guests only.", "By the door takes no new work: new memory. It is being emptied; notebooks there end", "by ada", "Still there: ben/one.", "0a0b  until", "gpu-three and gpu-four ask to be let in: `gpulab nodes requests`"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if q := removeQuestion(m, "gpu-two"); !strings.Contains(q, "ben/one") || !strings.Contains(q, "gpulab nodes drain gpu-two") {
		t.Error(q)
	}
	if q := removeQuestion(m, "vm"); strings.Contains(q, "ben") {
		t.Error(q)
	}
}

func TestCordonSentence(t *testing.T) {
	for want, c := range map[string]nodes.Cordon{
		"b takes no new work.":             {Machine: "b"},
		"b takes no new work: new memory.": {Machine: "b", Reason: "new memory."},
	} {
		if got := cordonSentence(c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := cordonSentence(nodes.Cordon{Machine: "b", EmptyAt: time.Now().Add(48 * time.Hour)}); !strings.Contains(got, "notebooks there end on ") {
		t.Error(got)
	}
	if got := cordonSentence(nodes.Cordon{Machine: "b", EmptyAt: time.Now().Add(-time.Second)}); !strings.Contains(got, "It was emptied at ") && !strings.Contains(got, "It was emptied on ") {
		t.Error(got)
	}
	for reason, ok := range map[string]bool{"": true, " new memory ": true, "a\nb": false, strings.Repeat("ä", longestReason): true, strings.Repeat("ä", longestReason+1): false} {
		if got, err := checkReason(reason); (err == nil) != ok || got != strings.TrimSpace(got) {
			t.Errorf("%.20q: %q, %v", reason, got, err)
		}
	}
}
