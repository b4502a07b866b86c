package api

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/users"
)

// Profile is a kind of notebook.
type Profile struct {
	Slug        string  `json:"slug" doc:"Its name in requests"`
	Title       string  `json:"title"`
	Description string  `json:"description,omitempty"`
	CPUs        float64 `json:"cpus,omitempty" doc:"Cores at most; left out where the profile sets no bound"`
	Memory      string  `json:"memory,omitempty" doc:"At most, such as 8Gi"`
	GPUs        int     `json:"gpus" doc:"GPUs of its own"`
	GPUModel    string  `json:"gpuModel,omitempty" doc:"Which; left out for any"`
	GPUMemory   string  `json:"gpuMemory,omitempty" doc:"Of each GPU at least"`
	Start       string  `json:"start" enum:"now,waits,never" doc:"Whether one of yours would start at once"`
	Why         string  `json:"why,omitempty" doc:"Why it would wait or cannot start, for people"`
}

// ProfileList is what can be launched.
type ProfileList struct {
	Profiles []Profile `json:"profiles"`
}

// Notebook is one launch, from the request to its end.
type Notebook struct {
	ID        int64            `json:"id"`
	User      string           `json:"user" doc:"Whose, by sign-in name"`
	Title     string           `json:"title,omitempty" doc:"Left out where it is not yours to see"`
	Profile   string           `json:"profile"`
	State     string           `json:"state" enum:"waiting,starting,running,stopping,ended"`
	Reason    string           `json:"reason,omitempty" doc:"Why it waits, what it does, why it ended; for people"`
	EndCode   string           `json:"endCode,omitempty" enum:"stopped,cancelled,quota,folder,idle,age,failed,exited,oom,evicted,interrupted" doc:"Why it ended, in one word"`
	Machine   string           `json:"machine,omitempty" doc:"Where it runs, by the machine's name"`
	WhyThere  string           `json:"whyThere,omitempty" doc:"Why it runs there, for people; left out where there was no choice"`
	GPUs      int              `json:"gpus"`
	GPUUUIDs  []string         `json:"gpuUuids,omitempty" doc:"Which GPUs it has"`
	Simulated bool             `json:"simulated,omitempty" doc:"Its GPUs are, and compute nothing"`
	Position  int              `json:"position,omitempty" doc:"Its place in the queue while it waits, from 1"`
	Expected  *time.Time       `json:"expected,omitempty" doc:"When it can be expected to start while it waits for a GPU, judging by how long notebooks have run; nobody promises it"`
	Never     bool             `json:"never,omitempty" doc:"No GPU that becomes free could ever be enough"`
	Steps     []NotebookStep   `json:"steps,omitempty" doc:"How far its start is"`
	Holders   []NotebookHolder `json:"holders,omitempty" doc:"Who holds GPUs while it waits"`
	Activity  *Activity        `json:"activity,omitempty" doc:"Whether it is used, while it runs; left out where it is not yours to see"`
	Requested time.Time        `json:"requested"`
	Started   *time.Time       `json:"started,omitempty" doc:"When its turn came"`
	Ready     *time.Time       `json:"ready,omitempty" doc:"When its address answered first"`
	Ended     *time.Time       `json:"ended,omitempty"`
	URL       string           `json:"url,omitempty" doc:"Where JupyterLab is, while it runs and is yours"`
	Page      string           `json:"page" doc:"Its page for browsers"`
	Version   string           `json:"version" doc:"Another one whenever something above changes, but for the times of its activity; see the parameter seen"`
}

// NotebookStep is one stage of a start.
type NotebookStep struct {
	Name  string `json:"name" enum:"queue,namespace,image,pod,server"`
	State string `json:"state" enum:"waiting,active,done,failed"`
	Text  string `json:"text,omitempty" doc:"For people"`
}

// NotebookHolder is what holds GPUs now.
type NotebookHolder struct {
	User  string    `json:"user,omitempty" doc:"Left out for what is nobody's"`
	GPUs  int       `json:"gpus"`
	Node  string    `json:"node,omitempty"`
	Since time.Time `json:"since"`
}

// NotebookList is some notebooks, the newest first.
type NotebookList struct {
	Notebooks []Notebook `json:"notebooks"`
}

// longestWait is how long a question waits for a change at most, in seconds. The server gives a request half a minute.
const longestWait = 20

type notebooksInput struct {
	Of string `query:"of" default:"me" enum:"me,everybody" doc:"me lists yours, ended ones too; everybody lists all that have not ended"`
}

