package api_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

func TestMachines(t *testing.T) {
	l := apitest.New(t)
	ada, ben := l.Token(t, "ada", users.ScopeFull), l.Token(t, "ben", users.ScopeFull)
	ask(t, l, ben, "GET", "/machines", "").want(t, http.StatusForbidden)
	ask(t, l, ben, "POST", "/machine-invitations", "{}").want(t, http.StatusForbidden)
	if got := read[ctl.Machines](t, ask(t, l, ada, "GET", "/machines", "").want(t, http.StatusOK)); len(got.Nodes) != 2 || got.Nodes[1].Notebooks[0].User != "ben" || got.Nodes[1].Host.CPUs != 16 {
		t.Errorf("%+v", got)
	}
	made := read[ctl.NodeInvitation](t, ask(t, l, ada, "POST", "/machine-invitations", "").want(t, http.StatusCreated))
	if !strings.HasPrefix(made.Command, "gpulab join gl1") {
		t.Errorf("%+v", made)
	}
	open := read[ctl.Machines](t, ask(t, l, ada, "GET", "/machines", "")).Invitations
	if len(open) != 1 {
		t.Fatalf("%+v", open)
	}
	ask(t, l, ada, "DELETE", "/machine-invitations/"+open[0].ID, "").want(t, http.StatusNoContent)
	ask(t, l, ada, "DELETE", "/machine-invitations/"+open[0].ID, "").want(t, http.StatusNotFound)
	ask(t, l, ben, "POST", "/machine-requests/012345/accept", "").want(t, http.StatusForbidden)
	ask(t, l, ada, "POST", "/machine-requests/012346/accept", "").want(t, http.StatusNotFound, "no machine asks with that number")
	ask(t, l, ada, "POST", "/machine-requests/01234/accept", "").want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "GET", "/machines", "").want(t, http.StatusOK, `"number":"012345"`)
	ask(t, l, ada, "POST", "/machine-requests/012345/accept", "").want(t, http.StatusOK, "gpu-new")
	ask(t, l, ada, "POST", "/machine-requests/012345/refuse", "").want(t, http.StatusNotFound)
	ask(t, l, ada, "GET", "/audit?action=node.accept", "").want(t, http.StatusOK, "gpu-new at 10.0.0.9", `"actor":"ada"`)
	ask(t, l, ada, "DELETE", "/machines/gpu-new", "").want(t, http.StatusOK)
	ask(t, l, ada, "PUT", "/machines/gpu-nine/cordon", "{}").want(t, http.StatusNotFound)
	ask(t, l, ada, "PUT", "/machines/gpu-two/cordon", `{"reason": "a\nb"}`).want(t, http.StatusUnprocessableEntity, "one line")
	ask(t, l, ada, "PUT", "/machines/gpu-two/cordon", `{"reason": "new disk"}`).want(t, http.StatusOK, `"by":"ada"`, "new disk")
	ask(t, l, ada, "DELETE", "/machines/gpu-two/drain", "").want(t, http.StatusConflict, "not being emptied")
	ask(t, l, ada, "PUT", "/machines/gpu-two/drain", `{"seconds": -1}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "PUT", "/machines/gpu-two/drain", `{"seconds": 3600, "reason": "new disk"}`).want(t, http.StatusOK, "emptyAt")
	ask(t, l, ada, "DELETE", "/machines/gpu-two/drain", "").want(t, http.StatusNoContent)
	ask(t, l, ada, "DELETE", "/machines/gpu-two/cordon", "").want(t, http.StatusNoContent)
	if got := read[ctl.Machines](t, ask(t, l, ada, "GET", "/machines", "")); got.Nodes[1].Cordon != nil {
		t.Errorf("%+v", got.Nodes[1].Cordon)
	}
	ask(t, l, ada, "PUT", "/machines/gpu-two/title", `{"title": "GPU-box"}`).want(t, http.StatusUnprocessableEntity, "another machine is called that")
	ask(t, l, ada, "PUT", "/machines/gpu-nine/title", `{"title": "Nine"}`).want(t, http.StatusNotFound)
	ask(t, l, ada, "PUT", "/machines/gpu-two/title", `{"title": "By the door"}`).want(t, http.StatusOK, `"before":"gpu-two"`)
	ask(t, l, ada, "GET", "/machines", "").want(t, http.StatusOK, `"title":"By the door"`)
	ask(t, l, ada, "PUT", "/machines/gpu-two/title", `{"title": ""}`).want(t, http.StatusOK, `"title":"gpu-two"`)
	ask(t, l, ada, "PUT", "/machines/gpu-two/limit", `{"for": ["guests"]}`).want(t, http.StatusUnprocessableEntity, "nobody a machine can be for")
	ask(t, l, ada, "PUT", "/machines/gpu-two/limit", `{"for": ["role:guest", "group:vision"]}`).want(t, http.StatusOK, `{"for":["role:guest","group:vision"]}`)
	ask(t, l, ada, "GET", "/machines", "").want(t, http.StatusOK, `"limit":{"for":["role:guest","group:vision"]}`)
	ask(t, l, ada, "DELETE", "/machines/gpu-two/limit", "").want(t, http.StatusNoContent)
	ask(t, l, ada, "GET", "/audit?action=node.limit", "").want(t, http.StatusOK, "for guests and the group vision", "for everybody")
	ask(t, l, ada, "PUT", "/placing", `{"cpu": "never"}`).want(t, http.StatusUnprocessableEntity)
	ask(t, l, ada, "PUT", "/placing", `{"cpu": "require"}`).want(t, http.StatusOK, `{"cpu":"require","gpus":"pack"}`)
	ask(t, l, ada, "PUT", "/placing", `{"gpus": "spread"}`).want(t, http.StatusOK, `{"cpu":"require","gpus":"spread"}`)
	ask(t, l, ada, "GET", "/machines", "").want(t, http.StatusOK, `"placing":{"cpu":"require","gpus":"spread"}`)
	ask(t, l, ada, "GET", "/audit?action=node.placing", "").want(t, http.StatusOK, "CPU notebooks: require, GPUs: spread")
	ask(t, l, ada, "DELETE", "/machines/gpu-nine", "").want(t, http.StatusNotFound)
	ask(t, l, ada, "DELETE", "/machines/gpu-two", "").want(t, http.StatusConflict)
	ask(t, l, ada, "DELETE", "/machines/gpu-two?anyway=true", "").want(t, http.StatusOK, "gpu-two")
}
