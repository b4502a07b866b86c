package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/users"
)

// importDaemon imports into real accounts.
type importDaemon struct {
	daemon
	people *people
}

func (d *importDaemon) ImportUsers(ctx context.Context, r ctl.ImportRequest) (ctl.ImportResult, error) {
	return importUsers(ctx, d.people, "https://10.0.0.5", r)
}

// importing has a socket with ada and ben behind it, and a file with text.
func importing(t *testing.T, text string) (p *people, socket, file string) {
	t.Helper()
	needRoot(t)
	p, _, _ = peopleLab(t)
	file = filepath.Join(t.TempDir(), "list")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, serve(t, &importDaemon{daemon: daemon{state: ctl.OK}, people: p}), file
}

func handles(t *testing.T, p *people) string {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for i := range list {
		all = append(all, list[i].Handle)
	}
	return strings.Join(all, " ")
}

const classCSV = "name,email,room\nZoë Ünal,zoe@example.org,5\n=1+1,,\nX,nonsense,\n"

func TestUserImport(t *testing.T) {
	p, socket, file := importing(t, classCSV)
	code, out, stderr := gpulab(t, "user", "import", file, "--dry-run", "--group", "ml", "--make-groups", "--socket", socket)
	if code != exitFailure || !strings.Contains(stderr, "rows with errors: 1") || !strings.Contains(out, "2 new, 0 there already, 0 left out, 1 with errors.") || !strings.Contains(out, `Columns that are not used: ["room"].`) ||
		!strings.Contains(out, "nonsense") || !strings.Contains(out, "Nothing was changed.") {
		t.Errorf("a dry run: exit code %d\n%s%s", code, out, stderr)
	}
	code, out, stderr = gpulab(t, "user", "import", file, "--socket", socket)
	if code != exitFailure || !strings.Contains(stderr, "Nothing was imported") || !strings.Contains(stderr, "--skip-errors") || !strings.Contains(out, "nonsense") {
		t.Errorf("a list with an error: exit code %d\n%s%s", code, out, stderr)
	}
	if got := handles(t, p); got != "ada ben" {
		t.Fatalf("something was imported: %s", got)
	}
	links := filepath.Join(t.TempDir(), "links.csv")
	code, out, stderr = gpulab(t, "user", "import", file, "--skip-errors", "--links", links, "--group", "ml", "--make-groups", "--role", "guest", "--socket", socket)
	if code != exitFailure || !strings.Contains(stderr, "not everybody was imported") || !strings.Contains(out, "Their links are in "+links) || strings.Contains(out, "token=") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if got := handles(t, p); got != "ada ben user-1-1 zoe-unal" {
		t.Errorf("people: %s", got)
	}
	info, err := os.Stat(links)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	data, err := os.ReadFile(links)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(string(data))).ReadAll()
	if err != nil || len(rows) != 3 || rows[2][0] != "'=1+1" || !strings.HasPrefix(rows[1][3], "https://10.0.0.5/welcome?token=") {
		t.Fatalf("%q, %v", rows, err)
	}
	_, token, _ := strings.Cut(rows[1][3], "token=")
	if u, err := p.RedeemLink(t.Context(), token, "", "", "a quiet green lamp"); err != nil || u.Handle != "zoe-unal" || u.Role != users.RoleGuest {
		t.Errorf("%+v, %v", u, err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(links), ".gpulab-links-*"))
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestUserImportAsJSON(t *testing.T) {
	_, socket, file := importing(t, "name\nZoë\n")
	code, out, stderr := gpulab(t, "user", "import", file, "--json", "--socket", socket)
	var r ctl.ImportResult
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != exitOK || !r.Applied || r.Plan.New != 1 || len(r.Links) != 1 || !strings.Contains(r.Links[0].URL, "token=") {
		t.Errorf("exit code %d, %v\n%s%s", code, err, out, stderr)
	}
	code, out, _ = gpulab(t, "user", "import", file, "--socket", socket)
	if code != exitOK || !strings.Contains(out, "Nobody is new") {
		t.Errorf("again: exit code %d\n%s", code, out)
	}
}

// Nothing is imported whose links could not be kept.
func TestUserImportRefuses(t *testing.T) {
	p, socket, file := importing(t, "name\nZoë\n")
	for says, args := range map[string][]string{
		"which list?":             {"user", "import"},
		"no such file":            {"user", "import", file + ".none"},
		"could not be written":    {"user", "import", file, "--links", "/nonexistent/links.csv"},
		"1 to 30 days":            {"user", "import", file, "--days", "0"},
		"work for 1 to 30 days":   {"user", "import", file, "--days", "31"},
		"no role":                 {"user", "import", file, "--role", "king"},
		"no group":                {"user", "import", file, "--group", "ml"},
		"--passwd":                {"user", "import", file, "--from-passwd"},
		"No line of the file":     {"user", "import", "--from-passwd", "--passwd", file},
		"names none of the colum": {"user", "import", "/etc/hostname"},
	} {
		code, out, stderr := gpulab(t, append(args, "--socket", socket)...)
		if code == exitOK || !strings.Contains(stderr, says) {
			t.Errorf("%v: exit code %d, not %q\n%s%s", args, code, says, out, stderr)
		}
	}
	if got := handles(t, p); got != "ada ben" {
		t.Errorf("people: %s", got)
	}
}

func TestUserImportFromPasswd(t *testing.T) {
	p, socket, file := importing(t, "root:x:0:0:root:/root:/bin/bash\nzoe:x:1000:1000:Zoë Ünal,,,:/home/zoe:/bin/bash\nlate:x:20005:20005::/h:/bin/sh\nben:x:1001:1001::/h:/bin/sh\n")
	code, out, stderr := gpulab(t, "user", "import", "--from-passwd", "--passwd", file, "--socket", socket)
	if code != exitFailure || !strings.Contains(out, "1 new, 0 there already, 1 left out, 2 with errors.") || !strings.Contains(out, "usermod") || !strings.Contains(out, "--yes") {
		t.Errorf("a look: exit code %d\n%s%s", code, out, stderr)
	}
	if got := handles(t, p); got != "ada ben" {
		t.Fatalf("a look changed something: %s", got)
	}
	code, out, stderr = gpulab(t, "user", "import", "--from-passwd", "--passwd", file, "--yes", "--socket", socket)
	if code != exitFailure || !strings.Contains(out, "https://10.0.0.5/welcome?token=") {
		t.Errorf("exit code %d\n%s%s", code, out, stderr)
	}
	if u, err := p.ByHandle(t.Context(), "zoe"); err != nil || u.UID != 1000 || u.Name != "Zoë Ünal" {
		t.Errorf("%+v, %v", u, err)
	}
	if _, out, _ := gpulab(t, "user", "import", "--from-passwd", "--passwd", file, "--max-uid", "999", "--json", "--socket", socket); !strings.Contains(out, `"skipped": 4`) || !strings.Contains(out, `"applied": false`) {
		t.Errorf("a narrower choice:\n%s", out)
	}
}
