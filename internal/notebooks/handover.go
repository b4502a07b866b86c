package notebooks

import (
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/cookies"
)

// How a browser's session gets to a label:
//
//  1. A page of the label is opened without a session. The label sets a nonce cookie and
//     leads to EnterPath on gpulab's pages, with the hash of the nonce.
//  2. EnterPath knows the session. At the label of its own person it leads back to
//     labelEnter, with a code that is good for this session, label and nonce.
//  3. The label checks the code against the nonce cookie and sets its own credential.
//
// Another page may start this, and it ends in the label of whoever is signed in.

// EnterPath is the page of gpulab that leads to a label; pass it to the Proxy.
const EnterPath = "/notebooks/enter"

const labelEnter = "/gpulab/enter"

// maxNext bounds the address of the page that a person wants to open, in bytes.
const maxNext = 4 << 10

// isTopPage reports whether the answer is shown in a window of its own. Browsers without
// Sec-Fetch headers do not say; they show none of these answers in a frame.
func isTopPage(r *http.Request) bool {
	if !isPage(r) {
		return false
	}
	dest := r.Header.Get("Sec-Fetch-Dest")
	return dest == "document" || dest == "" && r.Header.Get("Sec-Fetch-Mode") == ""
}

// startHandOver is the first step. It is false where the request is not a page that a
// session should be fetched for.
func (p *Proxy) startHandOver(w http.ResponseWriter, r *http.Request) bool {
	o, _ := arrivalOf(r)
	next := r.URL.RequestURI()
	if o.label == "" || !isTopPage(r) || !isNotebookPath(next) {
		return false
	}
	if cookies.Count(r, cookies.Session) > 1 {
		cookies.Expire(w, r, cookies.Session)
		p.refuse(w, r, http.StatusUnauthorized, "A page has set a second session cookie for your notebooks. "+
			"gpulab has deleted both. Close other tabs of these notebooks, then reload this page.")
		return true
	}
	nonce, ok := cookies.One(r, cookies.Enter)
	if !ok || cookies.Key(nonce) == "" { // otherwise another tab is on its way, with the same one
		nonce = rand.Text()
	}
	cookies.SetFor(w, r, cookies.Enter, nonce, codeLife)
	query := url.Values{"port": {strconv.Itoa(o.port)}, "nonce": {hashOf(nonce)}, "next": {next}}
	p.moved(w, r, p.gpulabURL(r, EnterPath+"?"+query.Encode()))
	return true
}

// serveEnter is the second step, on gpulab's pages.
func (p *Proxy) serveEnter(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	next, nonceHash := query.Get("next"), query.Get("nonce")
	port, _ := strconv.Atoi(query.Get("port"))
	label, ok := p.cfg.Labels.name(hostname(r), port)
	switch {
	case !ok || !isNotebookPath(next) || len(nonceHash) != len(hashOf("")):
		p.elsewhere(w, r, http.StatusNotFound, "There is nothing here.", "/")
		return
	case !isTopPage(r):
		p.refuse(w, r, http.StatusForbidden, "This request comes from another site.")
		return
	}
	in, visit, ok := p.gate.enter(r)
	if !ok {
		// Not back to here: signing in may take longer than the nonce lasts.
		p.redirect(w, r, p.cfg.LoginPath+"?next="+url.QueryEscape(next))
		return
	}
	defer p.gate.leave(visit)
	r = in
	if owner, ok := p.cfg.Origins.Owner(port); !ok || owner != visit.session.User.ID {
		p.refuse(w, r, http.StatusForbidden, notYourNotebook)
		return
	}
	code := url.Values{"code": {p.cfg.Labels.code(label, visit.session.ID, nonceHash)}, "next": {next}}
	p.moved(w, r, "https://"+p.cfg.Labels.authority(hostname(r), port)+labelEnter+"?"+code.Encode())
}

// serveLabelEnter is the third step, at the label.
func (p *Proxy) serveLabelEnter(w http.ResponseWriter, r *http.Request, o arrival) {
	query := r.URL.Query()
	next := query.Get("next")
	switch {
	case !isNotebookPath(next):
		p.elsewhere(w, r, http.StatusNotFound, "There is nothing here.", "/")
		return
	case !isTopPage(r):
		p.refuse(w, r, http.StatusForbidden, "This request comes from another site.")
		return
	}
	if !p.isIn(r, o) { // another tab may have been faster
		nonce, ok := cookies.One(r, cookies.Enter)
		cookies.Expire(w, r, cookies.Enter)
		session := ""
		if ok {
			session, ok = p.cfg.Labels.redeem(query.Get("code"), o.label, hashOf(nonce))
		}
		if !ok || !p.isOwners(r, o, session) {
			p.refuse(w, r, http.StatusForbidden, "This sign-in is over, or was meant for another browser. Open the notebook "+
				"from gpulab’s home page.")
			return
		}
		cookies.Set(w, r, cookies.Session, p.cfg.Labels.child(o.label, session))
	}
	own(w)
	w.Header().Set("Referrer-Policy", "no-referrer") // the address here holds the code
	w.Header().Set("Location", next)
	w.WriteHeader(http.StatusSeeOther)
}

// isIn reports whether a request to a label has the session of its owner.
func (p *Proxy) isIn(r *http.Request, o arrival) bool {
	session, ok := p.gate.sessions.FromRequest(r)
	owner, _ := p.cfg.Origins.Owner(o.port)
	return ok && session.User.ID == owner
}

// isOwners reports whether a session is there, and is that of a label's owner.
func (p *Proxy) isOwners(r *http.Request, o arrival, id string) bool {
	session, err := p.cfg.Labels.sessions(r.Context(), id)
	owner, ok := p.cfg.Origins.Owner(o.port)
	return err == nil && ok && session.User.ID == owner
}

// isNotebookPath reports whether target is a path of notebooks on the same origin, with
// or without a query.
func isNotebookPath(target string) bool {
	if !strings.HasPrefix(target, "/user/") || len(target) > maxNext || strings.ContainsAny(target, "\\\r\n\t") {
		return false
	}
	u, err := url.Parse(target)
	if err != nil || u.Host != "" || u.User != nil || u.Scheme != "" {
		return false
	}
	for part := range strings.SplitSeq(u.Path, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}
