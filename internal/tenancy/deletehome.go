package tenancy

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/users"
)

// ErrPlaceInUse says that a home cannot be deleted yet: something of its user may still run.
var ErrPlaceInUse = errors.New("notebooks of this account are still going away")

// DeleteHome deletes the home of somebody whose account is gone for good; none is no error. It may be
// interrupted at any moment and called again. ErrPlaceInUse while the user's namespace exists.
func (t *Tenancy) DeleteHome(ctx context.Context, u users.User) error {
	_, err := t.client.CoreV1().Namespaces().Get(ctx, Namespace(u.Handle), metav1.GetOptions{})
	switch {
	case err == nil:
		return ErrPlaceInUse
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("the namespace of %s: %w", u.Handle, err)
	}
	if err := beneath.Delete(ctx, t.cfg.HomesDir, strconv.FormatInt(u.ID, 10)); err != nil {
		return fmt.Errorf("delete the home of %s: %w", u.Handle, err)
	}
	return nil
}
