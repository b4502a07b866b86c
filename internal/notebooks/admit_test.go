package notebooks

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestAdmit(t *testing.T) {
	node := func(gpus, free int, memory int64) NodeRoom {
		return NodeRoom{Total: Amount{GPUs: gpus, MilliCPU: 4000, Memory: 8 << 30}, Free: Amount{GPUs: free, MilliCPU: 4000, Memory: memory << 30}}
	}
	gpu := func(n int) Need { return Need{Amount: Amount{GPUs: n, MilliCPU: 100, Memory: 1 << 30}} }
	model := func(n NodeRoom, name string, gibibytes int64) NodeRoom {
		n.GPUModel, n.GPUMemory = name, gibibytes<<30
		return n
	}
	of := func(n Need, name string, gibibytes int64) Need {
		n.GPUKind = GPUKind{Model: name, MinMemory: gibibytes << 30}
		return n
	}
	named := func(n NodeRoom, name string) NodeRoom {
		n.Name = name
		return n
	}
	only := func(n Need, name string) Need {
		n.Only = name
		return n
	}
	pool := Room{Nodes: []NodeRoom{named(node(1, 0, 8), "head"), named(node(1, 1, 8), "b")}}
	mixed := Room{Nodes: []NodeRoom{model(node(2, 0, 8), "A100", 39), model(node(2, 1, 8), "T4", 15)}}
	for _, c := range []struct {
		name     string
		room     Room
		reserved []Need
		queue    []Need // whose turn it is
		want     string // per launch: a admitted, n never, else what is short
	}{
		{"room for all", Room{Nodes: []NodeRoom{node(2, 2, 8)}}, nil, []Need{gpu(1), gpu(1)}, "[a a]"},
		{"the second waits", Room{Nodes: []NodeRoom{node(2, 1, 8)}}, nil, []Need{gpu(1), gpu(1)}, "[a gpu]"},
		{"what is reserved counts", Room{Nodes: []NodeRoom{node(2, 2, 8)}}, []Need{gpu(1)}, []Need{gpu(1), gpu(1)}, "[a gpu]"},
		{"without GPUs past the waiting", Room{Nodes: []NodeRoom{node(2, 1, 8)}}, nil, []Need{gpu(2), gpu(0)}, "[gpu a]"},
		{"two GPUs on one machine", Room{Nodes: []NodeRoom{node(1, 1, 8), node(2, 1, 8)}}, nil, []Need{gpu(2)}, "[gpu]"},
		{"never holds nobody back", Room{Nodes: []NodeRoom{node(2, 2, 8)}}, nil, []Need{gpu(3), gpu(1)}, "[n a]"},
		{"never only when every machine is there", Room{Nodes: []NodeRoom{node(2, 2, 8)}, Away: []NodeRoom{{Total: Amount{GPUs: 8}}}}, nil, []Need{gpu(3)}, "[gpu]"},
		{"memory holds everybody back", Room{Nodes: []NodeRoom{node(2, 2, 0)}}, nil, []Need{gpu(0), gpu(1)}, "[memory memory]"},
		{"no machine ready", Room{Away: []NodeRoom{{Total: Amount{GPUs: 8}}}}, nil, []Need{gpu(1)}, "[]"},
		{"the one that was asked for", mixed, nil, []Need{of(gpu(1), "T4", 0), of(gpu(1), "A100", 0)}, "[a gpu]"},
		{"who waits for another kind holds nobody back", mixed, nil, []Need{of(gpu(1), "A100", 0), gpu(1)}, "[gpu a]"},
		{"no such model", mixed, nil, []Need{of(gpu(1), "H100", 0), of(gpu(0), "H100", 0)}, "[n a]"},
		{"a card of 40 GiB reports less", mixed, nil, []Need{of(gpu(1), "", 40)}, "[gpu]"},
		{"too small a memory", mixed, nil, []Need{of(gpu(1), "", 48)}, "[n]"},
		{"only on a machine that is full", pool, nil, []Need{only(gpu(1), "head"), gpu(1)}, "[gpu a]"},
		{"only on a machine that has room", pool, nil, []Need{only(gpu(1), "b"), only(gpu(0), "head")}, "[a a]"},
		{"only on a machine with fewer", pool, nil, []Need{only(gpu(2), "head")}, "[n]"},
		{"small ones fill up the fuller machine", Room{Nodes: []NodeRoom{node(4, 4, 8), node(4, 1, 8)}}, nil, []Need{gpu(1), gpu(4)}, "[a a]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, v := range admit(c.room, c.reserved, granted(c.queue...)) {
				switch {
				case v.admit:
					got = append(got, "a")
				case v.never:
					got = append(got, "n")
				case v.short != "":
					got = append(got, v.short)
				}
			}
			if fmt.Sprint(got) != c.want {
				t.Errorf("got %v, want %s", got, c.want)
			}
		})
	}
}

