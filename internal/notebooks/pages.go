package notebooks

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/coder/websocket"

	"github.com/gpulab/gpulab/internal/cookies"
)

// serveOwn answers gpulab's own few paths on the origin of a person's notebooks.
func (p *Proxy) serveOwn(w http.ResponseWriter, r *http.Request, where string, o arrival) {
	switch where {
	case labelEnter:
		if o.label == "" {
			p.elsewhere(w, r, http.StatusNotFound, "There is nothing here.", "/")
			return
		}
		p.serveLabelEnter(w, r, o)
	case "/gpulab/authorize":
		// The hub sends browsers here to sign in, because it knows neither the
		// name nor the port under which the visitor sees gpulab.
		p.redirect(w, r, "/oidc/authorize?"+r.URL.RawQuery)
	case "/gpulab/logout":
		p.redirect(w, r, p.cfg.LogoutPath)
	case "/gpulab/job":
		// JupyterLab's menu leads here, which knows gpulab's name and port as little.
		q := r.URL.Query()
		p.redirect(w, r, "/jobs?"+url.Values{"notebook": {q.Get("notebook")}, "kernel": {q.Get("kernel")}}.Encode())
	case "/gpulab/service":
		p.redirect(w, r, "/services?"+url.Values{"port": {r.URL.Query().Get("port")}}.Encode())
	case "/gpulab/ping":
		p.ping(w, r)
	case "/gpulab/ws-check":
		p.checkWebSocket(w, r)
	case "/gpulab/notices":
		p.serveNotices(w, r, o.port)
	case "/gpulab/keep":
		p.keepNotebook(w, r, o.port)
	default:
		p.elsewhere(w, r, http.StatusNotFound, "There is nothing here.", "/")
	}
}

// NoticeLength is how many characters of a notice JupyterLab shows; it cuts the rest off.
const NoticeLength = 140

// Notice is something that a person in JupyterLab should know now.
type Notice struct {
	Key  string `json:"key"`  // the same while it is about the same
	Text string `json:"text"` // a sentence or two
	// Left is how many seconds are left of a countdown, 0 for none.
	Left int `json:"left,omitempty"`
	// Keep is the notebook that the person can keep with one click, by launch; 0 for none.
	Keep int64 `json:"keep,omitempty"`
}

// serveNotices answers the extension of JupyterLab that shows them.
func (p *Proxy) serveNotices(w http.ResponseWriter, r *http.Request, port int) {
	_, visit, ok := p.enterOrigin(w, r, port)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	notices := []Notice{}
	if p.cfg.Notices != nil {
		notices = append(notices, p.cfg.Notices(visit.session.User.Handle)...)
	}
	own(w)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(notices)
}

// keepNotebook answers the button of such a notice: its owner still needs a notebook.
func (p *Proxy) keepNotebook(w http.ResponseWriter, r *http.Request, port int) {
	r, visit, ok := p.enterOrigin(w, r, port)
	if !ok {
		return
	}
	defer p.gate.leave(visit)
	launch, err := strconv.ParseInt(r.URL.Query().Get("launch"), 10, 64)
	switch {
	case r.Method != http.MethodPost || p.cfg.Keep == nil:
		p.refuse(w, r, http.StatusMethodNotAllowed, "There is nothing here.")
		return
	case err != nil:
		p.refuse(w, r, http.StatusBadRequest, "Which notebook it is about is missing.")
		return
	}
	text, done := p.cfg.Keep(r.Context(), visit.session.User, launch, remoteIP(r))
	own(w)
	w.Header().Set("Content-Type", "application/json")
	if !done {
		w.WriteHeader(http.StatusConflict)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"done": done, "text": text})
}

// ping lets gpulab's pages see whether a browser trusts this origin's certificate.
func (p *Proxy) ping(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); fromPages(origin, r) {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Vary", "Origin")
	}
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

// checkWebSocket accepts a WebSocket and closes it again: some browsers refuse
// WebSockets, and only these, where a certificate was accepted by hand.
func (p *Proxy) checkWebSocket(w http.ResponseWriter, r *http.Request) {
	if !fromPages(r.Header.Get("Origin"), r) {
		p.refuse(w, r, http.StatusForbidden, "This request comes from another site.")
		return
	}
	// The page that asks is on gpulab's own origin, which is another one.
	conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		return
	}
	defer func() { _ = conn.CloseNow() }()
	if conn.Write(r.Context(), websocket.MessageText, []byte("ok")) == nil {
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}
}

// fromPages reports whether an origin has the host of gpulab's pages.
func fromPages(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Scheme == "https" && strings.EqualFold(u.Hostname(), pagesHost(r))
}

// redirect sends a browser to a page of gpulab.
func (p *Proxy) redirect(w http.ResponseWriter, r *http.Request, target string) {
	own(w)
	w.Header().Set("Location", p.gpulabURL(r, target))
	w.WriteHeader(http.StatusFound)
}

// signIn sends a person to the sign-in page, which leads back to next, a path.
func (p *Proxy) signIn(w http.ResponseWriter, r *http.Request, next string) {
	target := p.cfg.LoginPath + "?next=" + url.QueryEscape(next)
	if port := p.pagesPort(r); isPage(r) && !isOnPages(r) && port == p.cfg.HTTPSPort &&
		cookies.Count(r, cookies.Port) > 0 {
		// This browser used another port in a session that is gone, so nothing proves which one.
		p.refuseTo(w, r, http.StatusUnauthorized, fmt.Sprintf("You are not signed in. This browser reached the lab "+
			"through a "+
			"forwarded port. Sign in at the port that leads to port %d of the lab, then open this page again.", port), target)
		return
	}
	p.elsewhere(w, r, http.StatusUnauthorized, "You are not signed in.", target)
}

// elsewhere sends a person to a page of gpulab and answers a program with status.
func (p *Proxy) elsewhere(w http.ResponseWriter, r *http.Request, status int, message, target string) {
	if isPage(r) {
		p.redirect(w, r, target)
		return
	}
	p.refuse(w, r, status, message)
}

// starting says that a server exists and cannot be reached yet. A person's page
// tries again by itself.
func (p *Proxy) starting(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "2")
	p.refuse(w, r, http.StatusServiceUnavailable, "It is starting; this page tries again by itself.")
}

// refuse answers with a status and one sentence, as a page or as JSON.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, status int, message string) {
	p.refuseTo(w, r, status, message, "/")
}

// refuseTo is refuse with a page of gpulab to which the link leads.
func (p *Proxy) refuseTo(w http.ResponseWriter, r *http.Request, status int, message, target string) {
	own(w)
	if !isPage(r) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"status": status, "message": message})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = refusal.Execute(w, struct {
		Message string
		Home    string
		Again   bool
	}{message, p.gpulabURL(r, target), status == http.StatusServiceUnavailable})
}

// own marks an answer as gpulab's, not to be kept, nor to be shown in a frame.
func own(w http.ResponseWriter) {
	h := w.Header()
	h.Set("X-Frame-Options", "DENY")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
}

var refusal = template.Must(template.New("refusal").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>gpulab</title>{{if .Again}}<meta http-equiv="refresh" content="2">{{end}}
<style>:root{color-scheme:light dark}
body{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}</style>
</head><body><main><h1>gpulab</h1><p>{{.Message}}</p><p><a href="{{.Home}}">Back to gpulab</a></p></main></body></html>
`))
