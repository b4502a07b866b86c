package webui

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"rsc.io/qr"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Machines are those of the pool. Errors are sentences for people around the
// sentinel errors of package ctl.
type Machines interface {
	// Nodes are the machines, the head first, and who else may still come.
	Nodes(ctx context.Context) (ctl.Machines, error)
	// Invite makes a code for one machine.
	Invite(ctx context.Context) (ctl.NodeInvitation, error)
	// Withdraw makes a code worthless that nobody has used.
	Withdraw(ctx context.Context, id string) error
	// Answer lets the machine that asks with a number in, or does not.
	Answer(ctx context.Context, number string, accept bool) (ctl.NodeRequest, error)
	// Remove takes a machine out of the pool; with notebooks on it only if anyway is set.
	Remove(ctx context.Context, name string, anyway bool) (ctl.RemovedNode, error)
	// Cordon lets a machine take no new work, Uncordon lets it again.
	Cordon(ctx context.Context, name, by, reason string) (ctl.Cordon, error)
	Uncordon(ctx context.Context, name string) error
	// Drain lets it take no new work and ends what is there after a while; Keep
	// takes the end back.
	Drain(ctx context.Context, name, by string, d ctl.Drain) (ctl.Cordon, error)
	Keep(ctx context.Context, name string) error
	// Rename shows a machine under a title; its own name takes that back.
	Rename(ctx context.Context, name, title string) (ctl.RenamedNode, error)
	// Place changes how machines are chosen for notebooks.
	Place(ctx context.Context, wanted ctl.Placing) (ctl.Placing, error)
	// Limit says whom a machine is for, nil for everybody.
	Limit(ctx context.Context, name string, limit *ctl.NodeLimit) (*ctl.NodeLimit, error)
}

// A poolView is what the page about machines shows.
type poolView struct {
	Machines []nodeView
	// Index are the machines in a few words, where there are many.
	Index    []indexView
	Summary  string
	Note     string
	Open     []openCodeView
	Requests []askingView
	// Made is an invitation that was just made.
	Made *madeView
	// Problem says why something was not done.
	Problem string
	// Names are the machines to choose from, Ends the choices of when they are empty.
	Names, Ends []roleView
	Placing     ctl.Placing
}

// A nodeView is one machine.
type nodeView struct {
	ID, Name, Role string
	Shown          string // what it is shown as
	For            string // whom it is for, "" for everybody
	State          string
	StateTone      tone
	Detail         string
	// Images says which of the pool's images and environments it gets now, or why it lacks some.
	Images     string
	ImagesTone tone
	GPUs       string
	Simulated  bool
	Stale      bool // the readings are of some time ago
	Readings   []reading
	Facts      []string
	Notebooks  []nodeNotebookView
	// Cordon says that it takes no new work and why, Emptying when what is there ends.
	Cordon, CordonBy, Emptying string
	// Keepable says that what is there can stay after all, EndNow what ends with the
	// notebooks there, "" where there are none.
	Keepable bool
	EndNow   string
	// Removable tells a machine from the head, and Consequence what a removal does.
	Removable   bool
	Consequence string
}

type nodeNotebookView struct{ User, Name, Link, GPUs, For string }

type openCodeView struct{ ID, Made, Until string }

// A askingView is a machine that asks to be let in.
type askingView struct {
	ID, Number   string
	Digits       string // the number as it is on the other screen
	Name, Detail string
	Until        string
}

// A madeView is an invitation with its secret, which is shown once.
type madeView struct {
	Command, Until, Note string
	Addresses            string
	Code                 *qrView
}

var nodeTones = map[string]tone{
	ctl.NodeReady: "ok", ctl.NodeStarting: "info", ctl.NodeNotReady: "warn", ctl.NodeLost: "bad",
}

func (s *Server) machinesPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.showMachines(w, r, v, http.StatusOK, poolView{})
}

