// Package tenancy gives each user a place of their own in the cluster: a
// namespace in which nothing may be reached that is not allowed here, a home
// folder owned by the user's UID, and the claim that mounts it.
//
// Everything is derived from the user and applied server-side, so Ensure may
// run any number of times and mends what was changed by hand.
package tenancy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/users"
)

// UserLabel marks what belongs to a user; its value is the handle.
const UserLabel = "gpulab.dev/user"

// ManagedLabel marks what gpulab made; its value is "gpulab".
const ManagedLabel = "app.kubernetes.io/managed-by"

// HubPort and NotebookPort are the ports of the hub and of a notebook in their
// pods.
const (
	HubPort      = 8081
	NotebookPort = 8888
)

// Config says where homes lie and what pods may not reach.
type Config struct {
	// HomesDir holds one folder per user, named by the user's ID.
	HomesDir string
	// SystemNamespace is where the hub runs.
	SystemNamespace string
	// Forbidden returns the networks that users' pods may not reach although
	// they may reach the internet: pods, services, and the machines themselves.
	// It is asked again and again, since a machine's addresses change.
	Forbidden func() ([]netip.Prefix, error)
}

// lookEvery is how long an address that a machine has just got may be reached
// from users' pods.
const lookEvery = 2 * time.Second

// Tenancy makes users' places in the cluster.
type Tenancy struct {
	cfg    Config
	client kubernetes.Interface

	mu sync.Mutex // from asking for Forbidden until it is applied: an older answer must not win
}

// New returns a Tenancy that works with the cluster behind client.
func New(cfg Config, client kubernetes.Interface) *Tenancy {
	return &Tenancy{cfg: cfg, client: client}
}

// Namespace returns the name of the user's namespace.
func Namespace(handle string) string { return "user-" + handle }

// placeLabels are on everything that belongs to a user's place.
func placeLabels(handle string) map[string]string {
	return map[string]string{UserLabel: handle, ManagedLabel: "gpulab"}
}

var applyOptions = metav1.ApplyOptions{FieldManager: "gpulab", Force: true}

// Home returns the user's home folder on this machine.
func (t *Tenancy) Home(u users.User) string {
	return filepath.Join(t.cfg.HomesDir, strconv.FormatInt(u.ID, 10))
}

