package webui

import (
	"errors"
	"net/http"
	"strings"

	"github.com/gpulab/gpulab/internal/users"
)

// apiPrefix is where access tokens are taken; on every other path they are
// nothing at all.
const apiPrefix = "/api/v1/"

// A refusedToken is why a program's token was not taken.
type refusedToken struct{ cause error }

func (e *refusedToken) Error() string { return e.cause.Error() }
func (e *refusedToken) Unwrap() error { return e.cause }

// caller finds who makes a request of a route. One that shows a token is its
// owner's program and nobody else: a cookie beside it counts for nothing, a
// token that is refused does not fall back to it.
func (s *Server) caller(r *http.Request, rt route) (visitor, error) {
	shown := r.Header.Values("Authorization")
	if len(shown) == 0 || !strings.HasPrefix(rt.path, apiPrefix) {
		return s.visitor(r), nil
	}
	scheme, secret, _ := strings.Cut(shown[0], " ")
	if len(shown) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return visitor{}, &refusedToken{&users.Error{Kind: users.ErrTokenRefused, Text: "The API takes access tokens only, sent once as “Authorization: Bearer gpulab_…”."}}
	}
	user, token, err := s.cfg.Users.TokenUser(r.Context(), strings.TrimSpace(secret), remote(r), !safeMethod(r.Method))
	var limited *users.RateError
	switch {
	case errors.Is(err, users.ErrTokenRefused), errors.As(err, &limited):
		return visitor{}, &refusedToken{err}
	case err != nil:
		return visitor{}, err
	}
	return visitor{session: users.Session{User: user, Created: token.Created, Expires: token.Expires}, signedIn: true, byToken: true}, nil
}

// safeMethod says of a request that it changes nothing.
func safeMethod(method string) bool { return method == http.MethodGet || method == http.MethodHead }

// tokenProblem is the answer to a token that was refused.
func tokenProblem(w http.ResponseWriter, err *refusedToken) *problem {
	var limited *users.RateError
	if errors.As(err, &limited) {
		w.Header().Set("Retry-After", seconds(limited.RetryAfter))
		return &problem{status: http.StatusTooManyRequests, title: "Too many wrong access tokens", text: message(err), cause: err}
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="gpulab", error="invalid_token"`)
	return &problem{status: http.StatusUnauthorized, title: "The access token was not accepted", text: message(err), cause: err}
}
