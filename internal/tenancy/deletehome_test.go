package tenancy

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDeleteHome(t *testing.T) {
	tn, client := newTenancy(t)
	if err := os.MkdirAll(filepath.Join(tn.Home(ada), "work"), 0o700); err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "user-ada"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := tn.DeleteHome(t.Context(), ada); !errors.Is(err, ErrPlaceInUse) {
		t.Errorf("while notebooks may still run: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(tn.Home(ada), "work")); err != nil {
		t.Fatal(err)
	}
	if err := client.CoreV1().Namespaces().Delete(t.Context(), "user-ada", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is none
		if err := tn.DeleteHome(t.Context(), ada); err != nil {
			t.Fatal(err)
		}
		if left, err := os.ReadDir(tn.cfg.HomesDir); err != nil || len(left) != 0 {
			t.Errorf("left in the homes: %v, %v", left, err)
		}
	}
}
