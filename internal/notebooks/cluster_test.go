package notebooks

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

func gpuNode(name string, gpus string, ready corev1.ConditionStatus) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.NodeSpec{PodCIDR: map[string]string{"n1": "10.42.0.0/24", "n2": "10.42.1.0/24"}[name]},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				gpuResource: resource.MustParse(gpus), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
		},
	}
}

func notebookPod(handle, server, uid, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "user-" + handle, Name: "jupyter-" + handle + "-" + uid, UID: types.UID(uid),
			Labels:            map[string]string{labelComponent: componentNotebook, labelUser: handle, labelNotebook: server, labelLaunch: "7"},
			CreationTimestamp: metav1.Now(),
		},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{gpuResource: resource.MustParse("1"), corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")},
		}}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{ImageID: "sha256:1", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}},
		},
	}
}

func watched(t *testing.T) (*KubeCluster, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(gpuNode("n1", "2", corev1.ConditionTrue), gpuNode("n2", "4", corev1.ConditionFalse))
	c, err := NewKubeCluster(client, "gpulab-system", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if !eventually(c.Synced) {
		t.Fatal("the watch never was complete")
	}
	return c, client
}

func TestClusterFollowsPods(t *testing.T) {
	c, client := watched(t)
	pods := client.CoreV1().Pods("user-alice")
	ctx := t.Context()
	at := func(uid, want string) {
		t.Helper()
		if !eventually(func() bool { a, _ := c.PodAddress(uid); return a == want }) {
			a, _ := c.PodAddress(uid)
			t.Errorf("%s is at %q, want %q", uid, a, want)
		}
	}
	pod := notebookPod("alice", "gpu", "u1", "10.42.0.5")
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at("u1", "10.42.0.5:8888")
	p, ok := c.PodFor("alice", "gpu")
	if !ok || p.UID != "u1" || p.LaunchID != 7 || p.GPUs != 1 || p.MemoryLimit != 2<<30 || !p.ImageReady || p.Started.IsZero() {
		t.Errorf("got %+v", p)
	}
	if _, ok := c.PodFor("bob", "gpu"); ok {
		t.Error("a pod of nobody")
	}
	room := c.Room()
	if free, total := room.GPUs(); free != 1 || total != 2 || len(room.Away) != 1 || len(room.Holders) != 1 || room.Holders[0].Handle != "alice" {
		t.Errorf("room: %+v", room)
	}
	if n := room.Nodes[0].Free; n.MilliCPU != 3500 || n.Memory != 7<<30 {
		t.Errorf("free: %+v", n)
	}

	// The address follows a new status, and goes when the pod is not ready or ends.
	pod.Status.PodIP = "10.42.0.6"
	mustUpdate(t, client, pod)
	at("u1", "10.42.0.6:8888")
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	mustUpdate(t, client, pod)
	at("u1", "")
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	now := metav1.Now()
	pod.DeletionTimestamp = &now
	mustUpdate(t, client, pod)
	at("u1", "")

	// While the old pod goes away its successor is the one to use.
	if _, err := pods.Create(ctx, notebookPod("alice", "gpu", "u2", "10.42.0.7"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	at("u2", "10.42.0.7:8888")
	if p, _ := c.PodFor("alice", "gpu"); p.UID != "u2" {
		t.Errorf("the pod to use is %s", p.UID)
	}
	if free, _ := c.Room().GPUs(); free != 0 {
		t.Errorf("a terminating pod still holds its GPU, free is %d", free)
	}
	if err := c.DeletePod(ctx, p, time.Second); err != nil {
		t.Fatal(err)
	}
	if err := c.DeletePod(ctx, p, time.Second); err != nil {
		t.Errorf("a pod that is gone: %v", err)
	}
	if !eventually(func() bool { return len(c.Notebooks()) == 1 }) {
		t.Errorf("pods: %+v", c.Notebooks())
	}
	finished := notebookPod("alice", "gpu", "u2", "10.42.0.7")
	finished.Status.Phase = corev1.PodFailed
	finished.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}}
	mustUpdate(t, client, finished)
	if !eventually(func() bool {
		p, _ := c.PodFor("alice", "gpu")
		return p.Finished && p.ExitReason == "OOMKilled" && p.ExitCode == 137
	}) {
		t.Error("the end was not noticed")
	}
	if free, _ := c.Room().GPUs(); free != 2 {
		t.Errorf("a finished pod holds nothing, free is %d", free)
	}
}

// A machine's model is the same whether its GPUs are shared or not.
func TestModelOfSharedGPUs(t *testing.T) {
	c, client := watched(t)
	for _, label := range []string{"NVIDIA-A100-SXM4-80GB-SHARED", "NVIDIA-A100-SXM4-80GB"} {
		n := gpuNode("n1", "2", corev1.ConditionTrue)
		n.Labels = map[string]string{labelGPUModel: label, labelGPUMemory: "81920", "kubernetes.io/os": "linux"}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if !eventually(func() bool {
			seen, ok, err := c.nodes.GetStore().GetByKey("n1")
			return err == nil && ok && seen.(*corev1.Node).Labels[labelGPUModel] == label
		}) {
			t.Fatal("the label was not seen")
		}
		if got := c.Room().Nodes[0].GPUModel; got != "NVIDIA-A100-SXM4-80GB" {
			t.Errorf("labelled %s, it is %q", label, got)
		}
		if got := c.GPULabels("n1"); len(got) != 2 || got[0] != labelGPUMemory+"=81920" || got[1] != labelGPUModel+"="+label {
			t.Errorf("the labels about GPUs are %q", got)
		}
	}
}

func mustUpdate(t *testing.T, client *fake.Clientset, pod *corev1.Pod) {
	t.Helper()
	if _, err := client.CoreV1().Pods(pod.Namespace).Update(t.Context(), pod.DeepCopy(), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestClusterFindsTheHub(t *testing.T) {
	c, client := watched(t)
	hub := func(ns, name, ip string, ready corev1.ConditionStatus) {
		t.Helper()
		_, err := client.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(name), Labels: map[string]string{labelComponent: componentHub}},
			Status:     corev1.PodStatus{PodIP: ip, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	hub("user-alice", "false-hub", "10.42.0.66", corev1.ConditionTrue)
	hub("gpulab-system", "hub-1", "10.42.0.2", corev1.ConditionFalse)
	hub("gpulab-system", "hub-2", "10.42.0.3", corev1.ConditionTrue)
	if !eventually(func() bool { a, ok := c.HubAddress(); return ok && a == "10.42.0.3:8081" }) {
		a, _ := c.HubAddress()
		t.Errorf("hub at %q", a)
	}
	if err := client.CoreV1().Pods("gpulab-system").Delete(t.Context(), "hub-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if !eventually(func() bool { _, ok := c.HubAddress(); return !ok }) {
		t.Error("a hub that is gone still has an address")
	}
}

func TestPodRequests(t *testing.T) {
	with := func(gpus, memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{gpuResource: resource.MustParse(gpus), corev1.ResourceMemory: resource.MustParse(memory)}}
	}
	always := corev1.ContainerRestartPolicyAlways
	p := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Resources: with("0", "1Gi"), RestartPolicy: &always},
			{Resources: with("3", "2Gi")},
		},
		Containers: []corev1.Container{{Resources: with("1", "4Gi")}, {Resources: with("1", "1Gi")}},
		Overhead:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
	}}
	if got := podRequests(p); got.GPUs != 3 || got.Memory != 7<<30 {
		t.Errorf("got %+v", got)
	}
}

