package ctl

import (
	"context"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/mail"
)

func (d *daemon) MailStatus(context.Context) (mail.Status, error) {
	return mail.Status{On: true, Waiting: 3}, nil
}

func (d *daemon) Mails(_ context.Context, state mail.State, limit int) ([]mail.Entry, error) {
	return make([]mail.Entry, min(limit, len(state))), nil
}

func (d *daemon) TestMail(_ context.Context, address string) (mail.Tested, error) {
	if err := mail.CheckAddress(address); err != nil {
		return mail.Tested{}, err
	}
	return mail.Tested{OK: true, Text: address}, nil
}

func TestMail(t *testing.T) {
	_, client := serveDaemon(t, &daemon{})
	if got, err := client.MailStatus(t.Context()); err != nil || !got.On || got.Waiting != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := client.Mails(t.Context(), mail.Failed, 4); err != nil || len(got) != 4 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := client.TestMail(t.Context(), "ada@example.org"); err != nil || got.Text != "ada@example.org" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := client.TestMail(t.Context(), "ada"); err == nil || !strings.Contains(err.Error(), "no e-mail address") {
		t.Errorf("an address that is none: %v", err)
	}
}
