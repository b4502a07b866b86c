// Package quota says how much of the lab somebody may use, how much of that is used, and ends what goes
// on beyond it after a notice and a grace period.
//
// A limit is set for everybody, for a role, for a group or for one person. Of those that apply to a person
// the strictest holds, per kind; an admin can grant more for a while. What has no limit is not limited.
package quota

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
)

// Kind is what is limited.
type Kind string

// The kinds.
const (
	Notebooks    Kind = "notebooks"      // at once, waiting ones included
	GPUs         Kind = "gpus"           // at once; may be for one model
	GPUHoursWeek Kind = "gpu-hours-week" // held in the last seven days
	GPUHoursTerm Kind = "gpu-hours-term" // held since the term began
	GPUMemory    Kind = "gpu-memory"     // bytes of GPUs' memory that programs have taken, of all notebooks at once
	CPUs         Kind = "cpus"           // cores, of all notebooks at once
	Memory       Kind = "memory"         // bytes, of all notebooks at once
	HomeSize     Kind = "home-size"      // bytes that the home takes on disk
	HomeFiles    Kind = "home-files"     // files and folders in the home
)

// Kinds lists every kind, in the order in which people see them.
func Kinds() []Kind {
	return []Kind{Notebooks, GPUs, GPUHoursWeek, GPUHoursTerm, GPUMemory, CPUs, Memory, HomeSize, HomeFiles}
}

var kindWords = map[Kind]string{
	Notebooks: "notebooks at once", GPUs: "GPUs at once", GPUHoursWeek: "GPU hours in 7 days",
	GPUHoursTerm: "GPU hours this term",
	GPUMemory:    "GPU memory at once", CPUs: "CPU cores at once", Memory: "memory at once", HomeSize: "home size",
	HomeFiles: "files in the home",
}

// Words names the kind for people, with the unit it is counted in.
func (k Kind) Words() string { return kindWords[k] }

// of names the kind of one model, or of any.
func (k Kind) of(model string) string {
	if model != "" {
		return k.Words() + " (" + model + ")"
	}
	return k.Words()
}

// inBytes reports whether the kind is an amount of bytes.
func (k Kind) inBytes() bool { return k == Memory || k == GPUMemory || k == HomeSize }

// Format writes a value of this kind for people.
func (k Kind) Format(value float64) string {
	if k.inBytes() {
		return units.Bytes(uint64(min(value, 1<<63)))
	}
	switch k {
	case GPUHoursWeek, GPUHoursTerm:
		return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) + " h"
	}
	return strconv.FormatFloat(math.Round(value*100)/100, 'f', -1, 64)
}

// Parse reads a value of this kind as people write it: "2", "0.5", "40" (hours), "64Gi".
func (k Kind) Parse(text string) (float64, error) {
	text = strings.TrimSpace(text)
	if k.inBytes() {
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() < 0 {
			return 0, refused(ErrValue, "The %s %q is no size. Write it like 64Gi.",
				map[Kind]string{Memory: "memory", GPUMemory: "GPU memory", HomeSize: "home size"}[k], clip(text))
		}
		return q.AsApproximateFloat64(), nil
	}
	v, err := strconv.ParseFloat(text, 64)
	whole := k == Notebooks || k == GPUs || k == HomeFiles
	if err != nil || math.IsNaN(v) || v < 0 || v > 1e9 || whole && v != math.Trunc(v) {
		if whole {
			return 0, refused(ErrValue, "%q is no number of %s. Write a whole number, 0 for none at all.", clip(text), k.Words())
		}
		return 0, refused(ErrValue, "%q is no number of %s. Write a number such as 40.", clip(text), k.Words())
	}
	return v, nil
}

// ParseKind reads a kind as commands take it, with the model behind a colon: "gpus:NVIDIA-A100".
func ParseKind(text string) (kind Kind, model string, err error) {
	name, model, hasModel := strings.Cut(text, ":")
	kind = Kind(name)
	switch {
	case !slices.Contains(Kinds(), kind):
		var list []string
		for _, k := range Kinds() {
			list = append(list, string(k))
		}
		return "", "", refused(ErrKind, "There is no quota %q. There are %s.", clip(text), strings.Join(list, ", "))
	case hasModel && (kind != GPUs || model == ""):
		return "", "", refused(ErrKind, "Only gpus can be limited by model, such as gpus:NVIDIA-GeForce-RTX-4090.")
	}
	return kind, Model(model), nil
}

// KindName is what ParseKind reads.
func KindName(kind Kind, model string) string {
	if model == "" {
		return string(kind)
	}
	return string(kind) + ":" + model
}

// Model writes a GPU's model the way the labels of nodes do.
func Model(name string) string { return strings.ReplaceAll(strings.TrimSpace(name), " ", "-") }

// Subject is whom a limit is for: everybody when all fields are zero, otherwise one of them is set.
type Subject struct {
	Role  users.Role `json:"role,omitempty"`
	Group string     `json:"group,omitempty"`
	User  string     `json:"user,omitempty"` // handle
}

