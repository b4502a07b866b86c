package notebooks

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// WebService is what makes a job a service: its program goes on running, and
// answers on a port for the browsers of those who may see it.
type WebService struct {
	Port     int       `json:"port"` // where its program listens
	Door     int       `json:"door"` // the head's port for it, and thereby an origin of its own
	Share    Share     `json:"share"`
	Restarts bool      `json:"restarts"` // its program is started again when it ends
	StopAt   time.Time `json:"stopAt"`
	Health   Health    `json:"health,omitempty"` // while it runs
}

// Share says who may see a service beside its owner.
type Share struct {
	With  string `json:"with"`            // private, group or lab
	Group string `json:"group,omitempty"` // by name; "" of one that is gone
	group int64
}

// The kinds of Share.
const (
	SharePrivate = "private"
	ShareGroup   = "group"
	ShareLab     = "lab" // everybody who is signed in
)

// ParseShare reads private, lab or group:NAME; "" is private.
func ParseShare(text string) (Share, error) {
	with, group, _ := strings.Cut(strings.TrimSpace(text), ":")
	switch {
	case with == "" || text == SharePrivate:
		return Share{With: SharePrivate}, nil
	case text == ShareLab:
		return Share{With: ShareLab}, nil
	case with == ShareGroup && group != "":
		return Share{With: ShareGroup, Group: group}, nil
	}
	return Share{}, refuse("%q is nobody to share with. Write private, group:NAME, or lab for everybody who is signed in.",
		clipped(text))
}

func (s Share) String() string {
	if s.With == ShareGroup {
		return "group:" + s.Group
	}
	return s.With
}

// Health says whether a service that runs answers.
type Health string

// The kinds of Health.
const (
	HealthStarting   Health = "starting" // it has not answered yet
	HealthReady      Health = "ready"
	HealthSilent     Health = "not answering" // it has answered before
	HealthRestarting Health = "restarting"    // its program has ended and is started again
)

// EndRestart says that it was ended to be started again.
const EndRestart = "restart"

// Bounds of services.
const (
	DefaultServiceTime = 7 * 24 * time.Hour
	MaxServiceTime     = 90 * 24 * time.Hour
	minServiceTime     = time.Minute
	// maxServices is how many one person may have waiting or running.
	maxServices = 10
	// lowestServicePort: a program without rights can listen on none below.
	lowestServicePort = 1024
	// doorRest is how long a port of the head rests before it becomes a service
	// of somebody else's: pages of the former one may still be open, and would
	// share their origin with it.
	doorRest = 30 * 24 * time.Hour
)

// ErrTooManyServices is a bound of [Service.Serve].
var ErrTooManyServices = fmt.Errorf("you have %d services already that wait or run, as many as one person may have; "+
	"stop one first", maxServices)

// ServiceRequest is what a person asks for.
type ServiceRequest struct {
	JobRequest // without a limit, retries, an array or dependencies
	Port       int
	Share      Share
	StopAfter  time.Duration // 0 = DefaultServiceTime
	Once       bool          // it is not started again when it ends
}

