package nodeapi

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// What a machine gone bad tells is kept within what one can mean.
func TestTidy(t *testing.T) {
	long := strings.Repeat("é", 300_000)
	process, holder, instance := fmt.Sprintf(`{"pid":1,"name":%q,"smUtilization":1e308}`, long[:2000]), `{"namespace":"n","name":"x"}`, `{"uuid":"MIG-1","memoryUsed":18446744073709551615}`
	many := func(one string, n int) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	text := fmt.Sprintf(`{"snapshot":{"node":"b","title":"another machine","cordoned":"by nobody","time":"9999-01-01T00:00:00Z","error":%q,"gpus":[{"uuid":"GPU-1","name":%q,
		"memoryTotal":18446744073709551615,"memoryUsed":5,"utilization":100.4,"power":-1e308,"energy":1e308,"temperature":40,"slots":-3,"xid":18446744073709551615,
		"throttle":[%s],"processes":[%s],"holders":[%s],"instances":[%s]}],"events":[{"time":"9999-01-01T00:00:00Z","xid":79,"program":%[2]q},{"time":"2026-11-01T00:00:00Z","xid":13,"earlier":true}],
		"eventsDropped":-5},"host":{"cpus":-1,"load":1e308,"memoryTotal":-9,"memoryUsed":7,"diskTotal":9223372036854775807},"images":{"failed":%[1]q,"done":-1}}`,
		long, long, many(`"x"`, 99), many(process, 999), many(holder, 999), many(instance, 99))
	var r Report
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	r.ClockOff = (&clock{}).set(&r.Snapshot, now)
	tidy(&r, now)
	s, g := r.Snapshot, r.Snapshot.GPUs[0]
	if !s.Time.Equal(now) || s.Title+s.Cordoned != "" || len(s.Error) > longestReason || s.EventsDropped != 0 {
		t.Errorf("%+v", s)
	}
	if !s.Events[0].Time.Equal(now) || len(s.Events[0].Program) > longestName || s.Events[1].Time.Day() != 1 {
		t.Errorf("%+v", s.Events)
	}
	if len(g.Name) != longestName || g.MemoryTotal != nil || *g.MemoryUsed != 5 || *g.Utilization != 100 || g.Power != nil || g.Energy != nil || *g.Temperature != 40 || g.Slots != 0 || g.XID != nil {
		t.Errorf("%+v", g)
	}
	if len(g.Throttle) != 16 || len(g.Processes) != mostProcesses || len(g.Holders) != mostProcesses || len(g.Instances) != mostInstances ||
		len(g.Processes[0].Name) > longestName || g.Processes[0].SMUtilization != nil || g.Instances[0].MemoryUsed != nil {
		t.Errorf("%d, %d, %d, %d", len(g.Throttle), len(g.Processes), len(g.Holders), len(g.Instances))
	}
	if h := *r.Host; h != (Host{MemoryUsed: 7}) {
		t.Errorf("%+v", h)
	}
	if len(r.Images.Failed) > longestReason || r.Images.Done != 0 {
		t.Errorf("%+v", r.Images)
	}
	// A page shows it once a second.
	if data, err := json.Marshal(r); err != nil || len(data) > 200_000 {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// What honest machines tell stays as it is.
func TestTidyLeavesReadingsAlone(t *testing.T) {
	f, u, id := 61.5, uint64(80<<30), 3
	report := func() Report {
		return Report{Snapshot: gpu.Snapshot{Node: "b", Time: time.Unix(1_790_000_000, 0), DriverVersion: "580.1", GPUs: []gpu.GPU{{
			Device:  gpu.Device{UUID: "GPU-1", Name: "NVIDIA H100", MemoryTotal: &u, PowerLimit: &f, SMClockMax: &f, Slots: 4},
			Reading: gpu.Reading{Utilization: &f, Power: &f, Energy: &f, PCIeSent: &f, Throttle: []string{"temperature"}, Instances: []gpu.Instance{{UUID: "MIG-1", ID: &id, Slices: 1, SlicesOf: 7}}, Processes: []gpu.Process{{PID: 7, Name: "python", MemoryUsed: &u}}},
			Holders: []gpu.Holder{{PodRef: gpu.PodRef{Namespace: "user-ada", Name: "x"}}},
		}}, Events: []gpu.XIDEvent{{Time: time.Unix(1_780_000_000, 0), XID: 79, Earlier: true}}},
			Host: &Host{CPUs: 128, Load: 300, MemoryTotal: 2 << 40, MemoryUsed: 1 << 40, DiskTotal: 1 << 46, DiskFree: 5}, MemoryKills: map[string]int{"u": 1}}
	}
	r, want := report(), report()
	tidy(&r, time.Unix(1_790_000_001, 0))
	if !reflect.DeepEqual(r, want) {
		t.Errorf("%+v\n%+v", r, want)
	}
}