// ParseSubject reads "everybody", "role:guest", "group:vision" or "user:ada".
func ParseSubject(text string) (Subject, error) {
	kind, name, _ := strings.Cut(strings.TrimSpace(text), ":")
	switch {
	case text == "everybody":
		return Subject{}, nil
	case kind == "role" && users.Role(name).Valid():
		return Subject{Role: users.Role(name)}, nil
	case kind == "group" && name != "":
		return Subject{Group: name}, nil
	case kind == "user" && name != "":
		return Subject{User: name}, nil
	}
	return Subject{}, refused(ErrSubject, "%q is nobody a quota can be for. Write everybody, role:guest, group:NAME or "+
		"user:HANDLE.", clip(text))
}

func (s Subject) String() string {
	switch {
	case s.Role != "":
		return "role:" + string(s.Role)
	case s.Group != "":
		return "group:" + s.Group
	case s.User != "":
		return "user:" + s.User
	}
	return "everybody"
}

// Words says for a person where a limit of theirs comes from.
func (s Subject) Words() string {
	switch {
	case s.Role != "":
		return "for the role " + string(s.Role)
	case s.Group != "":
		return "for the group " + s.Group
	case s.User != "":
		return "for you alone"
	}
	return "for everybody"
}

// Rule is one limit for one subject.
type Rule struct {
	Subject Subject `json:"subject"`
	Kind    Kind    `json:"kind"`
	Model   string  `json:"model,omitempty"` // of GPUs, "" = any
	Value   float64 `json:"value"`           // in the unit of the kind; 0 = none at all
}