// Serve records a service; it starts when its turn has come. Errors: those of
// Submit, and ErrTooManyServices.
func (s *Service) Serve(ctx context.Context, u users.User, r ServiceRequest) (Launch, error) {
	if len(s.cfg.Doors) == 0 {
		return Launch{}, refuse("This lab has no services: servicePorts in its configuration names no ports.")
	}
	switch {
	case r.Port < lowestServicePort || r.Port > 65535:
		return Launch{}, refuse("A service needs the port on which its program listens, from %d to 65535.", lowestServicePort)
	case r.Port == notebookPort:
		return Launch{}, refuse("Port %d is that of notebooks. Let the program listen on another one.", notebookPort)
	case r.Limit != 0 || r.Retries != nil || r.Array != "" || r.After != nil:
		return Launch{}, refuse("A service has a stop time, and neither time limit, retries, array nor dependencies.")
	}
	stopAfter := cmp.Or(r.StopAfter, DefaultServiceTime)
	if err := checkStopAfter(stopAfter); err != nil {
		return Launch{}, err
	}
	r.Name = cmp.Or(strings.TrimSpace(r.Name), "service")
	if slug(r.Name) == "" {
		return Launch{}, refuse("The name of a service is a part of its address and needs a letter, such as board.")
	}
	if isManifest(r.File, r.Script) || isNotebook(r.File, r.Script) {
		return Launch{}, refuse("A service runs a script or a command. A Kubernetes manifest or a notebook is for a job: " +
			"submit it as one.")
	}
	r.Limit = MaxJobLimit
	if err := r.prepare(u.Handle); err != nil {
		return Launch{}, err
	}
	if r.Array != "" || *r.Retries != 0 || len(r.After) > 0 {
		return Launch{}, refuse("A service has a stop time, and neither time limit, retries, array nor dependencies: take " +
			"these directives out of the script.")
	}
	if r.Mail != nil {
		r.note("No mail is sent about a service.")
	}
	profile, err := s.profileForJob(r.JobRequest)
	if err != nil {
		return Launch{}, err
	}
	environment, err := s.serviceEnvironment(r.Environment)
	if err != nil {
		return Launch{}, err
	}
	share, err := s.rows.share(ctx, u, r.Share)
	if err != nil {
		return Launch{}, err
	}
	return s.enter(ctx, u, profile, Launch{
		Title:   r.Name,
		Job:     &Job{Output: r.Output, Errors: r.Errors, Limit: MaxServiceTime, Environment: environment.ID, Notes: r.notes},
		Service: &WebService{Port: r.Port, Share: share, Restarts: !r.Once, StopAt: s.now().Add(stopAfter)},
	}, slug(r.Name), 0, r.Program)
}

func checkStopAfter(d time.Duration) error {
	if d < minServiceTime || d > MaxServiceTime {
		return refuse("A service is stopped after %s at least and %s at most; it can be kept for longer later.",
			units.Lasting(minServiceTime), units.Lasting(MaxServiceTime))
	}
	return nil
}

// IsService tells whether the launch is a service.
func (l Launch) IsService() bool { return l.Service != nil }

// IsJob tells whether the launch is a job, and no service.
func (l Launch) IsJob() bool { return l.Job != nil && l.Service == nil }

// Services are a user's services that have not ended, newest first, then the latest ended ones.
func (s *Service) Services(ctx context.Context, userID int64) ([]Launch, error) {
	return s.decorated(s.rows.ofUser(ctx, userID, historyLimit, kindService))
}

// SharedServices are those of others that u may see and that have not ended.
func (s *Service) SharedServices(ctx context.Context, u users.User) ([]Launch, error) {
	list, err := s.rows.query(ctx, `WHERE service IS NOT NULL AND state <> 'ended' AND user_id <> ?1 AND
		(share = 'lab' OR share = 'group' AND EXISTS (SELECT 1 FROM group_members m WHERE m.group_id = services.group_id
		AND m.user_id = ?1))
		ORDER BY requested_at DESC, id DESC`, u.ID)
	return s.decorated(list, err)
}

// ServiceAt is the service that is to be had through a port of the head.
func (s *Service) ServiceAt(ctx context.Context, door int) (Launch, error) {
	return one(s.rows.query(ctx, `WHERE door = ? AND state <> 'ended'`, door))
}

// Service is the service with this number.
func (s *Service) Service(ctx context.Context, id int64) (Launch, error) {
	return one(s.rows.query(ctx, `WHERE id = ? AND service IS NOT NULL`, id))
}

// ServiceCalled is somebody's service of this name that has not ended.
func (s *Service) ServiceCalled(ctx context.Context, handle, name string) (Launch, error) {
	return one(s.rows.query(ctx, `WHERE handle = ? AND name = ? AND service IS NOT NULL AND state <> 'ended'`, handle,
		name))
}

func one(list []Launch, err error) (Launch, error) {
	if err == nil && len(list) == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return Launch{}, err
	}
	return list[0], nil
}

// MaySee tells whether somebody may see a service.
func (s *Service) MaySee(ctx context.Context, u users.User, l Launch) (bool, error) {
	switch {
	case l.Service == nil:
		return false, nil
	case u.ID == l.UserID || l.Service.Share.With == ShareLab:
		return true, nil
	case l.Service.Share.With == ShareGroup:
		return s.rows.inGroup(ctx, l.Service.Share.group, u.ID)
	}
	return false, nil
}