func (s *Server) showMachines(w http.ResponseWriter, r *http.Request, v visitor, status int, view poolView) error {
	list, err := s.cfg.Machines.Nodes(r.Context())
	if err != nil {
		return fmt.Errorf("read the machines: %w", err)
	}
	s.fillPool(&view, list)
	s.render(w, r, status, poolPage(s.page(w, r, v, "Machines", "view=pool"), view))
	return nil
}

func (s *Server) fillPool(view *poolView, list ctl.Machines) {
	now := s.now()
	view.Note, view.Placing = list.Note, list.Placing
	for i := range list.Nodes {
		view.Machines = append(view.Machines, nodeViewOf(&list.Nodes[i], now))
	}
	if len(list.Nodes) > fewMachines {
		view.indexOf(list.Nodes)
	}
	for _, n := range list.Nodes {
		words := n.Name
		if n.Title != "" {
			words = n.Title + " (" + n.Name + ")"
		}
		view.Names = append(view.Names, roleView{n.Name, words})
	}
	for _, e := range emptyIn {
		view.Ends = append(view.Ends, roleView{e.value, e.words})
	}
	for _, o := range list.Invitations {
		view.Open = append(view.Open, openCodeView{o.ID, "made " + units.Lasting(now.Sub(o.Made)) + " ago", clock(o.Expires)})
	}
	for _, r := range list.Requests {
		view.Requests = append(view.Requests, askingView{ID: elementID("request", r.Number), Number: r.Number,
			Digits: spaced(r.Number), Name: r.Name,
			Detail: joined("at "+r.Address, "asked "+units.Lasting(now.Sub(r.Asked))+" ago"), Until: clock(r.Expires)})
	}
}

// fewMachines are seen at a glance without an index.
const fewMachines = 3

// An indexView is a machine in the index.
type indexView struct {
	ID, Name, Use string
	Tone          tone
}

// indexOf says how all are, in one line, and leads to each.
func (view *poolView) indexOf(list []ctl.Node) {
	gpus, held := 0, 0
	states, closed := map[string]int{}, 0
	for i := range list {
		n := &list[i]
		used := 0
		for _, b := range n.Notebooks {
			used += b.GPUs
		}
		row := indexView{ID: elementID("machine", n.Name), Name: n.Shown(), Tone: nodeTones[n.State]}
		if n.GPUs > 0 {
			row.Use = strconv.Itoa(min(used, n.GPUs)) + " of " + strconv.Itoa(n.GPUs)
		}
		if n.Cordon != nil {
			closed++
			if n.State == ctl.NodeReady {
				row.Tone = "warn"
			}
		}
		view.Index = append(view.Index, row)
		gpus, held = gpus+n.GPUs, held+min(used, n.GPUs)
		states[n.State]++
	}
	parts := []string{
		strconv.Itoa(len(list)) + " machines", strconv.Itoa(held) + " of " + count(gpus, "GPU", "GPUs") + " in use",
	}
	for _, state := range []string{ctl.NodeLost, ctl.NodeNotReady, ctl.NodeStarting} {
		if states[state] > 0 {
			parts = append(parts, strconv.Itoa(states[state])+" "+state)
		}
	}
	if closed > 0 {
		parts = append(parts, strconv.Itoa(closed)+" without new work")
	}
	view.Summary = strings.Join(parts, ", ") + "."
}

// clock is a time of today.
func clock(t time.Time) string { return t.Local().Format("15:04") }

// spaced is a number of six digits as gpulab join shows it.
func spaced(number string) string {
	if len(number) != 6 {
		return number
	}
	return number[:3] + " " + number[3:]
}

// soonHeard is the age of a word from a machine up to which it counts as now.
const soonHeard = 4 * time.Second