// Grant is more of something for one person and a while.
type Grant struct {
	ID     int64     `json:"id"`
	User   string    `json:"user"` // handle
	Kind   Kind      `json:"kind"`
	Model  string    `json:"model,omitempty"`
	Extra  float64   `json:"extra"` // on top of the limit, in the unit of the kind
	Note   string    `json:"note,omitempty"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Ends   time.Time `json:"ends"`
	userID int64
}

// Limit is what holds for one person, of one kind.
type Limit struct {
	Kind  Kind    `json:"kind"`
	Model string  `json:"model,omitempty"`
	Value float64 `json:"value"` // grants included
	// From is where it comes from: the strictest rule.
	From Subject `json:"from"`
	// Extra of Value is granted for a while, until the first of the grants ends.
	Extra float64   `json:"extra,omitempty"`
	Until time.Time `json:"until,omitzero"`
	// Used of it now; 0 and Unknown while that is not known.
	Used    float64 `json:"used"`
	Unknown bool    `json:"unknown,omitempty"`
	// Enforced says of GPU memory that the driver refuses programs more. Otherwise it is measured, and who goes on
	// beyond it gets notice and a grace period.
	Enforced bool `json:"enforced,omitempty"`
	// Measured is when a home's size was taken.
	Measured time.Time `json:"measured,omitzero"`
	// Frees is when hours held begin to drop out of the last seven days, zero when
	// there are none or the kind has no such time.
	Frees time.Time `json:"frees,omitzero"`
}

// What names the limit for people: "GPUs at once (NVIDIA-A100)".
func (l Limit) What() string { return l.Kind.of(l.Model) }

// Why says in words for reader where the limit of somebody comes from.
func (l Limit) Why(of users.User, reader int64) string {
	if l.From.User != "" && of.ID != reader {
		return "for " + of.Handle + " alone"
	}
	return l.From.Words()
}

// How says how a limit of GPU memory is kept, "" for other kinds: they refuse what is new.
func (l Limit) How() string {
	switch {
	case l.Kind != GPUMemory:
		return ""
	case l.Enforced:
		return "enforced by the driver"
	}
	return "measured, not enforced"
}

// Detail is what the audit log tells of a limit that was set, or with no value of one that was taken away.
func Detail(kind Kind, model string, value *float64) string {
	if value == nil {
		return kind.of(model)
	}
	return kind.of(model) + " " + kind.Format(*value)
}

// Detail is what the audit log tells of a grant.
func (g Grant) Detail() string {
	return g.Kind.Format(g.Extra) + " " + g.Kind.of(g.Model) + " until " + g.Ends.Format(time.RFC3339)
}

// strictest is the limit that holds of each kind, with what is granted on top.
func strictest(rules []Rule, grants []Grant) []Limit {
	var limits []Limit
	for _, r := range rules {
		i := slices.IndexFunc(limits, func(l Limit) bool { return l.Kind == r.Kind && l.Model == r.Model })
		switch {
		case i < 0:
			limits = append(limits, Limit{Kind: r.Kind, Model: r.Model, Value: r.Value, From: r.Subject})
		case r.Value < limits[i].Value:
			limits[i].Value, limits[i].From = r.Value, r.Subject
		}
	}
	for _, g := range grants {
		for i := range limits {
			l := &limits[i]
			if l.Kind != g.Kind || l.Model != g.Model {
				continue
			}
			l.Value += g.Extra
			l.Extra += g.Extra
			if l.Until.IsZero() || g.Ends.Before(l.Until) {
				l.Until = g.Ends
			}
		}
	}
	slices.SortStableFunc(limits, func(a, b Limit) int {
		if a.Kind != b.Kind {
			return slices.Index(Kinds(), a.Kind) - slices.Index(Kinds(), b.Kind)
		}
		return cmp.Compare(a.Model, b.Model)
	})
	return limits
}

// Ask is what one notebook takes, running or asked for.
type Ask struct {
	GPUs   int
	Models []string // of the GPUs, as far as they are known
	CPUs   float64  // cores, 0 = not limited
	Memory int64    // bytes, 0 = not limited
}

// of is how much of a kind it takes.
func (a Ask) of(kind Kind, model string) float64 {
	switch kind {
	case Notebooks:
		return 1
	case GPUs:
		if model == "" {
			return float64(a.GPUs)
		}
		n := 0
		for _, m := range a.Models {
			if strings.EqualFold(Model(m), model) {
				n++
			}
		}
		return float64(n)
	case CPUs:
		return a.CPUs
	case Memory:
		return float64(a.Memory)
	}
	return 0
}

// Check refuses what would go beyond a limit, with the reason; nil when it fits. limits say what is used.
func Check(limits []Limit, ask Ask) error {
	for _, l := range limits {
		switch l.Kind {
		case GPUHoursWeek, GPUHoursTerm:
			if ask.GPUs > 0 && l.Value == 0 {
				return refused(errNever, "%s", l.hoursUsedUp())
			}
			if ask.GPUs > 0 && l.Used >= l.Value {
				return refused(ErrUsedUp, "%s", l.hoursUsedUp())
			}
			continue
		case GPUMemory:
			if ask.GPUs > 0 && l.Value == 0 {
				return refused(errNever, "%s A notebook without GPU starts at any time.", l.gpuMemoryUsedUp())
			}
			if ask.GPUs > 0 && l.Used >= l.Value {
				return refused(ErrUsedUp, "%s A notebook without GPU starts at any time.", l.gpuMemoryUsedUp())
			}
			continue
		case HomeSize, HomeFiles:
			continue // a full home can still be read: package storage keeps it
		case CPUs, Memory:
			if l.Kind == CPUs && ask.CPUs == 0 || l.Kind == Memory && ask.Memory == 0 {
				return refused(errNever, "This notebook has no bound of its own for %s, and your quota %s does. Choose another "+
					"one, or ask an admin.",
					map[Kind]string{CPUs: "CPU cores", Memory: "memory"}[l.Kind], l.From.Words())
			}
		}
		more := ask.of(l.Kind, l.Model)
		if more == 0 || l.Used+more <= l.Value+1e-9 {
			continue
		}
		switch {
		case l.Value == 0:
			return refused(errNever, "Your quota allows no %s (%s). Ask an admin for more.", l.What(), l.From.Words())
		case more > l.Value:
			return refused(errNever, "This takes %s; your quota for %s is %s (%s). Choose another notebook, or ask an admin "+
				"for more.",
				l.Kind.Format(more), l.What(), l.Kind.Format(l.Value), l.From.Words())
		}
		return refused(ErrUsedUp, "Your quota for %s is %s (%s), and you use %s. Stop a notebook first, or ask an admin "+
			"for more.",
			l.What(), l.Kind.Format(l.Value), l.From.Words(), l.Kind.Format(l.Used))
	}
	return nil
}

// usedUp says why notebooks with GPUs were stopped.
func (l Limit) usedUp() string {
	if l.Kind == GPUMemory {
		return l.gpuMemoryUsedUp()
	}
	return l.hoursUsedUp()
}

func (l Limit) gpuMemoryUsedUp() string {
	return fmt.Sprintf("Your notebooks have taken %s of GPU memory; your quota is %s (%s).", l.Kind.Format(l.Used),
		l.Kind.Format(l.Value), l.From.Words())
}

// hoursUsedUp says it, and when there are some again.
func (l Limit) hoursUsedUp() string {
	text := fmt.Sprintf("Your quota for %s is used up: %s of %s (%s).", l.What(), l.Kind.Format(l.Used),
		l.Kind.Format(l.Value), l.From.Words())
	if !l.Frees.IsZero() {
		return text + " There are hours again from " + l.Frees.Local().Format("Mon 2 Jan, 15:04") +
			". A notebook without GPU starts at any time."
	}
	return text + " Ask an admin for more. A notebook without GPU starts at any time."
}

// What an error is about. Test with errors.Is; the text of the *users.Error around it is for people.
var (
	ErrUsedUp  = errors.New("quota used up")
	errNever   = fmt.Errorf("%w for good", ErrUsedUp)
	ErrKind    = errors.New("no such kind of quota")
	ErrSubject = errors.New("no such subject of a quota")
	ErrValue   = errors.New("no value of a quota")
	ErrGrant   = errors.New("no such grant")
)

// MayFitLater tells whether Check refused what may fit once less is used.
func MayFitLater(refusal error) bool {
	return errors.Is(refusal, ErrUsedUp) && !errors.Is(refusal, errNever)
}

func refused(kind error, format string, args ...any) error {
	return &users.Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

func clip(text string) string {
	const most = 40
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
