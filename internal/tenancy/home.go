package tenancy

import (
	"fmt"
	"os"
	"strconv"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/users"
)

// ensureHome makes the home if it does not exist, and gives its owner every right to it.
func (t *Tenancy) ensureHome(u users.User) error {
	if !users.PersonalUID(u.UID) {
		return fmt.Errorf("UID %d is not a person's: those are %d–%d and %d–%d", u.UID, users.FirstKeptUID, users.LastKeptUID,
			users.FirstUID, users.LastUID)
	}
	if err := os.MkdirAll(t.cfg.HomesDir, 0o711); err != nil {
		return err
	}
	return beneath.Home(t.cfg.HomesDir, strconv.FormatInt(u.ID, 10), u.UID)
}
