package webui

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/a-h/templ"

	"github.com/gpulab/gpulab/internal/users"
)

// A page is what every page's frame shows around its content.
type page struct {
	Title, Lab, Version string
	// Path marks the current entry of the navigation.
	Path    string
	Nav     []navLink
	Visitor visitor
	CSRF    string
	Theme   string // "", "light" or "dark"
	// Moved is where the lab is if its address has become another, Others are
	// further ways in.
	Moved  string
	Others []string
	// Live is the address of the stream of this page's live parts, or empty.
	Live string
	// Notebooks is the authority of the visitor's notebooks, such as lab.example:21000, where
	// a script tries whether WebSockets work; "" for pages of people who are not signed in.
	Notebooks string
	// Forward is the port of the visitor's notebooks if they have to forward it; "" if not.
	Forward string
	// Charts says that the page draws curves.
	Charts bool
	// Waiting counts the requests for an account, on the list of people.
	Waiting int
	// SignUp says that anybody may ask for an account.
	SignUp bool
	asset  func(name string) string
}

type navLink struct{ Path, Label, Icon string }

// htmxConfig keeps htmx inside the Content-Security-Policy and makes live
// parts reconnect quickly.
var htmxConfig = mustJSON(map[string]any{
	"includeIndicatorCSS": false,
	"history":             false,
	"extensions":          "sse",
	"sse":                 map[string]any{"reconnectDelay": 500, "reconnectMaxDelay": 5000, "connectTimeout": 10000},
})

func mustJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// page describes the frame for a request. live is the query of its stream of
// live parts, such as "view=home", or empty.
func (s *Server) page(w http.ResponseWriter, r *http.Request, v visitor, title, live string) page {
	p := page{Title: title, Lab: s.cfg.LabName, Version: s.cfg.Version, Path: r.URL.Path, Visitor: v,
		CSRF: formToken(w, r, v), asset: s.files.url}
	if cookie, err := r.Cookie("gpulab-theme"); err == nil && (cookie.Value == "light" || cookie.Value == "dark") {
		p.Theme = cookie.Value
	}
	if live != "" {
		p.Live = "/events?" + live
		if v.signedIn {
			p.Live += "&session=" + v.session.ID
		}
	}
	p.Moved, p.Others = s.elsewhere(r)
	p.SignUp = s.cfg.SignUp
	if v.signedIn {
		p.Waiting = s.waiting(r, v)
		p.Notebooks = s.notebooksAt(r, v.session.User.ID)
		if p.Notebooks != "" && s.forwarded(r) {
			p.Forward = "443"
			if _, port, err := net.SplitHostPort(p.Notebooks); err == nil {
				p.Forward = port
			}
		}
		w.Header().Set("Content-Security-Policy", contentPolicy(p.Notebooks))
		p.Nav = navFor(v)
	}
	return p
}

// elsewhere is where else the lab is for this visitor.
func (s *Server) elsewhere(r *http.Request) (moved string, others []string) {
	name, ok := host(r)
	if !ok || s.cfg.Elsewhere == nil {
		return "", nil
	}
	return s.cfg.Elsewhere(name)
}

func navFor(v visitor) []navLink {
	nav := []navLink{
		{"/", "Home", "house"}, {"/jobs", "Jobs", "play"}, {"/services", "Services", "server"}, {"/gpus", "GPUs", "gpu"},
		{"/use", "Use", "clock"}, {"/folders", "Folders", "folder"}, {"/environments", "Environments", "package"},
	}
	if v.may(users.ActionManageUsers) {
		nav = append(nav, navLink{"/users", "Users", "users"})
	} else if v.may(users.ActionInvite) {
		nav = append(nav, navLink{"/invitations", "Invite", "users"})
	}
	if v.may(users.ActionSeePeople) && !v.may(users.ActionManageUsers) {
		nav = append(nav, navLink{"/groups", "My groups", "users"})
	}
	if v.may(users.ActionManageQuotas) {
		nav = append(nav, navLink{"/quotas", "Quotas", "gauge"})
	}
	if v.may(users.ActionSeeAudit) {
		nav = append(nav, navLink{"/audit", "Audit", "shield-check"})
	}
	if v.may(users.ActionManageLab) {
		nav = append(nav, navLink{"/machines", "Machines", "cpu"}, navLink{"/status", "Status", "server"})
	}
	return nav
}

// render writes a page. It is rendered whole first, so that an error can still
// become an error page.
func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, body templ.Component) {
	var buffer bytes.Buffer
	if err := body.Render(r.Context(), &buffer); err != nil {
		if r.Context().Err() != nil {
			return // nobody waits for the page any more
		}
		s.cfg.Log.Error("page did not render", "path", r.URL.Path, "error", err)
		http.Error(w, "Something went wrong here. Try again.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(buffer.Len()))
	w.WriteHeader(status)
	// The only possible error is a client that went away.
	_, _ = w.Write(buffer.Bytes())
}

// zone names the time zone of the times on pages. It is that of now: the one of the lab's
// machine. Curves use the browser's.
func (p page) zone(now time.Time) string {
	name, seconds := now.Zone()
	switch offset := now.Format("UTC-07:00"); {
	case seconds == 0 && name == "UTC":
	case name == "" || name[0] == '+' || name[0] == '-': // as in zones without an abbreviation
		name = offset
	default:
		name += " (" + offset + ")"
	}
	if p.Charts {
		return "Times: " + name + "; curves: your browser’s zone"
	}
	return "Times: " + name
}