func nodeViewOf(n *ctl.Node, now time.Time) nodeView {
	view := nodeView{ID: elementID("machine", n.Name), Name: n.Name, Shown: n.Shown(), State: n.State,
		StateTone: nodeTones[n.State], Simulated: n.Simulated,
		Removable: n.Role != "head", Stale: n.State == ctl.NodeLost}
	view.Role = "head"
	if view.Removable {
		view.Role = ""
	}
	if n.State != ctl.NodeReady {
		view.Detail = n.Detail
		if !strings.HasPrefix(n.Detail, n.Shown()) { // a name stays as it is
			view.Detail = sentence(n.Detail)
		}
	}
	if n.State == ctl.NodeReady && (n.Images != nil || n.Environments != nil) {
		view.Images, view.ImagesTone = n.Detail, "info"
		if i, e := n.Images, n.Environments; i != nil && i.Failed != "" && i.Loading == "" || e != nil && e.Failed != "" &&
			e.Loading == "" {
			view.ImagesTone = "warn"
		}
	}
	view.GPUs = count(n.GPUs, "GPU", "GPUs")
	view.Readings = hostReadings(n)
	view.Facts = nodeFacts(n, now)
	if n.Limit != nil {
		view.For = "for " + n.Limit.Words()
	}
	for i := range n.Notebooks {
		b := &n.Notebooks[i]
		row := nodeNotebookView{User: b.User, Name: b.Name, For: since(b.Since, now)}
		if b.GPUs > 0 {
			row.GPUs = count(b.GPUs, "GPU", "GPUs")
		}
		if b.Launch != 0 {
			row.Link = "/launches/" + strconv.FormatInt(b.Launch, 10)
		}
		view.Notebooks = append(view.Notebooks, row)
	}
	view.Consequence = removeConsequence(n)
	if c := n.Cordon; c != nil {
		view.Cordon = "It takes no new work."
		if c.Reason != "" {
			view.Cordon = "It takes no new work: " + c.Reason + "."
		}
		view.CordonBy = joined("by "+c.By, "since "+c.Since.Local().Format("2 Jan 2006, 15:04"))
		if !c.EmptyAt.IsZero() {
			view.Emptying, view.Keepable = emptyWords(len(n.Notebooks), c.EmptyAt, now), true
		}
		if len(n.Notebooks) > 0 {
			view.EndNow = endWords(n)
		}
	}
	return view
}

func emptyWords(left int, at, now time.Time) string {
	switch {
	case left == 0:
		return "It is empty: no notebook is left."
	case !now.Before(at):
		return "It is being emptied now: " + count(left, "notebook", "notebooks") + " left."
	}
	return "It is being emptied: " + count(left, "notebook",
		"notebooks") + " left. What is still here " + at.Local().Format("on Mon 2 Jan at 15:04") +
		" is ended; the owners are told."
}

// hostReadings are how busy a machine is, in the form of a GPU's.
func hostReadings(n *ctl.Node) []reading {
	h := ctl.Host{}
	if n.Host != nil {
		h = *n.Host
	}
	list := []reading{
		{Name: "GPUs", Value: strconv.Itoa(n.GPUs)}, {Name: "Load"}, {Name: "Memory", Unit: "GiB"},
		{Name: "Disk free", Unit: "GiB"},
	}
	part := func(a, b float64) *float64 {
		f := min(max(a/b, 0), 1)
		return &f
	}
	if h.CPUs > 0 {
		list[1].Value, list[1].Of = strconv.FormatFloat(h.Load, 'f', 1, 64), "of "+count(h.CPUs, "core", "cores")
		list[1].Fraction = part(h.Load, float64(h.CPUs))
		list[1].High = h.Load > float64(h.CPUs)
	}
	if h.MemoryTotal > 0 {
		list[2].Value, list[2].Of = units.GiB(uint64(max(h.MemoryUsed, 0))), "of "+units.GiB(uint64(h.MemoryTotal))+" GiB"
		list[2].Fraction = part(float64(h.MemoryUsed), float64(h.MemoryTotal))
		list[2].High = *list[2].Fraction >= nearlyFull
	}
	if h.DiskTotal > 0 {
		list[3].Value, list[3].Of = units.GiB(uint64(max(h.DiskFree, 0))), "of "+units.GiB(uint64(h.DiskTotal))+" GiB"
		list[3].Fraction = part(float64(h.DiskTotal-h.DiskFree), float64(h.DiskTotal))
		list[3].High = *list[3].Fraction >= nearlyFull
	}
	return list
}

