package webui

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// A gpuPageView is one GPU with everything that is known about it.
type gpuPageView struct {
	Machine    machineView
	GPU        gpuView
	Shares     []shareView
	ShareNote  string // why the shares are not complete
	Unlisted   bool   // the driver does not say which processes there are
	Facts      []factView
	Labels     []string // of its machine, for pods that ask for them
	Span       chartSpan
	Spans      []chartSpan
	DataURL    string
	Charts     []chartView
	Events     []eventView
	NotKept    string // why readings are not written down at the moment
	MayLend    bool
	LentAnyway bool
	Idle       []idleHolder
}

// A shareView is what one person takes of a GPU.
type shareView struct {
	User             string
	Use, Memory      string // empty where the driver does not tell
	UseOf, MemoryOf  *float64
	ProcessesInWords string
}

// An eventView is something that happened to the GPU.
type eventView struct {
	When, Title, Text, Do string
	Tone                  tone
}

type factView struct{ Name, Value, Tone string }

// A chartSpan is a window of time that curves can show.
type chartSpan struct {
	Key, Name string
	length    time.Duration
	every     time.Duration // how often the curve has something new
	Current   bool
}

func (s chartSpan) refresh() string { return strconv.Itoa(int(s.every.Seconds())) }

// chartSpans are the windows, the first is shown at first.
var chartSpans = []chartSpan{
	{Key: "10m", Name: "10 minutes", length: 10 * time.Minute, every: 2 * time.Second},
	{Key: "24h", Name: "24 hours", length: 24 * time.Hour, every: 10 * time.Second},
	{Key: "30d", Name: "30 days", length: 30 * 24 * time.Hour, every: 5 * time.Minute},
}

// chartPoints is how many points a curve has at most: about one per pixel of
// a wide page.
const chartPoints = 720

func chartSpanOf(key string) (chartSpan, bool) {
	for _, span := range chartSpans {
		if span.Key == key || key == "" {
			return span, true
		}
	}
	return chartSpan{}, false
}

// A chartView is one curve. Curve and Peak are names in chartData.
type chartView struct {
	Curve, Peak, Label, Unit string
	Top                      string // the end of its scale, empty where there is none
	Summary                  string
}

// chartData is a GPU's history as the page's script draws it: columns of one
// length, null where nothing is known.
type chartData struct {
	From        int64      `json:"from"` // unix seconds
	To          int64      `json:"to"`
	Time        []int64    `json:"time"` // unix seconds
	Use         []*float64 `json:"use"`  // percent
	UseMax      []*float64 `json:"useMax"`
	Memory      []*float64 `json:"memory"` // GiB
	Power       []*float64 `json:"power"`  // watts
	PowerMax    []*float64 `json:"powerMax"`
	Temperature []*float64 `json:"temperature"` // °C
	Clock       []*float64 `json:"clock"`       // MHz
}

func chartDataOf(series history.Series) chartData {
	d := chartData{From: series.From.Unix(), To: series.To.Unix()}
	for _, p := range series.Points {
		d.Time = append(d.Time, p.Time.Unix())
		d.Use, d.UseMax = append(d.Use, p.Use), append(d.UseMax, p.UseMax)
		d.Memory = append(d.Memory, ratioTo(p.Memory, 1<<30))
		d.Power, d.PowerMax = append(d.Power, p.Power), append(d.PowerMax, p.PowerMax)
		d.Temperature = append(d.Temperature, p.Temperature)
		d.Clock = append(d.Clock, p.SMClock)
	}
	return d
}

func ratioTo(value *float64, unit float64) *float64 {
	if value == nil {
		return nil
	}
	v := *value / unit
	return &v
}

// findGPU is the GPU of that UUID and its machine.
func findGPU(snapshots []gpu.Snapshot, uuid string) (*gpu.Snapshot, *gpu.GPU, error) {
	for i := range snapshots {
		for k := range snapshots[i].GPUs {
			if uuid != "" && snapshots[i].GPUs[k].UUID == uuid {
				return &snapshots[i], &snapshots[i].GPUs[k], nil
			}
		}
	}
	return nil, nil, errNoPage
}

