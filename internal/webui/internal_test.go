package webui

import (
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string]string{"4Gi": "4 GiB", "512Mi": "512 MiB", "8G": "8 GB", "1024": "1024", "": ""} {
		if got := quantity(text); got != want {
			t.Errorf("quantity(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestSentence(t *testing.T) {
	for text, want := range map[string]string{"": "", "both are in use": "Both are in use.", "Ähm!": "Ähm!", " über ": "Über."} {
		if got := sentence(text); got != want {
			t.Errorf("sentence(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestElementIDsAreSafe(t *testing.T) {
	if got := elementID("gpu", `GPU-1 "x".y#z`); strings.ContainsAny(got, ` ".#`) {
		t.Errorf("unsafe ID %q", got)
	}
}

// reading makes a snapshot in which one GPU's use is as given.
func useOf(at time.Time, use *float64) gpu.Snapshot {
	return gpu.Snapshot{Time: at, GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "a"}, Reading: gpu.Reading{Utilization: use}}}}
}

// After the head's clock was set back, the drawing begins anew at once.
func TestHistoryAfterTheClockWasSetBack(t *testing.T) {
	h, now, full := newTrends(), time.Unix(100_000, 0), 100.0
	for second := range 20 {
		h.add(useOf(now.Add(time.Duration(second)*time.Second), &full))
	}
	back := now.Add(-time.Hour)
	for second := range 5 {
		h.add(useOf(back.Add(time.Duration(second)*time.Second), &full))
	}
	if lines := h.draw("a", use, back.Add(4*time.Second)).Lines; len(lines) != 1 || len(strings.Fields(lines[0])) != 3 {
		t.Errorf("the three slots since are drawn as %v", lines)
	}
}

func TestHistoryDrawsGaps(t *testing.T) {
	h, start, full := newTrends(), time.Unix(1000, 0), 100.0
	if lines := h.draw("a", use, start).Lines; lines != nil {
		t.Errorf("drew an unknown GPU: %v", lines)
	}
	for second := range 200 {
		value := &full
		if second >= 160 && second < 170 {
			value = nil
		}
		if second >= 180 && second < 190 {
			continue // the machine was silent
		}
		h.add(useOf(start.Add(time.Duration(second)*time.Second), value))
	}
	now := start.Add(199 * time.Second)
	lines := h.draw("a", use, now).Lines
	if len(lines) != 3 {
		t.Fatalf("%d lines, want 3 with two gaps: %v", len(lines), lines)
	}
	if last := lines[2]; !strings.HasSuffix(last, "240,1") {
		t.Errorf("the newest reading is not at the right end: %s", last)
	}
	if points := len(strings.Fields(strings.Join(lines, " "))); points != slots-10 {
		t.Errorf("%d points, want %d", points, slots-10)
	}
	if lines := h.draw("a", memory, now).Lines; lines != nil {
		t.Errorf("drew a measure the GPU does not tell: %v", lines)
	}
	later := h.draw("a", use, now.Add(time.Minute)).Lines
	if end := later[len(later)-1]; strings.HasSuffix(end, "240,1") || len(later) == 0 {
		t.Errorf("a silent machine's curve does not move on: %v", later)
	}
	if lines := h.draw("a", use, now.Add(time.Hour)).Lines; lines != nil {
		t.Errorf("readings of an hour ago are still drawn: %v", lines)
	}
}

func TestHistoryForgetsGPUsThatAreGone(t *testing.T) {
	h, full := newTrends(), 1.0
	h.add(useOf(time.Unix(1000, 0), &full))
	other := useOf(time.Unix(2000, 0), &full)
	other.GPUs[0].UUID = "b"
	h.add(other)
	if len(h.gpus) != 1 || h.gpus["b"] == nil {
		t.Errorf("kept %v", h.gpus)
	}
}

func TestUnknownIsNeverZero(t *testing.T) {
	for _, r := range readingsOf(&gpu.GPU{}) {
		if r.Value != "" || r.Fraction != nil {
			t.Errorf("%s of a GPU that tells nothing: %q %v", r.Name, r.Value, r.Fraction)
		}
	}
}

func TestProseShowsCommands(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "",
		"It ended; see `gpulab logs <k3s>`.": "It ended; see <code>gpulab logs &lt;k3s&gt;</code>.",
		"`a`, then `b`":                      "<code>a</code>, then <code>b</code>",
	} {
		var b strings.Builder
		if err := prose(text).Render(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		if b.String() != want {
			t.Errorf("%q is %q, want %q", text, b.String(), want)
		}
	}
}

// Who has a part of a GPU in MIG mode is shown with it; the other parts are free.
func TestHoldersOfInstances(t *testing.T) {
	gib := func(n uint64) *uint64 { v := n << 30; return &v }
	g := gpu.GPU{
		Device: gpu.Device{MIG: true},
		Reading: gpu.Reading{Instances: []gpu.Instance{
			{UUID: "MIG-1", Profile: "3g.20gb", MemoryTotal: gib(20), MemoryUsed: gib(9)}, {UUID: "MIG-2", Index: 1, Profile: "1g.5gb"}, {UUID: "MIG-3", Index: 2},
		}},
		Holders: []gpu.Holder{{PodRef: gpu.PodRef{User: "ada"}, Instance: "MIG-1"}, {PodRef: gpu.PodRef{User: "ben"}, Instance: "MIG-2"}},
	}
	view := gpuViewOf(&g, visitor{}, time.Now())
	if view.freeWords() != "1 of 3 shares free" {
		t.Errorf("it is %q", view.freeWords())
	}
	var html strings.Builder
	if err := gpuHolders(view).Render(t.Context(), &html); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"instance 0, 3g.20gb, 9 of 20 GiB", "instance 1, 1g.5gb<"} {
		if !strings.Contains(html.String(), want) {
			t.Errorf("it does not say %q: %s", want, html.String())
		}
	}
}

// Whatever a driver asks for is said in words, also by a driver that is newer.
func TestRecoveryInWords(t *testing.T) {
	for recovery, want := range map[string]string{
		gpu.RecoveryReset: "reset this GPU", gpu.RecoveryReboot: "reboot", gpu.RecoveryDrain: "linked with it", gpu.RecoveryDrainAndReset: "then to reset it",
		gpu.RecoveryBusReset: "off and on", "action 9": "for action 9, which",
	} {
		facts := healthFacts(&gpu.Health{Recovery: recovery})
		if len(facts) != 1 || facts[0].Name != "The driver asks" || !strings.Contains(facts[0].Value, want) {
			t.Errorf("%s: %+v", recovery, facts)
		}
	}
	if facts := healthFacts(&gpu.Health{}); facts != nil {
		t.Errorf("nothing is asked for: %+v", facts)
	}
}