// offClock is from which difference on a machine's clock is called off.
const offClock = 2 // seconds

func nodeFacts(n *ctl.Node, now time.Time) []string {
	var facts []string
	if n.Title != "" {
		facts = append(facts, "named "+n.Name)
	}
	if n.Version != "" {
		facts = append(facts, "gpulab "+n.Version)
	}
	if n.Address != "" {
		facts = append(facts, n.Address)
	}
	if n.ClockOffset != nil {
		facts = append(facts, clockWords(*n.ClockOffset))
	}
	if !n.LastContact.IsZero() {
		if age := now.Sub(n.LastContact); age > soonHeard {
			facts = append(facts, "last heard of "+units.Duration(age)+" ago")
		} else {
			facts = append(facts, "heard of now")
		}
	}
	if !n.Joined.IsZero() {
		facts = append(facts, "in the pool since "+day(n.Joined))
	}
	return facts
}

func clockWords(ahead float64) string {
	off := time.Duration(math.Abs(ahead) * float64(time.Second))
	switch {
	case off < offClock*time.Second:
		return "clock right"
	case ahead > 0:
		return "clock " + units.Duration(off) + " ahead of the head’s"
	}
	return "clock " + units.Duration(off) + " behind the head’s"
}

func removeConsequence(n *ctl.Node) string {
	text := "It takes gpulab off itself."
	if n.State == ctl.NodeLost {
		text = "It cannot be reached: it takes gpulab off itself when it is back."
	}
	if len(n.Notebooks) == 0 {
		return "No notebook runs there. Homes stay. " + text
	}
	return endWords(n) + " Homes stay. " + text
}

// endWords says what is lost when the notebooks on a machine end now.
func endWords(n *ctl.Node) string {
	var names []string
	for _, b := range n.Notebooks {
		names = append(names, b.User+"’s "+b.Name)
	}
	return "These notebooks end, and what is not saved in them is lost: " + strings.Join(names, ", ") + "."
}

func (s *Server) inviteMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	made, err := s.cfg.Machines.Invite(r.Context())
	if err != nil {
		// What is in the way is the machine's: no address, or it is starting.
		return s.showMachines(w, r, v, http.StatusServiceUnavailable, poolView{Problem: sentence(err.Error())})
	}
	s.audit(r, v, "node.invite", "", "")
	line := "sudo " + made.Command
	view := &madeView{
		Command: line, Until: clock(made.Expires), Note: made.Note, Addresses: strings.Join(made.Addresses, " or "),
	}
	if view.Code, err = newQR(line); err != nil {
		s.cfg.Log.Error("no QR code", "error", err) // the line is there
	}
	return s.showMachines(w, r, v, http.StatusOK, poolView{Made: view})
}

func (s *Server) withdrawMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	id := r.PathValue("code")
	err := s.cfg.Machines.Withdraw(r.Context(), id)
	if errors.Is(err, ctl.ErrNoInvitation) {
		return s.showMachines(w, r, v, http.StatusNotFound, poolView{Problem: message(err)})
	}
	if err != nil {
		return fmt.Errorf("withdraw an invitation: %w", err)
	}
	s.audit(r, v, "node.withdraw", id, "")
	return seeOther("/machines")
}

func (s *Server) acceptMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.answerMachine(w, r, v, true)
}

func (s *Server) refuseMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.answerMachine(w, r, v, false)
}

