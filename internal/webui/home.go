package webui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// endedShown is how long a launch that failed stays on its owner's home page.
const endedShown = 10 * time.Minute

// interruptedShown is the same for one that was interrupted: whose machine went
// down in the evening comes back the next day, or after the weekend.
const interruptedShown = 4 * 24 * time.Hour

// A homeView is all that the home page shows below its heading.
type homeView struct {
	Machines  []machineView
	Profiles  []profileView
	Mine      []launchRow
	Everyone  []launchRow
	MayLaunch bool
	// Quotas are the visitor's, and Notice what is about to happen for them; both
	// as they were when the page was opened.
	Quotas []limitView
	Notice string
	// Machine is what everybody should know of the machine.
	Machine []string
	// Home is what is to be said of the room in the visitor's home, Folders what
	// is shared with them.
	Home    string
	Folders []folderRow
	// Emptying is what ends because its machine is being emptied.
	Emptying []string
	// Idle are the visitor's notebooks that are about to be stopped.
	Idle []warnedView
	// Disk is what an administrator is to know of the lab's disks.
	Disk string
	// Backup and BackupNext are for whoever looks after the lab: when it was saved
	// last, and what to do about it.
	Backup, BackupNext string
	// Advice is for them, too: which quotas to set, and how.
	Advice, AdviceNext string
}

// fewGPUs is how many GPUs may stand above the launch cards. With more, people
// would scroll past them every time.
const fewGPUs = 4

func (v homeView) startFirst() bool {
	return roomIn(v.Machines, notebooks.GPUKind{}).total > fewGPUs
}

// A profileView is one launch card.
type profileView struct {
	ID, Slug, Title, Description, Gets string
	// Now says whether one would start at once.
	Now     string
	NowTone tone
	// Obstacle says why it cannot work here at all; there is no button then.
	Obstacle string
}

// A launchRow is one line of the lists of what is running.
type launchRow struct {
	ID        string
	Title     string
	User      string
	State     string
	StateTone tone
	GPU       string
	Simulated bool
	For       string
	Open      string // address of the notebook, when it is ready
	MayStop   bool
	MayCancel bool
	Reason    string
	// Again is the profile with which one that has ended can be started again.
	Again string
	// EndAt is the form that ends it, "" of a notebook.
	EndAt string
}

func (s *Server) homePage(w http.ResponseWriter, r *http.Request, v visitor) error {
	mine, err := s.ownLaunches(r.Context(), v.session.User.ID)
	if err != nil {
		return err
	}
	active, err := s.activeLaunches(r.Context())
	if err != nil {
		return err
	}
	machines := s.machines(s.cfg.Fleet.Snapshots(), v, false)
	view := s.home(r, v, machines, mine, active)
	view.Machine = s.machineNotes()
	view.Quotas, view.Notice = s.limits(r.Context(), v.session.User, v.session.User.ID),
		s.quotaNotice(r.Context(), v.session.User)
	view.Home = s.homeNotice(r.Context(), v.session.User)
	if view.Folders, err = s.folderRows(r.Context(), v.session.User); err != nil {
		return err
	}
	view.Folders = slices.DeleteFunc(view.Folders, func(f folderRow) bool {
		return f.Deleted != "" || f.Mine == manageOnly
	})
	if s.cfg.Backup != nil && v.may(users.ActionManageLab) {
		if view.Backup, view.BackupNext, err = s.cfg.Backup(r.Context()); err != nil {
			s.cfg.Log.Error("the last backup is not known", "err", err)
			view.Backup, view.BackupNext = "", ""
		}
	}
	if v.may(users.ActionManageLab) {
		view.Advice, view.AdviceNext = s.quotaAdvice(r.Context())
	}
	s.render(w, r, http.StatusOK, homePage(s.page(w, r, v, "Home", "view=home"), view))
	return nil
}

func (s *Server) ownLaunches(ctx context.Context, userID int64) ([]notebooks.Launch, error) {
	list, err := s.cfg.Notebooks.List(ctx, userID)
	if err != nil {
		return nil, fmt.Errorf("list own launches: %w", err)
	}
	return list, nil
}

