package notebooks

import "slices"

// SeenBy are the services, by launch, that a session has looked at: their pages may still be open in its browser.
func (p *Proxy) SeenBy(sessionID string) []int64 { return p.visitors.of(sessionID) }

func (v *doorVisitors) of(session string) (launches []int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for visit, launch := range v.seen {
		if visit.session == session {
			launches = append(launches, launch)
		}
	}
	slices.Sort(launches)
	return launches
}
