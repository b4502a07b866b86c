package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// problem is what went wrong, and in detail a sentence or two with the next step.
func problem(status int, title, detail string) *huma.ErrorModel {
	return &huma.ErrorModel{Status: status, Title: title, Detail: detail}
}

var (
	errOurs = problem(http.StatusInternalServerError, "Something went wrong here",
		"It is not your doing. Try again; if it stays, an admin finds the reason with “gpulab logs”.")
	errDiskFull = problem(http.StatusInsufficientStorage, "The lab’s disk is full",
		"Nothing was changed, and what runs goes on. An admin finds what takes the room with “gpulab disk”. Try again in "+
			"a minute.")
	errMayNot = problem(http.StatusForbidden, "This access token does not allow this",
		"Its scope or its owner’s role does not reach that far. A token with another scope can be made on the page of the "+
			"account; a role changes an admin of the lab.")
	errNotThere = problem(http.StatusNotFound, "There is no such thing", "It may be mistyped, or is gone.")
	errYourself = problem(http.StatusConflict, "Not on your own account",
		"You cannot do this to yourself. Another admin can; nothing was changed.")
)

// kinds are the sentinel errors of other packages, with the status and title that they become.
var kinds = []struct {
	kind   error
	status int
	title  string
}{
	{users.ErrNotFound, http.StatusNotFound, "There is no such person"},
	{environments.ErrNotFound, http.StatusNotFound, "There is no such environment"},
	{users.ErrGroupNotFound, http.StatusNotFound, "There is no such group"},
	{users.ErrSSHKeyNotFound, http.StatusNotFound, "There is no such key"},
	{users.ErrIdentityNotFound, http.StatusNotFound, "There is no such outside account"},
	{storage.ErrNotFound, http.StatusNotFound, "There is no such folder"},
	{users.ErrTokenNotFound, http.StatusNotFound, "There is no such token"},
	{users.ErrSignUpNotFound, http.StatusNotFound, "There is no such request"},
	{users.ErrInvitationUnknown, http.StatusNotFound, "There is no such invitation"},
	{ctl.ErrNodeUnknown, http.StatusNotFound, "There is no such machine"},
	{ctl.ErrNoInvitation, http.StatusNotFound, "There is no such invitation"},
	{ctl.ErrNoRequest, http.StatusNotFound, "There is no such request"},
	{ctl.ErrNodeReason, http.StatusUnprocessableEntity, "This reason or time is not possible"},
	{ctl.ErrNodeLimit, http.StatusUnprocessableEntity, "Nobody a machine can be for"},
	{ctl.ErrPlacing, http.StatusUnprocessableEntity, "There is no such rule"},
	{ctl.ErrTailnet, http.StatusUnprocessableEntity, "Not possible with the tailnet"},
	{ctl.ErrNodeTitle, http.StatusUnprocessableEntity, "This title is not possible"},
	{ctl.ErrNodeRefused, http.StatusConflict, "Not possible with this machine now"},
	{environments.ErrInvalid, http.StatusUnprocessableEntity, "This cannot be an environment"},
	{environments.ErrExists, http.StatusConflict, "This environment is there already"},
	{environments.ErrBusy, http.StatusConflict, "Environments are being changed"},
	{environments.ErrInUse, http.StatusConflict, "This environment is in use"},
	{environments.ErrUnusable, http.StatusConflict, "No GPU could be used with it"},
	{environments.ErrFull, http.StatusInsufficientStorage, "There is no room for it"},
	{notebooks.ErrNotFound, http.StatusNotFound, "There is no such notebook"},
	{users.ErrPurged, http.StatusGone, "This account is gone"},
	{users.ErrNotRemoved, http.StatusConflict, "This account is not removed"},
	{users.ErrLastAdmin, http.StatusConflict, "The lab needs an admin"},
	{users.ErrHandleTaken, http.StatusConflict, "This sign-in name is taken"},
	{users.ErrGroupTaken, http.StatusConflict, "This group exists already"},
	{users.ErrTokenLimit, http.StatusConflict, "Too many access tokens"},
	{users.ErrSSHKeyTaken, http.StatusConflict, "This key is there already"},
	{users.ErrSSHKeyLimit, http.StatusConflict, "Too many SSH keys"},
	{users.ErrLastWayIn, http.StatusConflict, "It is the last way in"},
	{storage.ErrTaken, http.StatusConflict, "This name is taken"},
	{storage.ErrState, http.StatusConflict, "The folder is not in a state for that"},
	{storage.ErrFull, http.StatusConflict, "No number is left for another folder"},
	{storage.ErrSpace, http.StatusConflict, "It was not deleted"},
	{users.ErrUIDsExhausted, http.StatusConflict, "No number is left for another account"},
	{users.ErrSuspended, http.StatusConflict, "This account is suspended"},
	{users.ErrPending, http.StatusForbidden, "This account is not approved yet"},
	{users.ErrImportStopped, http.StatusConflict, "Nobody was imported"},
	{users.ErrMayNot, http.StatusForbidden, "Your account does not allow this"},
	{users.ErrBadCredentials, http.StatusForbidden, "The password is wrong"},
	{users.ErrNotAdmitted, http.StatusForbidden, "This account may not use the lab"},
	{users.ErrNoAccount, http.StatusForbidden, "There is no account here yet"},
	{users.ErrDirectoryAway, http.StatusServiceUnavailable, "The directory does not answer"},
	{users.ErrHandleInvalid, http.StatusUnprocessableEntity, "This sign-in name is not possible"},
	{users.ErrNameInvalid, http.StatusUnprocessableEntity, "This name is not possible"},
	{users.ErrEmailInvalid, http.StatusUnprocessableEntity, "This e-mail address is not possible"},
	{users.ErrRoleInvalid, http.StatusUnprocessableEntity, "This role is not possible"},
	{users.ErrPasswordWeak, http.StatusUnprocessableEntity, "This password is too weak"},
	{users.ErrTokenInvalid, http.StatusUnprocessableEntity, "This token is not possible"},
	{users.ErrSSHKeyInvalid, http.StatusUnprocessableEntity, "This SSH key is not possible"},
	{storage.ErrName, http.StatusUnprocessableEntity, "This name or note is not possible"},
	{storage.ErrKind, http.StatusUnprocessableEntity, "This folder is not possible"},
	{storage.ErrGroup, http.StatusUnprocessableEntity, "This folder is not possible"},
	{storage.ErrPath, http.StatusUnprocessableEntity, "This folder of the machine is not shown"},
	{users.ErrGroupInvalid, http.StatusUnprocessableEntity, "This group is not possible"},
	{users.ErrUsesInvalid, http.StatusUnprocessableEntity, "This number of uses is not possible"},
	{users.ErrDaysInvalid, http.StatusUnprocessableEntity, "This number of days is not possible"},
	{users.ErrInvitationInvalid, http.StatusUnprocessableEntity, "This invitation is not possible"},
	{users.ErrListInvalid, http.StatusUnprocessableEntity, "This list cannot be read"},
	{users.ErrNoMail, http.StatusConflict, "The lab sends no mails"},
	{mail.ErrOff, http.StatusConflict, "The lab sends no mails"},
	{mail.ErrAddress, http.StatusUnprocessableEntity, "This e-mail address is not possible"},
	{mail.ErrKind, http.StatusUnprocessableEntity, "There is no such kind of mail"},
	{mail.ErrLimit, http.StatusTooManyRequests, "Too many mails"},
	{users.ErrDeviceDenied, http.StatusForbidden, "It was denied"},
	{users.ErrDeviceUnknown, http.StatusGone, "This sign-in is over"},
	{notebooks.ErrProfileUnknown, http.StatusUnprocessableEntity, "There is no such profile"},
	{notebooks.ErrTitleInvalid, http.StatusUnprocessableEntity, "This title is not possible"},
	{notebooks.ErrTooMany, http.StatusConflict, "The notebook was not started"},
	{notebooks.ErrTooManyServices, http.StatusConflict, "The service was not taken"},
	{notebooks.ErrTooManyJobs, http.StatusConflict, "The job was not taken"},
	{idle.ErrNotWarned, http.StatusConflict, "The notebook was not kept"},
	{idle.ErrNoMore, http.StatusConflict, "The notebook was not kept"},
	{idle.ErrTooLate, http.StatusConflict, "The notebook is stopped"},
	{idle.ErrNotIdle, http.StatusConflict, "The GPU was not freed"},
	{quota.ErrUsedUp, http.StatusConflict, "The quota does not allow it"},
	{quota.ErrKind, http.StatusUnprocessableEntity, "There is no such quota"},
	{quota.ErrSubject, http.StatusUnprocessableEntity, "Nobody a quota can be for"},
	{quota.ErrValue, http.StatusUnprocessableEntity, "This value is not possible"},
	{quota.ErrGrant, http.StatusUnprocessableEntity, "This grant is not possible"},
}

