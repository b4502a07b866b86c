package main

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpulab/gpulab/internal/ctl"
)

func TestPodsHealth(t *testing.T) {
	now := time.Now()
	pod := func(name string, status corev1.PodStatus) corev1.Pod {
		return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "gpulab-system", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))}, Status: status}
	}
	waits := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}}}}
	}
	unscheduled := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}}}
	well := []corev1.Pod{pod("coredns", corev1.PodStatus{}), pod("new", waits("ContainerCreating", "")), pod("soon", unscheduled)}
	if c := podsHealth(well, now); c.State != ctl.OK || c.Detail != "3 of the lab itself" {
		t.Errorf("pods that start: %+v", c)
	}
	for _, test := range []struct {
		pod  corev1.Pod
		when time.Time
		says string
	}{
		{pod("hub", waits("CrashLoopBackOff", "back-off 5m0s\nrestarting")), now, "hub: CrashLoopBackOff back-off 5m0s"},
		{pod("hub", corev1.PodStatus{InitContainerStatuses: waits("ErrImageNeverPull", "").ContainerStatuses}), now, "hub: ErrImageNeverPull"},
		{pod("hub", unscheduled), now.Add(time.Hour), "hub: no machine takes it: 0/1 nodes are available"},
	} {
		c := podsHealth([]corev1.Pod{well[0], test.pod}, test.when)
		if c.State != ctl.Warning || c.Detail != test.says || !strings.HasPrefix(c.NextStep, "`gpulab kubectl -n gpulab-system describe pod hub`") {
			t.Errorf("got %+v, want %q", c, test.says)
		}
	}
}

// k3s is restarted where everything fails alike, and not for a pod that is broken itself, nor while images are missing.
func TestSameFailure(t *testing.T) {
	pod := func(node, reason string) corev1.Pod {
		p := corev1.Pod{Spec: corev1.PodSpec{NodeName: node}}
		s := corev1.ContainerStatus{Ready: reason == ""}
		switch reason {
		case "":
			s.State.Running = &corev1.ContainerStateRunning{}
		case "between crashes":
			s.State.Running, s.RestartCount = &corev1.ContainerStateRunning{}, 4
		default:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: reason}
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{s}
		return p
	}
	for name, c := range map[string]struct {
		reasons []string
		want    string
	}{
		"all alike":      {[]string{"CrashLoopBackOff", "CrashLoopBackOff", "between crashes"}, "all 3 pods of the lab on this machine wait with CrashLoopBackOff"},
		"none is made":   {[]string{"ContainerCreating", "ContainerCreating", "ContainerCreating"}, "all 3 pods of the lab on this machine wait with ContainerCreating"},
		"one runs":       {[]string{"CrashLoopBackOff", "CrashLoopBackOff", "CrashLoopBackOff", ""}, ""},
		"not alike":      {[]string{"CrashLoopBackOff", "CrashLoopBackOff", "ContainerCreating"}, ""},
		"too few":        {[]string{"CrashLoopBackOff", "CrashLoopBackOff"}, ""},
		"images missing": {[]string{"ErrImageNeverPull", "ErrImageNeverPull", "ErrImageNeverPull"}, ""},
		"no pods at all": {nil, ""},
	} {
		pods := []corev1.Pod{pod("elsewhere", "")}
		for _, r := range c.reasons {
			pods = append(pods, pod("here", r))
		}
		if got := sameFailure(pods, "here"); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
