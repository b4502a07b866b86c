package users

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/audit"
)

var update = flag.Bool("update", false, "write the tables of docs/roles.md and docs/audit.md anew")

// TestRolesDocumentation: the table of docs/roles.md is the Policy.
func TestRolesDocumentation(t *testing.T) { checkTable(t, "../../docs/roles.md", policyTable()) }

// TestAuditDocumentation: docs/audit.md lists every action, which TestEveryActionHasWords holds against the code.
func TestAuditDocumentation(t *testing.T) { checkTable(t, "../../docs/audit.md", actionTable()) }

// checkTable holds the table of a page against what it should be, or writes it.
func checkTable(t *testing.T, page, table string) {
	t.Helper()
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- table: go generate ./internal/users -->\n", "<!-- end of table -->\n"
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has lost the marks %q and %q", page, begin, end)
	}
	want := head + begin + table + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(old) {
		t.Errorf("%s is not as the code is; run `go generate ./internal/users`", page)
	}
}

// actionTable is AuditActions as a page shows them.
func actionTable() string {
	var b strings.Builder
	b.WriteString("| action | somebody |\n|---|---|\n")
	for _, a := range audit.Actions() {
		fmt.Fprintf(&b, "| `%s` | %s |\n", a.Name, a.Words)
	}
	return b.String()
}

// policyTable is the Policy as a page shows it.
func policyTable() string {
	var b strings.Builder
	b.WriteString("| |")
	for _, r := range Roles() {
		fmt.Fprintf(&b, " %s |", r)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(Roles())) + "\n")
	for _, rule := range Policy() {
		fmt.Fprintf(&b, "| %s |", rule.What)
		for _, r := range Roles() {
			fmt.Fprintf(&b, " %s |", r.Scope(rule.Action))
		}
		b.WriteString("\n")
	}
	return b.String()
}
