package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/metrics/promtest"
)

// board is what Grafana 10 and later import, as far as this dashboard uses it:
// a key that is not here is a typing mistake.
type board struct {
	Title, UID, Description            string
	Tags                               []string
	SchemaVersion, Version             int
	Editable, LiveNow                  bool
	GraphTooltip, FiscalYearStartMonth int
	WeekStart, Timezone, Refresh       string
	Time                               struct{ From, To string }
	Timepicker                         struct{}
	Links                              []any
	Annotations                        struct{ List []any }
	Templating                         struct{ List []variable }
	Panels                             []panel
}

type variable struct {
	Name, Label, Type, Definition, Regex, AllValue string
	Datasource                                     *datasource
	Query                                          any
	Multi, IncludeAll, SkipURLSync                 bool
	Current                                        any
	Options                                        []any
	Refresh, Sort, Hide                            int
}

type datasource struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Panels                   []any
	GridPos                  struct{ H, W, X, Y int }
	Datasource               *datasource
	Targets                  []struct {
		RefID, EditorMode, Expr, LegendFormat, Format string
		Range, Instant                                bool
		Datasource                                    *datasource
	}
	FieldConfig     struct{ Defaults, Overrides any }
	Options         map[string]any
	Transformations []any
}

func dashboard(t *testing.T) board {
	t.Helper()
	var b board
	decoder := json.NewDecoder(bytes.NewReader(assets.Dashboard()))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDashboardCanBeImported(t *testing.T) {
	b := dashboard(t)
	// 36 is Grafana 9's: older ones would be migrated in ways nobody has looked at.
	if b.Title == "" || len(b.UID) > 40 || b.UID == "" || b.SchemaVersion < 36 {
		t.Errorf("title %q, uid %q, schema %d", b.Title, b.UID, b.SchemaVersion)
	}
	if v := b.Templating.List; len(v) == 0 || v[0].Name != "datasource" || v[0].Type != "datasource" || v[0].Query != "prometheus" {
		t.Error("nobody can choose the data source")
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range b.Panels {
		if p.ID == 0 || ids[p.ID] || p.Title == "" {
			t.Errorf("panel %d %q: an ID or a title is missing, or there twice", p.ID, p.Title)
		}
		ids[p.ID] = true
		if !slices.Contains([]string{"row", "stat", "table", "timeseries"}, p.Type) {
			t.Errorf("%s: Grafana brings no panel %q", p.Title, p.Type)
		}
		if p.GridPos.W < 1 || p.GridPos.X+p.GridPos.W > 24 || p.GridPos.H < 1 {
			t.Errorf("%s lies at %+v, and a row has 24 columns", p.Title, p.GridPos)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s lies on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type != "row" && (len(p.Targets) == 0 || p.Datasource == nil || p.Datasource.UID != "${datasource}") {
			t.Errorf("%s asks nothing, or another data source", p.Title)
		}
		refs := map[string]bool{}
		for _, q := range p.Targets {
			if refs[q.RefID] || q.Datasource == nil || q.Datasource.UID != "${datasource}" || q.Range == q.Instant {
				t.Errorf("%s: the query %s is %+v", p.Title, q.RefID, q)
			}
			refs[q.RefID] = true
		}
	}
}

var (
	metricNames = regexp.MustCompile(`\b(DCGM_FI|gpulab|node)_\w+`)
	labelLists  = regexp.MustCompile(`\b(?:by|on|without|ignoring) \(([^)]*)\)`)
	matchers    = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"`)
	inLegend    = regexp.MustCompile(`{{\s*(\w+)\s*}}`)
	labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
)

// chosen is what Grafana puts in for its variables when everything is chosen.
func chosen(expression string) string {
	return strings.NewReplacer("$Hostname", ".*", "$UUID", ".*", "$user", ".*", "$__rate_interval", "5s").Replace(expression)
}

// TestDashboardOnRealMetrics: every query of the dashboard, asked of a real
// Prometheus that has read our metrics, has an answer, and every metric and
// label that it speaks of is there.
func TestDashboardOnRealMetrics(t *testing.T) {
	lab := rich(t)
	lab.Snapshots[0].GPUs[1].Health.RemapFailed = true
	// One user does nothing with a GPU.
	held := card(4, []gpu.Holder{holder("dora", "x")})
	held.Utilization = new(0.0)
	lab.Snapshots[0].GPUs = append(lab.Snapshots[0].GPUs, held)
	_, written := render(t, lab)
	has := func(metric, label string) bool {
		for _, m := range written[metric].GetMetric() {
			for _, l := range m.Label {
				if l.GetName() == label {
					return true
				}
			}
		}
		return false
	}
	prometheus := scraped(t, lab)
	prometheus.Wait(t, "rate(node_cpu_seconds_total[5s])")

	b := dashboard(t)
	for _, v := range b.Templating.List[1:] {
		parts := labelValues.FindStringSubmatch(v.Definition)
		if parts == nil {
			t.Fatalf("%s is asked for with %q", v.Name, v.Definition)
		}
		for _, s := range prometheus.Wait(t, chosen(parts[1])) {
			if s.Labels["__name__"] == "gpulab_gpu_up" && s.Labels[parts[2]] == "" {
				t.Errorf("%s: no label %s in %v", v.Name, parts[2], s.Labels)
			}
		}
		if metric := metricNames.FindString(parts[1]); !has(metric, parts[2]) {
			t.Errorf("%s: %s has no label %s", v.Name, metric, parts[2])
		}
		query, _ := v.Query.(map[string]any)
		if query["query"] != v.Definition {
			t.Errorf("%s: shown is %q, asked is %q", v.Name, v.Definition, query["query"])
		}
	}
	asked := 0
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			asked++
			where := fmt.Sprintf("%s, query %s", p.Title, q.RefID)
			if strings.Contains(strings.NewReplacer("$Hostname", "", "$UUID", "", "$user", "", "$__rate_interval", "").Replace(q.Expr), "$") {
				t.Errorf("%s: a variable nobody sets in %s", where, q.Expr)
			}
			names := metricNames.FindAllString(q.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s: no metric in %s", where, q.Expr)
			}
			var labels []string
			for _, list := range labelLists.FindAllStringSubmatch(q.Expr, -1) {
				labels = append(labels, strings.Split(list[1], ", ")...)
			}
			for _, m := range matchers.FindAllStringSubmatch(q.Expr, -1) {
				labels = append(labels, m[1])
			}
			for _, name := range names {
				if written[name] == nil {
					t.Errorf("%s: there is no metric %s", where, name)
				}
			}
			for _, label := range labels {
				if !slices.ContainsFunc(names, func(name string) bool { return has(name, label) }) {
					t.Errorf("%s: none of %v has a label %s", where, names, label)
				}
			}
			found := answer(t, prometheus, chosen(q.Expr))
			if len(found) == 0 {
				t.Errorf("%s: no answer to %s", where, q.Expr)
			}
			for _, s := range found {
				for _, label := range inLegend.FindAllStringSubmatch(q.LegendFormat, -1) {
					if s.Labels[label[1]] == "" {
						t.Errorf("%s: the legend names %s, and %v has none", where, label[1], s.Labels)
					}
				}
			}
		}
	}
	if asked < 40 {
		t.Errorf("only %d queries were asked", asked)
	}
	for expression, want := range map[string]string{
		// What the panels are for, on this lab.
		`Free`: "map[] 2", `Held but idle`: "map[] 1", `GPUs`: "map[] 5",
	} {
		for _, p := range b.Panels {
			if p.Title != expression || p.Type != "stat" {
				continue
			}
			got := answer(t, prometheus, chosen(p.Targets[0].Expr))
			if len(got) != 1 || fmt.Sprint(got[0].Labels, " ", got[0].Value) != want {
				t.Errorf("%s: %v, want %s", expression, got, want)
			}
		}
	}
}

// answer waits a little for what needs a second scrape.
func answer(t *testing.T, prometheus *promtest.Server, expression string) []promtest.Sample {
	t.Helper()
	for range 20 {
		found, err := prometheus.Query(t.Context(), expression)
		if err != nil {
			t.Errorf("%v", err)
			return nil
		}
		if len(found) > 0 {
			return found
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}
