package ctl

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/users"
)

func (d *daemon) AuditEntries(_ context.Context, f audit.Filter) ([]audit.Entry, error) {
	return []audit.Entry{{ID: f.Before, Actor: f.Person, At: f.Since, Hash: audit.Hash{7}}}, nil
}

func (d *daemon) ExportAudit(_ context.Context, w io.Writer, format audit.Format, f audit.Filter) error {
	switch f.Person {
	case "nobody":
		return errors.New("there is no such format")
	case "cut":
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		return errors.New("the disk is gone")
	}
	_, err := io.WriteString(w, string(format)+" of "+f.Person)
	return err
}

func (d *daemon) VerifyAudit(_ context.Context, expect *audit.Hash) (audit.ChainCheck, error) {
	if expect == nil {
		return audit.ChainCheck{}, &audit.BrokenError{Entry: audit.Entry{ID: 7}, Why: "It was changed."}
	}
	return audit.ChainCheck{Entries: 3, Head: *expect, Expected: true}, nil
}

func (d *daemon) UserTokens(_ context.Context, handle string) ([]users.Token, error) {
	return []users.Token{{ID: 3, Name: handle}}, nil
}

func (d *daemon) RevokeUserTokens(context.Context, string) (int, error) { return 2, nil }

func TestAuditRoundTrips(t *testing.T) {
	_, c := serve(t)
	ctx := t.Context()
	since := time.Unix(1e9, 0).UTC()
	list, err := c.AuditEntries(ctx, audit.Filter{Person: "a/b", Since: since, Before: 9})
	if err != nil || len(list) != 1 || list[0].ID != 9 || list[0].Actor != "a/b" || !list[0].At.Equal(since) ||
		list[0].Hash != (audit.Hash{7}) {
		t.Errorf("%+v, %v", list, err)
	}
	if check, err := c.VerifyAudit(ctx, &audit.Hash{1, 2}); err != nil || check.Head != (audit.Hash{1, 2}) ||
		!check.Expected || check.Entries != 3 {
		t.Errorf("%+v, %v", check, err)
	}
	if _, err := c.VerifyAudit(ctx, nil); err == nil || !strings.Contains(err.Error(), "broken at entry 7") {
		t.Error(err)
	}
	var out strings.Builder
	if err := c.ExportAudit(ctx, &out, audit.CSV, audit.Filter{Person: "ada"}); err != nil ||
		out.String() != "csv of ada" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if err := c.ExportAudit(ctx, io.Discard, audit.CSV, audit.Filter{Person: "nobody"}); err == nil ||
		err.Error() != "there is no such format" {
		t.Error(err)
	}
	if err := c.ExportAudit(ctx, io.Discard, audit.CSV, audit.Filter{Person: "cut"}); err == nil ||
		!strings.Contains(err.Error(), "broke off") {
		t.Errorf("an export that broke off: %v", err)
	}
	if tokens, err := c.UserTokens(ctx, "../x y"); err != nil || len(tokens) != 1 || tokens[0].Name != "../x y" {
		t.Errorf("%+v, %v", tokens, err)
	}
	if n, err := c.RevokeUserTokens(ctx, "ada"); err != nil || n != 2 {
		t.Error(n, err)
	}
}
