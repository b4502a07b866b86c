package webui

import (
	"context"
	"fmt"
	"net/http"
)

func (s *Server) statusPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	status, err := s.cfg.Status.Status(r.Context())
	if err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	s.render(w, r, http.StatusOK, statusPage(s.page(w, r, v, "Status", "view=status"), status))
	return nil
}

func (s *Server) apiStatus(w http.ResponseWriter, r *http.Request, _ visitor) error {
	status, err := s.cfg.Status.Status(r.Context())
	if err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	writeJSON(w, http.StatusOK, status)
	return nil
}

// notWell counts the components that need a look.
func notWell(components []Component) int {
	n := 0
	for _, c := range components {
		if c.State != "ok" {
			n++
		}
	}
	return n
}

func componentTone(state string) tone {
	switch state {
	case "ok", "deployed":
		return "ok"
	case "failed":
		return "bad"
	case "starting":
		return "info"
	}
	return "warn"
}

// statusParts is the live part of the status page. Reading the status may ask
// the cluster, so it is read when something changed and with each heartbeat.
func (s *Server) statusParts() parts {
	var last []part
	return func(ctx context.Context, fresh bool) ([]part, error) {
		if fresh || last == nil {
			status, err := s.cfg.Status.Status(ctx)
			if err != nil {
				return nil, fmt.Errorf("read status: %w", err)
			}
			last = []part{{id: "status", body: statusBody(status)}}
		}
		return last, nil
	}
}