type notebookInput struct {
	IDInput
	Seen string `query:"seen" maxLength:"64" doc:"The version you know: the answer waits until there is another one"`
	Wait int    `query:"wait" minimum:"0" maximum:"20" doc:"For how many seconds at most"`
}

type launchInput struct {
	Body struct {
		Profile string `json:"profile,omitempty" maxLength:"63" doc:"Its slug; the first profile if left out"`
		Title   string `json:"title,omitempty" maxLength:"80" doc:"What you call it; the profile's title if left out"`
		Instead int64  `json:"instead,omitempty" minimum:"1" doc:"A waiting notebook of yours that this one replaces"`
	}
}

type launched struct {
	Location string `header:"Location"`
	Body     Notebook
}

func (s *Server) addNotebooks() {
	add(s, Operation{Method: "GET", Path: "/profiles", ID: "listProfiles", Need: users.ActionSee, tag: "notebooks",
		summary: "The kinds of notebooks, and whether one would start at once"}, s.listProfiles)
	add(s, Operation{Method: "GET", Path: "/notebooks", ID: "listNotebooks", Need: users.ActionSee, tag: "notebooks",
		summary: "Your notebooks, or everybody's"}, s.listNotebooks)
	add(s, Operation{Method: "POST", Path: "/notebooks", ID: "launchNotebook", Need: users.ActionLaunch, tag: "notebooks",
		summary:     "Launch a notebook",
		description: "It waits where no GPU is free, and starts by itself.", status: http.StatusCreated,
		also: []int{conflict, http.StatusNotFound}}, s.launchNotebook)
	add(s, Operation{Method: "GET", Path: "/notebooks/{id}", ID: "getNotebook", Need: users.ActionSee, tag: "notebooks",
		summary: "One notebook; waits for a change where asked to"}, s.getNotebook)
	add(s, Operation{Method: "DELETE", Path: "/notebooks/{id}", ID: "stopNotebook", Need: users.ActionManageNotebooks,
		tag: "notebooks", summary: "Stop a notebook, or take it out of the queue",
		description: "Files in the home stay. One that has ended is as was wanted."}, s.stopNotebook)
}

func (s *Server) listProfiles(ctx context.Context, c *call, _ *noInput) (*body[ProfileList], error) {
	active, err := s.cfg.Notebooks.Active(ctx)
	if err != nil {
		return nil, err
	}
	list := ProfileList{Profiles: []Profile{}}
	snapshots := s.cfg.Snapshots()
	if s.cfg.Barred != nil {
		snapshots = without(snapshots, s.cfg.Barred(c.user.ID))
	}
	profiles := s.cfg.Notebooks.Profiles()
	for _, p := range profiles {
		out := Profile{
			Slug: p.Slug, Title: p.Title, Description: p.Description, CPUs: p.CPUs, Memory: p.Memory, GPUs: p.GPUs,
			GPUModel: p.GPUModel, GPUMemory: p.GPUMemory,
		}
		// A profile for GPUs that the lab does not have helps nobody but the one who wrote it.
		if p.GPUKind() != (notebooks.GPUKind{}) && roomFor(snapshots, p.GPUKind()).largest < p.GPUs &&
			c.user.Role.Scope(users.ActionManageLab) == users.Nobody {
			continue
		}
		room := roomFor(without(snapshots, s.cfg.Notebooks.Unfit(p.Slug)), p.GPUKind())
		if out.Start, out.Why, err = s.start(ctx, c, p, room, notebooks.Ahead(active, profiles, p)); err != nil {
			return nil, err
		}
		list.Profiles = append(list.Profiles, out)
	}
	return answerWith(list)
}

// without leaves out the named machines.
func without(snapshots []gpu.Snapshot, names []string) []gpu.Snapshot {
	return slices.DeleteFunc(slices.Clone(snapshots), func(n gpu.Snapshot) bool { return slices.Contains(names, n.Node) })
}

// start says whether a notebook of a profile would start at once for whoever asks.
func (s *Server) start(ctx context.Context, c *call, p notebooks.Profile, room gpuRoom,
	waiting int) (start, why string, err error) {
	if obstacle := s.cfg.Notebooks.Obstacle(p.Slug); obstacle != "" {
		return "never", obstacle, nil
	}
	if err := s.cfg.MayLaunch(ctx, c.user, p); err != nil {
		if refusal(err) == nil {
			return "", "", err
		}
		return "never", message(err), nil
	}
	switch {
	case p.GPUs == 0:
		return "now", "", nil
	case room.largest == 0:
		return "never", "This lab has no such GPU now.", nil
	case p.GPUs > room.largest:
		return "never", fmt.Sprintf("It takes %d GPUs, and no machine of this lab has more than %d.", p.GPUs, room.largest),
			nil
	case waiting > 0:
		return "waits", fmt.Sprintf("%d before it in the queue.", waiting), nil
	case p.GPUs > room.mostFree:
		return "waits", fmt.Sprintf("%d of %d free.", room.free, room.total), nil
	}
	return "now", "", nil
}

