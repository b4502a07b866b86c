package metrics

import (
	"bytes"
	"errors"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/metrics/promtest"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func holder(user, notebook string) gpu.Holder {
	return gpu.Holder{PodRef: gpu.PodRef{UID: user, Namespace: "user-" + user, Name: "jupyter-" + user + "--" + notebook, User: user, Notebook: notebook}, Container: "notebook"}
}

func process(user string, sm, memory any) gpu.Process {
	p := gpu.Process{PID: 1, Pod: gpu.PodRef{UID: user, User: user}}
	if outside, found := strings.CutPrefix(user, "unix:"); found {
		p.Pod, p.UnixUser = gpu.PodRef{}, outside
	}
	if sm, known := sm.(float64); known {
		p.SMUtilization = &sm
	}
	if memory, known := memory.(int); known {
		p.MemoryUsed = new(uint64(memory))
	}
	return p
}

// card is a GPU of which everything is known.
func card(index int, holders []gpu.Holder, processes ...gpu.Process) gpu.GPU {
	return gpu.GPU{
		Device: gpu.Device{
			UUID: "GPU-" + string(rune('a'+index)), Index: index, Name: "Simulated GPU 24GB", PCIBusID: "00000000:22:00.0", Simulated: true,
			MemoryTotal: new(uint64(24 << 30)), PowerLimit: new(350.0), ComputeCapability: "8.9", SMClockMax: new(2500.0), MemoryClockMax: new(10500.0),
			PCIeGenerationMax: new(4.0), PCIeWidthMax: new(16.0), ECC: new(true), Persistence: new(false),
		},
		Reading: gpu.Reading{
			Utilization: new(37.0), MemoryUtilization: new(12.0), Encoder: new(1.0), Decoder: new(2.0), MemoryUsed: new(uint64(1536 << 20)),
			Power: new(121.5), Energy: new(2.5), Temperature: new(61.0), MemoryTemperature: new(70.0), Fan: new(45.0), SMClock: new(2100.0), MemoryClock: new(10000.0),
			Throttle: []string{gpu.ThrottlePowerCap}, PCIeGeneration: new(3.0), PCIeWidth: new(8.0), PCIeReceived: new(2e6), PCIeSent: new(1e6),
			Health: gpu.Health{
				ECCCorrected: new(uint64(3)), ECCUncorrected: new(uint64(1)), RemappedCorrectable: new(uint64(4)), RemappedUncorrectable: new(uint64(2)),
				RemapPending: true, RetiredPages: new(uint64(5)), Recovery: gpu.RecoveryReboot,
			},
			XID: new(uint64(79)), Processes: processes,
		},
		Holders: holders,
	}
}

// rich is a lab of which every family tells something: a card of one user, one
// that two share beside a process of nobody's, one in parts, and one that is free.
func rich(t *testing.T) *Lab {
	t.Helper()
	parts := card(2, nil)
	parts.MIG = true
	parts.Instances = []gpu.Instance{
		{UUID: "MIG-1", Index: 1, ID: new(9), Profile: "1g.10gb", Slices: 1, SlicesOf: 7, MemoryTotal: new(uint64(10 << 30)), MemoryUsed: new(uint64(1 << 30))},
		{UUID: "MIG-2", Index: 2, Profile: "2g.20gb", MemoryTotal: new(uint64(20 << 30)), MemoryUsed: new(uint64(2 << 30))},
	}
	idle := card(3, nil)
	idle.Utilization = new(0.0)
	host, err := hoststat.New()
	if err != nil {
		t.Fatal(err)
	}
	reading, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	// A machine for tests may have none of its own to show.
	reading.Disks = append(reading.Disks, hoststat.Disk{Device: "disk-of-the-test", Reads: 1})
	reading.Interfaces = append(reading.Interfaces, hoststat.Interface{Name: "interface-of-the-test", ReceivedBytes: 1, SentBytes: 1})
	return &Lab{
		Version: "1.2.3", Now: began.Add(1500 * time.Millisecond), Host: reading,
		Disks:    []diskspace.Filesystem{{Path: "/var/lib/gpulab", Level: diskspace.Notice}},
		Launches: map[string]int{"waiting": 2, "starting": 0, "running": 3, "stopping": 0},
		Snapshots: []gpu.Snapshot{{
			Node: "head", Time: began, DriverVersion: "580.95.05", CUDAVersion: "13.0", Simulated: true,
			GPUs: []gpu.GPU{
				card(0, []gpu.Holder{holder("anna", "work")}, process("anna", 37.0, 1<<30)),
				card(1, []gpu.Holder{holder("ben", "a"), holder("cleo", "b")}, process("ben", 70.0, 4<<30), process("cleo", 25.0, 2<<30), process("unix:root", 5.0, 1<<28)),
				parts, idle,
			},
		}},
	}
}

