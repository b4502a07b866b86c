package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/deviceplugin"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/store"
)

// lentAnywaySetting holds the UUIDs of GPUs that are lent out although somebody
// outside gpulab uses them, as a JSON list.
const lentAnywaySetting = "gpus.lent-anyway"

// lending puts into force which GPUs new pods may get.
type lending struct {
	store *store.Store // nil on a machine that has joined: the head decides
	proxy *deviceplugin.Proxy
	fleet *fleet.Fleet
	slots int // of each GPU

	mu     sync.Mutex
	policy *gpu.Lending
	anyway []string
	// By UUID, since gpulab was started: what fell off the bus, and what was split.
	lost, split map[string]bool
}

func newLending(ctx context.Context, s *store.Store, proxy *deviceplugin.Proxy, f *fleet.Fleet,
	slots int) (*lending, error) {
	l := newObedientLending(proxy, f, slots)
	l.store = s
	text, err := s.Setting(ctx, lentAnywaySetting)
	if err != nil || text == "" {
		return l, err
	}
	if err := json.Unmarshal([]byte(text), &l.anyway); err != nil {
		return nil, fmt.Errorf("the setting %s: %w", lentAnywaySetting, err)
	}
	return l, nil
}

// newObedientLending lends as somebody else decides, see obey.
func newObedientLending(proxy *deviceplugin.Proxy, f *fleet.Fleet, slots int) *lending {
	l := &lending{proxy: proxy, fleet: f, slots: slots, lost: map[string]bool{}, split: map[string]bool{}}
	l.policy = gpu.NewLending(func(uuid string) bool { return slices.Contains(l.anyway, uuid) })
	return l
}

// obey takes over which GPUs are lent out whoever uses them.
func (l *lending) obey(anyway []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.anyway = anyway
}

// lentAnyway lists the GPUs that are lent out whoever uses them.
func (l *lending) lentAnyway() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.anyway)
}

// publish decides about a snapshot and passes it on.
func (l *lending) publish(s gpu.Snapshot) {
	s.GPUs = slices.Clone(s.GPUs) // others read the monitor's own
	l.mu.Lock()
	withheld := l.policy.Decide(time.Now(), &s)
	sick := l.proxy.Sick()
	var held []string
	for i := range s.GPUs {
		if l.slots > 1 {
			s.GPUs[i].Slots = l.slots
		}
		l.remember(&s.GPUs[i])
		// NVIDIA's plugin calls only one share of a shared GPU unhealthy.
		if slices.Contains(sick, s.GPUs[i].UUID) {
			s.GPUs[i].Withheld = failedSentence(&s.GPUs[i], l.lost[s.GPUs[i].UUID])
			if s.GPUs[i].Slots > 1 {
				withheld = append(withheld, s.GPUs[i].UUID)
			}
		}
		if g := &s.GPUs[i]; l.split[g.UUID] && len(g.Holders) == 0 && g.Withheld == "" {
			g.Withheld = splitSentence(g)
			withheld = append(withheld, g.UUID)
		}
		if len(s.GPUs[i].Holders) > 0 {
			held = append(held, s.GPUs[i].UUID)
		}
		s.GPUs[i].LentAnyway = slices.Contains(l.anyway, s.GPUs[i].UUID)
	}
	l.proxy.Lend(withheld, held)
	l.mu.Unlock()
	l.fleet.Update(s)
}

// offTheBus is the XID of a GPU that does not answer any more. Others follow it.
const offTheBus = 79

// remember notes what stays true of a GPU until the machine has been rebooted.
func (l *lending) remember(g *gpu.GPU) {
	if g.XID != nil && *g.XID == offTheBus {
		l.lost[g.UUID] = true
	}
	if g.MIG {
		l.split[g.UUID] = true
	}
}

// splitSentence says why a GPU in MIG mode is lent to nobody. NVIDIA's plugin lists it
// as a whole, and since it was started in that mode has no way into a container for it.
func splitSentence(g *gpu.GPU) string {
	if g.MIG {
		return fmt.Sprintf("It is split into instances (MIG), which are not lent out. `nvidia-smi -i %d -mig 0` and a "+
			"reboot make it whole again.", g.Index)
	}
	return "It was split into instances (MIG), and is lent out again once the machine has been rebooted."
}

