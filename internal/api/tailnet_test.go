package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/users"
)

// Who opens the address that lets the lab in decides into whose tailnet: a token that
// may change nothing does not get it.
func TestTailnetAddress(t *testing.T) {
	l := apitest.New(t)
	full, reads := l.Token(t, "ada", users.ScopeFull), l.Token(t, "ada", users.ScopeRead)
	ask(t, l, full, "POST", "/tailnet/up", "{}").want(t, http.StatusOK, "https://control.example/a/123")
	ask(t, l, full, "GET", "/tailnet", "").want(t, http.StatusOK, "https://control.example/a/123")
	if got := ask(t, l, reads, "GET", "/tailnet", "").want(t, http.StatusOK, `"state":"login"`); strings.Contains(got.body, "/a/123") {
		t.Errorf("a token that reads gets %s", got.body)
	}
}
