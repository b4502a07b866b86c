package tenancy

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/gpulab/gpulab/internal/users"
)

var ada = users.User{ID: 7, Handle: "ada", UID: 20007}

func newTenancy(t *testing.T) (*Tenancy, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset()
	bind(t, client)
	return New(Config{
		HomesDir: filepath.Join(t.TempDir(), "homes"), SystemNamespace: "gpulab-system",
		Forbidden: func() ([]netip.Prefix, error) {
			return []netip.Prefix{netip.MustParsePrefix("10.99.0.1/32"), netip.MustParsePrefix("10.42.0.0/16")}, nil
		},
	}, client), client
}

// bind does what Kubernetes' volume binder and quota controller do, as far as it matters here.
func bind(t *testing.T, client *fake.Clientset) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			volumes, _ := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
			for _, v := range volumes.Items {
				if v.Status.Phase == "" {
					v.Status.Phase = corev1.VolumeAvailable
					_, _ = client.CoreV1().PersistentVolumes().UpdateStatus(ctx, &v, metav1.UpdateOptions{})
				}
			}
			claims, _ := client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
			for _, c := range claims.Items {
				if c.Status.Phase == "" {
					c.Status.Phase = corev1.ClaimBound
					_, _ = client.CoreV1().PersistentVolumeClaims(c.Namespace).UpdateStatus(ctx, &c, metav1.UpdateOptions{})
				}
			}
			quotas, _ := client.CoreV1().ResourceQuotas("").List(ctx, metav1.ListOptions{})
			for _, q := range quotas.Items {
				if !equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
					q.Status.Hard = q.Spec.Hard
					_, _ = client.CoreV1().ResourceQuotas(q.Namespace).UpdateStatus(ctx, &q, metav1.UpdateOptions{})
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { stop(); <-done })
}

func TestEnsureMayRunAgain(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := context.Background()
	for range 2 {
		if err := tn.Ensure(ctx, ada); err != nil {
			t.Fatal(err)
		}
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, "user-ada", metav1.GetOptions{})
	if err != nil || ns.Labels[UserLabel] != "ada" || ns.Labels["pod-security.kubernetes.io/enforce"] != "restricted" ||
		ns.Labels["pod-security.kubernetes.io/enforce-version"] != podSecurityVersion || ns.Labels["pod-security.kubernetes.io/warn"] != "restricted" {
		t.Errorf("namespace: %v %v", ns, err)
	}
	claim, err := client.CoreV1().PersistentVolumeClaims("user-ada").Get(ctx, "home", metav1.GetOptions{})
	if err != nil || claim.Spec.VolumeName != "home-7" || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "" {
		t.Errorf("claim: %+v %v", claim, err)
	}
	volume, err := client.CoreV1().PersistentVolumes().Get(ctx, "home-7", metav1.GetOptions{})
	if err != nil || volume.Spec.HostPath.Path != tn.Home(ada) || volume.Spec.ClaimRef.Namespace != "user-ada" {
		t.Errorf("volume: %+v %v", volume, err)
	}
}

func TestHomeBelongsToTheUserAlone(t *testing.T) {
	tn, _ := newTenancy(t)
	if err := tn.Ensure(context.Background(), ada); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(tn.Home(ada))
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm() != 0o700 || st.Uid != 20007 || st.Gid != 20007 {
		t.Errorf("mode %v, owner %d:%d", info.Mode().Perm(), st.Uid, st.Gid)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(tn.Home(ada)), ".new-*"))
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A person may change the mode of their home, and then neither notebooks nor jobs would start.
func TestHomeIsItsOwnersAgain(t *testing.T) {
	tn, _ := newTenancy(t)
	for _, mode := range []os.FileMode{0o700, 0, 0o500, 0o777, 0o750} {
		err := tn.Ensure(context.Background(), ada)
		if err == nil {
			err = os.Chmod(tn.Home(ada), mode)
		}
		if err == nil {
			err = tn.Ensure(context.Background(), ada)
		}
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(tn.Home(ada))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o707 != 0o700 || info.Sys().(*syscall.Stat_t).Uid != 20007 {
			t.Errorf("after mode %v it is %v", mode, info.Mode())
		}
	}
}

