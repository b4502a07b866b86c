package queue

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

const (
	group      = "kueue.x-k8s.io"
	version    = "v1beta2"
	apiVersion = group + "/" + version

	gpuResource = "gpulab.dev/gpu"
	manager     = "gpulab"
	cohort      = "lab"
	podSet      = "notebook"

	managedLabel = "app.kubernetes.io/managed-by"
	launchLabel  = "gpulab.dev/launch"
	turnLabel    = "gpulab.dev/turn"
)

var (
	flavorKind   = schema.GroupVersionResource{Group: group, Version: version, Resource: "resourceflavors"}
	cohortKind   = schema.GroupVersionResource{Group: group, Version: version, Resource: "cohorts"}
	clusterKind  = schema.GroupVersionResource{Group: group, Version: version, Resource: "clusterqueues"}
	localKind    = schema.GroupVersionResource{Group: group, Version: version, Resource: "localqueues"}
	workloadKind = schema.GroupVersionResource{Group: group, Version: version, Resource: "workloads"}
	podKind      = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	orderKind    = schema.GroupVersionResource{Group: "visibility." + group, Version: version, Resource: "clusterqueues"}
)

// Options of calls to the cluster.
var (
	created = metav1.CreateOptions{FieldManager: manager}
	patched = metav1.PatchOptions{FieldManager: manager}
	applied = metav1.ApplyOptions{FieldManager: manager, Force: true}
	got     = metav1.GetOptions{}
)

const mergePatch = types.MergePatchType

func thisVery(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
}

func selectOurs(o *metav1.ListOptions) { o.LabelSelector = managedLabel + "=" + manager }

func ours(limit int64) (o metav1.ListOptions) {
	selectOurs(&o)
	o.Limit = limit
	return o
}

// object is one that is applied whole.
type object struct {
	kind            schema.GroupVersionResource
	namespace, name string
	content         map[string]any
}

func newObject(kind schema.GroupVersionResource, name, namespace, kindName string, rest map[string]any) object {
	metadata := map[string]any{"name": name, "labels": map[string]any{managedLabel: manager}}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	content := map[string]any{"apiVersion": apiVersion, "kind": kindName, "metadata": metadata}
	maps.Copy(content, rest)
	return object{kind: kind, name: name, namespace: namespace, content: content}
}

func (o object) key() string { return o.kind.Resource + " " + o.namespace + "/" + o.name }

// everyKind is the line of those whom any GPU of the pool will do.
const everyKind = "any"

// asideLine is where nobody is let in: Kueue knows no such line, and leaves those who are in it where they are.
const asideLine = "aside"

// lineOf names the line that a claim waits in.
func lineOf(c Claim, stock []Stock) string {
	if c.Aside {
		return asideLine
	}
	if coversAll(c.Kinds, stock) {
		return everyKind
	}
	names := make([]string, len(c.Kinds))
	for i, k := range c.Kinds {
		names[i] = flavorName(k)
	}
	slices.Sort(names)
	if len(names) == 1 {
		return "only-" + names[0]
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(strings.Join(names, " ")))
	return fmt.Sprintf("some-%08x", h.Sum32())
}

func coversAll(kinds []string, stock []Stock) bool {
	if kinds == nil {
		return true
	}
	for _, s := range stock {
		if !slices.Contains(kinds, s.Kind) {
			return false
		}
	}
	return true
}

// linesOf are the kinds of every line that somebody is in, and of the one for all.
func linesOf(s State) map[string][]string {
	all := make([]string, len(s.Stock))
	for i, stock := range s.Stock {
		all[i] = stock.Kind
	}
	lines := map[string][]string{everyKind: all}
	for _, c := range s.Claims {
		if line := lineOf(c, s.Stock); line != everyKind && line != asideLine {
			lines[line] = c.Kinds
		}
	}
	return lines
}

// wanted are the objects that belong to nobody in particular, in the order in
// which they refer to each other.
func wanted(stock []Stock, lines map[string][]string) []object {
	var list []object
	quota := map[string]int{}
	var kinds []string
	for _, s := range stock {
		list = append(list, newObject(flavorKind, flavorName(s.Kind), "", "ResourceFlavor",
			map[string]any{"spec": map[string]any{}}))
		kinds = append(kinds, s.Kind)
		quota[s.Kind] = s.GPUs
	}
	if len(kinds) == 0 {
		return list // Kueue keeps no line without GPUs; what was there stays
	}
	list = append(list, newObject(cohortKind, cohort, "", "Cohort", map[string]any{"spec": map[string]any{
		"resourceGroups": resourceGroups(kinds, quota),
	}}))
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		if len(lines[line]) == 0 {
			continue
		}
		list = append(list, newObject(clusterKind, line, "", "ClusterQueue", map[string]any{"spec": map[string]any{
			"cohortName":        cohort,
			"queueingStrategy":  "StrictFIFO",
			"namespaceSelector": map[string]any{},
			"preemption":        map[string]any{"withinClusterQueue": "Never", "reclaimWithinCohort": "Never"},
			"resourceGroups":    resourceGroups(lines[line], nil),
		}}))
	}
	return list
}

