package webui_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/webui"
)

// troubled is a lab whose first GPU has everything to tell, little of it good,
// and whose second one somebody uses outside gpulab.
func troubled(at time.Time) gpu.Snapshot {
	s := snapshotAt(at, 2, "ada")
	g := &s.GPUs[0]
	g.PCIBusID, g.ComputeCapability = "00000000:21:00.0", "8.0"
	g.SMClock, g.SMClockMax, g.MemoryClock, g.MemoryClockMax = ptr(1095.0), ptr(1410.0), ptr(1215.0), ptr(1215.0)
	g.Throttle = []string{gpu.ThrottlePowerCap, gpu.ThrottleThermal}
	g.PCIeGeneration, g.PCIeWidth, g.PCIeGenerationMax, g.PCIeWidthMax = ptr(3.0), ptr(8.0), ptr(4.0), ptr(16.0)
	g.PCIeReceived, g.PCIeSent = ptr(2.3e9), ptr(1.2e8)
	g.ECC, g.Persistence, g.Fan, g.MemoryTemperature = ptr(true), ptr(false), ptr(83.0), ptr(91.0)
	g.Health = gpu.Health{ECCCorrected: ptr(uint64(12)), ECCUncorrected: ptr(uint64(2)), RemappedUncorrectable: ptr(uint64(1)),
		RemapPending: true, Recovery: gpu.RecoveryReset}
	g.XID, g.MemoryLimits = ptr(uint64(79)), gpu.MemoryLimitsOldDriver
	ada := g.Holders[0].PodRef
	lea := gpu.PodRef{UID: "uid-9", Namespace: "user-lea", Name: "jupyter-lea", User: "lea", Notebook: "gpu"}
	g.Holders = append(g.Holders, gpu.Holder{PodRef: lea, Since: at.Add(-time.Hour)})
	g.Processes = []gpu.Process{
		{PID: 100, Name: "python", MemoryUsed: ptr(uint64(20 << 30)), SMUtilization: ptr(60.0), Pod: ada},
		{PID: 101, Name: "python", MemoryUsed: ptr(uint64(8 << 30)), SMUtilization: ptr(10.0), Pod: ada},
		{PID: 102, Name: "train", MemoryUsed: ptr(uint64(4 << 30)), SMUtilization: ptr(30.0), Pod: lea},
		{PID: 103, Name: "Xorg", MemoryUsed: ptr(uint64(90 << 20)), Graphics: true, UnixUser: "gdm"},
	}
	s.GPUs[1].Processes = []gpu.Process{{PID: 200, Name: "blender", MemoryUsed: ptr(uint64(2 << 30)), UnixUser: "zoe"}}
	s.GPUs[1].Withheld = "zoe uses it outside gpulab."
	return s
}

func someEvents(now time.Time) []history.Event {
	return []history.Event{
		{UUID: testGPU, Kind: history.EventXID, XID: 79, First: now.Add(-4 * time.Second), Last: now.Add(-3 * time.Second), Count: 1, Detail: "It happened to python3 (process 4711)."},
		{UUID: testGPU, Kind: history.EventXID, XID: 48, First: now.Add(-time.Hour), Last: now.Add(-time.Hour), Count: 10_000},
		{Node: "gpu-box", Kind: history.EventAsleep, First: now.Add(-11 * time.Hour), Last: now.Add(-2 * time.Hour), Count: 1},
		{Node: "another", Kind: history.EventAsleep, First: now.Add(-21 * time.Hour), Last: now.Add(-20 * time.Hour), Count: 1},
		{UUID: testGPU, Kind: history.EventGPULost, First: now.Add(-26 * time.Hour), Last: now.Add(-26 * time.Hour), Count: 1, Detail: "GPU 0 has fallen off the bus."},
	}
}