func (s *Server) gpuPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	span, ok := chartSpanOf(r.URL.Query().Get("span"))
	if !ok {
		return errNoPage
	}
	view, err := s.gpuPageView(r.Context(), r.PathValue("uuid"), span, v)
	if err != nil {
		return err
	}
	p := s.page(w, r, v, "GPU "+strconv.Itoa(view.GPU.Index)+" of "+view.Machine.Name,
		"view=gpu&id="+url.QueryEscape(view.GPU.UUID)+"&span="+span.Key)
	p.Charts = true
	s.render(w, r, http.StatusOK, gpuPage(p, view))
	return nil
}

func (s *Server) gpuPageView(ctx context.Context, uuid string, span chartSpan, v visitor) (gpuPageView, error) {
	snapshot, g, err := findGPU(s.cfg.Fleet.Snapshots(), uuid)
	if err != nil {
		return gpuPageView{}, err
	}
	now := s.now()
	series, err := s.cfg.History.Series(ctx, uuid, now.Add(-span.length), now, chartPoints)
	if err != nil {
		return gpuPageView{}, fmt.Errorf("read the history of a GPU: %w", err)
	}
	view := s.gpuNow(snapshot, g, v)
	view.MayLend = v.may(users.ActionManageLab)
	view.NotKept = s.notKept()
	if s.cfg.GPULabels != nil {
		view.Labels = s.cfg.GPULabels(snapshot.Node)
	}
	view.Charts = chartsOf(g, series)
	if view.Events, err = s.gpuEvents(ctx, uuid); err != nil {
		return gpuPageView{}, err
	}
	view.Span = span
	for _, other := range chartSpans {
		other.Current = other.Key == span.Key
		view.Spans = append(view.Spans, other)
	}
	view.DataURL = "/gpus/" + url.PathEscape(uuid) + "/curves?span=" + span.Key
	return view, nil
}

// notKept says why what GPUs do is not written down at the moment, "" if it is.
func (s *Server) notKept() string {
	problem, is := s.cfg.History.Problem()
	if !is {
		return ""
	}
	return strings.TrimSpace(sentence(problem.Text) + " " + sentence(problem.NextStep))
}

// eventsShown and eventsSince bound the list of what happened to a GPU.
const (
	eventsShown = 20
	eventsSince = 30 * 24 * time.Hour
)

// gpuEvents lists what happened to a GPU lately.
func (s *Server) gpuEvents(ctx context.Context, uuid string) ([]eventView, error) {
	filter := history.EventFilter{UUID: uuid, From: s.now().Add(-eventsSince), Limit: eventsShown}
	if snapshot, _, err := findGPU(s.cfg.Fleet.Snapshots(), uuid); err == nil {
		filter.Node = snapshot.Node
	}
	events, err := s.cfg.History.Events(ctx, filter)
	if err != nil {
		return nil, fmt.Errorf("read the events of a GPU: %w", err)
	}
	var views []eventView
	for _, e := range events {
		views = append(views, eventViewOf(e, s.now()))
	}
	return views, nil
}

// happened says when something was. A clock that was set back since makes it come.
func happened(at, now time.Time) string {
	if ahead := at.Sub(now); ahead > 10*time.Second {
		return units.Lasting(ahead) + " ahead of this lab’s clock"
	}
	return units.Lasting(now.Sub(at)) + " ago"
}

func eventViewOf(e history.Event, now time.Time) eventView {
	view := eventView{When: happened(e.Last, now), Text: e.Detail}
	switch e.Kind {
	case history.EventXID:
		meaning := gpu.ExplainXID(e.XID)
		view.Title = fmt.Sprintf("XID %d: %s", e.XID, meaning.Title)
		view.Text, view.Do = strings.TrimSpace(e.Detail+" "+meaning.Meaning), meaning.Do
		view.Tone = severityTones[meaning.Severity]
	case history.EventGPULost:
		view.Title, view.Tone = "It could not be read any more", "bad"
	case history.EventGPUBack:
		view.Title, view.Tone = "It can be read again", "ok"
	case history.EventProbeDown:
		view.Title, view.Tone = "The machine’s readings ceased", "warn"
	case history.EventProbeUp:
		view.Title, view.Tone = "The machine’s readings are there again", "ok"
	case history.EventAsleep:
		view.Title, view.Tone = "The machine was asleep "+units.FromTo(e.First.Local(), e.Last.Local()), "info"
		view.Text = "That time counts for nobody: not as GPU hours, and not as a fault."
	}
	if e.Count > 1 {
		view.Title += fmt.Sprintf(" (%d times within a minute)", e.Count)
	}
	return view
}

