package api

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/gpulab/gpulab/internal/users"
)

// public is the permission of operations that need no token.
const public users.Action = ""

// maxBody is the largest body that an operation takes unless it says otherwise, in bytes.
const maxBody = 64 << 10

// An Operation is one method and path with the permission it needs.
type Operation struct {
	Method, Path string // of http.ServeMux, behind Prefix
	ID           string
	// Need is what the caller must be allowed to do to somebody at all; on whom, the handler asks. Empty is public.
	Need users.Action

	tag, summary, description string
	status                    int   // of success; 0 is 200, or 204 without a body
	also                      []int // what may go wrong beyond what everything shares
	// anyToken lets a token do it whatever its scope: end itself.
	anyToken bool
	maxBody  int64
}

// changes says of an operation that it changes something.
func (o Operation) changes() bool { return o.Method != http.MethodGet }

// Operations lists every operation, for tests that walk them.
func (s *Server) Operations() []Operation { return slices.Clone(s.operations) }

// add registers an operation: who may do it, how it is described, and what does it.
func add[I, O any](s *Server, o Operation, handle func(ctx context.Context, c *call, in *I) (*O, error)) {
	described := huma.Operation{
		OperationID: o.ID, Method: o.Method, Path: o.Path, Summary: o.summary, Description: o.description,
		Tags:          []string{o.tag},
		DefaultStatus: o.status, MaxBodyBytes: o.maxBody, Errors: o.errors(),
	}
	if described.MaxBodyBytes == 0 {
		described.MaxBodyBytes = maxBody
	}
	if o.Need != public || o.anyToken {
		described.Security = []map[string][]string{{"token": {}}}
		described.Extensions = map[string]any{"x-gpulab-scope": o.scope(), "x-gpulab-roles": o.roles()}
	}
	described.Middlewares = huma.Middlewares{s.admit(o)}
	huma.Register(s.api, described, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, callOf(ctx), in)
		if err != nil {
			return nil, s.answer(ctx, o, err)
		}
		return out, nil
	})
	s.operations = append(s.operations, o)
}

// scope is the smallest of an access token with which it can be done at all; any for every one.
func (o Operation) scope() string {
	if o.anyToken {
		return "any"
	}
	for _, scope := range users.TokenScopes() {
		if scope.Allows(o.Need, o.changes()) {
			return string(scope)
		}
	}
	return ""
}

// roles are those whose people can do it to somebody at all, from most to least.
func (o Operation) roles() []string {
	var list []string
	for _, role := range users.Roles() {
		if o.anyToken || role.Scope(o.Need) != users.Nobody {
			list = append(list, string(role))
		}
	}
	return list
}

// errors are the statuses with which an operation may refuse.
func (o Operation) errors() []int {
	list := []int{
		http.StatusUnprocessableEntity, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusInsufficientStorage,
	}
	if o.Need != public || o.anyToken {
		list = append(list, http.StatusUnauthorized, http.StatusForbidden)
	}
	if strings.Contains(o.Path, "{") {
		list = append(list, http.StatusNotFound)
	}
	if o.Method != http.MethodGet && o.Method != http.MethodDelete {
		list = append(list, http.StatusBadRequest, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge,
			http.StatusUnsupportedMediaType)
	}
	for _, status := range o.also {
		if !slices.Contains(list, status) {
			list = append(list, status)
		}
	}
	slices.Sort(list)
	return list
}

// A body is an answer with nothing but a body.
type body[T any] struct{ Body T }

func answerWith[T any](value T) (*body[T], error) { return &body[T]{value}, nil }

// nothing is an answer without a body.
type nothing struct{}

func done(err error) (*nothing, error) {
	if err != nil {
		return nil, err
	}
	return &nothing{}, nil
}

// noInput is a question without parameters.
type noInput struct{}
