package hostip

import (
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func pod(name, hostIP string, hostNetwork bool) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "user-ada", Name: name},
		Spec:       corev1.PodSpec{NodeName: "head", HostNetwork: hostNetwork},
		Status:     corev1.PodStatus{HostIP: hostIP},
	}
	if hostIP != "" {
		p.Status.HostIPs = []corev1.HostIP{{IP: hostIP}}
	}
	return p
}

func TestUpdate(t *testing.T) {
	client := fake.NewClientset(
		pod("before", "192.0.2.1", false), pod("now", "192.0.2.2", false), pod("waiting", "", false), pod("system", "192.0.2.1", true))
	// The fake does not select by fields: what is asked for is checked instead.
	var asked string
	client.PrependReactor("list", "pods", func(action k8stesting.Action) (bool, runtime.Object, error) {
		asked = action.(k8stesting.ListAction).GetListRestrictions().Fields.String()
		return false, nil, nil
	})
	if err := Update(t.Context(), client, "head", []net.IP{net.ParseIP("192.0.2.2"), net.ParseIP("2001:db8::2")}); err != nil {
		t.Fatal(err)
	}
	if asked != "spec.nodeName=head" {
		t.Errorf("pods were asked for by %q", asked)
	}
	for name, want := range map[string]struct {
		ip    string
		count int
	}{"before": {"192.0.2.2", 2}, "now": {"192.0.2.2", 1}, "waiting": {"", 0}, "system": {"192.0.2.1", 1}} {
		got, err := client.CoreV1().Pods("user-ada").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Status.HostIP != want.ip || len(got.Status.HostIPs) != want.count || want.count > 0 && got.Status.HostIPs[0].IP != want.ip {
			t.Errorf("%s: host addresses %q %v, want %q, %d of them", name, got.Status.HostIP, got.Status.HostIPs, want.ip, want.count)
		}
	}
	if err := Update(t.Context(), client, "head", nil); err == nil {
		t.Error("a node without an address is taken")
	}
}
