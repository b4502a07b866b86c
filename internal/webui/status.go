package webui

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
)

// A statusView is what the status page shows.
type statusView struct {
	ctl.Status
	Charts []ctl.Chart
}

func (s *Server) statusView(ctx context.Context) (statusView, error) {
	status, err := s.cfg.Status.Status(ctx)
	if err != nil {
		return statusView{}, fmt.Errorf("read status: %w", err)
	}
	view := statusView{Status: status}
	// While the cluster does not answer, the page shows the rest.
	view.Charts, _ = s.cfg.Status.Charts(ctx)
	return view, nil
}

func (s *Server) statusPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, err := s.statusView(r.Context())
	if err != nil {
		return err
	}
	s.render(w, r, http.StatusOK, statusPage(s.page(w, r, v, "Status", "view=status"), view))
	return nil
}

// notWell counts the components that need a look.
func notWell(components []ctl.Component) int {
	n := 0
	for _, c := range components {
		if c.State != ctl.OK && c.State != ctl.Off {
			n++
		}
	}
	return n
}

var stateTones = map[ctl.State]tone{
	ctl.OK: "ok", ctl.Starting: "info", ctl.Warning: "warn", ctl.Failed: "bad", ctl.Off: "",
}

// chartTone colours Helm's words.
func chartTone(state string) tone {
	switch {
	case state == "deployed":
		return "ok"
	case state == "failed":
		return "bad"
	case strings.HasPrefix(state, "pending-"):
		return "info"
	}
	return "warn"
}

// statusParts is the live part of the status page.
func (s *Server) statusParts() parts {
	return func(ctx context.Context, t *tick) ([]part, error) {
		view, err := t.news.status.get(struct{}{}, func() (statusView, error) {
			return s.statusView(context.WithoutCancel(ctx))
		})
		if err != nil {
			return nil, err
		}
		return []part{{id: "status", body: statusBody(view), same: everybody}}, nil
	}
}