func TestUIDOutsideTheRangeGetsNoHome(t *testing.T) {
	tn, _ := newTenancy(t)
	for _, uid := range []int{-1, 0, 999, 19999, 60000} {
		if err := tn.Ensure(context.Background(), users.User{ID: 1, Handle: "eve", UID: uid}); err == nil || !strings.Contains(err.Error(), "20000") {
			t.Errorf("UID %d: %v", uid, err)
		}
		if _, err := os.Stat(tn.Home(users.User{ID: 1})); err == nil {
			t.Errorf("UID %d: a home was made all the same", uid)
		}
	}
}

// Who had an account on the machine before gpulab keeps its number.
func TestHomeOfAKeptUID(t *testing.T) {
	tn, _ := newTenancy(t)
	for i, uid := range []int{1000, 19998} {
		u := users.User{ID: int64(i + 1), Handle: "eve", UID: uid}
		if err := tn.ensureHome(u); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(tn.Home(u))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != uid || int(st.Gid) != uid {
			t.Errorf("owner %d:%d, want %d", st.Uid, st.Gid, uid)
		}
	}
}

func TestRefreshMendsWhatKeepsUsersApart(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := context.Background()
	if err := tn.Ensure(ctx, ada); err != nil {
		t.Fatal(err)
	}
	if err := client.NetworkingV1().NetworkPolicies("user-ada").Delete(ctx, "default-deny", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().ResourceQuotas("user-ada").Delete(ctx, quotaName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stranger := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "somebody-else", Labels: map[string]string{UserLabel: "ada"}}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, stranger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := tn.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := client.NetworkingV1().NetworkPolicies("user-ada").Get(ctx, "default-deny", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := client.CoreV1().ResourceQuotas("user-ada").Get(ctx, quotaName, metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if list, err := client.NetworkingV1().NetworkPolicies("somebody-else").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("policies in a namespace that is not gpulab's: %v %v", list, err)
	}
}

func TestRemoveKeepsTheHome(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := context.Background()
	if err := tn.Ensure(ctx, ada); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tn.Remove(ctx, ada); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "user-ada", metav1.GetOptions{}); err == nil {
		t.Error("the namespace is still there")
	}
	if _, err := os.Stat(tn.Home(ada)); err != nil {
		t.Errorf("the home is gone: %v", err)
	}
}

func TestSweepTakesWhatNobodyHas(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := context.Background()
	ben := users.User{ID: 8, Handle: "ben", UID: 20008}
	for _, u := range []users.User{ada, ben} {
		if err := tn.Ensure(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	// A removal that was cut short: the namespace is gone, the volume is not.
	if err := client.CoreV1().Namespaces().Delete(ctx, "user-ada", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := func(_ context.Context, handle string) (bool, error) { return handle == "ada", nil }
	for range 2 {
		if err := tn.Sweep(ctx, gone); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.CoreV1().PersistentVolumes().Get(ctx, "home-7", metav1.GetOptions{}); err == nil {
		t.Error("the volume of somebody who is gone is still there")
	}
	_, errNamespace := client.CoreV1().Namespaces().Get(ctx, "user-ben", metav1.GetOptions{})
	_, errVolume := client.CoreV1().PersistentVolumes().Get(ctx, "home-8", metav1.GetOptions{})
	if errNamespace != nil || errVolume != nil {
		t.Errorf("what belongs to somebody is gone: %v, %v", errNamespace, errVolume)
	}
	if _, err := os.Stat(tn.Home(ada)); err != nil {
		t.Errorf("the home is gone: %v", err)
	}
}
