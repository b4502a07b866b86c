package queue

import (
	"encoding/json"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var mixed = []Stock{{"NVIDIA-A100-SXM4-80GB", 2}, {"Tesla-T4", 4}}

// People wait together whom the same kinds will do.
func TestLineOf(t *testing.T) {
	for _, c := range []struct {
		kinds []string
		stock []Stock
		want  string
	}{
		{nil, mixed, "any"},
		{[]string{"Tesla-T4", "NVIDIA-A100-SXM4-80GB"}, mixed, "any"},
		{[]string{"Tesla-T4"}, mixed, "only-tesla-t4"},
		{[]string{"Tesla-T4"}, mixed[1:], "any"},
		{[]string{"Tesla-T4", "L4"}, append(mixed[:2:2], Stock{"L4", 1}), "some-1ca27c29"},
		{[]string{"L4", "Tesla-T4"}, append(mixed[:2:2], Stock{"L4", 1}), "some-1ca27c29"},
		{[]string{""}, []Stock{{"", 1}, {"L4", 1}}, "only-gpu"},
	} {
		if got := lineOf(Claim{Kinds: c.kinds}, c.stock); got != c.want {
			t.Errorf("%v of %v: %s, want %s", c.kinds, c.stock, got, c.want)
		}
	}
}

// The quotas lie in the cohort once; lines have none of their own, and take only
// what their people asked for.
func TestWantedObjects(t *testing.T) {
	s := State{Stock: mixed, Claims: []Claim{{Launch: 1, GPUs: 1}, {Launch: 2, GPUs: 1, Kinds: []string{"Tesla-T4"}}}}
	found := map[string]string{}
	for _, o := range wanted(s.Stock, linesOf(s)) {
		data, err := json.Marshal(o.content)
		if err != nil {
			t.Fatal(err)
		}
		found[o.kind.Resource+" "+o.name] = string(data)
	}
	for name, want := range map[string]string{
		"cohorts lab": `{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Cohort","metadata":{"labels":{"app.kubernetes.io/managed-by":"gpulab"},"name":"lab"},"spec":{"resourceGroups":[{"coveredResources":["gpulab.dev/gpu"],"flavors":[` +
			`{"name":"nvidia-a100-sxm4-80gb","resources":[{"name":"gpulab.dev/gpu","nominalQuota":"2"}]},{"name":"tesla-t4","resources":[{"name":"gpulab.dev/gpu","nominalQuota":"4"}]}]}]}}`,
		"clusterqueues only-tesla-t4": `{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"ClusterQueue","metadata":{"labels":{"app.kubernetes.io/managed-by":"gpulab"},"name":"only-tesla-t4"},"spec":{"cohortName":"lab","namespaceSelector":{},"preemption":{"reclaimWithinCohort":"Never","withinClusterQueue":"Never"},"queueingStrategy":"StrictFIFO","resourceGroups":[{"coveredResources":["gpulab.dev/gpu"],"flavors":[` +
			`{"name":"tesla-t4","resources":[{"name":"gpulab.dev/gpu","nominalQuota":"0"}]}]}]}}`,
	} {
		if found[name] != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, found[name], want)
		}
	}
	if len(found) != 5 || found["clusterqueues any"] == "" || found["resourceflavors tesla-t4"] == "" {
		t.Errorf("%d objects: %v", len(found), found)
	}
}

// A Workload reads as what it was made for, and, once booked, as what it holds.
func TestReadWorkload(t *testing.T) {
	c := Claim{Launch: 7, Namespace: "user-ada", Priority: -7, GPUs: 2, Held: true, On: "Tesla-T4"}
	made := newWorkload(c, "any")
	got := readWorkload(made)
	if want := (workload{namespace: "user-ada", name: "launch-7", launch: 7, line: "any", gpus: 2, priority: -7}); got != want {
		t.Errorf("new: %+v, want %+v", got, want)
	}
	var patch map[string]any
	if err := json.Unmarshal(granted(c, "any", made.GetCreationTimestamp().Time), &patch); err != nil {
		t.Fatal(err)
	}
	made.Object["status"] = patch["status"]
	if got := readWorkload(&unstructured.Unstructured{Object: made.Object}); !got.reserved || !got.admitted || got.finished || got.flavor != "tesla-t4" {
		t.Errorf("booked: %+v", got)
	}
}

// A launch that stands in line anew is not let in with what it was let in for
// before.
func TestAnotherTurn(t *testing.T) {
	c := Claim{Launch: 7, Namespace: "user-ada", GPUs: 1, Turn: 1}
	l := &Line{}
	had := workload{launch: 7, line: "any", gpus: 1, reserved: true, admitted: true}
	if l.keepClaim(c, "any", had, true) == nil {
		t.Error("what it had stays reserved")
	}
	had.turn = 1
	if l.keepClaim(c, "any", had, true) != nil {
		t.Error("what it was let in for now is taken away")
	}
	had.turn, c.Held = 0, true
	if l.keepClaim(c, "any", had, true) != nil {
		t.Error("a job that runs loses its booking")
	}
	c.Held = false
	l.unsettled = time.Now()
	if l.keepClaim(c, "any", had, true) != nil {
		t.Error("room is given free before everybody is in their place")
	}
	if w := readWorkload(newWorkload(c, "any")); w.turn != 1 {
		t.Errorf("it is written as turn %d", w.turn)
	}
}
