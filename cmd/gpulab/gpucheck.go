package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/notebooks"
)

const gpuResource corev1.ResourceName = "nvidia.com/gpu"

// waitGPUs waits until the node offers want GPUs to pods, less those that are
// withheld.
func waitGPUs(ctx context.Context, client kubernetes.Interface, node string, want int, withheld func() int,
	st *stage) error {
	for end := time.Now().Add(90 * time.Second); ; {
		n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err == nil {
			offered, all, kept := n.Status.Allocatable[gpuResource], n.Status.Capacity[gpuResource], withheld()
			have := int(offered.Value()) + kept
			if have >= want && int(all.Value()) >= want {
				return nil
			}
			st.say("%d of %d GPUs are offered by the device plugin", have, want)
		}
		if time.Now().After(end) {
			return errors.New("the device plugin offers no GPU after 90 s; see `gpulab kubectl -n gpulab-system logs " +
				"ds/nvidia-device-plugin` and `gpulab gpus`")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// checkGPU runs a pod that asks for one GPU, as a user's notebook would, and
// returns what it saw. It runs on the machine named, "" for any.
func checkGPU(ctx context.Context, client kubernetes.Interface, image, node string) (string, error) {
	pods := client.CoreV1().Pods(systemNamespace)
	zero := int64(0)
	remove := func() {
		_ = pods.Delete(context.WithoutCancel(ctx), "gpu-check", metav1.DeleteOptions{GracePeriodSeconds: &zero})
	}
	remove() // one that an interrupted start left behind
	defer remove()
	yes, no, user := true, false, int64(20000)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "gpu-check", Labels: map[string]string{
				"app.kubernetes.io/name": "gpu-check", "app.kubernetes.io/managed-by": "gpulab",
			},
		},
		Spec: corev1.PodSpec{
			RestartPolicy:                corev1.RestartPolicyNever,
			AutomountServiceAccountToken: &no,
			DNSConfig:                    notebooks.PodNames(),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "check", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command:   []string{"python3", "-c", assets.VectorAdd},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpuResource: resource.MustParse("1")}},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	if node != "" {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	}
	for {
		_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			break
		}
		// The old pod may still be going, and a new namespace has no service
		// account for a moment.
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) || ctx.Err() != nil {
			return "", fmt.Errorf("the GPU test: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
	return waitCheck(ctx, client)
}

// errNoGPUFree says that all GPUs are held, or lent to nobody.
var errNoGPUFree = errors.New("no GPU is free; a test needs one for a few seconds")

// freeingPatience is how long a GPU that is just being given back is waited for.
const freeingPatience = 5 * time.Second

// waitCheck waits for the test pod's end and returns its first line of output.
func waitCheck(ctx context.Context, client kubernetes.Interface) (string, error) {
	pods := client.CoreV1().Pods(systemNamespace)
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end) &&
		ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		p, err := pods.Get(ctx, "gpu-check", metav1.GetOptions{})
		if err == nil && lacksGPU(p) {
			return "", errNoGPUFree
		}
		if err != nil || p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			continue
		}
		out := ""
		if r, err := pods.GetLogs("gpu-check", &corev1.PodLogOptions{}).Stream(ctx); err == nil {
			data, _ := io.ReadAll(io.LimitReader(r, 4096))
			_ = r.Close()
			out, _, _ = strings.Cut(strings.TrimSpace(string(data)), "\n")
		}
		if p.Status.Phase == corev1.PodFailed {
			return "", fmt.Errorf("a pod got a GPU but could not use it: %s%s; run `gpulab logs` and `gpulab status`",
				p.Status.Message, out)
		}
		return out, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	return "", errors.New("the GPU test pod did not end within 60 s; see `gpulab kubectl -n gpulab-system describe pod " +
		"gpu-check`")
}

// lacksGPU tells whether the scheduler has had no GPU for a pod since it was made.
func lacksGPU(p *corev1.Pod) bool {
	return time.Since(p.CreationTimestamp.Time) > freeingPatience &&
		slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable &&
				strings.Contains(c.Message, "Insufficient "+string(gpuResource))
		})
}

// checkPatience bounds a test that somebody asked for and waits for.
const checkPatience = 90 * time.Second

// CheckGPU implements ctl.Daemon.
func (l *appliance) CheckGPU(ctx context.Context) (string, error) {
	saw, err := l.tryGPU(ctx)
	l.recordRoot(ctx, "gpu.check", "", "")
	return saw, err
}

// tryGPU lets a test pod compute on a free GPU and returns what it saw.
func (l *appliance) tryGPU(ctx context.Context) (string, error) {
	parts, client := l.attached.Load(), l.client.Load()
	if parts == nil || !l.canLaunch.Load() {
		return "", errStarting
	}
	switch free, total := parts.notebooks.Room().GPUs(); {
	case total == 0:
		return "", errors.New("this machine offers no GPU to pods; `gpulab status` says why")
	case free == 0:
		return "", errNoGPUFree
	}
	if !l.checking.TryLock() {
		return "", errors.New("a test is running already")
	}
	defer l.checking.Unlock()
	// One who goes away must not leave the pod behind half-way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkPatience)
	defer cancel()
	return checkGPU(ctx, client, l.images.Refs()["notebook"], "")
}

func newGPUsCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Let a test pod compute on a free GPU",
		Long: `Let a test pod compute on a free GPU: it asks for one as a notebook does, adds
two vectors on it through CUDA, and checks the sums. gpulab init does the same
once for each driver. A simulated GPU computes nothing, and the test says so.`,
		Example: "  sudo gpulab gpus check",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireRoot(c); err != nil {
				return err
			}
			saw, err := a.client().CheckGPU(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "A test pod saw %s.\n", saw)
			return err
		},
	}
}