// answerMachine lets a machine in that asks, or does not. The page has asked
// whether its number is on the machine's own screen.
func (s *Server) answerMachine(w http.ResponseWriter, r *http.Request, v visitor, accept bool) error {
	answered, err := s.cfg.Machines.Answer(r.Context(), r.PathValue("number"), accept)
	var known *users.Error
	switch {
	case errors.Is(err, ctl.ErrNoRequest):
		return s.showMachines(w, r, v, http.StatusNotFound, poolView{Problem: "No machine asks with this number any more: " +
			"requests end after ten minutes. Run “gpulab join” there again."})
	case err != nil && !errors.As(err, &known):
		return s.showMachines(w, r, v, http.StatusServiceUnavailable, poolView{Problem: sentence(err.Error())})
	}
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	action := "node.decline"
	if accept {
		action = "node.accept"
	}
	s.audit(r, v, action, answered.Target(), "")
	return seeOther("/machines")
}

func (s *Server) removeMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	name := r.PathValue("machine")
	_, err := s.cfg.Machines.Remove(r.Context(), name, r.PostForm.Get("anyway") == "yes")
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	s.audit(r, v, "node.remove", name, "")
	return seeOther("/machines")
}

// emptyIn are the choices of how long notebooks go on where no new ones start.
var emptyIn = []struct {
	value, words string
	in           time.Duration
}{
	{"", "stay as long as they like", 0},
	{"15m", "end in 15 minutes", 15 * time.Minute},
	{"1h", "end in an hour", time.Hour},
	{"2h", "end in 2 hours", 2 * time.Hour},
	{"8h", "end in 8 hours", 8 * time.Hour},
	{"24h", "end in 24 hours", 24 * time.Hour},
	{"72h", "end in 3 days", 72 * time.Hour},
}

// endsNow stands in their place on the button for what is still there. The page
// has said what is lost.
const endsNow = "now"

// cordonMachine lets a machine take no new work, and may begin to empty it.
func (s *Server) cordonMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	name, reason, ends := r.PostForm.Get("machine"), r.PostForm.Get("reason"), r.PostForm.Get("ends")
	by := v.session.User.Handle
	var made ctl.Cordon
	err := error(&problem{
		status: http.StatusBadRequest, title: errFormUnreadable.title, text: errFormUnreadable.text,
		linkText: "Back to the machines", link: "/machines",
	})
	if ends == endsNow {
		made, err = s.cfg.Machines.Drain(r.Context(), name, by, ctl.Drain{})
	}
	for _, e := range emptyIn {
		switch {
		case e.value != ends:
		case ends == "":
			made, err = s.cfg.Machines.Cordon(r.Context(), name, by, reason)
		default:
			made, err = s.cfg.Machines.Drain(r.Context(), name, by, ctl.Drain{Reason: reason, In: e.in})
		}
	}
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	action := "node.cordon"
	if ends != "" {
		action = "node.drain"
	}
	s.audit(r, v, action, name, made.Detail())
	return seeOther("/machines")
}

func (s *Server) uncordonMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.reopenMachine(w, r, v, "node.uncordon", s.cfg.Machines.Uncordon)
}

func (s *Server) keepMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	return s.reopenMachine(w, r, v, "node.keep", s.cfg.Machines.Keep)
}

// renameMachine shows a machine under a title.
func (s *Server) renameMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	name := r.PostForm.Get("machine")
	renamed, err := s.cfg.Machines.Rename(r.Context(), name, r.PostForm.Get("title"))
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	s.audit(r, v, "node.rename", name, renamed.Title)
	return seeOther("/machines")
}

// limitMachine says whom a machine is for.
func (s *Server) limitMachine(w http.ResponseWriter, r *http.Request, v visitor) error {
	name := r.PostForm.Get("machine")
	var limit *ctl.NodeLimit
	if list := strings.Fields(strings.ReplaceAll(r.PostForm.Get("for"), ",", " ")); len(list) > 0 &&
		!slices.Equal(list, []string{"everybody"}) {
		limit = &ctl.NodeLimit{For: list}
	}
	made, err := s.cfg.Machines.Limit(r.Context(), name, limit)
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	s.audit(r, v, "node.limit", name, "for "+made.Words())
	return seeOther("/machines")
}

