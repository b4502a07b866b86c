package api_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/api/apitest"
	"github.com/gpulab/gpulab/internal/users"
)

// A program that reaches the lab by another port, through a tunnel for example, gets addresses at that port.
func TestAddressOfServiceThroughATunnel(t *testing.T) {
	l := apitest.New(t)
	ben := l.Token(t, "ben", users.ScopeLaunch)
	for host, want := range map[string]string{
		"lab.example": "https://lab.example:8443", "lab.example:9443": "https://lab.example:9443",
		"[::1]": "https://[::1]:8443", "[::1]:9443": "https://[::1]:9443",
	} {
		const service = `{"command": ["true"], "port": 7860}`
		made := ask(t, l, ben, "POST", "/services", service, func(r *http.Request) { r.Host = host })
		var s api.Service
		if err := json.Unmarshal([]byte(made.body), &s); err != nil || s.Address != want+"/service/ben/job/" {
			t.Errorf("%s: %d, address %q, want %s; %v", host, made.status, s.Address, want, err)
		}
	}
}