func (s *Server) activeLaunches(ctx context.Context) ([]notebooks.Launch, error) {
	list, err := s.cfg.Notebooks.Active(ctx)
	if err != nil {
		return nil, fmt.Errorf("list active launches: %w", err)
	}
	return list, nil
}

func (s *Server) home(r *http.Request, v visitor, machines []machineView, mine, active []notebooks.Launch) homeView {
	view := homeView{Machines: machines, MayLaunch: v.may(users.ActionLaunch)}
	if s.cfg.DiskNotice != nil && v.may(users.ActionManageLab) {
		view.Disk = s.cfg.DiskNotice()
	}
	if s.cfg.Emptying != nil {
		view.Emptying = s.cfg.Emptying(v.session.User.Handle)
	}
	view.Idle = s.warned(v)
	profiles, usable := s.cfg.Notebooks.Profiles(), s.usable(v, machines)
	for _, p := range profiles {
		// A card for GPUs that the lab does not have helps nobody but the one
		// who wrote it.
		if p.GPUKind() != (notebooks.GPUKind{}) && roomIn(usable, p.GPUKind()).largest < p.GPUs &&
			!v.may(users.ActionManageLab) {
			continue
		}
		room := roomIn(without(usable, s.cfg.Notebooks.Unfit(p.Slug)), p.GPUKind())
		view.Profiles = append(view.Profiles, profileViewOf(p, room, notebooks.Ahead(active, profiles, p),
			s.cfg.Notebooks.Obstacle(p.Slug)))
	}
	for i := range mine {
		l := &mine[i]
		if s.stillShown(l, mine) {
			view.Mine = append(view.Mine, s.launchRow(r, v, l, machines))
		}
	}
	for i := range active {
		if active[i].UserID != v.session.User.ID {
			view.Everyone = append(view.Everyone, s.launchRow(r, v, &active[i], machines))
		}
	}
	return view
}

// usable are the machines that are for somebody.
func (s *Server) usable(v visitor, machines []machineView) []machineView {
	if s.cfg.Barred == nil {
		return machines
	}
	return without(machines, s.cfg.Barred(v.session.User.ID))
}

// without leaves out the named machines.
func without(machines []machineView, names []string) []machineView {
	if len(names) == 0 {
		return machines
	}
	return slices.DeleteFunc(slices.Clone(machines), func(m machineView) bool { return slices.Contains(names, m.Node) })
}

// stillShown tells whether a launch belongs on its owner's home page: while it
// is active, and for a while if it ended without anybody's wish. One that was
// interrupted, or stopped because nobody used it, is shown until it, or its like, has been started again.
func (s *Server) stillShown(l *notebooks.Launch, all []notebooks.Launch) bool {
	switch {
	case l.Active():
		return true
	case l.EndCode == notebooks.EndStopped, l.EndCode == notebooks.EndCancelled:
		return false
	case l.EndCode != notebooks.EndInterrupted && l.EndCode != notebooks.EndIdle && l.EndCode != notebooks.EndAge:
		return s.now().Sub(l.Ended) < endedShown
	}
	return s.now().Sub(l.Ended) < interruptedShown && !slices.ContainsFunc(all, func(other notebooks.Launch) bool {
		return other.Profile == l.Profile && other.Title == l.Title && other.Requested.After(l.Ended)
	})
}

