package api_test

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/users"
)

// TestEnvironments: one is built, followed, chosen, written into a file, removed and brought in again.
func TestEnvironments(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives an environment's files to everybody")
	}
	l := apitest.New(t)
	ada, ben := l.Token(t, "ada", users.ScopeFull), l.Token(t, "ben", users.ScopeFull)
	ask(t, l, ben, "GET", "/environments", "").want(t, http.StatusOK, `"environments":[]`)
	ask(t, l, ben, "GET", "/environment-build", "").want(t, http.StatusOK, `"state":"none"`)
	ask(t, l, ben, "GET", "/environment-catalogue", "").want(t, http.StatusOK, `"name":"pytorch"`, `"requirements":"torch\n`)
	ask(t, l, ben, "POST", "/environments", `{"from": "pytorch"}`).want(t, http.StatusForbidden)

	ask(t, l, ada, "POST", "/environments", `{"name": "../x", "requirements": "humanize"}`).want(t, http.StatusUnprocessableEntity, "cannot be an environment")
	ask(t, l, ada, "POST", "/environments", `{"from": "nothing"}`).want(t, http.StatusNotFound, "catalogue has no")
	ask(t, l, ada, "POST", "/environments", `{"from": "pytorch", "requirements": "humanize"}`).want(t, http.StatusUnprocessableEntity, "not both")
	ask(t, l, ada, "POST", "/environments", `{"name": "small", "requirements": "humanize", "cuda": "99.0"}`).want(t, http.StatusConflict, "CUDA 99.0")

	_, release := l.Environments.Hold()
	ask(t, l, ada, "POST", "/environments", `{"name": "small", "version": "1", "title": "Small", "requirements": "humanize\n"}`).want(t, http.StatusAccepted, `"state":"running"`, `"by":"ada"`)
	ask(t, l, ada, "POST", "/environments", `{"name": "other", "requirements": "humanize\n"}`).want(t, http.StatusConflict, "one is built at a time")
	type build struct{ State, Seen string }
	b := read[build](t, ask(t, l, ben, "GET", "/environment-build", "").want(t, http.StatusOK, `"state":"running"`))
	release()
	for range 20 {
		if b = read[build](t, ask(t, l, ben, "GET", "/environment-build?wait=10&seen="+b.Seen, "").want(t, http.StatusOK)); b.State != "running" {
			break
		}
	}
	ask(t, l, ada, "GET", "/environment-build", "").want(t, http.StatusOK, `"state":"built"`, "Collecting humanize")
	if got := ask(t, l, ben, "GET", "/environment-build", ""); strings.Contains(got.body, "Collecting") {
		t.Errorf("a member reads all that a build said: %s", got.body)
	}
	ask(t, l, ada, "DELETE", "/environment-build", "").want(t, http.StatusNoContent)
	ask(t, l, ada, "POST", "/environments", `{"name": "small", "version": "1", "requirements": "humanize\n"}`).want(t, http.StatusConflict, "There is an environment small/1 already")

	l.Environments.Use(environments.Use{Environment: "small/1", Handle: "lea", Notebook: "secret-plan"})
	ask(t, l, ada, "GET", "/environments", "").want(t, http.StatusOK, "lea/secret-plan", `"cuda":"12.0"`, `"kernel":"small.1"`, `"packages":2`)
	if got := ask(t, l, ben, "GET", "/environments/small/1", "").want(t, http.StatusOK, `"inUse":1`, `{"name":"humanize","version":"4.9.0"}`, `"asked":"humanize\n"`, "/environments/small/1"); strings.Contains(got.body, "secret-plan") {
		t.Errorf("a member reads the names of others' notebooks: %s", got.body)
	}
	ask(t, l, ben, "GET", "/environments/small/1/lock", "").want(t, http.StatusOK, "humanize==4.9.0 --hash=sha256:ce")
	ask(t, l, ben, "GET", "/environments/small/2", "").want(t, http.StatusNotFound)
	ask(t, l, ben, "GET", "/environments/small/1/file", "").want(t, http.StatusForbidden)
	ask(t, l, ada, "PUT", "/environment-default", `{"environment": "small"}`).want(t, http.StatusNoContent)
	ask(t, l, ben, "GET", "/environments", "").want(t, http.StatusOK, `"default":true`)
	ask(t, l, ada, "PUT", "/environment-default", `{"environment": "large"}`).want(t, http.StatusNotFound)
	ask(t, l, ada, "PUT", "/environment-default", `{"environment": ""}`).want(t, http.StatusNoContent)

	file := ask(t, l, ada, "GET", "/environments/small/1/file", "").want(t, http.StatusOK)
	ask(t, l, ada, "DELETE", "/environments/small/1", "").want(t, http.StatusConflict, "is in use: lea/secret-plan")
	ask(t, l, ada, "DELETE", "/environments/small/1?force=true", "").want(t, http.StatusNoContent)
	ask(t, l, ada, "DELETE", "/environments/small/1", "").want(t, http.StatusNotFound)
	zstd := func(r *http.Request) { r.Header.Set("Content-Type", "application/octet-stream") }
	ask(t, l, ada, "POST", "/environment-files", file.body[:len(file.body)/2], zstd).want(t, http.StatusUnprocessableEntity, "cut short or damaged")
	ask(t, l, ada, "POST", "/environment-files", "", zstd).want(t, http.StatusUnprocessableEntity, "holds no environment")
	ask(t, l, ben, "POST", "/environment-files", file.body, zstd).want(t, http.StatusForbidden)
	got := ask(t, l, ada, "POST", "/environment-files", file.body, zstd).want(t, http.StatusCreated, `"name":"small"`)
	if to := got.header.Get("Location"); to != "/api/v1/environments/small/1" {
		t.Errorf("it is said to be at %q", to)
	}
	log := ask(t, l, ada, "GET", "/audit?limit=500", "").body
	for _, action := range []string{"environment.create", "environment.default", "environment.remove", "environment.import"} {
		if !strings.Contains(log, `"action":"`+action+`"`) {
			t.Errorf("%s is not recorded", action)
		}
	}
}
