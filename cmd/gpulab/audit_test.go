package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
	"github.com/gpulab/gpulab/internal/cookies"
	"github.com/gpulab/gpulab/internal/users"
)

// auditDaemon answers about the audit log and tokens as the real one does.
type auditDaemon struct {
	*daemon
	l *appliance
}

func (d auditDaemon) AuditEntries(ctx context.Context, f audit.Filter) ([]audit.Entry, error) {
	return d.l.AuditEntries(ctx, f)
}
func (d auditDaemon) VerifyAudit(ctx context.Context, expect *audit.Hash) (audit.ChainCheck, error) {
	return d.l.VerifyAudit(ctx, expect)
}
func (d auditDaemon) ExportAudit(ctx context.Context, w io.Writer, format audit.Format, f audit.Filter) error {
	return d.l.ExportAudit(ctx, w, format, f)
}
func (d auditDaemon) UserTokens(ctx context.Context, handle string) ([]users.Token, error) {
	return d.l.UserTokens(ctx, handle)
}
func (d auditDaemon) RevokeUserTokens(ctx context.Context, handle string) (int, error) {
	return d.l.RevokeUserTokens(ctx, handle)
}

func auditLab(t *testing.T) (l *appliance, ben users.User, socket string) {
	t.Helper()
	p, _, ben := peopleLab(t)
	l = &appliance{people: p.Service}
	return l, ben, serve(t, auditDaemon{&daemon{}, l})
}

func TestAuditCommands(t *testing.T) {
	needRoot(t)
	l, ben, socket := auditLab(t)
	l.recordRoot(t.Context(), "user.add", "ben", "")
	must := func(args ...string) string {
		t.Helper()
		code, out, stderr := gpulab(t, append(args, "--socket", socket)...)
		if code != exitOK || stderr != "" {
			t.Fatalf("%v: exit code %d\n%s%s", args, code, out, stderr)
		}
		return out
	}
	refused := func(code int, says string, args ...string) {
		t.Helper()
		got, _, stderr := gpulab(t, append(args, "--socket", socket)...)
		if got != code || !strings.Contains(stderr, says) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, want %d: %s", args, got, code, stderr)
		}
	}
	if out := must("audit", "list", "--user", "ben", "--since", "1h"); !strings.Contains(out, "added a person") || strings.Contains(out, "first administrator") {
		t.Error(out)
	}
	if out := must("audit", "list", "--until", "2001-01-01"); !strings.Contains(out, "Nothing") {
		t.Error(out)
	}
	var entries []audit.Entry
	if err := json.Unmarshal([]byte(must("audit", "list", "--json", "--limit", "1", "--action", "admin.created")), &entries); err != nil || len(entries) != 1 || entries[0].Target != "ada" {
		t.Errorf("%+v, %v", entries, err)
	}
	refused(exitUsage, "no action", "audit", "list", "--action", "user.ad")
	refused(exitUsage, "neither a day", "audit", "list", "--since", "yesterday")
	refused(exitUsage, "--limit", "audit", "list", "--limit", "0")
	refused(exitUsage, "--csv or --json", "audit", "export")
	refused(exitUsage, "64 hexadecimal", "audit", "verify", "--expect", "0f3a")

	// The head hash that verify prints is known later, too.
	out := must("audit", "verify")
	head := out[strings.LastIndex(out, " ")+1:]
	if !strings.HasPrefix(out, "2 entries from ") || !strings.Contains(out, "unbroken, head hash") || len(head) != 65 {
		t.Fatal(out)
	}
	head = strings.TrimSpace(head)
	rows, err := csv.NewReader(strings.NewReader(must("audit", "export", "--csv"))).ReadAll()
	if err != nil || len(rows) != 4 || rows[3][3] != "audit.export" || rows[3][2] != "root" {
		t.Errorf("%q, %v", rows, err)
	}
	must("audit", "verify", "--expect", head)
	file := filepath.Join(t.TempDir(), "audit.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole := must("audit", "export", "--json")
	write(whole)
	if code, out, _ := gpulab(t, "audit", "verify", "--file", file, "--expect", head); code != exitOK || !strings.HasPrefix(out, "4 entries") {
		t.Errorf("the file: exit code %d: %s", code, out)
	}
	if code, out, _ := gpulab(t, "audit", "verify", "--file", file, "--expect", strings.Repeat("0", 63)+"1"); code != exitFailure || !strings.HasPrefix(out, "4 entries") {
		t.Errorf("a hash that is not in it: exit code %d: %s", code, out)
	}
	write(strings.Replace(whole, `"target":"ben"`, `"target":"eve"`, 1))
	if code, _, stderr := gpulab(t, "audit", "verify", "--file", file); code != exitFailure || !strings.Contains(stderr, "broken at entry 2") {
		t.Errorf("a changed file: exit code %d: %s", code, stderr)
	}
	write(must("audit", "export", "--json", "--user", "ben"))
	if code, out, _ := gpulab(t, "audit", "verify", "--file", file); code != exitOK || !strings.Contains(out, "a part of the log") {
		t.Errorf("a part: exit code %d: %s", code, out)
	}
	if code, _, stderr := gpulab(t, "audit", "verify", "--file", file+".none"); code != exitFailure || stderr == "" {
		t.Errorf("no file: exit code %d", code)
	}

	if _, _, err := l.people.CreateToken(t.Context(), ben.ID, users.NewToken{Name: "laptop", Scope: users.ScopeRead, Days: 7}); err != nil {
		t.Fatal(err)
	}
	if out := must("user", "tokens", "ben"); !strings.Contains(out, "laptop") || !strings.Contains(out, "never") || strings.Contains(out, "gpulab_") {
		t.Error(out)
	}
	if out := must("user", "tokens", "ben", "--json"); !json.Valid([]byte(out)) || !strings.Contains(out, `"lastUsed": null`) {
		t.Error(out)
	}
	if out := must("user", "revoke-tokens", "ben"); !strings.Contains(out, "revoked") {
		t.Error(out)
	}
	for _, command := range []string{"tokens", "revoke-tokens"} {
		if out := must("user", command, "ben"); out != "ben has no access tokens.\n" {
			t.Error(out)
		}
	}
	refused(exitFailure, "no such user", "user", "tokens", "nobody")
	if out := must("audit", "list", "--action", "token.revoke"); !strings.Contains(out, "all of them, 1") {
		t.Error(out)
	}
}

