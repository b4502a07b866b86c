// Package metrics tells Prometheus what the lab does: the GPUs in the names and
// units of NVIDIA's dcgm-exporter, so that existing dashboards work, who uses
// them and what the lab itself is at under gpulab_, and the machine in the
// names of node_exporter.
//
// Every family stands in one table, which docs/metrics.md is made of. What is
// not known is left out: nothing is 0 because it could not be read. Handler
// serves the result to those who may have it.
//
// cmd/gpulab wires it; it imports diskspace, gpu and hoststat for their types.
package metrics

//go:generate go test -run TestDocumentation -update .

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/hoststat"
)

// Lab is what the metrics tell of, at one moment.
type Lab struct {
	Version string
	Now     time.Time
	// Snapshots are the latest of every machine.
	Snapshots []gpu.Snapshot
	// Launches counts the launches that have not ended by their state. Nil:
	// not known.
	Launches map[string]int
	// Disks are those that the lab writes to.
	Disks []diskspace.Filesystem
	// Host is the machine that serves the metrics.
	Host hoststat.Reading
}

// A family is one metric with all its series.
type family struct {
	name string
	kind dto.MetricType
	unit string // for the documentation
	help string // one line
	// labels are those its series may have.
	labels []string
	// source says where the values come from.
	source string
	series func(*view, emit)
}

// emit adds a series.
type emit func(labels []*dto.LabelPair, value float64)

const (
	gauge   = dto.MetricType_GAUGE
	counter = dto.MetricType_COUNTER
)

// families are all there are, in the order in which they are written.
func families() []family {
	var all []family
	for _, group := range [][]family{deviceFamilies(), labFamilies(), userFamilies(), hostFamilies()} {
		all = append(all, group...)
	}
	return all
}

// view is a Lab with what several families need made once.
type view struct {
	*Lab
	gpus []device
}

// device is a GPU as the metrics see it.
type device struct {
	*gpu.GPU
	node *gpu.Snapshot
	// fresh says that there are present readings of the GPU. Of one without,
	// nothing is told but that it is not up.
	fresh bool
	// names are the labels that dcgm-exporter gives a GPU, owned those with the
	// pod that holds it.
	names, owned []*dto.LabelPair
}

func look(lab *Lab) *view {
	v := &view{Lab: lab}
	for i := range lab.Snapshots {
		s := &lab.Snapshots[i]
		for k := range s.GPUs {
			g := &s.GPUs[k]
			v.gpus = append(v.gpus, device{
				GPU: g, node: s, fresh: s.Error == "" && g.Error == "",
				names: deviceLabels(s, g), owned: withOwner(deviceLabels(s, g), g, ""),
			})
		}
	}
	return v
}

// Write renders lab in Prometheus' text format. There is no OpenMetrics: that
// format would append _total to the counters whose names are NVIDIA's.
func Write(w io.Writer, lab *Lab) error {
	v := look(lab)
	var out bytes.Buffer
	for _, f := range families() {
		rendered := &dto.MetricFamily{Name: &f.name, Help: &f.help, Type: &f.kind}
		seen := map[string]bool{}
		f.series(v, func(labels []*dto.LabelPair, value float64) {
			// A second series of the same name would spoil the whole scrape.
			key := keyOf(labels)
			if seen[key] {
				return
			}
			seen[key] = true
			m := &dto.Metric{Label: labels}
			if f.kind == counter {
				m.Counter = &dto.Counter{Value: &value}
			} else {
				m.Gauge = &dto.Gauge{Value: &value}
			}
			rendered.Metric = append(rendered.Metric, m)
		})
		if len(rendered.Metric) == 0 {
			continue
		}
		if _, err := expfmt.MetricFamilyToText(&out, rendered); err != nil {
			return fmt.Errorf("the metric %s: %w", f.name, err)
		}
	}
	_, err := w.Write(out.Bytes())
	return err
}

func keyOf(labels []*dto.LabelPair) string {
	var b strings.Builder
	for _, l := range labels {
		b.WriteString(l.GetName())
		b.WriteByte(0) // in no value, see label
		b.WriteString(l.GetValue())
		b.WriteByte(0)
	}
	return b.String()
}

// ContentType is that of what Write writes.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// label makes one label. A value may come from anywhere: what Prometheus could
// not read would cost the whole scrape, so it is replaced.
func label(name, value string) *dto.LabelPair {
	value = strings.ReplaceAll(strings.ToValidUTF8(value, "\uFFFD"), "\x00", "\uFFFD")
	return &dto.LabelPair{Name: &name, Value: &value}
}

// labels makes labels of names and values in turn.
func labels(pairs ...string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, label(pairs[i], pairs[i+1]))
	}
	return out
}

// and returns a longer list of labels; the one it was made from stays.
func and(list []*dto.LabelPair, pairs ...string) []*dto.LabelPair {
	return append(list[:len(list):len(list)], labels(pairs...)...)
}