// gpuRoom counts GPUs of a kind, or turns on them where several notebooks share one: all, those that are free, and the
// most of both on one machine, from which a notebook gets all of its GPUs.
type gpuRoom struct{ total, free, largest, mostFree int }

func roomFor(snapshots []gpu.Snapshot, kind notebooks.GPUKind) gpuRoom {
	var room gpuRoom
	for i := range snapshots {
		all, free := 0, 0
		for k := range snapshots[i].GPUs {
			g := &snapshots[i].GPUs[k]
			var memory int64
			if g.MemoryTotal != nil {
				memory = int64(*g.MemoryTotal)
			}
			if !kind.Fits(notebooks.NodeRoom{GPUModel: strings.ReplaceAll(g.Name, " ", "-"), GPUMemory: memory}) {
				continue
			}
			slots := max(g.Slots, 1, len(g.Instances))
			all += slots
			if g.Withheld == "" && g.Error == "" {
				free += max(0, slots-len(g.Holders))
			}
		}
		room = gpuRoom{room.total + all, room.free + free, max(room.largest, all), max(room.mostFree, free)}
	}
	return room
}

func (s *Server) listNotebooks(ctx context.Context, c *call, in *notebooksInput) (*body[NotebookList], error) {
	var launches []notebooks.Launch
	var err error
	if in.Of == "everybody" {
		launches, err = s.cfg.Notebooks.Active(ctx)
	} else {
		launches, err = s.cfg.Notebooks.List(ctx, c.user.ID)
	}
	if err != nil {
		return nil, err
	}
	list := NotebookList{Notebooks: []Notebook{}}
	for i := range launches {
		if launches[i].Job != nil {
			continue
		}
		list.Notebooks = append(list.Notebooks, s.notebook(ctx, c, &launches[i]))
	}
	return answerWith(list)
}

// notebook is a launch as whoever asks may see it: what others call theirs, and what is in their way, is theirs.
func (s *Server) notebook(ctx context.Context, c *call, l *notebooks.Launch) Notebook {
	n := Notebook{ID: l.ID, User: l.Handle, Profile: l.Profile, State: string(l.State), GPUs: l.GPUs,
		Simulated: l.Simulated,
		Requested: l.Requested, Started: given(l.Started), Ready: given(l.Ready), Ended: given(l.Ended),
		Page: c.page("/launches/" + strconv.FormatInt(l.ID, 10))}
	if c.may(users.ActionManageNotebooks, l.UserID) {
		n.Title, n.Reason, n.EndCode, n.GPUUUIDs, n.Position, n.Never = l.Title, l.Reason, l.EndCode, l.GPUUUIDs, l.Position,
			l.Never
		n.Expected = given(l.Expected)
		n.Machine, n.WhyThere = l.Node, l.WhyHere()
		for _, step := range l.Detail {
			n.Steps = append(n.Steps, NotebookStep{step.Name, step.State, step.Text})
		}
		for _, h := range l.Holders {
			n.Holders = append(n.Holders, NotebookHolder{h.Handle, h.GPUs, h.Node, h.Since})
		}
	}
	if l.State == notebooks.Running && c.user.ID == l.UserID {
		n.URL = s.notebookURL(ctx, c, l)
	}
	if c.may(users.ActionManageNotebooks, l.UserID) {
		activity := s.activity(l)
		n.Activity = activity.news()
		n.Version = versionOf(n)
		n.Activity = activity
		return n
	}
	n.Version = versionOf(n)
	return n
}

// notebookURL is where JupyterLab of a launch is, "" where that is not known.
func (s *Server) notebookURL(ctx context.Context, c *call, l *notebooks.Launch) string {
	host := bareHost(c)
	if host == "" {
		return ""
	}
	authority, err := s.cfg.NotebooksAt(ctx, host, l.UserID)
	if err != nil {
		return ""
	}
	return "https://" + authority + l.URL + "lab"
}

