package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpulab/gpulab/internal/notebooks"
)

// The taint comes once and goes again; others on the node stay, and what was
// closed by hand is opened.
func TestMarkNode(t *testing.T) {
	own := corev1.Taint{Key: "somebody.else/s", Effect: corev1.TaintEffectNoExecute}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{own}}})
	for _, closed := range []bool{true, true, false} {
		if err := markNode(t.Context(), client, "b", closed); err != nil {
			t.Fatal(err)
		}
		n, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := []corev1.Taint{own}
		if closed {
			want = append(want, corev1.Taint{Key: notebooks.CordonTaint, Effect: corev1.TaintEffectNoSchedule})
		}
		if n.Spec.Unschedulable || len(n.Spec.Taints) != len(want) || n.Spec.Taints[len(want)-1] != want[len(want)-1] || n.Spec.Taints[0] != own {
			t.Errorf("closed %v: %+v", closed, n.Spec)
		}
	}
	if err := markNode(t.Context(), client, "nobody", true); err == nil {
		t.Error("a node that is not there was marked")
	}
}
