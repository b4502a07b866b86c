package tenancy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func amounts(list corev1.ResourceList) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		q := list[name]
		out = append(out, fmt.Sprintf("%s=%s", name, q.String()))
	}
	return strings.Join(out, " ")
}

func quotaOf(t *testing.T, client *fake.Clientset, handle string) string {
	t.Helper()
	q, err := client.CoreV1().ResourceQuotas(Namespace(handle)).Get(context.Background(), quotaName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return amounts(q.Spec.Hard)
}

const always = "configmaps=16 persistentvolumeclaims=256 secrets=16 services=0 services.loadbalancers=0 services.nodeports=0"

// Without limits nothing is limited but what nobody needs, and a container that
// does not say what it takes is promised little.
func TestNoLimits(t *testing.T) {
	tn, client := newTenancy(t)
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	if got := quotaOf(t, client, "ada"); got != always {
		t.Errorf("the quota is %s", got)
	}
	l, err := client.CoreV1().LimitRanges("user-ada").Get(context.Background(), quotaName, metav1.GetOptions{})
	if err != nil || len(l.Spec.Limits) != 1 {
		t.Fatalf("%v %v", l, err)
	}
	item := l.Spec.Limits[0]
	if got := amounts(item.DefaultRequest); item.Default != nil || item.Max != nil || got != "cpu=100m ephemeral-storage=0 memory=512Mi" {
		t.Errorf("containers: %s, %v, %v", got, item.Default, item.Max)
	}
}

func TestLimits(t *testing.T) {
	tn, client := newTenancy(t)
	const gib = int64(1) << 30
	limits := Limits{
		Pods: new(int64(5)), GPUs: new(int64(0)),
		Amounts: Amounts{MilliCPU: new(int64(2500)), Memory: new(64 * gib), EphemeralStorage: new(100 * gib)},
		Container: ContainerLimits{
			Default: Amounts{MilliCPU: new(int64(50)), Memory: new(8 * gib)},
			Max:     Amounts{MilliCPU: new(int64(4000)), Memory: new(16 * gib), EphemeralStorage: new(20 * gib)},
		},
	}
	var gpus atomic.Int64
	tn.cfg.Limits = func(_ context.Context, handle string) (Limits, error) {
		if handle != "ada" {
			return Limits{}, errors.New("asked for somebody else")
		}
		l := limits
		l.GPUs = new(gpus.Load())
		return l, nil
	}
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	want := func(gpus string) string {
		return "configmaps=16 limits.cpu=2500m limits.ephemeral-storage=100Gi limits.memory=64Gi persistentvolumeclaims=256 pods=5 " +
			"requests.cpu=2500m requests.ephemeral-storage=100Gi requests.memory=64Gi requests.nvidia.com/gpu=" + gpus +
			" secrets=16 services=0 services.loadbalancers=0 services.nodeports=0"
	}
	if got := quotaOf(t, client, "ada"); got != want("0") {
		t.Errorf("the quota is %s", got)
	}
	l, err := client.CoreV1().LimitRanges("user-ada").Get(context.Background(), quotaName, metav1.GetOptions{})
	if err != nil || len(l.Spec.Limits) != 1 {
		t.Fatalf("%v %v", l, err)
	}
	item := l.Spec.Limits[0]
	for got, want := range map[string]string{
		amounts(item.DefaultRequest): "cpu=50m ephemeral-storage=0 memory=512Mi",
		amounts(item.Default):        "cpu=50m memory=8Gi",
		amounts(item.Max):            "cpu=4 ephemeral-storage=20Gi memory=16Gi",
	} {
		if got != want {
			t.Errorf("containers: %s, want %s", got, want)
		}
	}
	runTenancy(t, tn)
	gpus.Store(3)
	eventually(t, "three GPUs may be taken", func() bool { return quotaOf(t, client, "ada") == want("3") })
}

// Pods are refused until the quota is counted, so nobody is told to go on before.
func TestEnsureWaitsForTheCount(t *testing.T) {
	tn := New(Config{HomesDir: t.TempDir()}, fake.NewClientset())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tn.Ensure(ctx, ada) }()
	eventually(t, "the quota is there", func() bool {
		_, err := tn.client.CoreV1().ResourceQuotas("user-ada").Get(context.Background(), quotaName, metav1.GetOptions{})
		return err == nil
	})
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "quota was not counted") {
		t.Errorf("%v", err)
	}
}
