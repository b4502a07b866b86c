// Package idle gives a GPU that nobody uses to somebody who waits.
//
// # Judgement
//
// Whether a notebook is in use is judged by five kinds of activity together: its GPUs, its processors and its network
// are measured from outside ([Usage], and the readings of the fleet); what its kernels and terminals do, its own
// Jupyter server tells ([Claims]). A notebook has been idle since the last of them. A browser is none of them: a kernel
// that computes is at work without one, and an open tab alone is not.
//
// A notebook is controlled by its owner, so what it says of itself is believed for [believed] after something was
// measured from outside. And where the policy says so, GPUs that have done nothing for long enough (Policy.Unused)
// count as idle whatever the rest of the notebook does, so that a loop on a processor does not hold a GPU for ever.
//
// Only time counts in which a notebook could be watched: while gpulab is not running, while the machine sleeps or is
// not heard, no time passes, and countdowns wait. What is known is in the database and outlives restarts.
//
// # What comes of it
//
// While somebody waits whom such a GPU would serve (Policy.Act), the notebook that has been idle longest is warned: its
// owner sees a countdown on the home page and in JupyterLab, and can say that they still need it, a bounded number of
// times. A warning is taken back when the notebook is used again, or when nobody waits any more. At the end of the
// countdown the notebook is stopped; its home is kept. What was taken back, from whom and for whom, is kept for good.
//
// Every step is one conditional change of a row in the database: of an extension and a stop in the same moment exactly
// one happens, and whoever comes second is told.
//
// cmd/gpulab wires the package; pages and commands ask it through interfaces of their own.
package idle

import (
	"errors"
	"fmt"
	"time"
)

// Kind is a kind of activity.
type Kind string

// The kinds, in the order in which people see them.
const (
	GPU      Kind = "gpu"
	CPU      Kind = "cpu"
	Kernel   Kind = "kernel"
	Terminal Kind = "terminal"
	Network  Kind = "network"
)

// Kinds lists them.
func Kinds() []Kind { return []Kind{GPU, CPU, Kernel, Terminal, Network} }

// Words names a kind for people.
func (k Kind) Words() string {
	return map[Kind]string{GPU: "GPU", CPU: "processors", Kernel: "kernels", Terminal: "terminals", Network: "network"}[k]
}

const (
	// busyCores is from how many processor cores on average a notebook is at work. JupyterLab with an open tab takes
	// about a twentieth of one.
	busyCores = 0.2
	// busyBytes is from how many bytes a second, both ways and without what goes to browsers, its network is in use.
	busyBytes = 64 << 10
	// busyShare is from what share of a GPU's time, in percent, somebody is at work on it, as in the ledger.
	busyShare = 1
	// believed is how long a notebook's own word counts after something was measured.
	believed = 2 * time.Hour
)

// Notebook is one that runs.
type Notebook struct {
	Launch  int64
	UserID  int64
	Handle  string
	Name    string // of the server
	Title   string
	Profile string
	GPUs    int
	Node    string
	PodUID  string
	Ready   time.Time
	// Waited says that its owner had to wait for it, and may be elsewhere by now; Browsed that a browser had an answer of
	// it.
	Waited, Browsed bool
	Policy          Policy
}

// Usage is what has been measured of a notebook's pod so far.
type Usage struct {
	At  time.Time     // when
	CPU time.Duration // of processors, since it began
	// Bytes of its network both ways since it began, without what went to and came from browsers.
	Bytes int64
}

// Claims are what a notebook's own server tells.
type Claims struct {
	KernelBusy bool
	Kernel     time.Time // when a kernel last did something; zero for never
	Terminal   time.Time // the same of a terminal
	// CannotAsk says that it could not be asked through no fault of the notebook: then nothing is known of it.
	CannotAsk bool
}

// Waiting is a launch that waits for GPUs.
type Waiting struct {
	Launch int64
	Handle string
	GPUs   int
	Nodes  []string // the machines that would do
	// Keeps is the one of them that is kept for it, "" for none: what gets free there
	// is given to nobody behind it.
	Keeps string
}

// Queue is who waits for GPUs, in order, and what is free or about to be.
type Queue struct {
	Free    map[string]int // GPUs by machine
	Waiting []Waiting
}

// State is where a notebook stands.
type State string

// The states.
const (
	Free    State = "free"    // nothing is to happen to it
	Warned  State = "warned"  // it is stopped at Ends
	Stopped State = "stopped" // that was decided, and cannot be undone
)

// Cause says why a notebook is warned or was stopped.
type Cause string

// The causes.
const (
	CauseIdle  Cause = "idle"  // nobody used its GPUs
	CauseAge   Cause = "age"   // it ran as long as one may
	CauseFreed Cause = "freed" // an admin did it
)

// Holding is what is known of a running notebook.
type Holding struct {
	Notebook
	State State
	Cause Cause
	// Seen is when each kind of activity was seen last. Time that nobody could watch is taken out.
	Seen map[Kind]time.Time
	// IdleSince is when it was used last, Since when it was ready.
	IdleSince, Since time.Time
	// Idle is how long it has not been used, Unused its GPUs themselves.
	Idle, Unused time.Duration
	Forgotten    bool      // its turn has come, and nobody has opened it
	Warned       time.Time // when its owner was, by the clock of then: another warning has another; zero for none
	Ends         time.Time // of the countdown, while it is warned
	Until        time.Time // until when it was extended, zero for not
	Extensions   int       // how often it was
	WantedBy     string    // who waits for it, "" for nobody
	WantedLaunch int64
}

// Idly reports whether its GPUs are held without use, so that it is worth telling.
func (h Holding) Idly() bool { return h.GPUs > 0 && h.Idle >= min(worthTelling, h.Policy.After) }

// worthTelling is from when on people see that a GPU is held and idle, at the latest.
const worthTelling = 5 * time.Minute

// MayExtend reports whether its owner can keep it once more.
func (h Holding) MayExtend() bool { return h.State == Warned && h.Extensions < h.Policy.Extensions }

// Reclaim is a notebook that was taken back.
type Reclaim struct {
	ID        int64         `json:"id"`
	At        time.Time     `json:"at"`
	Launch    int64         `json:"launch"`
	User      string        `json:"user"` // whose it was
	Profile   string        `json:"profile"`
	Node      string        `json:"node,omitempty"`
	GPUs      int           `json:"gpus"`
	Cause     Cause         `json:"cause"`
	Idle      time.Duration `json:"-"` // for how long it had not been used
	Ran       time.Duration `json:"-"`
	For       string        `json:"for,omitempty"` // who waited for it
	ForLaunch int64         `json:"forLaunch,omitempty"`
	By        string        `json:"by"` // a handle, root, or system
}

// Errors of an extension; each reads as a sentence.
var (
	ErrNotWarned = errors.New("this notebook is not about to be stopped")
	ErrNoMore    = errors.New("this notebook cannot be kept longer: it was as often as is allowed. Use its GPU, " +
		"and it stays")
	ErrTooLate = errors.New("it was too late: this notebook had just been stopped. Files in the home folder are " +
		"still there")
	ErrNotIdle = errors.New("its GPU is in use. Stop the notebook if it has to end all the same")
)

// Left writes what is left of a countdown: "9:41".
func Left(d time.Duration) string {
	s := int((max(d, 0) + time.Second - 1) / time.Second)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s%3600/60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