// render returns what is written, as text and as a reader understands it.
func render(t *testing.T, lab *Lab) (string, map[string]*dto.MetricFamily) {
	t.Helper()
	var out bytes.Buffer
	if err := Write(&out, lab); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	parsed, err := parser.TextToMetricFamilies(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, out.String())
	}
	return out.String(), parsed
}

// lines are those of one metric.
func lines(text, name string) []string {
	var found []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

func expect(t *testing.T, text, name string, want ...string) {
	t.Helper()
	for i := range want {
		want[i] = name + want[i]
	}
	if got := lines(text, name); !slices.Equal(got, want) {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

const (
	names0 = `gpu="0",UUID="GPU-a",pci_bus_id="00000000:22:00.0",device="nvidia0",modelName="Simulated GPU 24GB",Hostname="head",simulated="true"`
	names1 = `gpu="1",UUID="GPU-b",pci_bus_id="00000000:22:00.0",device="nvidia1",modelName="Simulated GPU 24GB",Hostname="head",simulated="true"`
	names2 = `gpu="2",UUID="GPU-c",pci_bus_id="00000000:22:00.0",device="nvidia2",modelName="Simulated GPU 24GB",Hostname="head",simulated="true"`
	names3 = `gpu="3",UUID="GPU-d",pci_bus_id="00000000:22:00.0",device="nvidia3",modelName="Simulated GPU 24GB",Hostname="head",simulated="true"`
	anna   = `,container="notebook",namespace="user-anna",pod="jupyter-anna--work",user="anna",notebook="work"`
)

func TestNamesAndUnitsOfDCGM(t *testing.T) {
	text, _ := render(t, rich(t))
	for name, value := range map[string]string{
		"DCGM_FI_DEV_SM_CLOCK": "2100", "DCGM_FI_DEV_MEM_CLOCK": "10000", "DCGM_FI_DEV_MAX_SM_CLOCK": "2500", "DCGM_FI_DEV_MAX_MEM_CLOCK": "10500",
		"DCGM_FI_DEV_MEMORY_TEMP": "70", "DCGM_FI_DEV_GPU_TEMP": "61", "DCGM_FI_DEV_FAN_SPEED": "45",
		"DCGM_FI_DEV_POWER_USAGE": "121.5", "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": "350", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "2500",
		"DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "1000", "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "2000",
		"DCGM_FI_DEV_PCIE_LINK_GEN": "3", "DCGM_FI_DEV_PCIE_LINK_WIDTH": "8", "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": "4", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": "16",
		"DCGM_FI_DEV_GPU_UTIL": "37", "DCGM_FI_DEV_MEM_COPY_UTIL": "12", "DCGM_FI_DEV_ENC_UTIL": "1", "DCGM_FI_DEV_DEC_UTIL": "2",
		"DCGM_FI_DEV_XID_ERRORS": "79", "DCGM_FI_DEV_FB_TOTAL": "24576", "DCGM_FI_DEV_FB_FREE": "23040", "DCGM_FI_DEV_FB_USED": "1536",
		"DCGM_FI_DEV_ECC_CURRENT": "1", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "3", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "1",
		"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "2", "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "4",
		"DCGM_FI_DEV_ROW_REMAP_FAILURE": "0", "DCGM_FI_DEV_ROW_REMAP_PENDING": "1", "DCGM_FI_DEV_RETIRED_PENDING": "0",
		"DCGM_FI_DEV_CLOCKS_EVENT_REASONS": "4", "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": "2", "DCGM_FI_DEV_PERSISTENCE_MODE": "0", "DCGM_FI_DEV_MIG_MODE": "0",
		"gpulab_gpu_up": "1", "gpulab_gpu_asleep": "0", "gpulab_gpu_retired_pages_total": "5",
	} {
		got := lines(text, name)
		if want := name + "{" + names0 + anna + "} " + value; len(got) == 0 || got[0] != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, f := range deviceFamilies() {
		if !strings.HasPrefix(f.name, "DCGM_FI_DEV_") {
			t.Errorf("%s is no name of NVIDIA's; what is not measured by NVIDIA's means belongs elsewhere", f.name)
		}
	}
}

func TestSharedGPUNamesNoPod(t *testing.T) {
	text, _ := render(t, rich(t))
	if got, want := lines(text, "DCGM_FI_DEV_GPU_UTIL")[1], "DCGM_FI_DEV_GPU_UTIL{"+names1+"} 37"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	expect(t, text, "gpulab_gpu_holders", "{"+names0+"} 1", "{"+names1+"} 2", "{"+names2+"} 0", "{"+names3+"} 0")
}

func TestUsersOfAGPU(t *testing.T) {
	text, _ := render(t, rich(t))
	expect(t, text, "gpulab_user_gpu_held_ratio", "{"+names0+`,user="anna"} 1`, "{"+names1+`,user="ben"} 0.5`, "{"+names1+`,user="cleo"} 0.5`)
	expect(t, text, "gpulab_user_gpu_utilization_ratio", "{"+names0+`,user="anna"} 0.37`, "{"+names1+`,user="ben"} 0.7`, "{"+names1+`,user="cleo"} 0.25`)
	expect(t, text, "gpulab_user_gpu_memory_used_bytes", "{"+names0+`,user="anna"} 1.073741824e+09`, "{"+names1+`,user="ben"} 4.294967296e+09`, "{"+names1+`,user="cleo"} 2.147483648e+09`)
	expect(t, text, "gpulab_outside_gpu_utilization_ratio", "{"+names1+`,unix_user="root"} 0.05`)
	expect(t, text, "gpulab_outside_gpu_memory_used_bytes", "{"+names1+`,unix_user="root"} 2.68435456e+08`)
}

// In MIG mode the parts are told instead of the whole: a sum counts once.
func TestPartsOfAGPU(t *testing.T) {
	lab := rich(t)
	of := holder("anna", "work")
	of.Instance = "MIG-1"
	lab.Snapshots[0].GPUs = lab.Snapshots[0].GPUs[:3]
	lab.Snapshots[0].GPUs[2].Holders = []gpu.Holder{of}
	text, _ := render(t, lab)
	for _, c := range []struct{ name, first, second string }{
		{"DCGM_FI_DEV_FB_TOTAL", "10240", "20480"}, {"DCGM_FI_DEV_FB_USED", "1024", "2048"}, {"DCGM_FI_DEV_FB_FREE", "9216", "18432"},
	} {
		want := []string{
			c.name + "{" + names2 + `,GPU_I_PROFILE="1g.10gb",GPU_I_ID="9"` + anna + `} ` + c.first,
			c.name + "{" + names2 + `,GPU_I_PROFILE="2g.20gb",GPU_I_ID="2"} ` + c.second,
		}
		if got := lines(text, c.name)[2:4]; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	// The whole is not anna's, who has a part of it.
	expect(t, text, "gpulab_gpu_up", "{"+names0+anna+"} 1", "{"+names1+"} 1", "{"+names2+"} 1")
	if held := lines(text, "gpulab_user_gpu_held_ratio"); held[len(held)-1] != "gpulab_user_gpu_held_ratio{"+names2+`,user="anna"} 0.14285714285714285` {
		t.Errorf("held: %q", held)
	}
}

func TestThrottle(t *testing.T) {
	lab := rich(t)
	lab.Snapshots[0].GPUs = lab.Snapshots[0].GPUs[:3]
	lab.Snapshots[0].GPUs[1].Throttle = []string{}
	lab.Snapshots[0].GPUs[2].Throttle = nil
	text, _ := render(t, lab)
	expect(t, text, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "{"+names0+anna+"} 4", "{"+names1+"} 0")
	reasons := lines(text, "gpulab_gpu_throttled")
	if len(reasons) != 14 || reasons[1] != "gpulab_gpu_throttled{"+names0+`,reason="power limit"} 1` {
		t.Errorf("the reasons are %q", reasons)
	}
}

func TestRecovery(t *testing.T) {
	for word, want := range map[string]string{"": "", gpu.RecoveryReset: " 1", gpu.RecoveryBusReset: " 6", "action 9": " 9", "something": ""} {
		lab := rich(t)
		lab.Snapshots[0].GPUs = lab.Snapshots[0].GPUs[3:]
		lab.Snapshots[0].GPUs[0].Health.Recovery = word
		text, _ := render(t, lab)
		if want != "" {
			expect(t, text, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "{"+names3+"}"+want)
		} else {
			expect(t, text, "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION")
		}
	}
}

func TestLab(t *testing.T) {
	text, _ := render(t, rich(t))
	expect(t, text, "gpulab_build_info", `{version="1.2.3"} 1`)
	expect(t, text, "gpulab_probe_up", `{Hostname="head"} 1`)
	expect(t, text, "gpulab_sample_age_seconds", `{Hostname="head"} 1.5`)
	expect(t, text, "gpulab_launches", `{state="running"} 3`, `{state="starting"} 0`, `{state="stopping"} 0`, `{state="waiting"} 2`)
	if got := lines(text, "gpulab_gpu_info")[0]; got != "gpulab_gpu_info{"+names0+`,driver_version="580.95.05",cuda_version="13.0",compute_capability="8.9"} 1` {
		t.Error(got)
	}
}

// What is not known is left out, and never 0.
func TestUnknownReadings(t *testing.T) {
	lab := &Lab{Now: began, Snapshots: []gpu.Snapshot{{Node: "head", Time: began.Add(time.Second), GPUs: []gpu.GPU{{
		Device: gpu.Device{UUID: "GPU-x", Name: `NVIDIA "odd"\name`}, Reading: gpu.Reading{Temperature: new(41.0)},
	}}}}}
	text, parsed := render(t, lab)
	const r = `{gpu="0",UUID="GPU-x",pci_bus_id="",device="nvidia0",modelName="NVIDIA \"odd\"\\name",Hostname="head"`
	expect(t, text, "DCGM_FI_DEV_GPU_TEMP", r+"} 41")
	expect(t, text, "DCGM_FI_DEV_XID_ERRORS", r+"} 0") // as dcgm-exporter has it
	expect(t, text, "gpulab_sample_age_seconds", `{Hostname="head"} 0`)
	want := []string{
		"DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_MIG_MODE", "DCGM_FI_DEV_XID_ERRORS", "gpulab_build_info", "gpulab_gpu_asleep",
		"gpulab_gpu_holders", "gpulab_gpu_info", "gpulab_gpu_up", "gpulab_gpu_withheld", "gpulab_probe_up", "gpulab_sample_age_seconds",
	}
	if got := slices.Sorted(maps.Keys(parsed)); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

// Of readings that are old, and of a GPU that cannot be read, nothing is told
// but that.
func TestOldReadings(t *testing.T) {
	lost := card(1, []gpu.Holder{holder("ben", "x")})
	lost.Error = "GPU 1 has fallen off the bus."
	lab := &Lab{Now: began.Add(time.Minute), Snapshots: []gpu.Snapshot{
		{Node: "head", Time: began.Add(time.Minute), GPUs: []gpu.GPU{lost}},
		{Node: "old", Time: began, Error: "The GPU probe has stopped.", GPUs: []gpu.GPU{card(0, []gpu.Holder{holder("anna", "work")}, process("anna", 1.0, 1))}},
		{Node: "young", Error: "The GPU probe has stopped."},
	}}
	text, parsed := render(t, lab)
	expect(t, text, "gpulab_gpu_up",
		"{"+names1+`,container="notebook",namespace="user-ben",pod="jupyter-ben--x",user="ben",notebook="x"} 0`, "{"+strings.Replace(names0, `"head"`, `"old"`, 1)+anna+"} 0")
	expect(t, text, "gpulab_probe_up", `{Hostname="head"} 1`, `{Hostname="old"} 0`, `{Hostname="young"} 0`)
	expect(t, text, "gpulab_sample_age_seconds", `{Hostname="head"} 0`, `{Hostname="old"} 60`)
	want := []string{"gpulab_build_info", "gpulab_gpu_up", "gpulab_probe_up", "gpulab_sample_age_seconds"}
	if got := slices.Sorted(maps.Keys(parsed)); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

// Whatever a name holds, the scrape is whole, and no series is there twice.
func TestStrangeNames(t *testing.T) {
	strange := "a\"b\\c\nd\x00e\xff}{=,#é漢"
	lab := rich(t)
	for i := range lab.Snapshots[0].GPUs {
		g := &lab.Snapshots[0].GPUs[i]
		g.UUID, g.Name, g.Index = strange, strange, 0 // all the same
	}
	lab.Snapshots[0].GPUs[1].Processes[2].UnixUser = strange
	lab.Snapshots[0].Node = strange
	lab.Host.Filesystems = []hoststat.Filesystem{{Device: strange, MountPoint: strange, Type: strange, Size: 1}}
	text, parsed := render(t, lab)
	if model := value(parsed["gpulab_gpu_info"].Metric[0], "modelName"); model != "a\"b\\c\nd\uFFFDe\uFFFD}{=,#é漢" {
		t.Errorf("the model is %q", model)
	}
	noDoubles(t, parsed)
	lint(t, text)
}

func value(m *dto.Metric, name string) string {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func noDoubles(t *testing.T, parsed map[string]*dto.MetricFamily) {
	t.Helper()
	for name, f := range parsed {
		seen := map[string]bool{}
		for _, m := range f.Metric {
			key := ""
			for _, l := range m.Label {
				key += l.GetName() + "=" + l.GetValue() + ";"
			}
			if seen[key] {
				t.Errorf("%s{%s} is there twice", name, key)
			}
			seen[key] = true
		}
	}
}

// TestTable holds what is written against what the table of families says.
func TestTable(t *testing.T) {
	_, parsed := render(t, rich(t))
	noDoubles(t, parsed)
	known := map[string]bool{}
	for _, f := range families() {
		if known[f.name] {
			t.Errorf("%s is there twice", f.name)
		}
		known[f.name] = true
		if f.unit == "" || f.source == "" || !strings.HasSuffix(f.help, ".") {
			t.Errorf("%s is not explained: %+v", f.name, f)
		}
		got := parsed[f.name]
		if got == nil {
			t.Errorf("%s is not there, though everything is known", f.name)
			continue
		}
		if got.GetType() != f.kind {
			t.Errorf("%s is a %v, want a %v", f.name, got.GetType(), f.kind)
		}
		for _, m := range got.Metric {
			for _, l := range m.Label {
				if !slices.Contains(f.labels, l.GetName()) {
					t.Errorf("%s has a label %s that the table does not tell of", f.name, l.GetName())
				}
			}
		}
	}
	if len(parsed) != len(known) {
		t.Errorf("%d metrics are written, %d are in the table", len(parsed), len(known))
	}
}

// accepted is what promtool says of names that are not ours to choose, all of
// dcgm-exporter's and node_exporter's making.
var accepted = map[string][]string{
	`counter metrics should have "_total" suffix`: {
		"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
		"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
	},
	"metric names should be written in 'snake_case' not 'camelCase'": {
		"node_memory_MemTotal_bytes", "node_memory_MemFree_bytes", "node_memory_MemAvailable_bytes",
		"node_memory_SwapTotal_bytes", "node_memory_SwapFree_bytes",
	},
	// The one such label is modelName; see TestOneCamel.
	"label names should be written in 'snake_case' not 'camelCase'": withLabel("modelName"),
}

func withLabel(label string) []string {
	var names []string
	for _, f := range families() {
		if slices.Contains(f.labels, label) {
			names = append(names, f.name)
		}
	}
	return names
}

// TestOneCamel: only one label of ours is written as promtool dislikes.
func TestOneCamel(t *testing.T) {
	for _, f := range families() {
		for _, l := range f.labels {
			if l != "modelName" && regexp.MustCompile("[a-z][A-Z]").MatchString(l) {
				t.Errorf("%s has a label %s", f.name, l)
			}
		}
	}
}

// lint has Debian's promtool check a scrape.
func lint(t *testing.T, text string) {
	t.Helper()
	cmd := exec.Command(promtest.Program(t, "promtool"), "check", "metrics")
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 3) { // 3: complaints, and no error
		t.Fatalf("promtool: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		name, complaint, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !slices.Contains(accepted[complaint], name) {
			t.Errorf("promtool: %s", line)
		}
	}
}

// TestPromtool: Debian's promtool finds nothing but names that are NVIDIA's.
func TestPromtool(t *testing.T) {
	text, _ := render(t, rich(t))
	lint(t, text)
}

// TestPromtoolIsHeard: what is wrong is found.
func TestPromtoolIsHeard(t *testing.T) {
	text, _ := render(t, rich(t))
	for _, wrong := range []string{"bad{ 1\n", "gpulab_gpu_up 1\ngpulab_gpu_up 2\n# TYPE x counter\nx{y=\"1\"} nothing\n"} {
		cmd := exec.Command(promtest.Program(t, "promtool"), "check", "metrics")
		cmd.Stdin = strings.NewReader(text + wrong)
		var exit *exec.ExitError
		if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.ExitCode() == 3 {
			t.Errorf("promtool passes %q: %v\n%s", wrong, err, out)
		}
	}
}