// resourceGroups gives each kind its quota; lines have none of their own and
// take from the cohort, of the first kind that has what is asked for.
func resourceGroups(kinds []string, quota map[string]int) []any {
	flavors := make([]any, len(kinds))
	for i, k := range kinds {
		flavors[i] = map[string]any{
			"name":      flavorName(k),
			"resources": []any{map[string]any{"name": gpuResource, "nominalQuota": amount(quota[k])}},
		}
	}
	return []any{map[string]any{"coveredResources": []any{gpuResource}, "flavors": flavors}}
}

func amount(gpus int) string { return strconv.Itoa(max(gpus, 0)) }

func localQueue(namespace, line string) object {
	return newObject(localKind, line, namespace, "LocalQueue",
		map[string]any{"spec": map[string]any{"clusterQueue": line}})
}

// flavorName is a kind as Kubernetes takes it for a name.
func flavorName(kind string) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, kind), "-")
	if name == "" {
		return "gpu"
	}
	return name
}

func workloadName(launch int64) string { return "launch-" + strconv.FormatInt(launch, 10) }

// launchOf is the launch of a Workload's name, 0 for a name that is not ours.
func launchOf(name string) int64 {
	id, _ := strconv.ParseInt(strings.TrimPrefix(name, "launch-"), 10, 64)
	return id
}

func newWorkload(c Claim, line string) *unstructured.Unstructured {
	o := newObject(workloadKind, workloadName(c.Launch), c.Namespace, "Workload", map[string]any{"spec": map[string]any{
		"queueName": line,
		"priority":  int64(c.Priority),
		"podSets": []any{map[string]any{
			"name":  podSet,
			"count": int64(1),
			"template": map[string]any{"spec": map[string]any{
				"restartPolicy": "Never",
				"containers": []any{map[string]any{
					"name":  podSet,
					"image": "none", // no pod comes of this: the hub makes it
					"resources": map[string]any{
						"requests": map[string]any{gpuResource: amount(c.GPUs)},
						"limits":   map[string]any{gpuResource: amount(c.GPUs)},
					},
				}},
			}},
		}},
	}})
	labels := o.content["metadata"].(map[string]any)["labels"].(map[string]any)
	labels[launchLabel], labels[turnLabel] = strconv.FormatInt(c.Launch, 10), strconv.Itoa(c.Turn)
	return &unstructured.Unstructured{Object: o.content}
}

// granted is the status of a Workload that has what it asks for.
func granted(c Claim, line string, now time.Time) []byte {
	condition := func(kind string) map[string]any {
		return map[string]any{
			"type": kind, "status": "True", "reason": "Running",
			"message":            "The notebook runs already",
			"lastTransitionTime": now.UTC().Format(time.RFC3339),
		}
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{
		"admission": map[string]any{
			"clusterQueue": line,
			"podSetAssignments": []any{map[string]any{
				"name": podSet, "count": 1,
				"flavors":       map[string]any{gpuResource: flavorName(c.On)},
				"resourceUsage": map[string]any{gpuResource: amount(c.GPUs)},
			}},
		},
		"conditions": []any{condition("QuotaReserved"), condition("Admitted")},
	}})
	if err != nil {
		panic(err) // maps of strings can be written
	}
	return patch
}

// workload is what is read of one.
type workload struct {
	uid                          types.UID
	namespace, name              string
	launch                       int64
	line                         string
	gpus                         int
	priority                     int32
	turn                         int
	made                         time.Time
	reserved, admitted, finished bool
	flavor                       string // while reserved
}

func readWorkload(u *unstructured.Unstructured) workload {
	w := workload{
		uid: u.GetUID(), namespace: u.GetNamespace(), name: u.GetName(), launch: launchOf(u.GetName()),
		made: u.GetCreationTimestamp().Time,
	}
	w.turn, _ = strconv.Atoi(u.GetLabels()[turnLabel])
	w.line, _, _ = unstructured.NestedString(u.Object, "spec", "queueName")
	priority, _, _ := unstructured.NestedInt64(u.Object, "spec", "priority")
	w.priority = int32(priority) //nolint:gosec // Kubernetes keeps it within
	sets, _, _ := unstructured.NestedSlice(u.Object, "spec", "podSets")
	if set, ok := first(sets); ok {
		containers, _, _ := unstructured.NestedSlice(set, "template", "spec", "containers")
		if container, ok := first(containers); ok {
			asked, _, _ := unstructured.NestedFieldNoCopy(container, "resources", "requests", gpuResource)
			if q, err := resource.ParseQuantity(fmt.Sprint(asked)); err == nil {
				w.gpus = int(q.Value())
			}
		}
	}
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["status"] == "True" {
			w.reserved = w.reserved || m["type"] == "QuotaReserved"
			w.admitted = w.admitted || m["type"] == "Admitted"
			w.finished = w.finished || m["type"] == "Finished"
		}
	}
	assigned, _, _ := unstructured.NestedSlice(u.Object, "status", "admission", "podSetAssignments")
	if a, ok := first(assigned); ok {
		w.flavor, _, _ = unstructured.NestedString(a, "flavors", gpuResource)
	}
	return w
}

func podReady(u *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range conditions {
		if m, ok := c.(map[string]any); ok && m["type"] == "Ready" {
			return m["status"] == "True"
		}
	}
	return false
}

func first(list []any) (map[string]any, bool) {
	if len(list) == 0 {
		return nil, false
	}
	m, ok := list[0].(map[string]any)
	return m, ok
}
