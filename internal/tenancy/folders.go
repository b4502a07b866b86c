package tenancy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/gpulab/gpulab/internal/users"
)

// FolderLabel marks volumes and claims of shared folders; its value is the
// claim's name.
const FolderLabel = "gpulab.dev/folder"

// SharedFolder is a folder of the machine that a user's pods may mount.
type SharedFolder struct {
	// Claim is its claim's name in the user's namespace. One name is for ever
	// of one path.
	Claim string
	Path  string
	// Make says that a machine without the folder gets an empty one; otherwise a
	// pod waits there until it is mounted.
	Make bool
}

// errGoing says that a volume has to go before it can come back.
var errGoing = errors.New("an earlier mount of a shared folder is still going away")

// EnsureFolders makes the volumes and claims of shared folders, as Ensure does
// for the home. The user's namespace is there.
func (t *Tenancy) EnsureFolders(ctx context.Context, u users.User, folders []SharedFolder) error {
	for _, f := range folders {
		if err := t.ensureFolder(ctx, u, f); err != nil {
			return fmt.Errorf("the shared folder %s of %s: %w", f.Claim, u.Handle, err)
		}
	}
	// Together, as each waits for Kubernetes.
	ns := Namespace(u.Handle)
	if err := t.wait(ctx, "claims were not bound", func() (bool, error) {
		for _, f := range folders {
			c, err := t.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, f.Claim, metav1.GetOptions{})
			if err != nil || c.Status.Phase != corev1.ClaimBound {
				return false, err
			}
		}
		return true, nil
	}); err != nil {
		return fmt.Errorf("the shared folders of %s: %w", u.Handle, err)
	}
	return nil
}

// volumeOf names the volume of a user's claim.
func volumeOf(claim string, u users.User) string {
	return claim + "-" + strconv.FormatInt(u.ID, 10)
}

func (t *Tenancy) ensureFolder(ctx context.Context, u users.User, f SharedFolder) error {
	ns, name, labels := Namespace(u.Handle), volumeOf(f.Claim, u), placeLabels(u.Handle)
	labels[FolderLabel] = f.Claim
	old, err := t.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case old.DeletionTimestamp != nil:
		return errGoing
	case old.Status.Phase == corev1.VolumeReleased: // of a claim that is gone: it binds no other
		return errors.Join(errGoing, t.client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}))
	}
	claim, err := t.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, f.Claim, metav1.GetOptions{})
	if err == nil && claim.DeletionTimestamp != nil {
		return errGoing
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	kind := corev1.HostPathDirectory
	if f.Make {
		kind = corev1.HostPathDirectoryOrCreate
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")}
	volume := corev1ac.PersistentVolume(name).WithLabels(labels).
		WithSpec(corev1ac.PersistentVolumeSpec().
			WithCapacity(size).
			WithAccessModes(corev1.ReadWriteMany).
			WithPersistentVolumeReclaimPolicy(corev1.PersistentVolumeReclaimRetain).
			WithStorageClassName("").
			WithClaimRef(corev1ac.ObjectReference().WithKind("PersistentVolumeClaim").WithAPIVersion("v1").WithNamespace(
				ns).WithName(f.Claim)).
			WithHostPath(corev1ac.HostPathVolumeSource().WithPath(f.Path).WithType(kind)))
	if _, err := t.client.CoreV1().PersistentVolumes().Apply(ctx, volume, applyOptions); err != nil {
		return err
	}
	if err := t.wait(ctx, "volume was not seen", func() (bool, error) {
		v, err := t.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return err == nil && v.Status.Phase != "" && v.Status.Phase != corev1.VolumePending, err
	}); err != nil {
		return err
	}
	_, err = t.client.CoreV1().PersistentVolumeClaims(ns).Apply(ctx,
		corev1ac.PersistentVolumeClaim(f.Claim, ns).WithLabels(labels).
			WithSpec(corev1ac.PersistentVolumeClaimSpec().
				WithAccessModes(corev1.ReadWriteMany).
				WithStorageClassName("").
				WithVolumeName(name).
				WithResources(corev1ac.VolumeResourceRequirements().WithRequests(size))), applyOptions)
	return err
}

// SweepFolders deletes the claims and volumes of shared folders that somebody
// may not use any more: wanted names the claims of those they may. Kubernetes
// keeps both until the last pod that has them has ended.
func (t *Tenancy) SweepFolders(ctx context.Context,
	wanted func(ctx context.Context, handle string) ([]string, error)) error {
	volumes, err := t.client.CoreV1().PersistentVolumes().List(ctx,
		metav1.ListOptions{LabelSelector: FolderLabel + "," + UserLabel})
	if err != nil {
		return fmt.Errorf("the volumes of shared folders: %w", err)
	}
	var errs []error
	claims := map[string][]string{} // by handle
	for i := range volumes.Items {
		v := &volumes.Items[i]
		handle, claim := v.Labels[UserLabel], v.Labels[FolderLabel]
		if v.DeletionTimestamp != nil {
			continue
		}
		if _, asked := claims[handle]; !asked {
			if claims[handle], err = wanted(ctx, handle); err != nil {
				errs = append(errs, err)
				delete(claims, handle)
				continue
			}
		}
		if slices.Contains(claims[handle], claim) {
			continue
		}
		for _, err := range []error{
			t.client.CoreV1().PersistentVolumeClaims(Namespace(handle)).Delete(ctx, claim, metav1.DeleteOptions{}),
			t.client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{}),
		} {
			if err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("the shared folder %s of %s: %w", claim, handle, err))
			}
		}
	}
	return errors.Join(errs...)
}
