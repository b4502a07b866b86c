//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/gpulab/gpulab/test/lab"
)

// withPool is the lab of withPeople, with a second machine in its pool.
var withPool = lab.Template{
	Name:   "pool",
	Recipe: []any{1, people, initArgs, poolConfig},
	Beside: []lab.Host{{Name: nodeName, Address: nodeAddress}},
	Shared: sharedPath,
	Make: func(tb testing.TB, hosts []*lab.Lab) {
		defer lab.Begin(tb)()
		t := tb.(*testing.T)
		a := &appliance{Lab: hosts[0], ctx: t.Context(), lifeOf: t}
		p := &pool{node: hosts[1]}
		t.Cleanup(func() { a.keepLogs(t) })
		a.keepLogsBeside(t, p.node, nodeName)
		a.WriteFile("/etc/gpulab/config.yaml", poolConfig)
		a.populate(t)
		hideImages(a, p.node)
		files, err := json.Marshal(p.node.Snapshot(a.ctx)["files"])
		if err != nil {
			t.Fatal(err)
		}
		a.WriteFile(filesBeforeJoin, string(files))
		t.Log(p.node.MustGpulab(a.ctx, "join", p.invite(t, a).Code))
		p.waitGPUs(t, a)
		a.kept = true // a test that fails later keeps logs of its own
	},
}

// filesBeforeJoin is a file on the head that lists the second machine's files before it joined, as a snapshot does.
const filesBeforeJoin = "/root/files-before-join.json"

// readyPool is a lab of two machines that has just been started. An admin and a member are signed in.
func readyPool(t *testing.T) (*appliance, *pool) {
	t.Helper()
	began := time.Now()
	hosts := withPool.Start(t)
	a := newAppliance(t, hosts[0])
	p := &pool{node: hosts[1], shared: hosts[0].Shared()}
	a.keepLogsBeside(t, p.node, nodeName)
	hideImages(a, p.node)
	t.Logf("hosts after %.1f s", time.Since(began).Seconds())
	p.before = p.beforeJoin(t, a)
	a.start(t)
	t.Logf("head ready after %.1f s", time.Since(began).Seconds())
	p.back(t, a)
	p.head = p.nodes(t, a).Nodes[0].Name
	t.Logf("ready after %.1f s", time.Since(began).Seconds())
	return a, p
}

// beforeJoin is the second machine as it was before it joined. Nothing of gpulab runs there yet.
func (p *pool) beforeJoin(t *testing.T, a *appliance) lab.Snapshot {
	t.Helper()
	before := lab.Look(func(script string) string { return p.node.Run(a.ctx, "sh", "-c", script).Stdout })
	var files []string
	data, err := os.ReadFile(a.Path(filesBeforeJoin))
	if err == nil {
		err = json.Unmarshal(data, &files)
	}
	if err != nil {
		t.Fatal(err)
	}
	before["files"] = files
	return before
}

// back starts gpulab on a second machine that has joined, while no other lab starts.
func (p *pool) back(t *testing.T, a *appliance) {
	t.Helper()
	defer lab.Begin(t)()
	t.Log(p.node.MustGpulab(a.ctx, "join"))
	a.eventually(t, "the second machine is ready", func() bool { return p.state(t, a) == "ready" })
	p.waitGPUs(t, a)
}

// waitGPUs waits until notebooks may have the GPUs of both machines.
func (p *pool) waitGPUs(t *testing.T, a *appliance) {
	t.Helper()
	a.eventually(t, "Kubernetes offers a GPU on both machines", func() bool {
		const query = `jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}`
		return a.MustGpulab(a.ctx, "kubectl", "get", "nodes", "-o", query) == "1 1"
	})
}