// granted are launches whose turn has come.
func granted(needs ...Need) []candidate {
	list := make([]candidate, len(needs))
	for i := range needs {
		list[i] = candidate{need: needs[i], granted: true}
	}
	return list
}

// Whose turn has not come does not start, whatever is free, and holds back
// nobody who needs no GPU.
func TestAdmitInTurn(t *testing.T) {
	all := Amount{GPUs: 2, MilliCPU: 4000, Memory: 8 << 30}
	one := Need{Amount: Amount{GPUs: 1, MilliCPU: 100, Memory: 1 << 30}}
	queue := []candidate{{need: one}, {need: one, granted: true}, {need: Need{Amount: Amount{MilliCPU: 100}}}}
	got := admit(Room{Nodes: []NodeRoom{{Total: all, Free: all}}}, nil, queue)
	if got[0].admit || got[0].short != shortGPU || !got[1].admit || !got[2].admit {
		t.Errorf("got %+v", got)
	}
}

func TestProfiles(t *testing.T) {
	list := ProfileList(DefaultProfiles())
	override, _ := list[1]["kubespawner_override"].(map[string]any)
	if fmt.Sprint(override["extra_resource_limits"]) != "map[nvidia.com/gpu:1]" || override["mem_limit"] != "8192M" || override["cpu_limit"] != 4.0 ||
		override["cpu_guarantee"] != defaultCPURequest || override["mem_guarantee"] != "512M" || list[0]["default"] != true || list[1]["slug"] != "gpu" {
		t.Errorf("got %v", list)
	}
	for name, p := range map[string]Profile{
		"name":              {Slug: "A b", Title: "A"},
		"no title":          {Slug: "a"},
		"negative GPUs":     {Slug: "a", Title: "A", GPUs: -1},
		"memory":            {Slug: "a", Title: "A", Memory: "lots"},
		"memory request":    {Slug: "a", Title: "A", MemoryRequest: "1 GB"},
		"GPU memory":        {Slug: "a", Title: "A", GPUs: 1, GPUMemory: "much"},
		"asks for more":     {Slug: "a", Title: "A", Memory: "1Gi", MemoryRequest: "2Gi"},
		"asks for more 2":   {Slug: "a", Title: "A", CPUs: 1, CPURequest: 2},
		"image":             {Slug: "a", Title: "A", Image: "Lab/Image"},
		"image with spaces": {Slug: "a", Title: "A", Image: "lab/image: 1"},
		"kind of no GPU":    {Slug: "a", Title: "A", GPUMemory: "24Gi"},
		"model, no label":   {Slug: "a", Title: "A", GPUs: 1, GPUModel: "RTX/4090"},
		"model, no label 2": {Slug: "a", Title: "A", GPUs: 1, GPUModel: strings.Repeat("x", 64)},
	} {
		if _, err := New(Config{Profiles: []Profile{p}}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	tiny := ProfileList([]Profile{{Slug: "a", Title: "A", CPUs: 0.05, Memory: "256M"}})[0]["kubespawner_override"].(map[string]any)
	if tiny["mem_guarantee"] != tiny["mem_limit"] || tiny["cpu_guarantee"] != 0.05 {
		t.Errorf("a small profile asks for more than it gets: %v", tiny)
	}
	own := ProfileList([]Profile{{Slug: "a", Title: "A", Image: "quay.io/lab/cuda:13"}})[0]["kubespawner_override"].(map[string]any)
	if _, set := override["image"]; set || own["image"] != "quay.io/lab/cuda:13" || fmt.Sprint(own["cmd"]) != "[jupyterhub-singleuser]" {
		t.Errorf("images: %v and %v", override["image"], own["image"])
	}
	for short, full := range map[string]string{"jupyter/x": "docker.io/jupyter/x:latest", "x:1": "docker.io/library/x:1", "lab.example:5000/x": "lab.example:5000/x:latest"} {
		if got, err := ImageName(short); err != nil || got != full {
			t.Errorf("%s is %s, %v; want %s", short, got, err, full)
		}
	}
	if _, err := New(Config{Profiles: []Profile{{Slug: "a", Title: "A"}, {Slug: "a", Title: "B"}}}); err == nil {
		t.Error("two profiles of one name: accepted")
	}
	s, err := New(Config{Profiles: []Profile{}})
	if err != nil || len(s.Profiles()) != 2 {
		t.Errorf("no profile of its own: %v", err)
	}
}

// A profile for a kind of GPU leads its pod to such machines, also where
// several take turns on one.
func TestProfileOfAKind(t *testing.T) {
	const want = `[{"matchExpressions":[` +
		`{"key":"nvidia.com/gpu.product","operator":"In","values":["NVIDIA-A100-SXM4-80GB","NVIDIA-A100-SXM4-80GB-SHARED"]},` +
		`{"key":"nvidia.com/gpu.memory","operator":"Gt","values":["76184"]}]}]`
	for _, model := range []string{"NVIDIA A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-SXM4-80GB-SHARED"} {
		p := Profile{Slug: "a", Title: "A", GPUs: 1, GPUModel: model, GPUMemory: "80Gi"}
		if err := p.check(); err != nil {
			t.Fatal(err)
		}
		override := ProfileList([]Profile{p})[0]["kubespawner_override"].(map[string]any)
		got, err := json.Marshal(override["node_affinity_required"])
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s: got  %s\nwant %s", model, got, want)
		}
	}
}

// A launch that only machines could take that take no new work waits for them;
// it is not told that it never starts.
func TestAdmitWithCordonedMachines(t *testing.T) {
	open := NodeRoom{Name: "a", Total: Amount{MilliCPU: 4000, Memory: 1 << 30}, Free: Amount{MilliCPU: 4000, Memory: 1 << 30}}
	closed := NodeRoom{Name: "b", Total: Amount{GPUs: 2, MilliCPU: 4000, Memory: 1 << 30}, Free: Amount{GPUs: 2, MilliCPU: 4000, Memory: 1 << 30}}
	got := admit(Room{Nodes: []NodeRoom{open}, Cordoned: []NodeRoom{closed}}, nil, granted(Need{Amount: Amount{GPUs: 1}}, Need{Amount: Amount{MilliCPU: 500}}, Need{Amount: Amount{GPUs: 4}}))
	if v := got[0]; v.admit || v.never || len(v.cordoned) != 1 || v.cordoned[0].Name != "b" {
		t.Errorf("one that needs the machine: %+v", v)
	}
	if !got[1].admit {
		t.Errorf("one that does not: %+v", got[1])
	}
	if v := got[2]; !v.never || len(v.cordoned) != 0 {
		t.Errorf("one that is too large for it as well: %+v", v)
	}
	if v := admit(Room{Cordoned: []NodeRoom{closed}}, nil, granted(Need{Amount: Amount{MilliCPU: 500}}))[0]; v.admit || v.never || len(v.cordoned) != 1 {
		t.Errorf("where all are closed: %+v", v)
	}
}
