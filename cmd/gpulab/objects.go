package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryv1ac "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/tenancy"
)

// systemNamespace holds everything of gpulab that runs in the cluster.
const systemNamespace = "gpulab-system"

var applyOptions = metav1.ApplyOptions{FieldManager: "gpulab", Force: true}

// applyObjects makes the few objects that depend on this machine and therefore
// belong to no chart: the namespace, the web CA, and the address behind the
// Service with which pods reach gpulab.
func applyObjects(ctx context.Context, client kubernetes.Interface, caPEM []byte, address netip.Addr,
	httpsPort int) error {
	ns := corev1ac.Namespace(systemNamespace).WithLabels(map[string]string{
		tenancy.ManagedLabel:                 "gpulab",
		"pod-security.kubernetes.io/enforce": "privileged",
	})
	if _, err := client.CoreV1().Namespaces().Apply(ctx, ns, applyOptions); err != nil {
		return fmt.Errorf("the system namespace: %w", err)
	}
	ours := map[string]string{tenancy.ManagedLabel: "gpulab"}
	ca := corev1ac.ConfigMap("gpulab-web-ca",
		systemNamespace).WithLabels(ours).WithData(map[string]string{"ca.crt": string(caPEM)})
	if _, err := client.CoreV1().ConfigMaps(systemNamespace).Apply(ctx, ca, applyOptions); err != nil {
		return fmt.Errorf("the web certificate authority: %w", err)
	}
	slice := discoveryv1ac.EndpointSlice("gpulab", systemNamespace).WithLabels(ours).
		WithLabels(map[string]string{discoveryv1.LabelServiceName: "gpulab", discoveryv1.LabelManagedBy: "gpulab"}).
		WithAddressType(discoveryv1.AddressTypeIPv4).
		WithEndpoints(discoveryv1ac.Endpoint().WithAddresses(address.String()).
			WithConditions(discoveryv1ac.EndpointConditions().WithReady(true))).
		WithPorts(discoveryv1ac.EndpointPort().WithName("https").WithProtocol(corev1.ProtocolTCP).WithPort(int32(httpsPort)))
	if _, err := client.DiscoveryV1().EndpointSlices(systemNamespace).Apply(ctx, slice, applyOptions); err != nil {
		return fmt.Errorf("the address of gpulab in the cluster: %w", err)
	}
	return nil
}

// labelNode sets labels on the node; a nil value removes one.
func labelNode(ctx context.Context, client kubernetes.Interface, node string, labels map[string]*string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels}})
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: "gpulab"})
	return err
}

// readFeatures reads what GPU feature discovery found: lines "label=value".
func readFeatures(dir string) map[string]*string {
	data, err := os.ReadFile(filepath.Join(dir, "gfd"))
	if err != nil {
		return nil
	}
	out := map[string]*string{}
	for line := range strings.Lines(string(data)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && strings.HasPrefix(key, "nvidia.com/") {
			out[key] = &value
		}
	}
	return out
}

// featureLabels matches the labels that GPU feature discovery makes.
var featureLabels = regexp.MustCompile(`^nvidia\.com/(gpu\.(compute|count|family|machine|memory|mode|product|` +
	`replicas|sharing-strategy)|cuda\.|mig[.-]|mps\.capable|vgpu\.)`)

// labelFeatures makes the node's labels say what features do, and takes away
// those of a GPU or driver that the node had before.
func labelFeatures(ctx context.Context, client kubernetes.Interface, node string, features map[string]*string) error {
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	change := map[string]*string{}
	for key, value := range features {
		if old, ok := n.Labels[key]; !ok || old != *value {
			change[key] = value
		}
	}
	for key := range n.Labels {
		if features[key] == nil && featureLabels.MatchString(key) {
			change[key] = nil
		}
	}
	if len(change) == 0 {
		return nil
	}
	return labelNode(ctx, client, node, change)
}

// keepFeatures carries GPU features to the node's labels whenever they change.
func keepFeatures(ctx context.Context, client kubernetes.Interface, node, dir string) error {
	for {
		if features := readFeatures(dir); len(features) > 0 {
			if err := labelFeatures(ctx, client, node, features); err != nil && ctx.Err() == nil {
				slog.Debug("the node's GPU labels could not be set", "err", err)
			}
		}
		if !sleep(ctx, 10*time.Second) {
			return nil
		}
	}
}
