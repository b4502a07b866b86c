//go:build e2e

package bench

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/gpulab/gpulab/test/bench/week"
	"github.com/gpulab/gpulab/test/lab"
)

const (
	// kwokModule says that nodes are ready and that pods run on them, which is not so:
	// https://kwok.sigs.k8s.io.
	kwokModule = "sigs.k8s.io/kwok"
	kwokAt     = "v0.8.0"
	// ofWeek marks the nodes and pods that it is to play.
	ofWeek = "gpulab-bench=week"
	// gpus is what a machine's GPUs are called in Kubernetes.
	gpus = corev1.ResourceName("nvidia.com/gpu")
)

// plainWatches has Kubernetes answer watches as kwok asks for them, with resource version 0:
// as lists that go on, which k3s's database is not up to, kwok would get none.
func plainWatches(l *lab.Lab) {
	l.WriteFile(dataDir+"/k3s.yaml.d/watches.yaml", "kube-apiserver-arg+:\n- feature-gates=WatchList=false\n")
}

// kwokProgram is kwok with the arguments that it has to have. It lies where labs see it, too.
func kwokProgram(ctx context.Context, t *testing.T) []string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "gpulab", "test-kwok-"+kwokAt)
	install := exec.CommandContext(ctx, "go", "install", "-trimpath", "-ldflags=-s -w", kwokModule+"/cmd/kwok@"+kwokAt)
	install.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("kwok cannot be built: %v\n%s", err, out)
	}
	modules, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{filepath.Join(dir, "kwok"), "--kubeconfig=" + dataDir + "/kubeconfig", "--manage-all-nodes=false", "--manage-nodes-with-label-selector=" + ofWeek}
	for _, stage := range []string{"node/fast/node-initialize", "pod/fast/pod-ready", "pod/fast/pod-delete"} {
		args = append(args, "--config="+filepath.Join(strings.TrimSpace(string(modules)), kwokModule+"@"+kwokAt, "kustomize", "stage", stage+".yaml"))
	}
	return args
}

// machines are those of a week, in the lab's Kubernetes: each is a node that kwok
// plays, each launch a pod. Which pod comes on which node is up to the scheduler.
type machines struct {
	ctx    context.Context
	client kubernetes.Interface
	pods   cache.Store
	stirs  chan struct{} // one of them has changed
	outside

	started, second int // in all, and on another machine than the first
}

func newMachines(ctx context.Context, t *testing.T, l *lab.Lab, access *rest.Config, kube dynamic.Interface, kwok []string) *machines {
	t.Helper()
	said, err := os.Create(filepath.Join(t.TempDir(), "kwok.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := l.Command(ctx, kwok[0], kwok[1:]...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = cmd.Cancel(), cmd.Wait()
		_ = said.Close()
		if content, err := os.ReadFile(said.Name()); err == nil && t.Failed() {
			t.Logf("kwok said last:\n%s", content[max(0, len(content)-4096):])
		}
	})
	fast := rest.CopyConfig(access)
	fast.QPS = -1 // a week is ten thousand requests
	client, err := kubernetes.NewForConfig(fast)
	if err != nil {
		t.Fatal(err)
	}
	m := &machines{ctx: ctx, client: client, outside: newOutside(ctx)}
	m.pods, m.stirs = watched(ctx, t, kube, corev1.SchemeGroupVersion.WithResource("pods"), ofWeek)
	return m
}

