package webui

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// TestChangingByToken asks routes that change something, as the API has them, with every scope and role:
// reading changes nothing, launching reaches the owner's own notebooks, full what the role does.
func TestChangingByToken(t *testing.T) {
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	people := users.New(st.DB())
	s := &Server{cfg: Config{Users: people, Log: slog.New(slog.DiscardHandler)}}
	const somebodyElse = 99
	var got visitor
	route := func(method string, need users.Action) http.Handler {
		return s.guard(route{method: method, path: apiPrefix + "thing", need: need, script: true,
			handler: func(w http.ResponseWriter, r *http.Request, v visitor) error {
				got = v
				w.WriteHeader(http.StatusNoContent)
				return nil
			}})
	}
	for _, role := range users.Roles() {
		u, err := people.Create(t.Context(), users.NewUser{Handle: "a-" + string(role), Role: role})
		if err != nil {
			t.Fatal(err)
		}
		for _, scope := range users.TokenScopes() {
			secret, _, err := people.CreateToken(t.Context(), u.ID, users.NewToken{Name: "x", Scope: scope, Days: 7})
			if err != nil {
				t.Fatal(err)
			}
			for _, rule := range users.Policy() {
				for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"} {
					change := method != "GET" && method != "HEAD"
					launching := rule.Action == users.ActionLaunch || rule.Action == users.ActionManageNotebooks
					allowed := rule.Roles[role] > users.Nobody && (!change || scope == users.ScopeFull || scope == users.ScopeLaunch && launching)
					request := httptest.NewRequest(method, apiPrefix+"thing", strings.NewReader(`{"no": "form"}`))
					request.Header.Set("Authorization", "Bearer "+secret)
					got = visitor{}
					answer := httptest.NewRecorder()
					route(method, rule.Action).ServeHTTP(answer, request)
					want := http.StatusForbidden
					if allowed {
						want = http.StatusNoContent
					}
					if answer.Code != want {
						t.Errorf("%s that needs %s, %s's token for %s: status %d, want %d", method, rule.Action, role, scope, answer.Code, want)
					}
					if !allowed {
						continue
					}
					others := rule.Roles[role] == users.Everybody && (!change || scope == users.ScopeFull)
					if got.mayOn(rule.Action, somebodyElse) != others || !got.mayOn(rule.Action, u.ID) {
						t.Errorf("%s that needs %s, %s's token for %s: others %v, want %v", method, rule.Action, role, scope, !others, others)
					}
					if !got.byToken || got.token != "" || got.session.ID != "" || got.session.ValidCSRF("") {
						t.Errorf("a token has a session: %+v", got)
					}
				}
			}
		}
	}
	// Without a token such a route is a form like any other: a cookie alone does not do.
	ada, err := people.ByHandle(t.Context(), "a-admin")
	if err != nil {
		t.Fatal(err)
	}
	session, err := people.StartSession(t.Context(), ada.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, method := range []string{"POST", "PUT", "DELETE"} {
		request := httptest.NewRequest(method, apiPrefix+"thing", strings.NewReader(""))
		request.AddCookie(&http.Cookie{Name: sessionCookie, Value: session})
		answer := httptest.NewRecorder()
		route(method, users.ActionLaunch).ServeHTTP(answer, request)
		if answer.Code != http.StatusForbidden {
			t.Errorf("%s with a cookie alone: status %d", method, answer.Code)
		}
	}
	// What a program sends is bounded as a form is.
	secret, _, err := people.CreateToken(t.Context(), ada.ID, users.NewToken{Name: "big", Scope: users.ScopeFull, Days: 7})
	if err != nil {
		t.Fatal(err)
	}
	var readErr error
	big := s.guard(routeOf(func(r *http.Request) { _, readErr = r.Body.Read(make([]byte, maxForm+1)) }))
	request := httptest.NewRequest(http.MethodPost, apiPrefix+"thing", strings.NewReader(strings.Repeat("x", maxForm+1)))
	request.Header.Set("Authorization", "Bearer "+secret)
	big.ServeHTTP(httptest.NewRecorder(), request)
	if readErr == nil {
		t.Error("a body without bounds is read")
	}
}

func routeOf(f func(*http.Request)) route {
	return route{method: "POST", path: apiPrefix + "thing", need: users.ActionLaunch, handler: func(_ http.ResponseWriter, r *http.Request, _ visitor) error {
		f(r)
		return nil
	}}
}
