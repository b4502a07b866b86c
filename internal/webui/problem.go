package webui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// A problem is an error as a person sees it: what happened and the next step.
type problem struct {
	status int
	title  string
	// text is one or two sentences; linkText and link lead on.
	text, linkText, link string
	cause                error
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s", p.status, p.title) }
func (p *problem) Unwrap() error { return p.cause }

// A redirect is an answer in the form of an error, so that checks can send a
// visitor elsewhere.
type redirect struct{ to string }

func (r *redirect) Error() string { return "see " + r.to }

func seeOther(to string) error { return &redirect{to: to} }

var (
	errNoPage = &problem{status: http.StatusNotFound, title: "There is no such page",
		text: "The address may be mistyped, or what it showed is gone.", linkText: "Go to the home page", link: "/"}
	errWrongMethod = &problem{status: http.StatusMethodNotAllowed, title: "This address cannot be used that way",
		text: "The page exists, but not for this kind of request.", linkText: "Go to the home page", link: "/"}
	errNotAllowed = &problem{status: http.StatusForbidden, title: "Your account does not allow this",
		text: "Ask an admin of the lab to do it for you, or to change your role.", linkText: "Go to the home page", link: "/"}
	errSignInFirst = &problem{status: http.StatusUnauthorized, title: "You are signed out",
		text: "Nothing was changed. Sign in and try again.", linkText: "Sign in", link: "/login"}
	errFormToken = &problem{status: http.StatusForbidden, title: "This form was not accepted",
		text: "It was open for too long, or was not sent from a page of this lab. Nothing was changed; open the page " +
			"again and send the form once more.", linkText: "Go to the home page", link: "/"}
	errOtherSite = &problem{status: http.StatusForbidden, title: "This form came from another site",
		text:     "For your safety nothing was changed. Open the lab's own page and do it there.",
		linkText: "Go to the home page", link: "/"}
	errOtherSession = &problem{status: http.StatusForbidden, title: "This session was not started in this browser",
		text: "Another page in this browser has set this lab’s session cookie. Nothing was changed. Sign out, and " +
			"sign in again.",
		linkText: "Go to the home page", link: "/"}
	errFormTooLarge = &problem{status: http.StatusRequestEntityTooLarge, title: "This form is too large",
		text: "Nothing was changed. Send it again with less text.", linkText: "Go to the home page", link: "/"}
	errFormUnreadable = &problem{status: http.StatusBadRequest, title: "This form could not be read",
		text: "Nothing was changed. Open the page again and send the form once more.", linkText: "Go to the home page",
		link: "/"}
	errDiskFull = &problem{status: http.StatusInsufficientStorage, title: "The lab’s disk is full",
		text: "Nothing was changed, and what runs goes on. An admin finds what takes the room with “gpulab disk”; people " +
			"make room by deleting files in a running notebook. Try again in a minute.", linkText: "Go to the home page",
		link: "/"}
	errPanicked = &problem{status: http.StatusInternalServerError, title: "Something went wrong here",
		text:     "It is not your doing. Try again; if it stays, an admin finds the reason with “gpulab logs”.",
		linkText: "Go to the home page", link: "/"}
)

// problemOf translates an error of another package, once, for a person.
func problemOf(err error) *problem {
	var known *problem
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, users.ErrNotFound), errors.Is(err, users.ErrGroupNotFound):
		return errNoPage
	case errors.Is(err, users.ErrPurged):
		return &problem{
			status: http.StatusGone, title: "This account is gone", text: message(err), linkText: "Back to the users",
			link: "/users", cause: err,
		}
	case errors.Is(err, users.ErrNotRemoved):
		return &problem{
			status: http.StatusConflict, title: "This account is not removed", text: message(err), linkText: "Back to the users",
			link: "/users", cause: err,
		}
	case errors.Is(err, users.ErrLastAdmin):
		return &problem{status: http.StatusConflict, title: "The lab needs an admin", text: message(err),
			linkText: "Back to the users", link: "/users", cause: err}
	case errors.Is(err, users.ErrSuspended):
		return &problem{status: http.StatusForbidden, title: "This account is suspended", text: message(err), cause: err}
	}
	ours := *errPanicked
	if store.Full(err) {
		ours = *errDiskFull
	}
	ours.cause = err
	return &ours
}

// fail answers a request with err: a redirect, JSON for scripts, or a page.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, v visitor, err error) {
	var elsewhere *redirect
	if errors.As(err, &elsewhere) {
		http.Redirect(w, r, elsewhere.to, http.StatusSeeOther)
		return
	}
	if errors.Is(err, context.Canceled) && r.Context().Err() != nil {
		return // nobody is there to read an answer
	}
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError {
		s.cfg.Log.Error("page failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	if strings.HasSuffix(r.URL.Path, "/curves") || r.URL.Path == "/events" {
		writeJSON(w, p.status, map[string]string{"error": p.title, "nextStep": p.text})
		return
	}
	page := s.page(w, r, v, p.title, "")
	s.render(w, r, p.status, problemPage(page, *p))
}

// message is the sentence for people in an error of package users.
func message(err error) string {
	if text, ok := users.Message(err); ok {
		return text
	}
	return sentence(err.Error())
}

// writeJSON writes value as the whole answer.
func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	// The only possible error is a client that went away.
	_ = json.NewEncoder(w).Encode(value)
}