// set puts these machines, of so many GPUs, in the place of those that were there.
func (m *machines) set(sizes []int) error {
	all := metav1.ListOptions{LabelSelector: ofWeek}
	for _, o := range m.pods.List() {
		p := o.(*unstructured.Unstructured)
		if err := m.delete(p.GetNamespace(), p.GetName()); err != nil {
			return err
		}
	}
	nodes := m.client.CoreV1().Nodes()
	if err := nodes.DeleteCollection(m.ctx, metav1.DeleteOptions{}, all); err != nil {
		return err
	}
	key, value, _ := strings.Cut(ofWeek, "=")
	for i, n := range sizes {
		room := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("256Gi"), corev1.ResourcePods: resource.MustParse("110"),
			gpus: *resource.NewQuantity(int64(n), resource.DecimalSI),
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: week.Node(i), Labels: map[string]string{key: value, corev1.LabelHostname: week.Node(i)}},
			// Nothing of the lab itself is to come here.
			Spec:   corev1.NodeSpec{Taints: []corev1.Taint{{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule}}},
			Status: corev1.NodeStatus{Capacity: room, Allocatable: room},
		}
		if _, err := nodes.Create(m.ctx, node, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// Start is called within the week's clock.
func (m *machines) Start(w *week.Launch, on []int) (machine int, err error) {
	m.do(func() { machine, err = m.start(w, on) })
	return machine, err
}

// End is called within the week's clock.
func (m *machines) End(w *week.Launch) (err error) {
	m.do(func() { err = m.delete(week.Namespace(w.Person), podOf(w)) })
	return err
}

func podOf(w *week.Launch) string { return "launch-" + strconv.FormatInt(w.ID, 10) }

func (m *machines) start(w *week.Launch, on []int) (int, error) {
	key, value, _ := strings.Cut(ofWeek, "=")
	names := make([]string, len(on))
	at := map[string]int{}
	for i, machine := range on {
		names[i] = week.Node(machine)
		at[names[i]] = machine
	}
	named := func(names []string) corev1.NodeSelectorTerm {
		return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: names}}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podOf(w), Labels: map[string]string{key: value}},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(bool),
			Tolerations:                  []corev1.Toleration{{Key: key, Operator: corev1.TolerationOpExists}},
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{named(names)}},
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 100, Preference: named(names[:1])}},
			}},
			Containers: []corev1.Container{{Name: "work", Image: "played", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{gpus: *resource.NewQuantity(int64(w.GPUs), resource.DecimalSI)},
			}}},
		},
	}
	namespace := week.Namespace(w.Person)
	// A server short of time refuses at times.
	err := m.until(func() (bool, error) {
		_, err := m.client.CoreV1().Pods(namespace).Create(m.ctx, pod, metav1.CreateOptions{})
		return err == nil || apierrors.IsAlreadyExists(err), err
	})
	if err != nil {
		return 0, err
	}
	var node string
	err = m.until(func() (bool, error) {
		p, err := m.pod(namespace, pod.Name)
		if p == nil {
			return false, cmp.Or(err, fmt.Errorf("%s/%s is not seen", namespace, pod.Name))
		}
		node = p.Spec.NodeName
		if p.Status.Phase == corev1.PodRunning {
			return true, nil
		}
		return false, fmt.Errorf("%s/%s for %d GPUs does not run on any of %v: %+v", namespace, pod.Name, w.GPUs, names, p.Status.Conditions)
	})
	m.started++
	if node != names[0] {
		m.second++
	}
	return at[node], err
}

// delete ends a pod, and returns once it is gone.
func (m *machines) delete(namespace, name string) error {
	if err := m.client.CoreV1().Pods(namespace).Delete(m.ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return m.until(func() (bool, error) {
		p, err := m.pod(namespace, name)
		return p == nil && err == nil, fmt.Errorf("%s/%s does not end (%w)", namespace, name, err)
	})
}

// pod is nil when there is none.
func (m *machines) pod(namespace, name string) (*corev1.Pod, error) {
	o, there, err := m.pods.GetByKey(namespace + "/" + name)
	if !there || err != nil {
		return nil, err
	}
	var p corev1.Pod
	return &p, runtime.DefaultUnstructuredConverter.FromUnstructured(o.(*unstructured.Unstructured).Object, &p)
}

// until waits for that to be done; its error is why it is not.
func (m *machines) until(done func() (bool, error)) error {
	for late := time.After(patience); ; {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-m.stirs:
		case <-time.After(time.Second):
		case <-late:
			return err
		case <-m.ctx.Done():
			return m.ctx.Err()
		}
	}
}
