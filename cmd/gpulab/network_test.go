package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/users"
)

// configFrom loads a configuration with the given text.
func configFrom(t *testing.T, text string) (config.Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return loadConfig(path)
}

func TestProxyNameIsFollowed(t *testing.T) {
	p, err := newProxyName(config.Network{Proxy: "http://proxy.example.org:3128"})
	if err != nil {
		t.Fatal(err)
	}
	var answer []netip.Addr
	var fault error
	now := time.Unix(0, 0)
	p.now = func() time.Time { return now }
	p.look = func(_ context.Context, network, host string) ([]netip.Addr, error) {
		if network != "ip4" || host != "proxy.example.org" {
			t.Errorf("looked up %s %s", network, host)
		}
		return answer, fault
	}
	addr := netip.MustParseAddr
	for i, step := range []struct {
		answer []netip.Addr
		err    error
		after  time.Duration
		want   string
		well   bool
	}{
		{nil, errors.New("no such host"), 0, "[]", false},
		{[]netip.Addr{addr("10.1.1.2"), addr("::ffff:10.1.1.1")}, nil, 0, "[10.1.1.1:3128 10.1.1.2:3128]", true},
		{nil, errors.New("timeout"), turns / 2, "[10.1.1.1:3128 10.1.1.2:3128]", false},
		{nil, nil, 0, "[10.1.1.1:3128 10.1.1.2:3128]", false},
		// A name may give its addresses in turns.
		{[]netip.Addr{addr("10.1.1.1")}, nil, 0, "[10.1.1.1:3128 10.1.1.2:3128]", true},
		{[]netip.Addr{addr("10.1.1.3")}, nil, turns / 2, "[10.1.1.1:3128 10.1.1.2:3128 10.1.1.3:3128]", true},
		{[]netip.Addr{addr("10.1.1.3")}, nil, turns, "[10.1.1.3:3128]", true},
	} {
		answer, fault = step.answer, step.err
		now = now.Add(step.after)
		p.refresh(t.Context())
		if got := fmt.Sprint(p.addresses()); got != step.want || (p.problem() == nil) != step.well {
			t.Errorf("step %d: %s, %v; want %s", i, got, p.problem(), step.want)
		}
	}
	literal, err := newProxyName(config.Network{Proxy: "http://10.1.1.1:3128"})
	if err != nil {
		t.Fatal(err)
	}
	literal.refresh(t.Context())
	if got := literal.addresses(); !slices.Equal(got, []netip.AddrPort{netip.MustParseAddrPort("10.1.1.1:3128")}) {
		t.Errorf("an address: %v, %v", got, literal.problem())
	}
}

func TestGroupMembers(t *testing.T) {
	ctx := t.Context()
	db, err := store.Open(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	people := users.New(db.DB())
	ada, err := people.Create(ctx, users.NewUser{Handle: "ada", Name: "Ada", Role: users.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := people.CreateGroup(ctx, "vision", "Vision"); err != nil {
		t.Fatal(err)
	}
	if err := people.SetMember(ctx, "vision", ada.ID, false); err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string][]string{"vision": {"ada"}, "nowhere": nil} {
		if got, err := groupMembers(people)(ctx, group); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", group, got, err, want)
		}
	}
}

func TestContainerLimits(t *testing.T) {
	const gib = int64(1) << 30
	l, err := containerLimits(2, 8*gib+5, notebooks.DefaultProfiles(), 20*gib)
	if err != nil {
		t.Fatal(err)
	}
	// The GPU profile has four cores, also on a machine with two.
	for what, got := range map[string][2]int64{
		"default cores":  {*l.Default.MilliCPU, 1000},
		"default memory": {*l.Default.Memory, 4 * gib},
		"default disk":   {*l.Default.EphemeralStorage, 20 * gib},
		"most cores":     {*l.Max.MilliCPU, 4000},
		"most memory":    {*l.Max.Memory, 8*gib + mebibyte},
		"most disk":      {*l.Max.EphemeralStorage, 20 * gib},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %d, want %d", what, got[0], got[1])
		}
	}
}

// What the configuration allows and the lab does not open is told.
func TestNetworkStatus(t *testing.T) {
	cfg, err := configFrom(t, `
network:
  allow:
    - {name: nas, to: 192.168.1.10, ports: [2049], groups: [vision]}
    - {name: a pod, to: 10.42.7.0/24}
    - {name: campus, to: 10.0.0.0/8}
  proxy: http://10.43.0.7:3128
`)
	if err != nil {
		t.Fatal(err)
	}
	db, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	l := &appliance{cfg: cfg, people: users.New(db.DB()), id: embedk8s.Identity{
		ClusterCIDR: netip.MustParsePrefix("10.42.0.0/16"), ServiceCIDR: netip.MustParsePrefix("10.43.0.0/16"),
	}}
	if l.proxy, err = newProxyName(cfg.Network); err != nil {
		t.Fatal(err)
	}
	l.proxy.refresh(t.Context())
	n := l.network(t.Context())
	want := []string{"nas: There is no group vision.", "a pod: " + ownMachines, "proxy: " + ownMachines}
	if got := n.Problems(); !slices.Equal(got, want) {
		t.Errorf("problems %q, want %q", got, want)
	}
	if c := networkComponent(n); c.State != ctl.Warning || c.NextStep == "" {
		t.Errorf("component %+v", c)
	}
	if n.Allow[0].To != "192.168.1.10" || n.Allow[2].To != "10.0.0.0/8" {
		t.Errorf("written as %s and %s", n.Allow[0].To, n.Allow[2].To)
	}
	if _, err := l.people.CreateGroup(t.Context(), "vision", ""); err != nil {
		t.Fatal(err)
	}
	if got := l.network(t.Context()).Problems(); len(got) != 2 {
		t.Errorf("with the group, problems %q", got)
	}
	if c := networkComponent(ctl.Network{}); c.State != ctl.OK || c.NextStep != "" {
		t.Errorf("without any: %+v", c)
	}
}
