package notebooks

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"
)

// obstacleWait bounds how long a launch is held up to find out whether it can
// work at all.
const obstacleWait = 4 * time.Second

// ObstacleError refuses the launch of a profile that cannot work on this lab's
// GPUs, or any launch while the lab takes none. Its text says why and what to do,
// for people.
type ObstacleError struct{ Text string }

func (e *ObstacleError) Error() string { return e.Text }

// Obstacle says in a sentence or two why a profile cannot be launched now: the lab
// takes no launch, or it cannot work on this lab's GPUs, as far as the last look has
// found out; "" where nothing is known against it.
func (s *Service) Obstacle(slug string) string {
	if why := s.closed(); why != "" {
		return why
	}
	return s.unable(slug)
}

// unable is what the last look has found against a profile.
func (s *Service) unable(slug string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.obstacles[slug]
}

// Unfit are the machines whose GPUs a profile's image cannot use, by name.
func (s *Service) Unfit(slug string) []string {
	p, ok := s.profile(slug)
	if !ok {
		return nil
	}
	return slices.Sorted(maps.Keys(s.unfit(p)))
}

func (s *Service) unfit(p Profile) map[string]string {
	if p.GPUs == 0 || s.cfg.Unfit == nil {
		return nil
	}
	return s.cfg.Unfit(p)
}

// obstacle finds out anew. Only what gets a GPU depends on its driver; what gets
// none may be kept off all machines.
func (s *Service) obstacle(ctx context.Context, p Profile) string {
	if p.GPUs == 0 {
		return s.nowhere(p)
	}
	if s.cfg.Learn != nil {
		ctx, cancel := context.WithTimeout(ctx, obstacleWait)
		defer cancel()
		s.cfg.Learn(ctx, p)
	}
	return s.noneFits(p)
}

// noneFits says why a profile's image can use the GPUs of no machine that it could
// have otherwise, "" where it can use some, or where it could have none anyway.
func (s *Service) noneFits(p Profile) (why string) {
	unfit := s.unfit(p)
	if len(unfit) == 0 {
		return ""
	}
	need, room := s.needOf(p), s.room()
	need.Unfit, need.Lacking = nil, nil
	large := room.has(need)
	for _, n := range room.machines() {
		if large && !n.fits(need) || n.Total.GPUs == 0 || !need.GPUKind.Fits(n) {
			continue
		}
		text, is := unfit[n.Name]
		if !is {
			return ""
		}
		why = cmp.Or(why, text)
	}
	return why
}

// impossible says why no machine of the pool could ever take a launch with GPUs,
// with what there is; "" when one could, or while that is not known.
func (s *Service) impossible(p Profile) string {
	if p.GPUs == 0 || !s.cfg.Cluster.Synced() || s.hold() != "" {
		return ""
	}
	need := s.needOf(p)
	room := s.room()
	if room.has(need) {
		return ""
	}
	return neverWords(need, room)
}

// watchObstacles keeps what pages and the queue know of obstacles.
func (s *Service) watchObstacles(ctx context.Context) {
	if s.cfg.Unfit == nil && s.cfg.Placing == nil {
		return
	}
	timer := time.NewTimer(s.patience.obstacle) // the first look was at the start
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.lookForObstacles(ctx)
		timer.Reset(s.patience.obstacle)
	}
}

func (s *Service) lookForObstacles(ctx context.Context) {
	found := map[string]string{}
	for _, p := range s.cfg.Profiles {
		if why := s.obstacle(ctx, p); why != "" {
			found[p.Slug] = why
		}
	}
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	changed := !maps.Equal(found, s.obstacles)
	s.obstacles = found
	s.mu.Unlock()
	if changed {
		s.kick()
	}
}

// blocked tells whether a launch that waits cannot work here, and shows why. It
// may start once that has changed; until then it holds up nobody.
func (s *Service) blocked(l Launch) bool {
	why, never := s.unable(l.Profile), true
	if why == "" {
		why, never = s.away(l)
	}
	if why == "" {
		return false
	}
	s.with(l.ID, func(t *track) {
		t.begin(StepQueue, l.Requested)
		t.never, t.holders, t.position, t.expected, t.reason = never, nil, 0, time.Time{}, why
	})
	return true
}