// Doors are the head's ports through which services are to be had now.
func (s *Service) Doors(ctx context.Context) ([]int, error) {
	list, err := s.rows.query(ctx, `WHERE service IS NOT NULL AND state <> 'ended' ORDER BY door`)
	var doors []int
	for i := range list {
		doors = append(doors, list[i].Service.Door)
	}
	return doors, err
}

// ShareService changes who may see a service.
func (s *Service) ShareService(ctx context.Context, u users.User, id int64, share Share) error {
	share, err := s.rows.share(ctx, u, share)
	if err != nil {
		return err
	}
	return s.updateService(ctx, id, `share = ?, group_id = ?`, share.With,
		sql.NullInt64{Int64: share.group, Valid: share.group != 0})
}

// KeepService sets a service's stop time, from now on.
func (s *Service) KeepService(ctx context.Context, id int64, stopAfter time.Duration) error {
	if err := checkStopAfter(stopAfter); err != nil {
		return err
	}
	return s.updateService(ctx, id, `stop_at = ?`, s.now().Add(stopAfter).UnixMilli())
}

func (s *Service) updateService(ctx context.Context, id int64, set string, args ...any) error {
	res, err := s.cfg.DB.ExecContext(ctx, `UPDATE services SET `+set+
		` WHERE service = ? AND (SELECT state FROM launches WHERE id = service) <> 'ended'`, append(args, id)...)
	if err != nil {
		return fmt.Errorf("change service %d: %w", id, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return cmp.Or(err, refuse("This service has ended. Start it again first."))
	}
	s.kick()
	return nil
}

// RestartService ends a service's program and starts it again, as when it has
// failed: one with GPUs stands in line for them anew.
func (s *Service) RestartService(ctx context.Context, id int64) error {
	l, err := s.rows.get(ctx, id)
	if err != nil {
		return err
	}
	switch {
	case l.Service == nil:
		return ErrNotFound
	case !l.Active():
		return refuse("This service has ended. Start it again as a new one.")
	case l.State == Waiting || l.State == Stopping:
		return nil // it is about to
	}
	return s.end(ctx, id, EndRestart, "It was restarted.")
}

// ServeAgain asks for a service that has ended once more, as it was asked for.
func (s *Service) ServeAgain(ctx context.Context, u users.User, id int64) (Launch, error) {
	l, err := s.rows.get(ctx, id)
	if err != nil {
		return Launch{}, err
	}
	if l.Service == nil {
		return Launch{}, ErrNotFound
	}
	p, err := s.rows.program(ctx, id)
	if err != nil {
		return Launch{}, err
	}
	share := l.Service.Share
	if share.With == ShareGroup && share.Group == "" {
		share = Share{With: SharePrivate}
	}
	output, errs, err := s.rows.filesAs(ctx, l)
	if err != nil {
		return Launch{}, err
	}
	r := ServiceRequest{
		JobRequest: JobRequest{
			Program: p, Name: l.Title, Profile: l.Profile, GPUs: &l.GPUs, Output: output, Errors: errs,
			Environment: l.Job.Environment,
		},
		Port: l.Service.Port, Share: share, StopAfter: l.Service.StopAt.Sub(l.Requested).Round(time.Minute),
		Once: !l.Service.Restarts,
	}
	r.StopAfter = min(max(r.StopAfter, minServiceTime), MaxServiceTime)
	return s.Serve(ctx, u, r)
}

// stopServices ends those whose time has come.
func (s *Service) stopServices(ctx context.Context, list []Launch) {
	for _, l := range list {
		if l.Service == nil || s.now().Before(l.Service.StopAt) || l.State == Stopping && l.EndCode != EndRestart {
			continue
		}
		if err := s.end(ctx, l.ID, EndTimeLimit, "Its stop time had come."); err != nil && ctx.Err() == nil {
			s.log.Error("a service could not be stopped in time", "launch", l.ID, "error", err)
		}
	}
}

// goesOn tells whether the program of a service has ended, and its machine starts
// it again in the same pod.
func (l Launch) goesOn(p PodInfo) bool {
	return l.Service != nil && l.Service.Restarts && p.Exited && !p.Finished && !p.Terminating
}

// startsAgain tells whether a service is started again after this end.
func (l Launch) startsAgain() bool {
	return l.EndCode == EndRestart || l.Service.Restarts &&
		slices.Contains([]string{EndSucceeded, EndExited, EndOutOfMemory, EndEvicted, EndInterrupted}, l.EndCode)
}

// keptTries is how many former runs of a service are told apart.
const keptTries = 20

// longRun: a service that ran for so long has not failed at its start.
const longRun = 10 * time.Minute

// triesOf are the former runs of a launch that is about to run again. Of a service
// the oldest are added up: what they held counts for its owner's share as anybody's.
func (l Launch) triesOf(last Try) []Try {
	tries := append(slices.Clone(l.Job.Tries), last)
	for l.Service != nil && len(tries) > keptTries {
		first, second := tries[0], &tries[1]
		second.From -= first.Until - first.From
		second.Runs = second.runs() + first.runs()
		tries = tries[1:]
	}
	return tries
}

// failedInARow is how often a service has ended soon after it was started: at least
// once, since its last run is over.
func failedInARow(tries []Try) int {
	n := 0
	for _, t := range slices.Backward(tries) {
		if t.EndCode == EndRestart {
			break
		}
		n++
		if t.Until-t.From > longRun.Milliseconds() {
			break
		}
	}
	return max(n, 1)
}

// health says how a service's program does, and in words what is to know of it.
func (s *Service) health(l Launch, p PodInfo, now time.Time) (h Health, words string) {
	s.with(l.ID, func(t *track) {
		switch {
		case p.Exited:
			h = HealthRestarting
			_, words = endWords(p)
			words += " It is started again."
		case p.Ready:
			h, t.answered = HealthReady, true
		case t.answered:
			h, words = HealthSilent, fmt.Sprintf("Nothing answers on its port %d any more.", l.Service.Port)
		default:
			h = HealthStarting
			if now.Sub(p.Started) > s.patience.silent {
				words = fmt.Sprintf("Nothing answers on port %d yet. Its program has to listen there on 0.0.0.0, not on "+
					"localhost alone.", l.Service.Port)
			}
		}
		t.health = h
	})
	return h, words
}

// share finds the group that a service is shared with, of which u has to be.
func (t rows) share(ctx context.Context, u users.User, share Share) (Share, error) {
	if share.With != ShareGroup {
		return share, nil
	}
	err := t.db.QueryRowContext(ctx,
		`SELECT g.id, g.name FROM groups g JOIN group_members m ON m.group_id = g.id WHERE g.name = ? AND m.user_id = ?`,
		share.Group, u.ID).Scan(&share.group, &share.Group)
	if errors.Is(err, sql.ErrNoRows) {
		return share, refuse("You are in no group %q with which you could share it.", clipped(share.Group))
	}
	return share, err
}

func (t rows) inGroup(ctx context.Context, group, userID int64) (in bool, err error) {
	err = t.db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM group_members WHERE group_id = ? AND user_id = ?)`,
		group, userID).Scan(&in)
	return in, err
}

// insertService adds what makes a job a service, with a port of the head.
func (t rows) insertService(ctx context.Context, tx *sql.Tx, l *Launch) error {
	former, err := formerDoors(ctx, tx, l)
	if err != nil {
		return err
	}
	mine := 0
	for _, d := range former {
		if d.kept {
			mine++
		}
	}
	// The best is the one that had this name before, so that its address stays
	// what it was; then one that nobody had. Who has as many as one person can use
	// at a time gets one of those: each rests after its use, and nobody else would
	// have any.
	rank := func(door int) int {
		switch d, used := former[door]; {
		case d.closed:
			return -1
		case d.named:
			return 3
		case mine >= maxServices && !d.kept:
			return -1
		case !used:
			return 2
		case d.own:
			return 1
		}
		return 0
	}
	for want := 3; want >= 0; want-- {
		for _, door := range t.doors {
			if rank(door) != want || t.doorFree != nil && !t.doorFree(door) {
				continue
			}
			l.Service.Door = door
			_, err := tx.ExecContext(ctx,
				`INSERT INTO services (service, port, door, share, group_id, restarts, stop_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
				l.ID, l.Service.Port, door, l.Service.Share.With,
				sql.NullInt64{Int64: l.Service.Share.group, Valid: l.Service.Share.group != 0}, l.Service.Restarts,
				l.Service.StopAt.UnixMilli())
			return err
		}
	}
	return refuse("All %d addresses that this lab has for services are in use, or rest for %s after somebody else's. "+
		"Stop a service of yours, or ask an admin for more (servicePorts in the configuration).", len(t.doors),
		units.Lasting(doorRest))
}

