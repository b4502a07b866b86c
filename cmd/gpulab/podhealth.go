package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/embedk8s"
)

// stuck are the reasons for which a container waits and does not come by itself.
var stuck = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError", "RunContainerError",
}

// unscheduledFor is how long a pod may look for a place.
const unscheduledFor = 2 * time.Minute

// podsComponent tells of pods of the lab itself that do not run. Those of
// people are their own matter, and stand on their pages.
func (l *appliance) podsComponent(ctx context.Context) ctl.Component {
	pods, err := ownPods(ctx, l.client.Load())
	if err != nil {
		return ctl.Component{
			Name: "pods", State: ctl.Starting, Detail: "the Kubernetes API does not answer",
			NextStep: "wait a minute; then `gpulab logs k3s`",
		}
	}
	return podsHealth(pods, time.Now())
}

// ownPods lists the pods of the lab itself.
func ownPods(ctx context.Context, client kubernetes.Interface) (pods []corev1.Pod, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for _, namespace := range []string{systemNamespace, metav1.NamespaceSystem} {
		// From the API server's memory: this is asked for often.
		list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return nil, err
		}
		pods = append(pods, list.Items...)
	}
	return pods, nil
}

// failingFor is how long all pods of the lab may fail before k3s is restarted.
const failingFor = 10 * time.Minute

// failing tells of pods of the lab on this machine that all fail for the same reason.
func (l *appliance) failing(ctx context.Context) embedk8s.Trouble {
	client := l.client.Load()
	if client == nil {
		return embedk8s.Trouble{}
	}
	pods, err := ownPods(ctx, client)
	if err != nil {
		return embedk8s.Trouble{}
	}
	return embedk8s.Trouble{Why: sameFailure(pods, l.id.NodeName), Patience: failingFor}
}

// runtimeFailures are reasons for which a container waits that a broken runtime explains; one of a missing image is
// none.
var runtimeFailures = []string{"CrashLoopBackOff", "ContainerCreating", "CreateContainerError", "RunContainerError"}

// sameFailure says why all of the pods on a machine do not run, "" where one runs, where they fail for different
// reasons, and where there are too few to tell.
func sameFailure(pods []corev1.Pod, node string) string {
	const enough = 3
	reason, failing := "", 0
	for i := range pods {
		p := &pods[i]
		if p.Spec.NodeName != node || p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded ||
			p.Status.Phase == corev1.PodFailed {
			continue
		}
		why := ""
		for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
			switch w := s.State.Waiting; {
			case w != nil && slices.Contains(runtimeFailures, w.Reason):
				why = w.Reason
			case w == nil && !s.Ready && s.RestartCount > 0: // between two crashes
				why = "CrashLoopBackOff"
			}
			if why != "" {
				break
			}
		}
		if why == "" || reason != "" && why != reason {
			return ""
		}
		reason = why
		failing++
	}
	if failing < enough {
		return ""
	}
	return fmt.Sprintf("all %d pods of the lab on this machine wait with %s", failing, reason)
}

func podsHealth(pods []corev1.Pod, now time.Time) ctl.Component {
	c := ctl.Component{Name: "pods", State: ctl.OK, Detail: fmt.Sprintf("%d of the lab itself", len(pods))}
	var troubles []string
	for i := range pods {
		why := podTrouble(&pods[i], now)
		if why == "" {
			continue
		}
		if troubles == nil {
			c.NextStep = fmt.Sprintf("`gpulab kubectl -n %s describe pod %s` says why", pods[i].Namespace, pods[i].Name)
		}
		troubles = append(troubles, pods[i].Name+": "+why)
	}
	if troubles != nil {
		c.State, c.Detail = ctl.Warning, strings.Join(troubles, "; ")
	}
	return c
}

// podTrouble says why a pod does not run, "" when it does or is on its way.
func podTrouble(pod *corev1.Pod, now time.Time) string {
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && slices.Contains(stuck, w.Reason) {
			return strings.TrimSpace(w.Reason + " " + firstLine(w.Message))
		}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
			now.Sub(pod.CreationTimestamp.Time) > unscheduledFor {
			return strings.TrimSpace("no machine takes it: " + firstLine(c.Message))
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
