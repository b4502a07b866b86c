package notebooks

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

const notYourNotebook = "This notebook belongs to somebody else."

// ServeHTTP serves a person's notebooks at their port (see [AtPort]) or label (see
// [Origins.AtLabels]). Elsewhere, which is at HubPort, it leads from the lasting addresses
// of notebooks and services to where they are now, and serves nothing else: one origin for
// all would make each page there a neighbour of everybody's notebooks. gpulab's own origin
// passes /user/, /service/ and [EnterPath] to it.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !p.allowed(w, r) {
		return
	}
	o, personal := arrivalOf(r)
	where := r.URL.EscapedPath()
	switch {
	case strings.HasPrefix(where, "/user/") && personal:
		p.serveNotebook(w, r, where, o.port)
	case strings.HasPrefix(where, "/user/"):
		p.serveNotebookAddress(w, r, where)
	case strings.HasPrefix(where, "/service/") && !personal:
		p.serveServiceAddress(w, r, where)
	case (where == "/hub" || strings.HasPrefix(where, "/hub/")) && personal:
		p.serveHub(w, r, where, o.port)
	case strings.HasPrefix(where, "/gpulab/") && personal:
		p.serveOwn(w, r, where, o)
	case where == EnterPath && !personal:
		p.serveEnter(w, r)
	default:
		p.elsewhere(w, r, http.StatusNotFound, "There is nothing here.", "/")
	}
}

// enterOrigin finds the session of a visitor to somebody's notebooks, or answers
// the request itself: only their owner gets in, from no page of another origin.
func (p *Proxy) enterOrigin(w http.ResponseWriter, r *http.Request, port int) (*http.Request, *visit, bool) {
	r, visit, ok := p.enter(w, r)
	if !ok {
		return r, nil, false
	}
	switch owner, ok := p.cfg.Origins.Owner(port); {
	case !ok || owner != visit.session.User.ID:
		p.refuse(w, r, http.StatusForbidden, notYourNotebook)
	case crossOrigin(r):
		p.refuse(w, r, http.StatusForbidden, "This request comes from another site.")
	default:
		return r, visit, true
	}
	p.gate.leave(visit)
	return r, nil, false
}

func (p *Proxy) serveNotebookAddress(w http.ResponseWriter, r *http.Request, where string) {
	handle, _, _ := strings.Cut(where[len("/user/"):], "/")
	r, visit, ok := p.enter(w, r)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	switch {
	case !mayUse(visit.session.User, handle):
		p.refuse(w, r, http.StatusForbidden, notYourNotebook)
		return
	case !isPage(r):
		p.refuse(w, r, http.StatusGone, "Notebooks have moved to an address of their own. Reload this page.")
		return
	}
	authority, err := p.cfg.Origins.Authority(r.Context(), hostname(r), visit.session.User.ID)
	var told *users.Error
	switch {
	case errors.As(err, &told):
		p.refuse(w, r, http.StatusServiceUnavailable, told.Text)
	case err != nil:
		p.log.Error("the address of a person's notebooks cannot be looked up", "user", handle, "error", err)
		p.refuse(w, r, http.StatusInternalServerError, "gpulab could not look up the address of your notebooks. Try again.")
	default:
		p.moved(w, r, "https://"+authority+r.URL.RequestURI())
	}
}

// moved leads a browser to another origin of the lab.
func (p *Proxy) moved(w http.ResponseWriter, r *http.Request, target string) {
	own(w)
	// No redirect: the way here may have begun with the form of the sign-in, and a
	// form of gpulab's leads to no other origin.
	w.Header().Set("Refresh", "0; url="+target)
	w.WriteHeader(http.StatusOK)
}
