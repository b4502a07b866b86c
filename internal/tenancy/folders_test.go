package tenancy

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestEnsureFolders(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := t.Context()
	if err := tn.Ensure(ctx, ada); err != nil {
		t.Fatal(err)
	}
	list := []SharedFolder{{Claim: "folder-3", Path: "/var/lib/gpulab/folders/3"}, {Claim: "part-4", Path: "/var/lib/gpulab/folders/4/ada"}}
	for range 2 {
		if err := tn.EnsureFolders(ctx, ada, list); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range list {
		claim, err := client.CoreV1().PersistentVolumeClaims("user-ada").Get(ctx, f.Claim, metav1.GetOptions{})
		if err != nil || claim.Spec.VolumeName != f.Claim+"-7" || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != "" {
			t.Errorf("claim: %+v %v", claim, err)
		}
		volume, err := client.CoreV1().PersistentVolumes().Get(ctx, f.Claim+"-7", metav1.GetOptions{})
		if err != nil || volume.Spec.HostPath.Path != f.Path || *volume.Spec.HostPath.Type != corev1.HostPathDirectory || volume.Spec.ClaimRef.Namespace != "user-ada" ||
			volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || volume.Labels[UserLabel] != "ada" {
			t.Errorf("volume: %+v %v", volume, err)
		}
	}
	wanted := func(_ context.Context, handle string) ([]string, error) { return []string{"part-4"}, nil }
	for range 2 {
		if err := tn.SweepFolders(ctx, wanted); err != nil {
			t.Fatal(err)
		}
	}
	claims, err := client.CoreV1().PersistentVolumeClaims("user-ada").List(ctx, metav1.ListOptions{})
	volumes, err2 := client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	var left []string
	for _, c := range claims.Items {
		left = append(left, c.Name)
	}
	for _, v := range volumes.Items {
		left = append(left, v.Name)
	}
	if err := errors.Join(err, err2); err != nil || fmt.Sprint(left) != "[home part-4 home-7 part-4-7]" {
		t.Errorf("left: %v, %v", left, err)
	}
	// Whose folders cannot be asked for keeps them.
	if err := tn.SweepFolders(ctx, func(context.Context, string) ([]string, error) { return nil, errors.New("asked in vain") }); err == nil {
		t.Error("no error")
	}
	if _, err := client.CoreV1().PersistentVolumes().Get(ctx, "part-4-7", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// A volume whose claim is gone binds no other: it is made anew.
func TestEnsureFoldersAfterTheirClaimIsGone(t *testing.T) {
	tn, client := newTenancy(t)
	ctx := t.Context()
	if err := tn.Ensure(ctx, ada); err != nil {
		t.Fatal(err)
	}
	list := []SharedFolder{{Claim: "folder-3", Path: "/data"}}
	if err := tn.EnsureFolders(ctx, ada, list); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().PersistentVolumeClaims("user-ada").Delete(ctx, "folder-3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	v, err := client.CoreV1().PersistentVolumes().Get(ctx, "folder-3-7", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v.Status.Phase = corev1.VolumeReleased
	if _, err := client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := tn.EnsureFolders(ctx, ada, list); !errors.Is(err, errGoing) {
		t.Errorf("at first: %v", err)
	}
	if err := tn.EnsureFolders(ctx, ada, list); err != nil {
		t.Errorf("then: %v", err)
	}
}
