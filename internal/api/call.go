package api

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/peers"
	"github.com/gpulab/gpulab/internal/users"
)

// A call is one request of somebody's program.
type call struct {
	user   users.User // nobody for public operations
	token  users.Token
	remote string // address of the client, without its port
	host   string // as the client called the lab, with its port; safe to repeat
	url    *url.URL
	// body and answer are for an operation that reads a body as it comes.
	body   io.Reader
	answer http.ResponseWriter
}

type callKey struct{}

func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// may asks the policy about an account and what it owns.
func (c *call) may(action users.Action, user int64) bool { return c.user.May(action, user) }

// everybody reports whether the caller may do the action to everybody.
func (c *call) everybody(action users.Action) bool { return c.user.Scope(action) == users.Everybody }

// admit finds out who calls and lets the call through to its handler if they may make it.
func (s *Server) admit(o Operation) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(ctx)
		c, err := s.caller(r, o)
		if err == nil {
			err = knownParameters(r.URL.Query(), ctx.Operation())
		}
		if err != nil {
			refused := s.answer(ctx.Context(), o, err)
			var withHeaders huma.HeadersError
			if errors.As(refused, &withHeaders) {
				for name, values := range withHeaders.GetHeaders() {
					w.Header()[name] = values
				}
			}
			writeProblem(w, asProblem(refused))
			return
		}
		c.body, c.answer = r.Body, w
		next(huma.WithValue(ctx, callKey{}, c))
	}
}

func (s *Server) caller(r *http.Request, o Operation) (*call, error) {
	c := &call{remote: remote(r), host: safeHost(r.Host), url: r.URL}
	if o.Need == public && !o.anyToken {
		return c, s.addresses.take(c.from(), s.now())
	}
	secret, err := bearer(r)
	if err == nil {
		c.user, c.token, err = s.cfg.Users.TokenUser(r.Context(), secret, c.remote, o.changes() && !o.anyToken)
	}
	if err != nil {
		// Whoever shows no token that counts is bounded by their address.
		if limited := s.addresses.take(c.from(), s.now()); limited != nil {
			return nil, limited
		}
		return nil, err
	}
	if err := s.tokens.take(strconv.FormatInt(c.token.ID, 10), s.now()); err != nil {
		return nil, err
	}
	if !o.anyToken && c.user.Scope(o.Need) == users.Nobody {
		return nil, errMayNot
	}
	return c, nil
}

// errNoToken is a request that shows none at all.
var errNoToken = errors.New("no token")

// bearer is the token that a request shows.
func bearer(r *http.Request) (string, error) {
	shown := r.Header.Values("Authorization")
	if len(shown) == 0 {
		return "", errNoToken
	}
	scheme, secret, _ := strings.Cut(shown[0], " ")
	if len(shown) > 1 || !strings.EqualFold(scheme, "Bearer") {
		return "", &users.Error{Kind: users.ErrTokenRefused, Text: "The API takes access tokens only, sent once as " +
			"“Authorization: Bearer gpulab_…”."}
	}
	return strings.TrimSpace(secret), nil
}

// knownParameters refuses what an operation does not know in the address, or that is empty where it must not be: a
// misspelt filter would find everything.
func knownParameters(query url.Values, o *huma.Operation) error {
	var wrong []string
	for name, values := range query {
		i := slices.IndexFunc(o.Parameters, func(p *huma.Param) bool { return p.In == "query" && p.Name == name })
		switch {
		case i < 0:
			wrong = append(wrong, "There is no parameter "+strconv.Quote(clip(name, 40))+" here.")
		case slices.Contains(values, "") && !mayBeEmpty(o.Parameters[i].Schema):
			wrong = append(wrong, "The parameter "+name+" has no value.")
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return problem(http.StatusUnprocessableEntity, "The request does not fit",
		wrong[0]+" See "+Prefix+"/openapi.json for what there is.")
}

func mayBeEmpty(s *huma.Schema) bool {
	return s != nil && s.Type == huma.TypeString && s.Format == "" && len(s.Enum) == 0
}

// from is as whom the client counts: all addresses that it can choose freely are one.
func (c *call) from() string {
	if of, ok := peers.Neighbourhood(c.remote); ok {
		return of.String()
	}
	return c.remote
}

// remote is the address of the client without its port.
func remote(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

var hostPattern = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

// safeHost is a host that may stand in a link, "" for what is none.
func safeHost(host string) string {
	if len(host) > 260 || !hostPattern.MatchString(host) {
		return ""
	}
	return host
}

// page is a page of this lab for browsers.
func (c *call) page(path string) string {
	if c.host == "" {
		return path
	}
	return "https://" + c.host + path
}

// audit records what somebody did. What was done stands even if it cannot be recorded; the log then says so.
func (s *Server) audit(ctx context.Context, c *call, action, target, detail string) {
	entry := audit.Entry{Actor: c.user.Handle, Action: action, Target: target, Detail: detail, Remote: c.remote}
	if err := s.cfg.Audit.Record(context.WithoutCancel(ctx), entry); err != nil {
		s.cfg.Log.Error("audit entry lost", "action", action, "target", target, "error", err)
	}
}

func clip(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "…"
	}
	return text
}
