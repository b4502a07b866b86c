package queue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// fakeKueue is an API server that has these objects, and takes patches without keeping them.
func fakeKueue(objects ...runtime.Object) *fake.FakeDynamicClient {
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{workloadKind: "WorkloadList", podKind: "PodList"}, objects...)
	client.PrependReactor("patch", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &unstructured.Unstructured{}, nil
	})
	return client
}

func lineOn(client *fake.FakeDynamicClient) *Line {
	return &Line{cfg: Config{Log: slog.New(slog.DiscardHandler)}, client: client,
		changes: make(chan struct{}, 1), wake: make(chan struct{}, 1), standings: map[int64]Standing{}, orders: map[string]order{}, written: map[string]writing{}}
}

// When Kueue ends between two of gpulab's calls, the line goes on: what was
// admitted stays so, places are not known, and it is said why.
func TestKueueEndsInTheMiddle(t *testing.T) {
	claims := []Claim{{Launch: 1, Namespace: "user-ada", GPUs: 1, Held: true, On: "T4"}, {Launch: 2, Namespace: "user-ben", GPUs: 1}}
	var objects []runtime.Object
	for _, c := range claims {
		w := newWorkload(c, everyKind)
		if c.Held {
			w.Object["status"] = map[string]any{
				"conditions": []any{map[string]any{"type": "QuotaReserved", "status": "True"}, map[string]any{"type": "Admitted", "status": "True"}},
				"admission":  map[string]any{"podSetAssignments": []any{map[string]any{"flavors": map[string]any{gpuResource: "t4"}}}},
			}
		}
		objects = append(objects, w)
	}
	client := fakeKueue(objects...)
	var gone atomic.Bool
	client.PrependReactor("get", orderKind.Resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		if gone.Load() {
			return true, nil, errors.New("no endpoints available")
		}
		return true, &unstructured.Unstructured{Object: map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": "launch-2"}}}}}, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := lineOn(client)
	l.Keep(State{Stock: []Stock{{"T4", 1}}, Claims: claims})
	l.pass(ctx)
	if got := l.Standing(2); got.Position != 1 || l.Trouble() != "" {
		t.Fatalf("at first: %+v, %s", got, l.Trouble())
	}
	for range 2 {
		gone.Store(true)
		l.pass(ctx)
		if got := l.Standing(1); !got.Admitted || got.Kind != "T4" {
			t.Errorf("what was admitted is %+v", got)
		}
		if got := l.Standing(2); got.Admitted || got.Position != 0 || !strings.Contains(l.Trouble(), "does not answer") {
			t.Errorf("who waits is %+v: %s", got, l.Trouble())
		}
	}
	gone.Store(false)
	l.pass(ctx)
	if got := l.Standing(2); got.Position != 1 || l.Trouble() != "" {
		t.Errorf("afterwards: %+v, %s", got, l.Trouble())
	}
}

// Who comes back from aside still reads as standing there for a moment: Kueue knows no line of that name, and says so.
func TestComesBackFromAside(t *testing.T) {
	made := newWorkload(Claim{Launch: 2, Namespace: "user-ben", GPUs: 1}, asideLine)
	client := fakeKueue(made)
	var moved string
	client.PrependReactor("patch", workloadKind.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		moved = string(action.(clienttesting.PatchAction).GetPatch())
		return true, &unstructured.Unstructured{}, nil // the watch does not tell yet
	})
	client.PrependReactor("get", orderKind.Resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(orderKind.GroupResource(), action.(clienttesting.GetAction).GetName())
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	l := lineOn(client)
	l.Keep(State{Stock: []Stock{{"T4", 1}}, Claims: []Claim{{Launch: 2, Namespace: "user-ben", GPUs: 1}}})
	l.pass(ctx)
	if !strings.Contains(moved, `"queueName":"any"`) || l.Trouble() != "" {
		t.Errorf("moved with %s: %q", moved, l.Trouble())
	}
}

// What the API server says when a webhook's certificate is not valid.
func TestTroubleOfACertificate(t *testing.T) {
	expired := apierrors.NewInternalError(errors.New(`failed calling webhook "mworkload.kb.io": failed to call webhook: Post "https://kueue-webhook-service.gpulab-system.svc:443/mutate": tls: failed to verify certificate: x509: certificate has expired or is not yet valid`))
	away := apierrors.NewInternalError(errors.New(`failed calling webhook "mworkload.kb.io": connect: connection refused`))
	if !uncertified(expired) || uncertified(away) || !strings.HasPrefix(troubleWords(expired), "The certificate of Kueue,") || !strings.HasPrefix(troubleWords(away), "Kueue, which decides") {
		t.Errorf("%q, %q", troubleWords(expired), troubleWords(away))
	}
}