// Ensure makes the user's home, namespace, policies, volume and claim, or
// brings them back to what they should be.
func (t *Tenancy) Ensure(ctx context.Context, u users.User) error {
	if err := t.ensureHome(u); err != nil {
		return fmt.Errorf("the home of %s: %w", u.Handle, err)
	}
	if err := t.ensureWalls(ctx, u.Handle); err != nil {
		return err
	}
	ns, labels := Namespace(u.Handle), placeLabels(u.Handle)
	// A static volume: the path is the same on every machine, so no object
	// changes when homes are served to other machines, and a folder that is
	// missing there keeps the pod waiting (type Directory).
	volume := corev1ac.PersistentVolume("home-" + strconv.FormatInt(u.ID, 10)).WithLabels(labels).
		WithSpec(corev1ac.PersistentVolumeSpec().
			WithCapacity(corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")}).
			WithAccessModes(corev1.ReadWriteMany).
			WithPersistentVolumeReclaimPolicy(corev1.PersistentVolumeReclaimRetain).
			WithStorageClassName("").
			WithClaimRef(corev1ac.ObjectReference().WithKind("PersistentVolumeClaim").WithAPIVersion("v1").WithNamespace(ns).WithName("home")).
			WithHostPath(corev1ac.HostPathVolumeSource().WithPath(t.Home(u)).WithType(corev1.HostPathDirectory)))
	if _, err := t.client.CoreV1().PersistentVolumes().Apply(ctx, volume, applyOptions); err != nil {
		return fmt.Errorf("the home volume of %s: %w", u.Handle, err)
	}
	// The binder looks at a claim once and again after its long sync period: a
	// claim it meets before the volume would keep the first notebook waiting.
	if err := t.wait(ctx, "volume", func() (bool, error) {
		v, err := t.client.CoreV1().PersistentVolumes().Get(ctx, *volume.Name, metav1.GetOptions{})
		return err == nil && v.Status.Phase != "" && v.Status.Phase != corev1.VolumePending, err
	}); err != nil {
		return fmt.Errorf("the home volume of %s: %w", u.Handle, err)
	}
	claim := corev1ac.PersistentVolumeClaim("home", ns).WithLabels(labels).
		WithSpec(corev1ac.PersistentVolumeClaimSpec().
			WithAccessModes(corev1.ReadWriteMany).
			WithStorageClassName("").
			WithVolumeName(*volume.Name).
			WithResources(corev1ac.VolumeResourceRequirements().
				WithRequests(corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")})))
	if _, err := t.client.CoreV1().PersistentVolumeClaims(ns).Apply(ctx, claim, applyOptions); err != nil {
		return fmt.Errorf("the home claim of %s: %w", u.Handle, err)
	}
	if err := t.wait(ctx, "claim", func() (bool, error) {
		c, err := t.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "home", metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	}); err != nil {
		return fmt.Errorf("the home claim of %s: %w", u.Handle, err)
	}
	return nil
}

// Run keeps the network policies of everybody's namespace up to date with the
// machines' addresses until ctx ends. Notebooks run on when an address changes.
func (t *Tenancy) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var applied []netip.Prefix // nothing yet: gpulab may have been away during a change
	for {
		forbidden, err := t.forbidden()
		if err == nil && !slices.Equal(forbidden, applied) {
			if err = t.Refresh(ctx); err == nil {
				applied = forbidden
			}
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("notebooks' networks are not up to date; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Refresh brings the namespaces and policies of everybody to what they should
// be, such as after somebody has changed or deleted some.
func (t *Tenancy) Refresh(ctx context.Context) error {
	namespaces, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: UserLabel})
	if err != nil {
		return fmt.Errorf("the users' namespaces: %w", err)
	}
	var errs []error
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		handle := n.Labels[UserLabel]
		if n.DeletionTimestamp != nil || n.Name != Namespace(handle) {
			continue
		}
		errs = append(errs, t.ensureWalls(ctx, handle))
	}
	return errors.Join(errs...)
}

// ensureWalls makes the namespace and what keeps its pods apart from others'.
func (t *Tenancy) ensureWalls(ctx context.Context, handle string) error {
	namespace := corev1ac.Namespace(Namespace(handle)).WithLabels(placeLabels(handle)).WithLabels(map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted",
	})
	if _, err := t.client.CoreV1().Namespaces().Apply(ctx, namespace, applyOptions); err != nil {
		return fmt.Errorf("the namespace of %s: %w", handle, err)
	}
	if err := t.closeNetwork(ctx, handle); err != nil {
		return fmt.Errorf("the network policy of %s: %w", handle, err)
	}
	return nil
}

// closeNetwork applies the policies of a user's namespace.
func (t *Tenancy) closeNetwork(ctx context.Context, handle string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	forbidden, err := t.forbidden()
	if err != nil {
		return err
	}
	ns := Namespace(handle)
	for _, p := range t.policies(ns, forbidden) {
		p.WithLabels(placeLabels(handle))
		if _, err := t.client.NetworkingV1().NetworkPolicies(ns).Apply(ctx, p, applyOptions); err != nil {
			return err
		}
	}
	return nil
}

// forbidden is in order, so that two of them can be compared.
func (t *Tenancy) forbidden() ([]netip.Prefix, error) {
	list, err := t.cfg.Forbidden()
	if err != nil {
		return nil, fmt.Errorf("what notebooks may not reach is not known: %w", err)
	}
	list = slices.SortedFunc(slices.Values(list), netip.Prefix.Compare)
	return slices.Compact(list), nil
}

// wait polls until done, at most for half a minute.
func (t *Tenancy) wait(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		ok, err := done()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("the %s was not bound by Kubernetes in time; see `gpulab kubectl get pv,pvc -A`", what), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Remove deletes the user's namespace and volume. The home folder stays.
func (t *Tenancy) Remove(ctx context.Context, u users.User) error {
	err := t.client.CoreV1().Namespaces().Delete(ctx, Namespace(u.Handle), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the namespace of %s: %w", u.Handle, err)
	}
	err = t.client.CoreV1().PersistentVolumes().Delete(ctx, "home-"+strconv.FormatInt(u.ID, 10), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the home volume of %s: %w", u.Handle, err)
	}
	return nil
}

// Sweep deletes namespaces and volumes whose user is gone, such as what a
// removal left that the cluster could not follow at the time.
func (t *Tenancy) Sweep(ctx context.Context, gone func(ctx context.Context, handle string) (bool, error)) error {
	list := metav1.ListOptions{LabelSelector: UserLabel}
	namespaces, err := t.client.CoreV1().Namespaces().List(ctx, list)
	if err != nil {
		return fmt.Errorf("the users' namespaces: %w", err)
	}
	volumes, err := t.client.CoreV1().PersistentVolumes().List(ctx, list)
	if err != nil {
		return fmt.Errorf("the users' home volumes: %w", err)
	}
	var errs []error
	for i := range namespaces.Items {
		errs = append(errs, sweepOne(ctx, &namespaces.Items[i].ObjectMeta, gone, t.client.CoreV1().Namespaces().Delete))
	}
	for i := range volumes.Items {
		errs = append(errs, sweepOne(ctx, &volumes.Items[i].ObjectMeta, gone, t.client.CoreV1().PersistentVolumes().Delete))
	}
	return errors.Join(errs...)
}

func sweepOne(ctx context.Context, object *metav1.ObjectMeta, gone func(context.Context, string) (bool, error),
	remove func(context.Context, string, metav1.DeleteOptions) error,
) error {
	if object.DeletionTimestamp != nil {
		return nil
	}
	yes, err := gone(ctx, object.Labels[UserLabel])
	if err != nil || !yes {
		return err
	}
	if err := remove(ctx, object.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s of a removed user: %w", object.Name, err)
	}
	return nil
}

// ensureHome makes the folder with the right owner from its first moment: it
// appears under its name only when it is complete.
func (t *Tenancy) ensureHome(u users.User) error {
	if !users.PersonalUID(u.UID) {
		return fmt.Errorf("UID %d is not a person's: those are %d–%d and %d–%d", u.UID, users.FirstKeptUID, users.LastKeptUID, users.FirstUID, users.LastUID)
	}
	if err := os.MkdirAll(t.cfg.HomesDir, 0o711); err != nil {
		return err
	}
	home := t.Home(u)
	info, err := os.Lstat(home)
	if err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder; move it away and try again", home)
		}
		return nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	tmp, err := os.MkdirTemp(t.cfg.HomesDir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp)
	if err := os.Chown(tmp, u.UID, u.UID); err != nil {
		return err
	}
	return os.Rename(tmp, home)
}

// policies are the rules of a user's namespace: nothing in or out but what is
// listed.
func (t *Tenancy) policies(ns string, forbidden []netip.Prefix) []*networkingv1ac.NetworkPolicyApplyConfiguration {
	both := []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	port := func(p corev1.Protocol, n int) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
		return networkingv1ac.NetworkPolicyPort().WithProtocol(p).WithPort(intstr.FromInt(n))
	}
	pods := func(namespace string, labels map[string]string) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
		return networkingv1ac.NetworkPolicyPeer().
			WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"kubernetes.io/metadata.name": namespace})).
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(labels))
	}
	hub := pods(t.cfg.SystemNamespace, map[string]string{"app.kubernetes.io/name": "jupyterhub", "app.kubernetes.io/component": "hub"})
	dns := pods("kube-system", map[string]string{"k8s-app": "kube-dns"})

	except := []string{"169.254.0.0/16"}
	for _, p := range forbidden {
		except = append(except, p.String())
	}
	world := networkingv1ac.NetworkPolicyPeer().WithIPBlock(networkingv1ac.IPBlock().WithCIDR("0.0.0.0/0").WithExcept(except...))

	everything := metav1ac.LabelSelector()
	return []*networkingv1ac.NetworkPolicyApplyConfiguration{
		networkingv1ac.NetworkPolicy("default-deny", ns).WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(everything).WithPolicyTypes(both...)),
		networkingv1ac.NetworkPolicy("notebook", ns).WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(everything).WithPolicyTypes(both...).
			WithIngress(networkingv1ac.NetworkPolicyIngressRule().WithFrom(hub).WithPorts(port(tcp, NotebookPort))).
			WithEgress(
				networkingv1ac.NetworkPolicyEgressRule().WithTo(hub).WithPorts(port(tcp, HubPort)),
				networkingv1ac.NetworkPolicyEgressRule().WithTo(dns).WithPorts(port(udp, 53), port(tcp, 53)),
				networkingv1ac.NetworkPolicyEgressRule().WithTo(world),
			)),
	}
}
