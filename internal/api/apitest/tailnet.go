package apitest

import (
	"context"
	"strings"
	"sync"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// Tailnet is a tailnet that lets the lab in at once with a key, and asks a person without.
type Tailnet struct {
	mu  sync.Mutex
	now ctl.Tailnet
	// Asked is what the lab was turned on with last.
	Asked ctl.TailnetRequest
	// FunnelAllowed tells whether the lab may be opened to the public internet.
	FunnelAllowed bool
}

// NewTailnet makes one that the lab is not in.
func NewTailnet() *Tailnet { return &Tailnet{now: outside()} }

func outside() ctl.Tailnet {
	return ctl.Tailnet{State: ctl.TailnetOff, Detail: "The lab is in no tailnet.", SignIn: "off"}
}

// Status implements api.Tailnet.
func (t *Tailnet) Status(context.Context) (ctl.Tailnet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now, nil
}

// Up implements api.Tailnet.
func (t *Tailnet) Up(_ context.Context, r ctl.TailnetRequest) (ctl.Tailnet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.LoginServer != "" && !strings.HasPrefix(r.LoginServer, "https://") {
		return t.now, &users.Error{Kind: ctl.ErrTailnet, Text: "The control server is no address."}
	}
	t.Asked = r
	t.now = ctl.Tailnet{
		State: ctl.TailnetLogin, Detail: "Somebody of the tailnet has to let the lab in.",
		LoginServer: "https://control.example", LoginURL: "https://control.example/a/123", SignIn: "off",
	}
	if r.AuthKey != "" {
		t.now = ctl.Tailnet{State: ctl.TailnetUp, Detail: "The lab is at https://gpulab.example.ts.net.",
			LoginServer: "https://control.example", URL: "https://gpulab.example.ts.net",
			Name: "gpulab.example.ts.net", Addresses: []string{"100.64.0.1"}, Trusted: true, Funnel: ctl.FunnelOff,
			SignIn: "off"}
	}
	return t.now, nil
}

// Down implements api.Tailnet.
func (t *Tailnet) Down(context.Context) (ctl.Tailnet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	server := t.now.LoginServer
	t.now = outside()
	t.now.LoginServer = server
	return t.now, nil
}

// Funnel implements api.Tailnet.
func (t *Tailnet) Funnel(_ context.Context, on bool) (ctl.Tailnet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !on:
		t.now.Funnel = ctl.FunnelOff
	case !t.FunnelAllowed:
		return t.now, &users.Error{Kind: ctl.ErrTailnet, Text: "The tailnet does not allow it."}
	default:
		t.now.Funnel = ctl.FunnelOpen
	}
	return t.now, nil
}

// Logout implements api.Tailnet.
func (t *Tailnet) Logout(context.Context) (ctl.Tailnet, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = outside()
	return t.now, nil
}
