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
	"net/netip"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
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

// packagesPort is that of the cache of packages, in its pod; modelsPort that of models.
const (
	packagesPort = 8080
	modelsPort   = 8082
)

// Config says where homes lie, what pods may reach, and what they may take.
// Its functions are asked again and again, since what they tell changes; those
// that are left out tell nothing.
type Config struct {
	// HomesDir holds one folder per user, named by the user's ID.
	HomesDir string
	// SystemNamespace is where the hub runs.
	SystemNamespace string
	// Forbidden returns the networks that users' pods may not reach, whatever
	// Allow says: pods, services, and the machines themselves.
	Forbidden func() ([]netip.Prefix, error)
	// Entrances returns the head's own addresses in the pods' network. gpulab
	// reaches notebooks of other machines from there.
	Entrances func() ([]netip.Addr, error)
	// Allow are the private addresses that some or all users' pods may reach.
	Allow []Destination
	// Proxy returns where the proxy listens that all pods may reach.
	Proxy func() []netip.AddrPort
	// Members returns the handles of a group's members, nobody for a group
	// that is not there.
	Members func(ctx context.Context, group string) ([]string, error)
	// Limits returns what a user's pods may take. It is asked every two seconds
	// for everybody.
	Limits func(ctx context.Context, handle string) (Limits, error)
}

// lookEvery is how long an address that a machine has just got may be reached
// from users' pods, and how soon a change of a group is followed.
const lookEvery = 2 * time.Second

// Tenancy makes users' places in the cluster.
type Tenancy struct {
	cfg    Config
	client kubernetes.Interface

	mu      sync.Mutex        // from asking Config until it is applied: an older answer must not win
	applied map[string]string // by handle, the walls that are there
}

// New returns a Tenancy that works with the cluster behind client.
func New(cfg Config, client kubernetes.Interface) *Tenancy {
	return &Tenancy{cfg: cfg, client: client, applied: map[string]string{}}
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
	// Pods are refused until Kubernetes has counted what is there.
	if err := t.wait(ctx, "quota was not counted", func() (bool, error) { return t.counted(ctx, u.Handle) }); err != nil {
		return fmt.Errorf("the quota of %s: %w", u.Handle, err)
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
			WithClaimRef(corev1ac.ObjectReference().WithKind("PersistentVolumeClaim").WithAPIVersion("v1").WithNamespace(
				ns).WithName("home")).
			WithHostPath(corev1ac.HostPathVolumeSource().WithPath(t.Home(u)).WithType(corev1.HostPathDirectory)))
	if _, err := t.client.CoreV1().PersistentVolumes().Apply(ctx, volume, applyOptions); err != nil {
		return fmt.Errorf("the home volume of %s: %w", u.Handle, err)
	}
	// The binder looks at a claim once and again after its long sync period: a
	// claim it meets before the volume would keep the first notebook waiting.
	if err := t.wait(ctx, "volume was not bound", func() (bool, error) {
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
	if err := t.wait(ctx, "claim was not bound", func() (bool, error) {
		c, err := t.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, "home", metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	}); err != nil {
		return fmt.Errorf("the home claim of %s: %w", u.Handle, err)
	}
	return nil
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
			return errors.Join(fmt.Errorf("the %s by Kubernetes in time; see `gpulab kubectl get pv,pvc,resourcequota -A`",
				what), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Remove deletes the user's namespace and volume. The home folder stays.
func (t *Tenancy) Remove(ctx context.Context, u users.User) error {
	t.forget(u.Handle)
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
		errs = append(errs, sweepOne(ctx, &namespaces.Items[i].ObjectMeta, gone,
			func(ctx context.Context, name string, o metav1.DeleteOptions) error {
				t.forget(namespaces.Items[i].Labels[UserLabel])
				return t.client.CoreV1().Namespaces().Delete(ctx, name, o)
			}))
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
