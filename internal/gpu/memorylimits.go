package gpu

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Whether a driver can keep somebody within an amount of a GPU's memory.
const (
	MemoryLimitsEnforced    = "enforced"
	MemoryLimitsOldDriver   = "old driver"
	MemoryLimitsOldCgroups  = "control groups v1"
	MemoryLimitsUnsupported = "not supported"
	MemoryLimitsMIG         = "MIG" // instances have memory of their own
	MemoryLimitsJoined      = "joined machine"
)

// MemoryLimitsInWords says it for people, as one of the facts about a GPU; ""
// where nothing is known.
func MemoryLimitsInWords(is string) string {
	switch is {
	case MemoryLimitsEnforced:
		return "enforced by the driver"
	case MemoryLimitsOldDriver:
		return "measured; the driver is too old to enforce them"
	case MemoryLimitsOldCgroups:
		return "measured; the driver could enforce them with version 2 of control groups"
	case MemoryLimitsUnsupported:
		return "measured; the driver cannot enforce them on this GPU"
	case MemoryLimitsJoined:
		return "measured; the driver enforces them on the head only"
	case MemoryLimitsMIG:
		return "each MIG instance has memory of its own"
	}
	return ""
}

// MemoryLimit is how much of a GPU's memory the processes of a control group may
// take together.
type MemoryLimit struct {
	UUID string `json:"uuid"`
	// Cgroup is the full path of the group's folder.
	Cgroup string `json:"cgroup"`
	Bytes  uint64 `json:"bytes"` // NoMemoryLimit takes the limit away
}

// NoMemoryLimit is the driver's word for none.
const NoMemoryLimit = math.MaxUint64

// MemoryLimiterConfig describes a MemoryLimiter. ProbePath and Limit are needed.
type MemoryLimiterConfig struct {
	// ProbePath is the program gpulab-probe, Library the path of libnvidia-ml.so.1
	// as the Monitor has it.
	ProbePath, Library string
	// Cgroups is where control groups are mounted. Default /sys/fs/cgroup.
	Cgroups string
	// Limit is how much memory of all GPUs somebody may have taken; nil for no limit.
	Limit func(ctx context.Context, handle string) (*uint64, error)
}

// MemoryLimiter keeps people within their share of GPUs' memory by the driver,
// where that can: a program that asks for more is refused it by CUDA. A limit is
// one of a container on one GPU; what the same person's programs have taken
// elsewhere is taken off it. Two notebooks that ask in the same second may
// therefore go beyond it together.
type MemoryLimiter struct {
	cfg  MemoryLimiterConfig
	pods map[string]string // folder of a pod's control group, by its UID

	mu      sync.Mutex
	inForce map[target]uint64
	drivers map[string]driverState // by the GPU's UUID
}

// driverState is what came of asking the driver for limits on a GPU.
type driverState struct {
	busy   bool
	failed string    // why limits are not in force
	again  time.Time // not before then, after a failure
}

// target is a container on a GPU.
type target struct{ uuid, cgroup string }

// NewMemoryLimiter returns a limiter that does nothing until Keep.
func NewMemoryLimiter(cfg MemoryLimiterConfig) *MemoryLimiter {
	cfg.Cgroups = cmp.Or(cfg.Cgroups, "/sys/fs/cgroup")
	return &MemoryLimiter{
		cfg: cfg, pods: map[string]string{}, inForce: map[target]uint64{}, drivers: map[string]driverState{},
	}
}

// Run keeps the limits as the newest snapshot asks for, once a second, until ctx ends.
func (l *MemoryLimiter) Run(ctx context.Context, latest func() (Snapshot, bool)) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if s, ok := latest(); ok && s.Error == "" {
			if err := l.keep(ctx, s); err != nil && ctx.Err() == nil {
				slog.Warn("limits of GPU memory are not looked after; trying again", "err", err)
			}
		}
	}
}

// keep sets what is not in force yet. The driver is asked beside it, for each GPU
// by a process of its own: one that hangs leaves the others alone.
func (l *MemoryLimiter) keep(ctx context.Context, s Snapshot) error {
	wanted, err := l.wanted(ctx, s)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.inForce, func(t target, _ uint64) bool { _, still := wanted[t]; return !still })
	missing := map[string][]MemoryLimit{}
	for t, most := range wanted {
		d := l.drivers[t.uuid]
		if is, known := l.inForce[t]; (!known || is != most) && !d.busy && time.Now().After(d.again) {
			missing[t.uuid] = append(missing[t.uuid], MemoryLimit{UUID: t.uuid, Cgroup: t.cgroup, Bytes: most})
		}
	}
	for uuid, list := range missing {
		d := l.drivers[uuid]
		d.busy = true
		l.drivers[uuid] = d
		go l.set(ctx, uuid, list)
	}
	return nil
}

// step is to what amounts limits are rounded: what programs have taken moves all
// the time, and not every byte of it is worth asking the driver.
const step = 64 << 20

