// Package hostip brings the host address of pods up to date with their node's.
package hostip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Update writes the addresses of a node, the main one first, into the status of
// its pods that still name others. The kubelet does the same, but only as it
// comes to each pod: seconds after a start with another address, or minutes on a
// busy machine.
//
// Pods in the node's own network are left to the kubelet, which changes their
// own address along with it.
func Update(ctx context.Context, client kubernetes.Interface, node string, addresses []net.IP) error {
	if len(addresses) == 0 {
		return fmt.Errorf("the node %s has no address", node)
	}
	var status corev1.PodStatus
	for _, a := range addresses {
		status.HostIPs = append(status.HostIPs, corev1.HostIP{IP: a.String()})
	}
	status.HostIP = status.HostIPs[0].IP
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"hostIP": status.HostIP, "hostIPs": status.HostIPs}})
	if err != nil {
		return err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
	if err != nil {
		return fmt.Errorf("list the pods of %s: %w", node, err)
	}
	var errs []error
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.HostIP == "" || p.Status.HostIP == status.HostIP {
			continue
		}
		// A merge patch replaces the list of addresses; a strategic one would keep the old as well.
		_, err := client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("the host address of the pod %s/%s: %w", p.Namespace, p.Name, err))
		}
	}
	return errors.Join(errs...)
}