var severityTones = map[gpu.Severity]tone{
	gpu.SeverityNote: "info", gpu.SeverityProgram: "warn", gpu.SeverityReset: "bad", gpu.SeverityRepair: "bad",
	gpu.SeverityUnknown: "warn",
}

// gpuNow is what is true of a GPU at this moment.
func (s *Server) gpuNow(snapshot *gpu.Snapshot, g *gpu.GPU, v visitor) gpuPageView {
	only := *snapshot
	only.GPUs = []gpu.GPU{*g}
	machine := s.machine(&only, v, false)
	view := gpuPageView{Machine: machine, GPU: machine.GPUs[0], Facts: factsOf(g), LentAnyway: g.LentAnyway}
	view.Shares, view.ShareNote = sharesOf(g, v)
	view.Unlisted = g.ProcessesUnknown
	view.Idle = s.idleHolders(g)
	return view
}

// gpuParts are the live parts of the page of one GPU.
func (s *Server) gpuParts(p page, v visitor, uuid string) parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		reader := t.reader(v)
		view, err := t.gpus.get(gpuKey{reader.session.User.Handle, uuid}, func() (gpuPageView, error) {
			snapshot, g, err := findGPU(t.snapshots, uuid)
			if err != nil {
				return gpuPageView{}, err
			}
			return s.gpuNow(snapshot, g, reader), nil
		})
		if err != nil {
			return nil, err
		}
		view.Events, err = t.news.events.get(eventsKey{uuid, s.cfg.History.Noted()}, func() ([]eventView, error) {
			return s.gpuEvents(context.WithoutCancel(ctx), uuid)
		})
		if err != nil {
			return nil, err
		}
		head := part{id: "gpu-head", body: gpuHead(page{}, view), same: everybody}
		if v.may(users.ActionManageLab) { // with a form, and its token
			view.MayLend = true
			head = part{id: "gpu-head", body: gpuHead(p, view)}
		}
		same := sameFor(reader, view.GPU)
		return []part{
			head,
			{id: "gpu-now", body: gpuNow(view), same: same},
			{id: "gpu-events", body: gpuEvents(view), same: everybody},
			{id: "gpu-shares", body: gpuShares(view), same: same},
			{id: "gpu-facts", body: gpuFacts(view), same: everybody},
		}, nil
	}
}

// sharesOf sums up what each person takes of a GPU, from its processes. Where
// the driver does not tell about a process, its person's sum is not known.
func sharesOf(g *gpu.GPU, v visitor) (shares []shareView, note string) {
	for _, one := range gpu.TakenBy(g, func(p *gpu.Process) (string, bool) { return processViewOf(*p, v).User, true }) {
		view := shareView{User: one.By, ProcessesInWords: count(one.Processes, "process", "processes")}
		use, memory := one.SM(), one.Memory()
		if use != nil {
			view.Use, view.UseOf = whole(*use)+" %", ratio(use, 100)
		}
		if memory != nil {
			view.Memory = units.Bytes(uint64(*memory))
			if g.MemoryTotal != nil {
				view.MemoryOf = ratio(memory, float64(*g.MemoryTotal))
			}
		}
		if use == nil || memory == nil {
			note = "This card’s driver does not tell what each process takes; what is missing is not guessed."
		}
		shares = append(shares, view)
	}
	sort.Slice(shares, func(i, j int) bool { return shares[i].User < shares[j].User })
	return shares, note
}

// factsOf lists what else is known of a GPU, leaving out what is not.
func factsOf(g *gpu.GPU) []factView {
	var facts []factView
	add := func(name, value, tone string) {
		if value != "" {
			facts = append(facts, factView{name, value, tone})
		}
	}
	add("UUID", g.UUID, "")
	add("Kind, for profiles", kindWords(g), "")
	add("Shared", sharingWords(g), "")
	add("PCI address", g.PCIBusID, "")
	add("Compute capability", g.ComputeCapability, "")
	add("Clock", clocks(g.SMClock, g.SMClockMax), "")
	add("Memory clock", clocks(g.MemoryClock, g.MemoryClockMax), "")
	add("Slowed down by", strings.Join(g.Throttle, ", "), throttleTone(g.Throttle))
	add("Memory bandwidth", valued(g.MemoryUtilization, "%"), "")
	add("Video encoder", valued(g.Encoder, "%"), "")
	add("Video decoder", valued(g.Decoder, "%"), "")
	add("Memory temperature", valued(g.MemoryTemperature, "°C"), "")
	add("Fan", valued(g.Fan, "%"), "")
	add("PCIe link", pcieLink(g), "")
	add("PCIe traffic", pcieTraffic(g), "")
	add("Persistence mode", onOff(g.Persistence), "")
	add("Memory limits", gpu.MemoryLimitsInWords(g.MemoryLimits), "")
	add("Error correction (ECC)", onOff(g.ECC), "")
	for _, i := range g.Instances {
		add("Instance "+strconv.Itoa(i.Index), joined(i.Profile, instanceMemory(i)), "")
	}
	return append(facts, healthFacts(&g.Health)...)
}

