package tenancy

import (
	"fmt"
	"os"
	"strconv"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/users"
)

// ensureHome makes the home if it does not exist: the home appears under its name only once it has its owner. It also
// sets the mode back to 0700, so that a home whose owner removed their own rights by mistake works again.
func (t *Tenancy) ensureHome(u users.User) error {
	if !users.PersonalUID(u.UID) {
		return fmt.Errorf("UID %d is not a person's: those are %d–%d and %d–%d", u.UID, users.FirstKeptUID, users.LastKeptUID, users.FirstUID, users.LastUID)
	}
	if err := os.MkdirAll(t.cfg.HomesDir, 0o711); err != nil {
		return err
	}
	name := strconv.FormatInt(u.ID, 10)
	own := func(dir *os.File) error { return dir.Chown(u.UID, u.UID) }
	if err := beneath.Make(t.cfg.HomesDir, name, own); err != nil {
		return err
	}
	return beneath.OwnersOnly(t.cfg.HomesDir, name)
}
