package webui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// A networkView is what somebody's notebooks reach beyond the internet.
type networkView struct {
	ctl.Network
	// Everybodys tells the whole list from one person's part of it.
	Everybodys bool
}

// networkPage tells people what their notebooks may reach, and administrators
// what everybody's may.
func (s *Server) networkPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	status, err := s.cfg.Status.Status(r.Context())
	if err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	view := networkView{Network: status.Network, Everybodys: v.may(users.ActionManageLab)}
	if !view.Everybodys {
		if view.Network, err = s.ownNetwork(r.Context(), v, status.Network); err != nil {
			return err
		}
	}
	s.render(w, r, http.StatusOK, networkPage(s.page(w, r, v, "What a notebook may reach", ""), view))
	return nil
}

// ownNetwork leaves out what is for groups that the visitor is not in, and what
// only administrators can mend.
func (s *Server) ownNetwork(ctx context.Context, v visitor, all ctl.Network) (own ctl.Network, err error) {
	groups, err := s.cfg.Users.Memberships(ctx, v.session.User.ID)
	if err != nil {
		return own, err
	}
	own.Proxy = all.Proxy
	for i := range all.Allow {
		a := all.Allow[i]
		mine := len(a.Groups) == 0 || slices.ContainsFunc(groups, func(m users.Membership) bool {
			return slices.Contains(a.Groups, m.Group)
		})
		if mine && a.Problem == "" {
			a.Groups = nil
			own.Allow = append(own.Allow, a)
		}
	}
	return own, nil
}

func portWords(ports []uint16) string {
	switch len(ports) {
	case 0:
		return "all ports"
	case 1:
		return fmt.Sprintf("port %d", ports[0])
	}
	var list []string
	for _, p := range ports {
		list = append(list, strconv.Itoa(int(p)))
	}
	return "ports " + strings.Join(list, ", ")
}

func groupWords(groups []string) string {
	if len(groups) == 0 {
		return "everybody"
	}
	return strings.Join(groups, ", ")
}
