package signin

import (
	"context"
	"time"
)

// SetClock makes the providers of OpenID Connect read another clock.
func (s *Service) SetClock(now func() time.Time) {
	for i := range s.providers {
		if o, ok := s.providers[i].browser.(*openID); ok {
			o.now = now
		}
	}
}

// Look asks all providers once whether they are there, as Watch does now and again.
func (s *Service) Look(t interface{ Context() context.Context }) {
	for i := range s.providers {
		s.providers[i].look(t.Context())
	}
}