// formerDoor is what a port of the head was before.
type formerDoor struct {
	closed bool // it is in use, or was somebody else's a short while ago
	own    bool // it was this person's
	kept   bool // it is, and nobody else's for a while
	named  bool // for a service of this name
}

func formerDoors(ctx context.Context, tx *sql.Tx, l *Launch) (map[int]formerDoor, error) {
	r, err := tx.QueryContext(ctx, `SELECT door, user_id = ?, user_id = ?
		AND name = ?, max(state <> 'ended'), max(coalesce(ended_at, 0))
		FROM services JOIN launches ON id = service GROUP BY door, user_id, name`, l.UserID, l.UserID, l.Name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	former := map[int]formerDoor{}
	for r.Next() {
		var door int
		var own, named, active bool
		var until int64
		if err := r.Scan(&door, &own, &named, &active, &until); err != nil {
			return nil, err
		}
		d := former[door]
		rests := l.Requested.UnixMilli()-until < doorRest.Milliseconds()
		d.closed = d.closed || active || !own && rests
		d.own, d.named, d.kept = d.own || own, d.named || named, d.kept || own && (active || rests)
		former[door] = d
	}
	return former, r.Err()
}

// shape makes a job's pod one of a service: it goes on, and is ready while its
// program takes connections.
func (w *WebService) shape(pod *corev1.Pod, container *corev1.Container) {
	pod.Labels[labelComponent] = componentService
	pod.Spec.ActiveDeadlineSeconds = nil // its stop time may be put off
	if w.Restarts {
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	}
	port := int32(w.Port) //nolint:gosec // it is at most 65535
	container.Ports = []corev1.ContainerPort{{ContainerPort: port, Protocol: corev1.ProtocolTCP}}
	container.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(port)}},
		PeriodSeconds: 3, TimeoutSeconds: 2, FailureThreshold: 3,
	}
}

