package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpulab/gpulab/internal/ctl"
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
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var pods []corev1.Pod
	for _, namespace := range []string{systemNamespace, metav1.NamespaceSystem} {
		// From the API server's memory: this is asked for often.
		list, err := l.client.Load().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return ctl.Component{Name: "pods", State: ctl.Starting, Detail: "the Kubernetes API does not answer", NextStep: "wait a minute; then `gpulab logs k3s`"}
		}
		pods = append(pods, list.Items...)
	}
	return podsHealth(pods, time.Now())
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
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && now.Sub(pod.CreationTimestamp.Time) > unscheduledFor {
			return strings.TrimSpace("no machine takes it: " + firstLine(c.Message))
		}
	}
	return ""
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
