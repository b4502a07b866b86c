package charts

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestTellingLine(t *testing.T) {
	for log, want := range map[string]string{
		"":           "",
		"one\ntwo\n": "two",
		"Error: no such flag\nUsage:\n  -x\n\ngoroutine 1 [running]:\nmain.main()\n": "Error: no such flag",
		"panic: lost\n\ngoroutine 1 [running]:\nmain.main()\n":                       "panic: lost",
		"Traceback (most recent call last):\n  File x\nValueError: bad\n":            "ValueError: bad",
		"[C 2026] Bad config\nTraceback:\njson.decoder.JSONDecodeError: bad\nend":    "json.decoder.JSONDecodeError: bad",
		"no errors here\nall well": "all well",
	} {
		if got := tellingLine(log); got != want {
			t.Errorf("of %q: %q, want %q", log, got, want)
		}
	}
}

func TestContainerReason(t *testing.T) {
	waiting := func(reason, message string, last *corev1.ContainerStateTerminated) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Image:                "hub:1",
			State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
			LastTerminationState: corev1.ContainerState{Terminated: last},
		}
	}
	noProgram := &corev1.ContainerStateTerminated{Reason: "StartError", ExitCode: 128, Message: `failed to create containerd task: ` +
		`failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: ` +
		`error during container init: exec: "/opt/hub": stat /opt/hub: no such file or directory`}
	for _, tc := range []struct {
		status   corev1.ContainerStatus
		reason   string
		hopeless bool
	}{
		{corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, "", false},
		{waiting("ContainerCreating", "", nil), "starting", false},
		{waiting("ImagePullBackOff", "Back-off", nil), "the image hub:1 is not on the node", true},
		{waiting("CrashLoopBackOff", "", &corev1.ContainerStateTerminated{ExitCode: 3}), "ends again and again with exit code 3", false},
		{waiting("CrashLoopBackOff", "", noProgram), `cannot be started: error during container init: exec: "/opt/hub": stat /opt/hub: no such file or directory`, true},
		{waiting("CreateContainerConfigError", "no secret", nil), "CreateContainerConfigError: no secret", false},
		{corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}, "ended with exit code 1", false},
	} {
		if reason, hopeless := containerReason(tc.status); reason != tc.reason || hopeless != tc.hopeless {
			t.Errorf("%q, hopeless %t; want %q, %t", reason, hopeless, tc.reason, tc.hopeless)
		}
	}
}
