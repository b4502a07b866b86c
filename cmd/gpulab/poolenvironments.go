package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
)

// environmentOffer is what the head hands over to the pool's machines.
type environmentOffer struct {
	changes uint64 // of the service, when it was looked at
	list    nodeapi.Environments
	cuda    map[string]string // what each needs, "" for nothing, by ID
}

// lookAtEnvironments finds out what there is to hand over. While one cannot be read
// that is an error: machines would remove theirs.
func (p *pool) lookAtEnvironments() (*environmentOffer, error) {
	service, err := p.lab.environments()
	if err != nil {
		return nil, err
	}
	changes := service.Changes()
	if before := p.environments.Load(); before != nil && before.changes == changes {
		return before, nil
	}
	list, err := service.Whole()
	if err != nil {
		if text := err.Error(); p.unreadable.Swap(&text) == nil {
			slog.Warn("no environment is handed over to the pool's machines while one cannot be read", "err", err)
		}
		return nil, err
	}
	p.unreadable.Store(nil)
	offer, sum := &environmentOffer{changes: changes, list: nodeapi.Environments{List: []nodeapi.Environment{}},
		cuda: map[string]string{}}, sha256.New()
	for i := range list {
		e := &list[i]
		offer.list.List = append(offer.list.List, nodeapi.Environment{ID: e.ID(), Mark: e.Mark(), Size: e.Size})
		offer.cuda[e.ID()] = e.CUDA
		if e.Default {
			offer.list.Default = e.ID()
		}
		fmt.Fprintln(sum, e.Mark(), e.Default)
	}
	offer.list.Version = hex.EncodeToString(sum.Sum(nil)[:8])
	p.environments.Store(offer)
	return offer, nil
}

// Environments implements nodeapi.Head.
func (p *pool) Environments(context.Context) (nodeapi.Environments, error) {
	offer, err := p.lookAtEnvironments()
	if err != nil {
		return nodeapi.Environments{}, err
	}
	return offer.list, nil
}

// Environment implements nodeapi.Head.
func (p *pool) Environment(ctx context.Context, id string, w io.Writer) error {
	service, err := p.lab.environments()
	if err != nil {
		return err
	}
	return service.HandOver(ctx, id, w)
}

// lackingEnvironment are the machines that do not have an environment yet. What the
// lab does not have, none lacks.
func (l *appliance) lackingEnvironment(id string) []string {
	members := l.pool.list()
	if len(members) == 0 || l.stayHome() != "" {
		return nil // notebooks and jobs start on the head
	}
	mark := ""
	offer, err := l.pool.lookAtEnvironments()
	if err == nil {
		at := slices.IndexFunc(offer.list.List, func(e nodeapi.Environment) bool { return e.ID == id })
		if at < 0 {
			return nil
		}
		mark = offer.list.List[at].Mark
	}
	var list []string
	l.pool.mu.Lock()
	defer l.pool.mu.Unlock()
	for _, n := range members {
		if m := l.pool.heard[n.Name]; err != nil || m == nil || m.environments == nil ||
			!slices.Contains(m.environments.Have, mark) {
			list = append(list, n.Name)
		}
	}
	return list
}

// unfitForEnvironment are the machines whose GPUs an environment cannot use.
func (l *appliance) unfitForEnvironment(id string) []string {
	offer, err := l.pool.lookAtEnvironments()
	if err != nil {
		return nil
	}
	needs := needsOfCUDA(offer.cuda[id])
	if !needs.Asks() {
		return nil // of GPUs
	}
	var list []string
	for _, s := range l.drivers() {
		if needs.ObstacleTo(id, s) != "" {
			list = append(list, s.Node)
		}
	}
	return list
}

// environmentUses are who uses environments right now, on all machines as far as they
// have told.
func (l *appliance) environmentUses(kube notebookPods) ([]environments.Use, error) {
	list, err := environmentPods("/proc", l.id.NodeName)
	if err != nil {
		return nil, err
	}
	l.pool.mu.Lock()
	for name, m := range l.pool.heard {
		if m.environments == nil {
			continue
		}
		for _, u := range m.environments.Uses {
			list = append(list, environmentUser{u.ID, u.Pod, name})
		}
	}
	l.pool.mu.Unlock()
	return usesOf(list, kube.Notebooks()), nil
}

// certainUses is environmentUses, and an error while a machine on which somebody works
// has not told. One of an earlier version has no environments to tell of.
func (l *appliance) certainUses(kube notebookPods) ([]environments.Use, error) {
	pods := kube.Notebooks()
	for _, n := range l.pool.list() {
		l.pool.mu.Lock()
		m := l.pool.heard[n.Name]
		silent := n.Version == version.Version && (m == nil || m.environments == nil)
		l.pool.mu.Unlock()
		if silent && slices.ContainsFunc(pods, func(p notebooks.PodInfo) bool { return p.Node == n.Name }) {
			return nil, &users.Error{Kind: environments.ErrBusy, Text: fmt.Sprintf("Whether somebody on %s uses it is not "+
				"known: that machine has not told since gpulab was started. Try again in a moment, or force it (`gpulab env "+
				"remove --force`).", l.called(n.Name))}
		}
	}
	return l.environmentUses(kube)
}

// toldEnvironments is a machine's way to the lab's environments, nil while it has nothing to tell.
func toldEnvironments(s *nodeapi.EnvironmentState) *ctl.NodeEnvironments {
	if s == nil || s.Loading == "" && s.Failed == "" {
		return nil
	}
	return &ctl.NodeEnvironments{Loading: s.Loading, Done: s.Done, Failed: s.Failed}
}

// environmentWords say what of the environments is under way: "vision/1, 1.2 GiB so far".
func environmentWords(s *ctl.NodeEnvironments) string {
	if s == nil || s.Loading == "" {
		return ""
	}
	return fmt.Sprintf("%s, %s so far", s.Loading, units.Bytes(uint64(max(s.Done, 0))))
}

// environmentSentence says how a machine is with the lab's environments, "" where it has all.
func environmentSentence(name string, s *ctl.NodeEnvironments) string {
	switch words := environmentWords(s); {
	case words != "":
		return fmt.Sprintf("%s gets environments from the head: %s.", name, words)
	case s != nil && s.Failed != "":
		return fmt.Sprintf("%s lacks environments of the lab: %s. It tries again by itself.", name,
			strings.TrimRight(s.Failed, "."))
	}
	return ""
}
