package notebooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/gpulab/gpulab/internal/users"
)

// share is what a group goes first for: so many GPUs.
type share struct {
	group   string
	gpus    int
	members map[int64]bool // by their number
}

// sharer is a launch that wants GPUs or has some.
type sharer struct {
	launch, user int64
	gpus         int
	held         bool
	priority     int32 // among those that wait, without shares
	requested    time.Time
}

// goFirst says which of the launches that wait go first because their group has
// fewer GPUs than its share, by the name of the group. What a launch holds counts
// for one group only: the first by name of its owner's that has something left.
// The same holds for those that wait, in their order: so no more go first than the
// share has room for.
func goFirst(shares []share, launches []sharer) map[int64]string {
	order := slices.Clone(launches)
	slices.SortStableFunc(order, func(a, b sharer) int {
		switch {
		case a.held != b.held && a.held:
			return -1
		case a.held != b.held:
			return 1
		}
		return cmp.Or(cmp.Compare(b.priority, a.priority), a.requested.Compare(b.requested), cmp.Compare(a.launch, b.launch))
	})
	left := make([]int, len(shares))
	for i, s := range shares {
		left[i] = s.gpus
	}
	first := map[int64]string{}
	for _, l := range order {
		for i, s := range shares {
			switch {
			case !s.members[l.user] || left[i] <= 0 || !l.held && left[i] < l.gpus:
				continue
			case !l.held:
				first[l.launch] = s.group
			}
			left[i] -= l.gpus
			break
		}
	}
	return first
}

// shares are the lab's, with who is in the groups now. A group that is not there
// has no share.
func (s *Service) shares(ctx context.Context) []share {
	var list []share
	for _, group := range slices.Sorted(maps.Keys(s.cfg.Shares)) {
		members, err := s.cfg.People.Members(ctx, group)
		if err != nil {
			if !errors.Is(err, users.ErrGroupNotFound) && ctx.Err() == nil {
				s.log.Warn("who is in a group with a share is not known", "group", group, "error", err)
			}
			continue
		}
		one := share{group: group, gpus: s.cfg.Shares[group], members: map[int64]bool{}}
		for _, m := range members {
			one.members[m.UserID] = true
		}
		list = append(list, one)
	}
	return list
}

// firstByShare says which launches go first for their group. Jobs that may give way
// to everybody go last whatever their group has, and their GPUs count for nobody.
func (s *Service) firstByShare(ctx context.Context, active []Launch) map[int64]string {
	if len(s.cfg.Shares) == 0 {
		return nil
	}
	var launches []sharer
	for _, l := range active {
		if l.GPUs == 0 || s.offers(l) {
			continue
		}
		one := sharer{launch: l.ID, user: l.UserID, gpus: l.GPUs, held: l.State != Waiting, requested: l.Requested}
		if !one.held {
			one.priority = s.priority(ctx, l, false)
		}
		launches = append(launches, one)
	}
	return goFirst(s.shares(ctx), launches)
}

// shareWords say of a launch that waits why it comes before others. The caller holds mu.
func (s *Service) shareWords(l Launch) string {
	group, first := s.first[l.ID]
	if !first || l.State != Waiting {
		return ""
	}
	gpus := s.cfg.Shares[group]
	if gpus == 1 {
		return fmt.Sprintf("It goes before others: group %s has a share of one GPU, and holds none.", group)
	}
	return fmt.Sprintf("It goes before others: group %s has a share of %d GPUs, and holds fewer.", group, gpus)
}