func profileViewOf(p notebooks.Profile, room gpuRoom, waiting int, obstacle string) profileView {
	view := profileView{
		ID: elementID("profile", p.Slug), Slug: p.Slug, Title: p.Title, Description: p.Description,
		Gets: gets(p, room.simulated), Obstacle: obstacle,
	}
	switch {
	case obstacle != "":
		view.Now, view.NowTone = "cannot start here", "bad"
	case room.closed:
		view.Now, view.NowTone = "would wait: no machine takes new work now", "warn"
	case p.GPUs == 0:
		view.Now, view.NowTone = "starts at once", "ok"
	case room.total == 0 && p.GPUKind() != (notebooks.GPUKind{}):
		view.Now, view.NowTone = "cannot start: this lab has no such GPU; others do not see this card", "bad"
	case room.total == 0:
		view.Now, view.NowTone = "cannot start: this lab has no GPU now", "bad"
	case p.GPUs > room.largest:
		view.Now, view.NowTone = "cannot start: a machine has at most "+count(room.largest, "GPU", "GPUs"), "bad"
	case p.GPUs <= room.mostFree && waiting == 0:
		view.Now, view.NowTone = fmt.Sprintf("%d of %d %s free", room.free, room.total, room.noun()), "ok"
	case waiting > 0:
		view.Now, view.NowTone = "would wait, "+count(waiting, "notebook", "notebooks")+" before it", "warn"
	default:
		view.Now, view.NowTone = "would wait: "+usedUp(room), "warn"
	}
	return view
}

func usedUp(room gpuRoom) string {
	switch {
	case room.cordoned == room.total:
		return "its machines take no new work now"
	case room.free > 0:
		return fmt.Sprintf("only %d of %d %s free", room.free, room.total, room.noun())
	case room.total == 1:
		return "the GPU is in use"
	}
	return fmt.Sprintf("all %d %s are in use", room.total, room.noun())
}

// gets lists what a profile brings: "4 cores · 8 GiB memory · 1 GPU".
func gets(p notebooks.Profile, simulated bool) string {
	var list []string
	if p.CPUs > 0 {
		unit := " cores"
		if p.CPUs == 1 {
			unit = " core"
		}
		list = append(list, strconv.FormatFloat(p.CPUs, 'f', -1, 64)+unit)
	}
	if p.Memory != "" {
		list = append(list, quantity(p.Memory)+" memory")
	}
	switch {
	case p.GPUs > 0 && simulated:
		list = append(list, count(p.GPUs, "simulated GPU", "simulated GPUs"))
	case p.GPUs > 0:
		list = append(list, count(p.GPUs, "GPU", "GPUs"))
	}
	if p.GPUModel != "" {
		list = append(list, p.GPUModel)
	}
	if p.GPUMemory != "" {
		list = append(list, "at least "+quantity(p.GPUMemory)+" GPU memory")
	}
	return strings.Join(list, " · ")
}

// launchRow describes a launch for a list. Titles are their owner's and the
// admins' to see; others see what kind of notebook it is.
func (s *Server) launchRow(r *http.Request, v visitor, l *notebooks.Launch, machines []machineView) launchRow {
	own := l.UserID == v.session.User.ID
	manages := v.mayOn(users.ActionManageNotebooks, l.UserID)
	row := launchRow{ID: strconv.FormatInt(l.ID, 10), Title: l.Title, User: l.Handle, Reason: l.Reason,
		GPU: gpuNames(l, machines), Simulated: simulated(l, machines)}
	if !manages {
		row.Title = s.profileTitle(l.Profile)
	}
	switch {
	case l.IsService():
		row.Title, row.EndAt = "Service: "+row.Title, "/services/"+row.ID+"/stop"
	case l.Job != nil:
		row.Title, row.EndAt = "Job: "+row.Title, "/jobs/"+row.ID+"/cancel"
	}
	if !own {
		row.Reason = ""
	}
	row.State, row.StateTone = stateWords(l)
	begin := l.Requested
	if !l.Ready.IsZero() {
		begin = l.Ready
	}
	if l.Active() {
		row.For = units.Lasting(s.now().Sub(begin))
	}
	row.MayStop = manages && (l.State == notebooks.Running || l.State == notebooks.Starting)
	row.MayCancel = manages && l.State == notebooks.Waiting
	if own && !l.Active() && v.may(users.ActionLaunch) {
		row.Again = l.Profile
	}
	if own && l.State == notebooks.Running {
		row.Open = s.notebookURL(r, l)
	}
	return row
}