// kindWords is what a profile may ask for to get such a GPU.
func kindWords(g *gpu.GPU) string {
	memory := ""
	if g.MemoryTotal != nil {
		memory = "gpuMemory " + units.GiB(*g.MemoryTotal) + "Gi"
	}
	if g.Name == "" {
		return memory
	}
	return joined("gpuModel "+g.Name, memory)
}

func sharingWords(g *gpu.GPU) string {
	switch {
	case g.MIG:
		return "split into instances (MIG)"
	case g.Slots > 1:
		return fmt.Sprintf("up to %d notebooks take turns, and share its memory", g.Slots)
	}
	return "one notebook at a time"
}

func instanceMemory(i gpu.Instance) string {
	if i.MemoryUsed == nil || i.MemoryTotal == nil {
		return ""
	}
	return units.GiB(*i.MemoryUsed) + " of " + units.GiB(*i.MemoryTotal) + " GiB"
}

func healthFacts(h *gpu.Health) []factView {
	var facts []factView
	counted := func(name string, n *uint64, tone string) {
		switch {
		case n == nil:
		case *n == 0:
			facts = append(facts, factView{name, "none", ""})
		default:
			facts = append(facts, factView{name, strconv.FormatUint(*n, 10), tone})
		}
	}
	counted("Memory errors, corrected", h.ECCCorrected, "")
	counted("Memory errors, not corrected", h.ECCUncorrected, "bad")
	counted("Memory rows replaced after corrected errors", h.RemappedCorrectable, "")
	counted("Memory rows replaced after other errors", h.RemappedUncorrectable, "warn")
	counted("Memory pages retired", h.RetiredPages, "warn")
	if h.RemapPending || h.RetirePending {
		facts = append(facts, factView{"Memory repair", "waits for a reset of the GPU", "warn"})
	}
	if h.RemapFailed {
		facts = append(facts, factView{
			"Memory repair", "failed: no spare memory is left; the card should be replaced", "bad",
		})
	}
	if h.Recovery != "" {
		facts = append(facts, factView{"The driver asks", recoveryInWords(h.Recovery), "bad"})
	}
	return facts
}

// ailment is what a card cannot go on with for long; "" for a healthy one.
func ailment(h *gpu.Health) string {
	switch {
	case h.RemapFailed:
		return "Its memory could not be repaired: no spare memory is left, and the card should be replaced."
	case h.Recovery != "":
		return "The driver asks " + recoveryInWords(h.Recovery) + "."
	}
	return ""
}

// recoveryInWords says what the driver wants to be done. Newer drivers than this
// gpulab may want more.
func recoveryInWords(recovery string) string {
	if words, known := recoveryWords[recovery]; known {
		return words
	}
	return "for " + recovery + ", which this version of gpulab does not know; a reboot usually does it"
}

var recoveryWords = map[string]string{
	gpu.RecoveryReset:         "to reset this GPU",
	gpu.RecoveryReboot:        "to reboot the machine",
	gpu.RecoveryDrain:         "to end the work on the GPUs linked with it",
	gpu.RecoveryDrainAndReset: "to end the work on it, then to reset it",
	gpu.RecoveryBusReset:      "to reset its slot: switch the machine off and on again",
}

// throttleTone warns where the card protects itself; a power limit at full
// load is how cards are meant to work.
func throttleTone(reasons []string) string {
	for _, r := range reasons {
		switch r {
		case gpu.ThrottleThermal, gpu.ThrottleHardware, gpu.ThrottlePowerBrake:
			return "warn"
		}
	}
	return ""
}

func clocks(now, most *float64) string {
	switch {
	case now == nil:
		return ""
	case most == nil:
		return whole(*now) + " MHz"
	}
	return whole(*now) + " of " + whole(*most) + " MHz"
}