func TestOpenForPods(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"ready":         {func(*corev1.Node) {}, true},
		"cordoned":      {func(n *corev1.Node) { n.Spec.Unschedulable = true }, false},
		"disk full":     {func(n *corev1.Node) { taint(n, "node.kubernetes.io/disk-pressure", corev1.TaintEffectNoSchedule) }, false},
		"lab's own":     {func(n *corev1.Node) { taint(n, "nvidia.com/gpu", corev1.TaintEffectNoSchedule) }, true},
		"only a wish":   {func(n *corev1.Node) { taint(n, "node.kubernetes.io/x", corev1.TaintEffectPreferNoSchedule) }, true},
		"no condition":  {func(n *corev1.Node) { n.Status.Conditions = nil }, false},
		"not answering": {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
	} {
		n := gpuNode("n", "1", corev1.ConditionTrue)
		c.change(n)
		if got := openForPods(n); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

func taint(n *corev1.Node, key string, effect corev1.TaintEffect) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
}

// A machine says of its pods which addresses they have. One gone bad could name that of somebody else's service and
// lead its own visitors there.
func TestClusterBelievesAMachineItsOwnAddressesOnly(t *testing.T) {
	c, client := watched(t)
	for uid, ip := range map[string]string{
		"other": "10.42.1.9", "local": "127.0.0.1", "service": "10.43.0.1", "lab": "192.168.1.1", "six": "::1", "nothing": "x", "mapped": "::ffff:10.42.1.9", "own": "10.42.0.9",
	} {
		pod := notebookPod("alice", uid, uid, ip)
		pod.Labels[labelComponent], pod.Labels[labelLaunch] = componentService, strconv.Itoa(len(uid)*100+int(uid[0]))
		pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8000}}
		if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if !eventually(func() bool { return len(c.index.Load().notebooks) == 8 }) {
		t.Fatal("not all pods are known")
	}
	for uid, p := range c.index.Load().notebooks {
		address, ok := c.PodAddress(uid)
		service, _ := c.ServicePod(p.LaunchID)
		if own := uid == "own"; ok != own || service.Reachable() != own || own && address != "10.42.0.9:8000" {
			t.Errorf("%s: %q, %t; reachable %t", uid, address, ok, service.Reachable())
		}
	}
}