// stateWords names a launch's state for people.
func stateWords(l *notebooks.Launch) (string, tone) {
	switch l.State {
	case notebooks.Waiting:
		if l.Never {
			return "cannot start", "bad"
		}
		return "waiting", "warn"
	case notebooks.Starting:
		return "starting", "info"
	case notebooks.Running:
		return "running", "ok"
	case notebooks.Stopping:
		return "stopping", ""
	}
	switch l.EndCode {
	case notebooks.EndInterrupted:
		return "interrupted", "warn"
	case notebooks.EndIdle, notebooks.EndAge:
		return "stopped", "warn"
	case notebooks.EndFailed, notebooks.EndOutOfMemory, notebooks.EndEvicted:
		return "failed", "bad"
	}
	return "ended", ""
}

// simulated tells whether the GPUs of a launch are, or would be.
func simulated(l *notebooks.Launch, machines []machineView) bool {
	return l.Simulated || l.GPUs > 0 && l.State == notebooks.Waiting && roomIn(machines, notebooks.GPUKind{}).simulated
}

// gpuNames says which GPUs a launch holds: "GPU 0", "node-b GPU 1".
func gpuNames(l *notebooks.Launch, machines []machineView) string {
	var names []string
	for _, uuid := range l.GPUUUIDs {
		for _, m := range machines {
			for _, g := range m.GPUs {
				if g.UUID != uuid {
					continue
				}
				name := "GPU " + strconv.Itoa(g.Index)
				if len(machines) > 1 {
					name = m.Name + " " + name
				}
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 && l.GPUs > 0 {
		return count(l.GPUs, "GPU", "GPUs")
	}
	return strings.Join(names, ", ")
}

func (s *Server) profileTitle(slug string) string {
	for _, p := range s.cfg.Notebooks.Profiles() {
		if p.Slug == slug {
			return p.Title
		}
	}
	return slug
}

// notebookURL is where JupyterLab of a launch is, on the notebooks' origin.
func (s *Server) notebookURL(r *http.Request, l *notebooks.Launch) string {
	authority := s.notebooksAt(r, l.UserID)
	if authority == "" {
		return ""
	}
	return "https://" + authority + l.URL + "lab"
}

// homeParts are the live parts of the home page.
func (s *Server) homeParts(r *http.Request, v visitor, p page) parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		mine, active, err := s.launchesAt(ctx, t, v)
		if err != nil {
			return nil, err
		}
		view := s.home(r, v, s.machinesAt(t, v, false), mine, active)
		list := machineParts(t.reader(v), view.Machines, machinesShort, gpuCard)
		for _, profile := range view.Profiles {
			list = append(list, part{id: profile.ID + "-now", body: profileNow(profile)},
				part{id: profile.ID + "-obstacle", body: profileObstacle(profile)})
		}
		if v.may(users.ActionManageLab) {
			list = append(list, part{id: "disk", body: diskNotice(view)})
		}
		if s.cfg.Idle != nil {
			list = append(list, part{id: "idle", body: idleNotices(p, view.Idle)})
		}
		if s.cfg.Emptying != nil {
			list = append(list, part{id: "emptying", body: emptyingNotices(view.Emptying)})
		}
		if s.cfg.Machine != nil {
			list = append(list, part{id: "machine-notes", body: machineNotes(s.machineNotes()), same: everybody})
		}
		return append(list, part{id: "mine", body: mineList(p, view)}, everyonePart(v, p, view, active)), nil
	}
}

func (s *Server) machineNotes() []string {
	if s.cfg.Machine == nil {
		return nil
	}
	return s.cfg.Machine()
}

// everyonePart is the list of what the others run. Those who may end it have
// forms in it, with a token of their own; for the others it differs by what of
// it is their own.
func everyonePart(v visitor, p page, view homeView, active []notebooks.Launch) part {
	if v.mayOnOthers(users.ActionManageNotebooks) {
		return part{id: "everyone", body: everyoneList(p, view)}
	}
	same := everybody
	if len(view.Everyone) < len(active) {
		same = "without " + v.session.User.Handle
	}
	return part{id: "everyone", body: everyoneList(page{}, view), same: same}
}