func valued(v *float64, unit string) string {
	if v == nil {
		return ""
	}
	return whole(*v) + " " + unit
}

func onOff(b *bool) string {
	switch {
	case b == nil:
		return ""
	case *b:
		return "on"
	}
	return "off"
}

func pcieLink(g *gpu.GPU) string {
	if g.PCIeGeneration == nil || g.PCIeWidth == nil {
		return ""
	}
	link := fmt.Sprintf("generation %.0f, %.0f lanes", *g.PCIeGeneration, *g.PCIeWidth)
	if g.PCIeGenerationMax != nil && g.PCIeWidthMax != nil {
		link += fmt.Sprintf(" (at most %.0f, %.0f)", *g.PCIeGenerationMax, *g.PCIeWidthMax)
	}
	return link
}

func pcieTraffic(g *gpu.GPU) string {
	if g.PCIeReceived == nil || g.PCIeSent == nil {
		return ""
	}
	return fmt.Sprintf("%.0f MB/s in, %.0f MB/s out", *g.PCIeReceived/1e6, *g.PCIeSent/1e6)
}

// chartsOf describes the curves of a window and says in words what they show.
func chartsOf(g *gpu.GPU, series history.Series) []chartView {
	top := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', 1, 64)
	}
	var memory *float64
	if g.MemoryTotal != nil {
		total := float64(*g.MemoryTotal) / (1 << 30)
		memory = &total
	}
	d := chartDataOf(series)
	return []chartView{
		{Curve: "use", Peak: "useMax", Label: "Use", Unit: "%", Top: "100", Summary: inShort(d.Use, d.UseMax, "%")},
		{Curve: "memory", Label: "Memory", Unit: "GiB", Top: top(memory), Summary: inShort(d.Memory, d.Memory, "GiB")},
		{Curve: "power", Peak: "powerMax", Label: "Power", Unit: "W", Top: top(g.PowerLimit),
			Summary: inShort(d.Power, d.PowerMax, "W")},
		{Curve: "temperature", Label: "Temperature", Unit: "°C", Summary: inShort(d.Temperature, d.Temperature, "°C")},
		{Curve: "clock", Label: "Clock", Unit: "MHz", Top: top(g.SMClockMax), Summary: inShort(d.Clock, d.Clock, "MHz")},
	}
}

// inShort says a curve's mean and highest value.
func inShort(values, peaks []*float64, unit string) string {
	sum, n, most := 0.0, 0, 0.0
	for i, v := range values {
		if v == nil {
			continue
		}
		sum += *v
		n++
		most = max(most, *v)
		if peaks[i] != nil {
			most = max(most, *peaks[i])
		}
	}
	if n == 0 {
		return ""
	}
	write := func(v float64) string {
		if v < 10 && v != 0 {
			return strconv.FormatFloat(v, 'f', 1, 64)
		}
		return whole(v)
	}
	return fmt.Sprintf("mean %s %s, highest %s %s", write(sum/float64(n)), unit, write(most), unit)
}

// gpuCurves is a GPU's readings over time, as columns.
func (s *Server) gpuCurves(w http.ResponseWriter, r *http.Request, _ visitor) error {
	span, ok := chartSpanOf(r.URL.Query().Get("span"))
	if !ok {
		return &problem{status: http.StatusBadRequest, title: "No such window of time", text: "span may be 10m, 24h or 30d."}
	}
	now := s.now()
	series, err := s.cfg.History.Series(r.Context(), r.PathValue("uuid"), now.Add(-span.length), now, chartPoints)
	if err != nil {
		return fmt.Errorf("read the history of a GPU: %w", err)
	}
	writeJSON(w, http.StatusOK, chartDataOf(series))
	return nil
}

// lendGPU makes a GPU be lent out whoever uses it, or no longer.
func (s *Server) lendGPU(_ http.ResponseWriter, r *http.Request, v visitor) error {
	_, g, err := findGPU(s.cfg.Fleet.Snapshots(), r.PathValue("uuid"))
	if err != nil {
		return err
	}
	anyway := r.PostForm.Get("anyway") == "yes"
	if err := s.cfg.LendGPU(r.Context(), g.UUID, anyway); err != nil {
		return fmt.Errorf("change how a GPU is lent: %w", err)
	}
	s.audit(r, v, audit.LendAction(anyway), g.UUID, "")
	return seeOther("/gpus/" + url.PathEscape(g.UUID))
}
