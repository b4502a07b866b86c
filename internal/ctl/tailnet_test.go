package ctl

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func (d *daemon) Tailnet(context.Context) (Tailnet, error) {
	return Tailnet{State: TailnetLogin, LoginURL: "https://control.example/a/1"}, nil
}

func (d *daemon) TailnetUp(_ context.Context, r TailnetRequest) (Tailnet, error) {
	if r.LoginServer == "nonsense" {
		return Tailnet{}, errors.New("no address")
	}
	d.told("up %+v", r)
	return Tailnet{State: TailnetUp, Addresses: []string{"100.64.0.1"}}, nil
}

func (d *daemon) TailnetDown(context.Context) (Tailnet, error) {
	d.told("down")
	return Tailnet{State: TailnetOff, LoginServer: "https://control.example"}, nil
}

func (d *daemon) TailnetFunnelOff(context.Context) (Tailnet, error) {
	d.told("funnel off")
	return Tailnet{State: TailnetUp, Funnel: FunnelOff}, nil
}

func (d *daemon) TailnetLogout(context.Context) (Tailnet, error) {
	d.told("logout")
	return Tailnet{State: TailnetOff}, nil
}

func TestTailnetOverTheSocket(t *testing.T) {
	d := &daemon{}
	_, c := serveDaemon(t, d)
	ctx := t.Context()
	if now, err := c.Tailnet(ctx); err != nil || now.State != TailnetLogin || now.LoginURL != "https://control.example/a/1" {
		t.Errorf("%+v, %v", now, err)
	}
	if _, err := c.TailnetUp(ctx, TailnetRequest{LoginServer: "nonsense"}); err == nil || err.Error() != "no address" {
		t.Errorf("nonsense: %v", err)
	}
	if now, err := c.TailnetUp(ctx, TailnetRequest{AuthKey: "k", Hostname: "vision"}); err != nil || now.State != TailnetUp || len(now.Addresses) != 1 {
		t.Errorf("%+v, %v", now, err)
	}
	if now, err := c.TailnetFunnelOff(ctx); err != nil || now.Funnel != FunnelOff {
		t.Errorf("%+v, %v", now, err)
	}
	if now, err := c.TailnetDown(ctx); err != nil || now.LoginServer == "" {
		t.Errorf("%+v, %v", now, err)
	}
	if now, err := c.TailnetLogout(ctx); err != nil || now.LoginServer != "" {
		t.Errorf("%+v, %v", now, err)
	}
	if want := []string{"up {AuthKey:k LoginServer: Hostname:vision}", "funnel off", "down", "logout"}; !slices.Equal(d.heard, want) {
		t.Errorf("heard %q", d.heard)
	}
}
