package main

import (
	"context"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestGPULabelsFollowTheDriver(t *testing.T) {
	ctx := context.Background()
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ws1", Labels: map[string]string{
		"kubernetes.io/hostname": "ws1", "nvidia.com/gpu.present": "true", "nvidia.com/device-plugin.config": "shared",
		"nvidia.com/gpu.product": "Simulated-GPU-24GB", "nvidia.com/cuda.driver.major": "580", "nvidia.com/vgpu.present": "false",
	}}})
	labels := func() map[string]string {
		n, err := client.CoreV1().Nodes().Get(ctx, "ws1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n.Labels
	}
	product := "NVIDIA-RTX-A5000"
	if err := labelFeatures(ctx, client, "ws1", map[string]*string{"nvidia.com/gpu.product": &product}); err != nil {
		t.Fatal(err)
	}
	kept := map[string]string{"kubernetes.io/hostname": "ws1", "nvidia.com/gpu.present": "true", "nvidia.com/device-plugin.config": "shared"}
	with := maps.Clone(kept)
	with["nvidia.com/gpu.product"] = product
	if got := labels(); !maps.Equal(got, with) {
		t.Errorf("with another GPU: %v", got)
	}
	if err := labelFeatures(ctx, client, "ws1", nil); err != nil {
		t.Fatal(err)
	}
	if got := labels(); !maps.Equal(got, kept) {
		t.Errorf("without a GPU: %v", got)
	}
}