// answer turns what a handler returned into problem details, once. What is ours goes to the log.
func (s *Server) answer(ctx context.Context, o Operation, err error) error {
	var known huma.StatusError
	if errors.As(err, &known) {
		return err
	}
	if refused := refusal(err); refused != nil {
		return refused
	}
	if ctx.Err() == nil {
		s.cfg.Log.Error("API failed", "operation", o.ID, "error", err)
	}
	if store.Full(err) {
		return errDiskFull
	}
	return errOurs
}

// refusal is the answer to an error that somebody can cause, nil for others.
func refusal(err error) error {
	var often *limitError
	var limited *users.RateError
	var obstacle *notebooks.ObstacleError
	var job *notebooks.JobError
	switch {
	case errors.As(err, &often):
		return huma.ErrorWithHeaders(problem(http.StatusTooManyRequests, "Too many requests",
			"This program asks too often. Let it wait as long as Retry-After says."),
			http.Header{"Retry-After": {strconv.Itoa(often.seconds())}})
	case errors.As(err, &limited):
		return huma.ErrorWithHeaders(problem(http.StatusTooManyRequests, "Too many tries", message(err)),
			http.Header{"Retry-After": {strconv.Itoa((&limitError{limited.RetryAfter}).seconds())}})
	case errors.Is(err, errNoToken):
		return huma.ErrorWithHeaders(problem(http.StatusUnauthorized, "An access token is needed",
			"Make one on the page of your account, or with “gpulab login”, and send it as “Authorization: Bearer gpulab_…”."),
			http.Header{"Www-Authenticate": {`Bearer realm="gpulab"`}})
	case errors.Is(err, users.ErrTokenRefused):
		return huma.ErrorWithHeaders(problem(http.StatusUnauthorized, "The access token was not accepted", message(err)),
			http.Header{"Www-Authenticate": {`Bearer realm="gpulab", error="invalid_token"`}})
	case errors.As(err, &obstacle):
		return problem(http.StatusConflict, "It was not started", message(err))
	case errors.As(err, &job):
		return problem(http.StatusUnprocessableEntity, "The job was not taken", message(err))
	}
	for _, k := range kinds {
		if errors.Is(err, k.kind) {
			return problem(k.status, k.title, message(err))
		}
	}
	return nil
}

