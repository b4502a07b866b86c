package charts

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/kube"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/client-go/kubernetes"
)

const (
	// pollInterval between two looks at a release that is starting. The whole
	// start takes seconds, so a second between looks would show in the total.
	pollInterval = 250 * time.Millisecond

	// repeatInterval between two events while the reason to wait stays the same.
	repeatInterval = 2 * time.Second

	// hopelessAfter is how long a container may be one that cannot start: its
	// image is missing, or has not the program. All images are imported before
	// the charts are applied; only one of the lab's own may still come from a
	// registry.
	hopelessAfter = 20 * time.Second
)

// notReadyError is what a release waited for in vain.
type notReadyError string

func (e notReadyError) Error() string { return string(e) }

// waitReady returns when every workload among the objects runs as many up to
// date, available pods as it wants, and reports what it waits for meanwhile;
// after limit with a [notReadyError]. An API server that goes away for a moment
// is waited for like a pod.
func (j *job) waitReady(ctx context.Context, limit time.Duration, objects kube.ResourceList) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not ready after %s", limit))
	defer cancel()
	waitFor := workloads(objects)
	said, saidAt := "", time.Time{}
	lastWithHope := time.Now()
	for {
		waiting, hopeless := j.whatIsNotReady(ctx, waitFor)
		if waiting == "" {
			return nil
		}
		if !hopeless {
			lastWithHope = time.Now()
		} else if time.Since(lastWithHope) > hopelessAfter {
			return notReadyError(waiting)
		}
		if waiting != said || time.Since(saidAt) >= repeatInterval {
			said, saidAt = waiting, time.Now()
			j.event(Waiting, waiting, nil)
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return ctx.Err()
			}
			return notReadyError(fmt.Sprintf("%v: %s", context.Cause(ctx), said))
		case <-time.After(pollInterval):
		}
	}
}

// whatIsNotReady describes the first workload that is not ready, "" if all are;
// hopeless if it can only become so by another image.
func (s *session) whatIsNotReady(ctx context.Context, objects kube.ResourceList) (reason string, hopeless bool) {
	for _, object := range objects {
		w, err := readWorkload(ctx, s.client, object)
		if err != nil {
			if ctx.Err() != nil {
				// The caller says why; this only has to be something.
				return object.Name + ": stopped waiting", false
			}
			return fmt.Sprintf("%s: the API server says: %v", object.Name, err), false
		}
		if !w.isReady() {
			reason, hopeless = s.describe(ctx, w)
			return w.name + ": " + reason, hopeless
		}
	}
	return "", false
}

// workload is what a Deployment and a DaemonSet have in common.
type workload struct {
	namespace, name string
	selector        *metav1.LabelSelector
	observed        bool  // the controller has seen the present specification
	wanted          int32 // pods
	updated         int32 // pods of the present specification
	outdated        int32 // pods of an older one
	available       int32
	problem         string // why its controller makes no pods, if it says so
}

func (w workload) isReady() bool {
	return w.observed && w.updated >= w.wanted && w.outdated == 0 && w.available >= w.wanted
}

