package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const page = "../../docs/metrics.md"

// TestDocumentation: the tables of docs/metrics.md are those of this package.
func TestDocumentation(t *testing.T) {
	old, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- tables: go generate ./internal/metrics -->\n", "<!-- end of tables -->\n"
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has lost the marks %q and %q", page, begin, end)
	}
	want := head + begin + tables() + end + tail
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(old) {
		t.Errorf("%s does not tell of these metrics; run `go generate ./internal/metrics`", page)
	}
}

// tables are the metrics as a page shows them.
func tables() string {
	var b bytes.Buffer
	for _, group := range []struct {
		title    string
		families []family
	}{
		{"GPUs, as dcgm-exporter names them", deviceFamilies()},
		{"GPUs and the lab, in gpulab's own words", labFamilies()},
		{"Users of GPUs", userFamilies()},
		{"The machine, as node_exporter names it", hostFamilies()},
	} {
		fmt.Fprintf(&b, "\n### %s\n\n| metric | type | unit | what it tells | labels | source |\n|---|---|---|---|---|---|\n", group.title)
		for _, f := range group.families {
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", f.name, strings.ToLower(dto.MetricType_name[int32(f.kind)]), f.unit, f.help, labelWords(f.labels), f.source)
		}
	}
	return b.String() + "\n"
}

// labelWords names the sets of labels that many metrics share.
func labelWords(all []string) string {
	var words []string
	rest := slices.Clone(all)
	for _, set := range []struct {
		word   string
		labels []string
	}{{"GPU", nameLabels}, {"part", partLabels}, {"owner", ownerLabels}} {
		if !slices.ContainsFunc(set.labels, func(l string) bool { return !slices.Contains(rest, l) }) {
			words = append(words, set.word)
			rest = slices.DeleteFunc(rest, func(l string) bool { return slices.Contains(set.labels, l) })
		}
	}
	for _, l := range rest {
		words = append(words, "`"+l+"`")
	}
	if len(words) == 0 {
		return "–"
	}
	return strings.Join(words, ", ")
}