// message is the sentence for people in an error.
func message(err error) string {
	if text, ok := users.Message(err); ok {
		return text
	}
	return sentence(err.Error())
}

// sentence writes an error's text as a sentence.
func sentence(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	if size == 0 {
		return ""
	}
	text = string(unicode.ToUpper(first)) + text[size:]
	if strings.ContainsRune(".!?", rune(text[len(text)-1])) {
		return text
	}
	return text + "."
}

// asProblem is the problem in an error of this package.
func asProblem(err error) *huma.ErrorModel {
	var p *huma.ErrorModel
	if errors.As(err, &p) {
		return p
	}
	return errOurs
}

// writeProblem answers with a problem where huma does not.
func writeProblem(w http.ResponseWriter, p *huma.ErrorModel) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the only possible error is a client that went away
}

// explain puts into words for people what huma found wrong with a request, and leaves out what was sent: it may be a
// password.
func explain(_ huma.Context, _ string, value any) (any, error) {
	p, ok := value.(*huma.ErrorModel)
	if !ok || p.Title != http.StatusText(p.Status) {
		return value, nil // ours
	}
	told := problem(p.Status, "The request does not fit", "")
	var parts []string
	for _, e := range p.Errors {
		if e == nil {
			continue
		}
		told.Errors = append(told.Errors, &huma.ErrorDetail{Message: e.Message, Location: e.Location})
		if text := strings.TrimSpace(e.Location + ": " + e.Message); len(parts) < 3 {
			parts = append(parts, strings.TrimPrefix(text, ": "))
		}
	}
	if len(parts) == 0 {
		parts = []string{p.Detail}
	}
	told.Detail = sentence(strings.Join(parts, "; ")) + " See " + Prefix + "/openapi.json for what it takes."
	return told, nil
}