// someUse is a ledger that has a row of each kind.
func someUse() map[history.By][]history.Usage {
	hour := time.Now().Truncate(time.Hour)
	mine := history.Usage{Kind: history.KindUser, Name: "ben", Simulated: true, Held: 36000, Busy: 9000, Idle: 26000, Unknown: 1000, Energy: ptr(7.2e6)}
	use := map[history.By][]history.Usage{history.ByTotal: {mine}}
	for back := range 40 {
		use[history.ByHour] = append(use[history.ByHour], history.Usage{Hour: hour.Add(-time.Duration(back) * 3 * time.Hour), Held: 3600, Busy: float64(back * 90)})
	}
	gpus := mine
	gpus.UUID, gpus.Node, gpus.GPU, gpus.Number = testGPU, "gpu-box", "NVIDIA A100-SXM4-40GB", ptr(0)
	use[history.ByGPU] = []history.Usage{gpus}
	use[history.ByUser] = []history.Usage{mine,
		{Kind: history.KindUnix, Name: "zoe", Held: 0, Busy: 1800},
		{Kind: history.KindUser, Name: "somebody-with-a-long-name-of-30", Held: 360000, Busy: 350000, Idle: 10000, Energy: ptr(3.6e8)},
		{Kind: history.KindUnattributed},
	}
	return use
}

func TestPageOfOneGPU(t *testing.T) {
	l := newLab(t)
	l.fleet.publish(troubled(time.Now()))
	l.history.events = someEvents(time.Now())
	c := l.client(t, "ben")
	page := c.get("/gpus/" + testGPU)
	page.want(t, http.StatusOK, "GPU 0 of gpu-box", "1095 of 1410 MHz", "power limit, temperature", "generation 3, 8 lanes (at most 4, 16)",
		"2300 MB/s in, 120 MB/s out", "to reset this GPU", "waits for a reset of the GPU", "XID 79: ", "It happened to python3 (process 4711). The machine cannot reach the card", "(10000 times within a minute)",
		"GPU 0 has fallen off the bus.", "simulated", "highest", "the driver is too old to enforce them",
		"Kubernetes labels of gpu-box", "nvidia.com/gpu.memory=24576", "The machine was asleep from ", "(9 h)", "counts for nobody")
	if strings.Contains(page.body, "(1 h 0 min)") {
		t.Error("another machine's sleep is told of")
	}
	text := visible(page.body)
	for _, share := range []string{"ada 2 processes Use 70 % Memory 28 GiB", "lea 1 process Use 30 % Memory 4 GiB", "gdm (outside gpulab) 1 process Use – Memory 90 MiB"} {
		if !strings.Contains(text, share) {
			t.Errorf("there is no %q in\n%s", share, text)
		}
	}
	page.want(t, http.StatusOK, "is not guessed") // of Xorg nothing is known but its memory
	c.get("/gpus/GPU-unknown").want(t, http.StatusNotFound)
	c.get("/gpus/"+testGPU+"?span=1y").want(t, http.StatusNotFound)
	c.get("/gpus/"+testGPU+"?span=30d").want(t, http.StatusOK, "span=30d")
}