// The choices of how machines are chosen.
var (
	cpuPlaces = []roleView{
		{ctl.PlaceCPUAny, "on any machine"},
		{ctl.PlaceCPUPrefer, "off GPU machines if possible"},
		{ctl.PlaceCPURequire, "off GPU machines always"},
	}
	gpuPlaces = []roleView{
		{ctl.PlaceGPUsPack, "packed on few machines"},
		{ctl.PlaceGPUsSpread, "spread over machines"},
	}
)

// placeNotebooks changes how machines are chosen.
func (s *Server) placeNotebooks(w http.ResponseWriter, r *http.Request, v visitor) error {
	wanted := ctl.Placing{CPU: r.PostForm.Get("cpu"), GPUs: r.PostForm.Get("gpus")}
	now, err := s.cfg.Machines.Place(r.Context(), wanted)
	if done, err := s.machineRefused(w, r, v, err); done {
		return err
	}
	if wanted != (ctl.Placing{}) {
		s.audit(r, v, "node.placing", "", now.Detail())
	}
	return seeOther("/machines")
}

func (s *Server) reopenMachine(w http.ResponseWriter, r *http.Request, v visitor, action string,
	do func(context.Context, string) error) error {
	name := r.PathValue("machine")
	if done, err := s.machineRefused(w, r, v, do(r.Context(), name)); done {
		return err
	}
	s.audit(r, v, action, name, "")
	return seeOther("/machines")
}

// machineRefused shows why something was not done with a machine.
func (s *Server) machineRefused(w http.ResponseWriter, r *http.Request, v visitor, err error) (done bool, _ error) {
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, ctl.ErrNodeUnknown):
		return true, s.showMachines(w, r, v, http.StatusNotFound, poolView{Problem: message(err)})
	case errors.Is(err, ctl.ErrNodeReason), errors.Is(err, ctl.ErrNodeTitle), errors.Is(err, ctl.ErrPlacing),
		errors.Is(err, ctl.ErrNodeLimit), errors.Is(err, users.ErrGroupNotFound):
		return true, s.showMachines(w, r, v, http.StatusUnprocessableEntity, poolView{Problem: sentence(message(err))})
	case errors.Is(err, ctl.ErrNodeRefused):
		return true, s.showMachines(w, r, v, http.StatusConflict, poolView{Problem: sentence(message(err))})
	}
	return true, fmt.Errorf("change a machine: %w", err)
}

// poolParts are the live parts of the page about machines.
func (s *Server) poolParts(p page) parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		list, err := t.pool.get(struct{}{}, func() (ctl.Machines, error) {
			return s.cfg.Machines.Nodes(context.WithoutCancel(ctx))
		})
		if err != nil {
			return nil, err
		}
		var view poolView
		s.fillPool(&view, list)
		return []part{{id: "pool", body: poolList(p, view)}, {id: "open-invitations", body: openInvitations(p, view)},
			{id: "machine-requests", body: machineRequests(p, view)}}, nil
	}
}

// A qrView is a QR code as one path of an SVG.
type qrView struct {
	Box  string // the viewBox, with the quiet zone
	Path string
}

// quietZone is the white margin that readers need, in modules.
const quietZone = 4

func newQR(text string) (*qrView, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return nil, err
	}
	var path strings.Builder
	for y := range code.Size {
		for x := 0; x < code.Size; x++ {
			begin := x
			for x < code.Size && code.Black(x, y) {
				x++
			}
			if x > begin {
				fmt.Fprintf(&path, "M%d %dh%dv1H%dz", begin+quietZone, y+quietZone, x-begin, begin+quietZone)
			}
		}
	}
	size := strconv.Itoa(code.Size + 2*quietZone)
	return &qrView{Box: "0 0 " + size + " " + size, Path: path.String()}, nil
}