// wanted is what every container on a GPU that can keep limits may take.
func (l *MemoryLimiter) wanted(ctx context.Context, s Snapshot) (map[target]uint64, error) {
	wanted := map[target]uint64{}
	limits := map[string]*uint64{}
	pods := map[string]string{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.MemoryLimits != MemoryLimitsEnforced || g.Error != "" || g.MemoryTotal == nil {
			continue
		}
		for _, h := range g.Holders {
			if h.User == "" || h.UID == "" {
				continue
			}
			limit, asked := limits[h.User]
			if !asked {
				var err error
				if limit, err = l.cfg.Limit(ctx, h.User); err != nil {
					return nil, err
				}
				limits[h.User] = limit
			}
			most := uint64(NoMemoryLimit)
			if limit != nil {
				elsewhere := (takenElsewhere(s.GPUs, g.UUID, h.PodRef) + step - 1) / step * step
				most = min(*limit-min(*limit, elsewhere), *g.MemoryTotal)
			}
			pods[h.UID] = l.podGroup(h.UID)
			for _, group := range containerGroups(pods[h.UID]) {
				wanted[target{g.UUID, group}] = most
			}
		}
	}
	l.pods = pods
	return wanted, nil
}

// takenElsewhere is how much the programs of a pod's owner have taken but for
// those in the pod on that GPU.
func takenElsewhere(gpus []GPU, uuid string, pod PodRef) (bytes uint64) {
	for i := range gpus {
		for _, p := range gpus[i].Processes {
			if p.Pod.User == pod.User && p.MemoryUsed != nil && (p.Pod.UID != pod.UID || gpus[i].UUID != uuid) {
				bytes += *p.MemoryUsed
			}
		}
	}
	return bytes
}

// podGroup finds the folder of a pod's control group, "" while there is none.
func (l *MemoryLimiter) podGroup(uid string) string {
	if known := l.pods[uid]; known != "" {
		if _, err := os.Stat(known); err == nil {
			return known
		}
	}
	const deepest = 6 // kubepods/burstable/podUID, below groups of the machine's own
	names := []string{"pod" + uid, "pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"}
	found := ""
	_ = filepath.WalkDir(l.cfg.Cgroups, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // it has just gone
		case !d.IsDir():
			return nil
		case slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(d.Name(), name) }):
			found = path
			return fs.SkipAll
		case strings.Count(path[len(l.cfg.Cgroups):], "/") > deepest:
			return fs.SkipDir
		}
		return nil
	})
	return found
}

// containerGroups are the folders of the containers of a pod.
func containerGroups(pod string) (groups []string) {
	if pod == "" {
		return nil
	}
	entries, err := os.ReadDir(pod)
	if err != nil {
		return nil // it has ended
	}
	for _, e := range entries {
		if e.IsDir() {
			groups = append(groups, filepath.Join(pod, e.Name()))
		}
	}
	return groups
}

const (
	driverPatience = 30 * time.Second // for the driver to set the limits of a GPU
	driverRest     = 30 * time.Second // after a failure
)

// set asks the driver, and notes what is in force now.
func (l *MemoryLimiter) set(ctx context.Context, uuid string, limits []MemoryLimit) {
	ctx, cancel := context.WithTimeout(ctx, driverPatience)
	defer cancel()
	problems, err := l.ask(ctx, limits)
	l.mu.Lock()
	defer l.mu.Unlock()
	var now driverState
	for i, limit := range limits {
		if err != nil {
			now.failed = err.Error()
		} else if problems[i] == "" {
			l.inForce[target{limit.UUID, limit.Cgroup}] = limit.Bytes
		} else if _, gone := os.Stat(limit.Cgroup); gone == nil {
			now.failed = problems[i]
		}
	}
	if now.failed != "" {
		now.again = time.Now().Add(driverRest)
		if now.failed != l.drivers[uuid].failed {
			slog.Warn("the driver does not keep notebooks within their GPU memory; it is measured instead", "gpu", uuid, "err",
				now.failed)
		}
	}
	l.drivers[uuid] = now
}

// ask runs the probe for limits.
func (l *MemoryLimiter) ask(ctx context.Context, limits []MemoryLimit) (problems []string, err error) {
	input, err := json.Marshal(limits)
	if err != nil {
		return nil, err
	}
	args := []string{"-limits", "-cgroups", l.cfg.Cgroups}
	if l.cfg.Library != "" {
		args = append(args, "-lib", l.cfg.Library)
	}
	cmd := exec.CommandContext(ctx, l.cfg.ProbePath, args...)
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(input), &stderr, time.Second
	output, err := cmd.Output()
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(cmp.Or(strings.TrimSpace(stderr.String()), err.Error()), "gpulab-probe: "))
	}
	if err := json.Unmarshal(output, &problems); err != nil || len(problems) != len(limits) {
		return nil, fmt.Errorf("the GPU probe answers %.100q", output)
	}
	return problems, nil
}

// Enforced says whether the driver keeps the limits of every GPU of a snapshot.
func (l *MemoryLimiter) Enforced(s Snapshot) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range s.GPUs {
		if s.GPUs[i].MemoryLimits != MemoryLimitsEnforced || l.drivers[s.GPUs[i].UUID].failed != "" {
			return false
		}
	}
	return len(s.GPUs) > 0
}
