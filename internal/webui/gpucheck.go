package webui

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/gpulab/gpulab/internal/units"
)

// checkShown is how long the result of a test stays on the page.
const checkShown = 10 * time.Minute

// lastCheck is how the latest test of a GPU ended.
type lastCheck struct {
	mu   sync.Mutex
	at   time.Time
	text string
	tone tone
}

func (c *lastCheck) set(at time.Time, kind tone, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.tone, c.text = at, kind, text
}

// checkView is the result as the page shows it; an empty text is none.
type checkView struct {
	Tone tone
	Text string
	When string
}

func (c *lastCheck) view(now time.Time) checkView {
	c.mu.Lock()
	defer c.mu.Unlock()
	age := now.Sub(c.at)
	if age > checkShown {
		return checkView{}
	}
	return checkView{Tone: c.tone, Text: c.text, When: units.Lasting(age) + " ago"}
}

// checkGPU lets a test pod compute on a GPU. It takes some seconds, for which
// the browser waits.
func (s *Server) checkGPU(_ http.ResponseWriter, r *http.Request, v visitor) error {
	saw, err := s.cfg.CheckGPU(context.WithoutCancel(r.Context()))
	if err != nil {
		s.check.set(s.now(), "bad", sentence(err.Error()))
	} else {
		s.check.set(s.now(), "ok", sentence("a test pod saw "+saw))
	}
	s.audit(r, v, "gpu.check", "", saw)
	return seeOther("/gpus")
}
