package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/units"
)

// openMail makes the part that writes to people.
func (l *appliance) openMail() {
	l.mail = mail.New(mail.ServiceConfig{
		DB: l.store.DB(), Mail: l.cfg.Mail, People: l.people, Lab: l.cfg.Lab, URL: l.url, Log: slog.Default(),
	})
	if l.mail.On() {
		l.people.UsePost(l.mail)
	}
}

// MailStatus implements ctl.Daemon.
func (l *appliance) MailStatus(ctx context.Context) (mail.Status, error) { return l.mail.Status(ctx) }

// Mails implements ctl.Daemon.
func (l *appliance) Mails(ctx context.Context, state mail.State, limit int) ([]mail.Entry, error) {
	return l.mail.Entries(ctx, state, limit)
}

// TestMail implements ctl.Daemon.
func (l *appliance) TestMail(ctx context.Context, address string) (mail.Tested, error) {
	tested, err := l.mail.Test(ctx, "root", address)
	if err == nil {
		l.recordRoot(ctx, "mail.test", address, "")
	}
	return tested, err
}

// mailComponent is how mail is, nothing where there is no mail server. That it is away makes no lab unready.
func (l *appliance) mailComponent(ctx context.Context) []ctl.Component {
	if !l.mail.On() {
		return nil
	}
	c := ctl.Component{Name: "mail", State: ctl.OK}
	status, err := l.mail.Status(ctx)
	if err != nil {
		c.State, c.Detail, c.NextStep = ctl.Warning, err.Error(), "see `gpulab logs`"
		return []ctl.Component{c}
	}
	c.Detail = fmt.Sprintf("%d sent in the last 7 days through %s", status.Sent, status.Server)
	if status.Waiting > 0 {
		c.Detail += fmt.Sprintf(", %d waiting for %s", status.Waiting, units.Lasting(time.Since(*status.Oldest)))
	}
	switch {
	case status.Problem != "":
		c.State, c.Detail = ctl.Warning, c.Detail+". "+status.Problem
		c.NextStep = "mend what the detail says; mails wait for days and are sent by themselves. `gpulab mail test " +
			"ADDRESS` tries at once"
	case status.Failed > 0:
		c.State = ctl.Warning
		c.Detail += fmt.Sprintf(", %d could not be delivered", status.Failed)
		c.NextStep = "`gpulab mail list --state failed` says which and why"
	}
	return []ctl.Component{c}
}