// startLine stands in the log before a program that is started again.
func (l Launch) startLine() string {
	if l.Service != nil {
		return "[gpulab: it is started]\n"
	}
	return l.Job.tryLine()
}

// programEnv is what the program finds in its environment beside what every job has.
func (l Launch) programEnv() map[string]string {
	if l.Service == nil {
		return l.taskEnv()
	}
	port := strconv.Itoa(l.Service.Port)
	return map[string]string{
		"GPULAB_SERVICE_PORT": port, "GPULAB_SERVICE_NAME": l.Name, "GPULAB_SERVICE_PREFIX": "/",
		// By which some well-known ones listen where they are reached.
		"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": port,
		"STREAMLIT_SERVER_PORT": port, "STREAMLIT_SERVER_HEADLESS": "true",
	}
}

// TensorBoard makes it a request for TensorBoard on a folder of the home, "" for
// all of it.
func (r *ServiceRequest) TensorBoard(folder string) {
	const port = 6006
	r.Port = port
	r.Args = []string{"tensorboard", "--logdir", ".", "--host", "0.0.0.0", "--port", strconv.Itoa(port)}
	r.Dir = cmp.Or(strings.TrimSpace(folder), r.Dir)
	r.Name = cmp.Or(r.Name, "tensorboard")
	r.Environment = cmp.Or(r.Environment, tensorBoardEnvironment)
}

// tensorBoardEnvironment is the one that the lab's catalogue has for it.
const tensorBoardEnvironment = "tensorboard"

// serviceEnvironment finds the environment of a service. Where TensorBoard is not
// there, it says how it gets there.
func (s *Service) serviceEnvironment(name string) (Environment, error) {
	e, err := s.environment(name)
	if no := (*JobError)(nil); errors.As(err, &no) && name == tensorBoardEnvironment {
		return e, refuse("This lab has no TensorBoard yet. An admin adds it with one command on the head: gpulab env " +
			"create --from tensorboard. Where another environment has it, name that one.")
	}
	return e, err
}