// bareHost is the host that the caller uses, without its port; "" where that is not known.
func bareHost(c *call) string {
	if bare, _, err := net.SplitHostPort(c.host); err == nil {
		return bare
	}
	return c.host
}

// lastingAddress returns the address of a lasting path for the caller, or "" if it is not known. If the caller's host
// has a port, the address keeps it: a tunnel may lead to no other port. The pages' port redirects such a path as
// HubPort does.
func (s *Server) lastingAddress(c *call, path string) string {
	host := c.host
	if _, _, err := net.SplitHostPort(host); err != nil && host != "" && s.cfg.HubPort != 443 {
		host += ":" + strconv.Itoa(s.cfg.HubPort)
	}
	if host == "" {
		return ""
	}
	return "https://" + host + path
}

// versionOf is another text for everything that differs.
func versionOf(answer any) string {
	text, _ := json.Marshal(answer) // a struct of plain fields
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// launchOf reads a launch that the caller may see all of. To others it does not exist.
func (s *Server) launchOf(ctx context.Context, c *call, id int64) (notebooks.Launch, error) {
	l, err := s.cfg.Notebooks.Get(ctx, id)
	if err == nil && (l.Job != nil || !c.may(users.ActionManageNotebooks, l.UserID)) {
		err = notebooks.ErrNotFound
	}
	return l, err
}

func (s *Server) launchNotebook(ctx context.Context, c *call, in *launchInput) (*launched, error) {
	request := notebooks.Request{
		Profile: in.Body.Profile, Title: strings.TrimSpace(in.Body.Title), Instead: in.Body.Instead,
	}
	if request.Instead != 0 {
		if _, err := s.launchOf(ctx, c, request.Instead); err != nil {
			return nil, err
		}
	}
	l, err := s.cfg.Notebooks.Launch(ctx, c.user, request)
	if err != nil {
		return nil, err
	}
	detail := l.Audited()
	if request.Instead != 0 {
		detail += fmt.Sprintf(", instead of launch %d", request.Instead)
	}
	s.audit(ctx, c, "notebook.launch", l.Handle, detail)
	return &launched{Prefix + "/notebooks/" + strconv.FormatInt(l.ID, 10), s.notebook(ctx, c, &l)}, nil
}

func (s *Server) getNotebook(ctx context.Context, c *call, in *notebookInput) (*body[Notebook], error) {
	return onceChanged(ctx, s, in, func(ctx context.Context) (Notebook, string, error) {
		l, err := s.launchOf(ctx, c, in.ID)
		if err != nil {
			return Notebook{}, "", err
		}
		n := s.notebook(ctx, c, &l)
		return n, n.Version, nil
	})
}

// onceChanged answers with what look finds, once its version is not the one that
// the caller has seen, or the caller waits no longer.
func onceChanged[T any](ctx context.Context, s *Server, in *notebookInput,
	look func(context.Context) (T, string, error)) (*body[T], error) {
	waiting, cancel := context.WithTimeout(ctx, time.Duration(min(in.Wait, longestWait))*time.Second)
	defer cancel()
	changes := s.cfg.Notebooks.Subscribe(waiting)
	for {
		found, version, err := look(ctx)
		if err != nil {
			return nil, err
		}
		if in.Seen == "" || in.Wait == 0 || version != in.Seen {
			return answerWith(found)
		}
		select {
		case <-waiting.Done():
			return answerWith(found)
		case <-changes:
		case <-time.After(time.Second): // steps move without a change of the launch
		}
	}
}

func (s *Server) stopNotebook(ctx context.Context, c *call, in *IDInput) (*body[Notebook], error) {
	l, err := s.launchOf(ctx, c, in.ID)
	if err != nil {
		return nil, err
	}
	if l.Active() {
		if l.State == notebooks.Waiting {
			err = s.cfg.Notebooks.Cancel(ctx, l.ID)
		} else {
			err = s.cfg.Notebooks.Stop(ctx, l.ID)
		}
		// One that ended in the meantime is what was wanted.
		if err != nil && !errors.Is(err, notebooks.ErrNotFound) {
			return nil, fmt.Errorf("stop launch %d: %w", l.ID, err)
		}
		if l.State == notebooks.Waiting {
			s.audit(ctx, c, "notebook.cancel", l.Handle, l.Audited())
		} else {
			s.audit(ctx, c, "notebook.stop", l.Handle, l.Audited())
		}
		if l, err = s.cfg.Notebooks.Get(ctx, l.ID); err != nil {
			return nil, err
		}
	}
	return answerWith(s.notebook(ctx, c, &l))
}