// Access tokens are for the API of the pages. Where notebooks, the hub's sign-in and metrics ask who somebody is,
// they are nothing: neither as such nor in the place of the cookie.
func TestAccessTokensOpenNoNotebook(t *testing.T) {
	l, ben, _ := auditLab(t)
	token, _, err := l.people.CreateToken(t.Context(), ben.ID, users.NewToken{Name: "x", Scope: users.ScopeFull, Days: 7})
	if err != nil {
		t.Fatal(err)
	}
	session, err := l.people.StartSession(t.Context(), ben.ID, users.SessionMeta{})
	if err != nil {
		t.Fatal(err)
	}
	request := func(header, cookie string) *http.Request {
		r := httptest.NewRequest(http.MethodGet, "https://lab:21000/user/ben/gpu/", nil)
		if header != "" {
			r.Header.Set("Authorization", "Bearer "+header)
		}
		if cookie != "" {
			r.AddCookie(&http.Cookie{Name: cookies.Session, Value: cookie})
		}
		return r
	}
	for what, r := range map[string]*http.Request{
		"token": request(token, ""), "token as cookie": request("", token), "both": request(token, token), "session as token": request(session, ""),
	} {
		if s, ok := l.FromRequest(r); ok || s.User.ID != 0 {
			t.Errorf("%s: let in as %q", what, s.User.Handle)
		}
		if _, ok := l.sessionUser(r); ok {
			t.Errorf("%s: signed in", what)
		}
	}
	if s, ok := l.FromRequest(request("", session)); !ok || s.User.Handle != "ben" {
		t.Fatal("this test shows nothing")
	}
}