// failedSentence says why a GPU that has failed is given to nobody new, and what
// brings it back. NVIDIA's plugin does not start beside one that is lost, so that it
// must not be told to.
func failedSentence(g *gpu.GPU, lost bool) string {
	why := "It has failed."
	if g.XID != nil {
		why = fmt.Sprintf("It has failed (XID %d: %s).", *g.XID, gpu.ExplainXID(*g.XID).Title)
	}
	if lost {
		return why + " No new notebook gets it until the machine has been rebooted."
	}
	return why + " No new notebook gets it until the machine has been rebooted, or the GPU reset and NVIDIA's plugin " +
		"restarted: `gpulab kubectl -n gpulab-system rollout restart daemonset/nvidia-device-plugin`."
}

// set makes a GPU be lent out whoever uses it, or no longer.
func (l *lending) set(ctx context.Context, uuid string, anyway bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	next := slices.DeleteFunc(slices.Clone(l.anyway), func(u string) bool { return u == uuid })
	if anyway {
		next = append(next, uuid)
	}
	text := ""
	if len(next) > 0 {
		list, err := json.Marshal(next)
		if err != nil {
			return err
		}
		text = string(list)
	}
	if err := l.store.SetSetting(ctx, lentAnywaySetting, text); err != nil {
		return err
	}
	l.anyway = next
	return nil
}

// LendGPU implements ctl.Daemon.
func (l *appliance) LendGPU(ctx context.Context, which string, anyway bool) (gpu.GPU, error) {
	g, err := l.lend(ctx, which, anyway)
	if err != nil {
		return g, err
	}
	return g, l.people.AuditLog().Record(ctx, audit.Entry{Actor: "root", Action: audit.LendAction(anyway), Target: g.UUID})
}

// lend finds the GPU and changes its setting.
func (l *appliance) lend(ctx context.Context, which string, anyway bool) (gpu.GPU, error) {
	parts := l.attached.Load()
	if parts == nil {
		return gpu.GPU{}, errStarting
	}
	g, err := findGPU(l.fleet.Snapshots(), which)
	if err != nil {
		return g, err
	}
	return g, parts.lending.set(ctx, g.UUID, anyway)
}

// findGPU finds a GPU by its number, with its machine's name and a slash before it
// or without, or by its UUID or the beginning of it.
func findGPU(snapshots []gpu.Snapshot, which string) (gpu.GPU, error) {
	var found []gpu.GPU
	slash := strings.LastIndexByte(which, '/') // what a machine is shown as may have some
	number, err := strconv.Atoi(which[slash+1:])
	for _, s := range snapshots {
		for _, g := range s.GPUs {
			numbered := err == nil && g.Index == number && (slash < 0 || which[:slash] == s.Node || which[:slash] == s.Machine())
			if numbered || len(which) >= 8 && strings.HasPrefix(g.UUID, which) {
				found = append(found, g)
			}
		}
	}
	switch len(found) {
	case 0:
		return gpu.GPU{}, fmt.Errorf("there is no GPU %q; `gpulab gpus` lists them", which)
	case 1:
		return found[0], nil
	}
	return gpu.GPU{}, fmt.Errorf("%q names %d GPUs; write MACHINE/NUMBER, or the UUID that `gpulab gpus --json` shows",
		which, len(found))
}

func newGPUsLend(a *app) *cobra.Command {
	var undo bool
	c := &cobra.Command{
		Use: "lend GPU", Short: "Lend a GPU out although somebody outside gpulab uses it",
		Long: `Lend a GPU out although somebody outside gpulab uses it.

New notebooks do not get a GPU that a process outside gpulab is on: the two
would share its memory, and one may end the other. This command makes an
exception for one GPU; --undo takes it back. A desktop session's programs do
not count, and what runs already is never touched. The GPU is a number, with the
machine's name before it where several have one of that number, or a UUID.`,
		Example: "  sudo gpulab gpus lend 1\n  sudo gpulab gpus lend ada/1\n  sudo gpulab gpus lend --undo GPU-51390000-abb0",
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			g, err := a.client().LendGPU(c.Context(), args[0], !undo)
			if err != nil {
				return err
			}
			rule := "is lent out whoever uses it"
			if undo {
				rule = "is lent out only while nobody outside gpulab uses it"
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "GPU %d (%s) %s.\n", g.Index, g.UUID, rule)
			return err
		},
	}
	c.Flags().BoolVar(&undo, "undo", false, "lend it out only while nobody outside gpulab uses it, as before")
	return c
}