// What is not known is left out or shown as such, never as 0.
func TestPageOfAGPUThatTellsNothing(t *testing.T) {
	l := newLab(t)
	l.fleet.publish(gpu.Snapshot{Node: "gpu-box", Time: time.Now(), GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-silent"}}}})
	page := l.client(t, "ben").get("/gpus/GPU-silent")
	page.want(t, http.StatusOK, "Nothing was recorded in this window", "No program is running on it", "GPU-silent")
	l.fleet.publish(gpu.Snapshot{Node: "gpu-box", Time: time.Now(), GPUs: []gpu.GPU{{Device: gpu.Device{UUID: "GPU-silent"}, Reading: gpu.Reading{ProcessesUnknown: true}}}})
	if page := l.client(t, "ben").get("/gpus/GPU-silent"); !strings.Contains(page.body, "does not say which programs are on it") || strings.Contains(page.body, "No program is running") {
		t.Errorf("programs that are not known are said not to be there:\n%s", visible(page.body))
	}
	if text := visible(page.body); strings.Contains(text, "0 MHz") || strings.Contains(text, "0 W") || strings.Contains(text, "ECC") {
		t.Errorf("it shows what nobody knows:\n%s", text)
	}
}

func TestCurves(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	for _, span := range []string{"", "10m", "24h", "30d"} {
		var window struct{ From, To int64 }
		var data map[string]any
		answer := c.get("/gpus/" + testGPU + "/curves?span=" + span)
		if err := errors.Join(json.Unmarshal([]byte(answer.body), &window), json.Unmarshal([]byte(answer.body), &data)); err != nil {
			t.Fatal(err)
		}
		if length := window.To - window.From; length != map[string]int64{"": 600, "10m": 600, "24h": 86400, "30d": 30 * 86400}[span] {
			t.Errorf("span %q is %d s long", span, length)
		}
		delete(data, "from")
		delete(data, "to")
		gap := false
		for name, value := range data {
			column := value.([]any)
			if len(column) != 720 {
				t.Errorf("%s has %d points", name, len(column))
			}
			gap = gap || column[len(column)/3+1] == nil
		}
		if len(data) != 8 || !gap {
			t.Errorf("span %q: %d columns, gap %v", span, len(data), gap)
		}
	}
	c.get("/gpus/"+testGPU+"/curves?span=99y").want(t, http.StatusBadRequest, "10m, 24h or 30d")
	if got := c.get("/gpus/GPU-unknown/curves").body; strings.Contains(got, "[") {
		t.Errorf("an unknown GPU has %s", got)
	}
}

func TestLendingFromThePage(t *testing.T) {
	l := newLab(t)
	s := troubled(time.Now())
	l.fleet.publish(s)
	other := "/gpus/" + s.GPUs[1].UUID
	l.client(t, "ben").get("/gpus").want(t, http.StatusOK, "not lent out", "zoe")
	page := l.client(t, "ben").get(other)
	page.want(t, http.StatusOK, "Not lent out.", "zoe uses it outside gpulab.")
	if strings.Contains(page.body, "Lend it anyway") {
		t.Error("a member is offered what only administrators may do")
	}
	c := l.client(t, "ada")
	c.get(other).want(t, http.StatusOK, "Lend it anyway")
	c.post(other, other+"/lend", url.Values{"anyway": {"yes"}}).want(t, http.StatusSeeOther)
	if !l.lending.anyway[s.GPUs[1].UUID] {
		t.Error("it was not lent")
	}
	if log := l.users.audit(t); len(log) == 0 {
		t.Error("nothing in the audit log")
	} else if entry := log[len(log)-1]; entry.Action != "gpu.lend-anyway" || entry.Actor != "ada" || entry.Target != s.GPUs[1].UUID {
		t.Errorf("audit: %+v", entry)
	}
	s.GPUs[1].Withheld, s.GPUs[1].LentAnyway = "", true
	l.fleet.publish(s)
	c.get(other).want(t, http.StatusOK, "Always lent out.", "Lend it only while it is free")
	c.post(other, other+"/lend", url.Values{"anyway": {"no"}}).want(t, http.StatusSeeOther)
	if l.lending.anyway[s.GPUs[1].UUID] {
		t.Error("it still is")
	}
	c.post("/gpus/"+testGPU, "/gpus/GPU-unknown/lend", url.Values{"anyway": {"yes"}}).want(t, http.StatusNotFound)
}

func TestUse(t *testing.T) {
	l := newLab(t)
	c := l.client(t, "ben")
	c.get("/use").want(t, http.StatusOK, "No GPU was yours in this time")
	l.history.usage = someUse()
	page := c.get("/use?days=30")
	page.want(t, http.StatusOK, "10.0", "2.50", "74 %", "2.00 kWh", "simulated", "GPU 0 of gpu-box", "it is not known whether")
	if strings.Contains(page.body, "Everybody") || strings.Contains(page.body, "zoe") {
		t.Error("a member sees what others had")
	}
	for _, f := range l.history.filters {
		if f.User != "ben" {
			t.Errorf("a member's page asked for %+v", f)
		}
	}
	l.client(t, "ada").get("/use").want(t, http.StatusOK, "Everybody", "zoe (outside gpulab)", "not known who", "100.0 h")
	for _, days := range []string{"0", "-1", "367", "x"} {
		c.get("/use?days="+days).want(t, http.StatusNotFound)
	}
}

func TestProfileForAKindOfGPU(t *testing.T) {
	l := newLab(t)
	card := "Eighty gigabytes"
	l.notebooks.also(card, "80Gi")
	if strings.Contains(l.client(t, "ben").get("/").body, card) {
		t.Error("a card for GPUs that the lab does not have is shown to everybody")
	}
	l.client(t, "ada").get("/").want(t, http.StatusOK, card, "others do not see this card")
	s := snapshotAt(time.Now(), 2)
	for i := range s.GPUs {
		s.GPUs[i].MemoryTotal = ptr(uint64(81559 << 20)) // as an H100 of 80 GB reports it
	}
	l.fleet.publish(s)
	l.client(t, "ben").get("/").want(t, http.StatusOK, card, "at least 80 GiB GPU memory", "2 of 2 GPUs free")
}

func TestTestOfAGPU(t *testing.T) {
	l := newLab(t)
	if strings.Contains(l.client(t, "ben").get("/gpus").body, "Test a free GPU") {
		t.Error("a member is offered what only administrators may do")
	}
	c := l.client(t, "ada")
	l.checked = "a simulated GPU, which computes nothing"
	c.post("/gpus", "/gpu-check", nil).want(t, http.StatusSeeOther)
	c.get("/gpus").want(t, http.StatusOK, "A test pod saw a simulated GPU, which computes nothing.", "a few seconds ago")
	l.checked, l.checkFails = "", errors.New("no GPU is free; a test needs one for a few seconds")
	c.post("/gpus", "/gpu-check", nil).want(t, http.StatusSeeOther)
	c.get("/gpus").want(t, http.StatusOK, "No GPU is free; a test needs one for a few seconds.")
}

func TestHistoryThatCannotBeKept(t *testing.T) {
	l := newLab(t)
	l.history.problem = history.Problem{Text: "the disk is full", NextStep: "make room on it"}
	for _, page := range []string{"/use", "/gpus/" + testGPU} {
		l.client(t, "ben").get(page).want(t, http.StatusOK, "The disk is full. Make room on it.")
	}
}

func TestSleepingGPU(t *testing.T) {
	l := newLab(t)
	s := snapshotAt(time.Now(), 1)
	s.GPUs[0].Reading = gpu.Reading{Asleep: true}
	l.fleet.publish(s)
	c := l.client(t, "ben")
	c.get("/gpus").want(t, http.StatusOK, "asleep", "free")
	c.get("/gpus/"+testGPU).want(t, http.StatusOK, "The card has powered itself down.")
}

func TestCrowdedGPU(t *testing.T) {
	l := newLab(t)
	s := troubled(time.Now())
	s.GPUs[0].MemoryUsed = ptr(uint64(39 << 30))
	l.fleet.publish(s)
	for _, page := range []string{"/", "/gpus", "/gpus/" + testGPU} {
		l.client(t, "lea").get(page).want(t, http.StatusOK, "The memory of GPU 0 is nearly full", "you 4 GiB, ada 28 GiB")
		if strings.Contains(l.client(t, "ben").get(page).body, "nearly full") {
			t.Error("somebody who is not on the GPU is warned")
		}
	}
}

// What the driver asks for stands on the card, too.
func TestAilingGPU(t *testing.T) {
	l := newLab(t)
	s := snapshotAt(time.Now(), 2, "ada")
	l.fleet.publish(s)
	if body := l.client(t, "ben").get("/gpus").body; strings.Contains(body, "The driver asks") {
		t.Error("a healthy card is called ill")
	}
	s.GPUs[0].Health.Recovery = gpu.RecoveryReset
	s.GPUs[1].Health.RemapFailed = true
	l.fleet.publish(s)
	l.client(t, "ben").get("/gpus").want(t, http.StatusOK, "The driver asks to reset this GPU.", "the card should be replaced")
}

// A carriage return in a program's name ends no line of the stream.
func TestStreamHoldsAgainstNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, "ben", "view=gpus", func(s *stream) {
			snapshot := snapshotAt(time.Now(), 2, "ada", "ben")
			snapshot.GPUs[0].Processes[0].Name = "a\r\rdata: x"
			s.fleet.publish(snapshot)
		})
		defer s.stop()
		text := s.out.take()
		if strings.Contains(text, "\r") || !strings.Contains(text, "a&#13;&#13;data: x") {
			t.Errorf("a program's name is more than text on the wire:\n%s", text)
		}
	})
}

func TestHappened(t *testing.T) {
	now := time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)
	for ago, want := range map[time.Duration]string{
		3 * time.Minute: "3 min ago", 0: "a few seconds ago", -3 * time.Second: "a few seconds ago", -time.Hour: "1 h ahead of this lab’s clock",
	} {
		if got := webui.Happened(now.Add(-ago), now); got != want {
			t.Errorf("%s ago: %q, want %q", ago, got, want)
		}
	}
}