func readWorkload(ctx context.Context, client kubernetes.Interface, object *resource.Info) (workload, error) {
	if kindOf(object) == "daemonset" {
		d, err := client.AppsV1().DaemonSets(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
		if err != nil {
			return workload{}, err
		}
		return fromDaemonSet(d), nil
	}
	d, err := client.AppsV1().Deployments(object.Namespace).Get(ctx, object.Name, metav1.GetOptions{})
	if err != nil {
		return workload{}, err
	}
	return fromDeployment(d), nil
}

func fromDeployment(d *appsv1.Deployment) workload {
	w := workload{
		namespace: d.Namespace,
		name:      d.Name,
		selector:  d.Spec.Selector,
		observed:  d.Status.ObservedGeneration >= d.Generation,
		wanted:    1,
		updated:   d.Status.UpdatedReplicas,
		outdated:  d.Status.Replicas - d.Status.UpdatedReplicas,
		available: d.Status.AvailableReplicas,
	}
	if d.Spec.Replicas != nil {
		w.wanted = *d.Spec.Replicas
	}
	for _, c := range d.Status.Conditions {
		if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue {
			w.problem = c.Message
		}
	}
	return w
}

func fromDaemonSet(d *appsv1.DaemonSet) workload {
	return workload{
		namespace: d.Namespace,
		name:      d.Name,
		selector:  d.Spec.Selector,
		observed:  d.Status.ObservedGeneration >= d.Generation,
		wanted:    d.Status.DesiredNumberScheduled,
		updated:   d.Status.UpdatedNumberScheduled,
		available: d.Status.NumberAvailable,
	}
}

// describe says why a workload is not ready, from its first pod that is not.
func (s *session) describe(ctx context.Context, w workload) (reason string, hopeless bool) {
	text := fmt.Sprintf("pod %d/%d ready", w.available, w.wanted)
	if w.problem != "" {
		return text + ", " + w.problem, false
	}
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return text, false
	}
	pods, err := s.client.CoreV1().Pods(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return text, false
	}
	for _, pod := range pods.Items {
		reason, hopeless := podReason(&pod)
		if reason == "" {
			continue
		}
		if crashed := crashedContainer(&pod); crashed != "" && !hopeless {
			if line := s.lastWords(ctx, &pod, crashed); line != "" {
				reason += ": " + line
			}
		}
		return text + ", " + reason, hopeless
	}
	if len(pods.Items) == 0 {
		return text + ", waiting for the pod to be made", false
	}
	return text, false
}

// podReason says in plain words why a pod is not ready, "" if it is.
func podReason(pod *corev1.Pod) (reason string, hopeless bool) {
	if pod.DeletionTimestamp != nil {
		return "the old pod is stopping", false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return "", false
		}
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node for it: " + c.Message, false
		}
	}
	statuses := append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...)
	for _, c := range statuses {
		if reason, hopeless = containerReason(c); reason != "" {
			return reason, hopeless
		}
	}
	if len(statuses) == 0 {
		return "waiting for the node to take it", false
	}
	return "running, not answering yet", false
}

func containerReason(c corev1.ContainerStatus) (reason string, hopeless bool) {
	ended := c.State.Terminated
	if ended == nil && c.State.Waiting != nil {
		ended = c.LastTerminationState.Terminated
	}
	if ended != nil && (ended.Reason == "StartError" || ended.Reason == "ContainerCannotRun") {
		// What the layers of the runtime say about themselves comes first.
		_, message, cut := strings.Cut(ended.Message, "unable to start container process: ")
		if !cut {
			message = ended.Message
		}
		return "cannot be started: " + message, true
	}
	if c.State.Waiting == nil {
		if ended != nil && ended.ExitCode != 0 {
			return fmt.Sprintf("ended with exit code %d", ended.ExitCode), false
		}
		return "", false
	}
	switch reason := c.State.Waiting.Reason; reason {
	case "ContainerCreating", "PodInitializing":
		return "starting", false
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName":
		return "the image " + c.Image + " is not on the node", true
	case "CrashLoopBackOff":
		if ended != nil {
			return fmt.Sprintf("ends again and again with exit code %d", ended.ExitCode), false
		}
		return "ends again and again", false
	default:
		return strings.TrimSuffix(reason+": "+c.State.Waiting.Message, ": "), false
	}
}

// crashedContainer names a container of the pod that has ended in error.
func crashedContainer(pod *corev1.Pod) string {
	for _, c := range append(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses...) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return c.Name
		}
		if t := c.LastTerminationState.Terminated; t != nil && t.ExitCode != 0 {
			return c.Name
		}
	}
	return ""
}

// lastWords returns the line of a crashed container's log that says most: the
// last one that calls itself an error, or else the last one.
func (s *session) lastWords(ctx context.Context, pod *corev1.Pod, container string) string {
	for _, previous := range []bool{false, true} {
		lines := int64(100)
		raw, err := s.client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: container,
			TailLines: &lines,
			Previous:  previous,
		}).DoRaw(ctx)
		if line := tellingLine(string(raw)); err == nil && line != "" {
			return line
		}
	}
	return ""
}

var callsItselfAnError = regexp.MustCompile(`(?im)^\s*(error|fatal|panic|[a-z.]*(error|exception)):? .*$`)

func tellingLine(log string) string {
	if found := callsItselfAnError.FindAllString(log, -1); found != nil {
		return strings.TrimSpace(found[len(found)-1])
	}
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
