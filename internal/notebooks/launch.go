package notebooks

import (
	"errors"
	"fmt"
	"time"
)

// State is where a launch stands. It moves forward only:
// waiting → starting → running → stopping → ended, where steps may be left out.
// A job that is tried again begins anew.
type State string

// The states of a launch.
const (
	Waiting  State = "waiting"  // no room yet; order is by time of the request
	Starting State = "starting" // admitted: its resources are counted as taken
	Running  State = "running"  // its address answers
	Stopping State = "stopping" // asked to stop; its pod may still hold a GPU
	Ended    State = "ended"    // nothing of it is left in the cluster
)

// End codes say in one word why a launch ended; Reason says it in a sentence.
const (
	EndStopped     = "stopped"     // by its owner or an admin
	EndCancelled   = "cancelled"   // before it ran
	EndQuota       = "quota"       // its owner's quota was used up, and the grace period over
	EndFolder      = "folder"      // a shared folder that it had open was taken from its owner
	EndIdle        = "idle"        // nobody used its GPU, and somebody waited or the lab wants it so
	EndAge         = "age"         // it ran as long as the lab lets one run
	EndFailed      = "failed"      // could not be started
	EndExited      = "exited"      // ended from inside, such as File → Shut Down
	EndOutOfMemory = "oom"         // used more memory than its limit
	EndEvicted     = "evicted"     // the machine ran out of memory or disk
	EndInterrupted = "interrupted" // its pod vanished: machine failed or pod deleted
)

// Launch is one notebook, job or service, from the request to its end.
type Launch struct {
	ID        int64     `json:"id"`
	UserID    int64     `json:"userId"`
	Handle    string    `json:"handle"`
	Name      string    `json:"name"` // server name, unique among the user's active launches
	Title     string    `json:"title"`
	Profile   string    `json:"profile"` // slug
	GPUs      int       `json:"gpus"`
	State     State     `json:"state"`
	Reason    string    `json:"reason,omitempty"`  // plain words: why it waits, what it does, why it ended
	EndCode   string    `json:"endCode,omitempty"` // one of the End constants once ended
	Detail    []Step    `json:"detail,omitempty"`
	Requested time.Time `json:"requested"`
	Started   time.Time `json:"started,omitzero"` // admitted
	Ready     time.Time `json:"ready,omitzero"`
	Ended     time.Time `json:"ended,omitzero"`
	Job       *Job      `json:"job,omitempty"` // nil of a notebook
	// Service is set of a service, which is a job that answers on a port.
	Service   *WebService `json:"service,omitempty"`
	URL       string      `json:"url"` // path on the notebooks' origin, "" of a job
	Node      string      `json:"node,omitempty"`
	Pod       string      `json:"pod,omitempty"`
	Placement Placement   `json:"placement,omitzero"`
	GPUUUIDs  []string    `json:"gpuUuids,omitempty"`
	Simulated bool        `json:"simulated,omitempty"` // its GPUs are: no report counts it

	// While waiting: the place in the queue from 1, who holds GPUs now, and
	// whether no free GPU could ever be enough.
	Position int      `json:"position,omitempty"`
	Holders  []Holder `json:"holders,omitempty"`
	Never    bool     `json:"never,omitempty"`
	// Expected is when it may start, judging by how long notebooks have run; zero
	// where that cannot be told.
	Expected time.Time `json:"expected,omitzero"`
}

// Active reports whether the launch has not ended.
func (l Launch) Active() bool { return l.State != Ended }

// Audited names the launch in the audit log. Its title is its owner's own matter.
func (l Launch) Audited() string {
	if l.Service != nil {
		return fmt.Sprintf("service %d, profile %s, %d GPUs, for %s", l.ID, l.Profile, l.GPUs, l.Service.Share)
	}
	if l.Job != nil {
		return fmt.Sprintf("job %d, profile %s, %d GPUs", l.ID, l.Profile, l.GPUs)
	}
	return fmt.Sprintf("launch %d, profile %s", l.ID, l.Profile)
}

// Names of the steps shown while a notebook starts, in order.
const (
	StepQueue     = "queue"
	StepNamespace = "namespace"
	StepImage     = "image"
	StepPod       = "pod"
	StepServer    = "server"
)

// Step is one stage of a start, for the progress page.
type Step struct {
	Name    string        `json:"name"`
	State   string        `json:"state"` // waiting, active, done or failed
	Text    string        `json:"text"`
	Elapsed time.Duration `json:"elapsed"` // 0 until it is active
}

// Holder is a notebook, job or other pod that has GPUs now.
type Holder struct {
	Handle   string    `json:"handle,omitempty"` // "" for a pod that is nobody's notebook
	Notebook string    `json:"notebook,omitempty"`
	Pod      string    `json:"pod"`
	Node     string    `json:"node,omitempty"`
	GPUs     int       `json:"gpus"`
	Since    time.Time `json:"since"`
}

// Request is what a person asks for.
type Request struct {
	Profile string // slug, "" = the first profile
	Title   string // free text, "" = named after the profile
	Instead int64  // a waiting launch to cancel for this one, 0 = none
}

// Errors a person can cause; each reads as a sentence.
var (
	ErrProfileUnknown = errors.New("this lab has no such notebook profile; choose one from the home page")
	ErrTooMany        = errors.New("you already have as many notebooks as one person may have; stop one first")
	ErrTitleInvalid   = errors.New("a title has at most 80 characters, all of them visible")
	ErrNotFound       = errors.New("there is no such notebook")
)

func (l Launch) url() string {
	if l.Service != nil {
		return serviceURL(l.Handle, l.Name)
	}
	if l.Job != nil {
		return ""
	}
	return launchURL(l.Handle, l.Name)
}

func serviceURL(handle, name string) string { return "/service/" + handle + "/" + name + "/" }

func launchURL(handle, name string) string { return "/user/" + handle + "/" + name + "/" }
