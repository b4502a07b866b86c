package tenancy

import (
	"fmt"
	"os"
	"strconv"

	"github.com/gpulab/gpulab/internal/beneath"
	"github.com/gpulab/gpulab/internal/users"
)

// ensureHome makes the folder with the right owner from its first moment: it
// appears under its name only when it is complete. Whoever has taken their own rights to
// it away, such as by a chmod that was meant for something else, gets them back.
func (t *Tenancy) ensureHome(u users.User) error {
	if !users.PersonalUID(u.UID) {
		return fmt.Errorf("UID %d is not a person's: those are %d–%d and %d–%d", u.UID, users.FirstKeptUID, users.LastKeptUID, users.FirstUID, users.LastUID)
	}
	if err := os.MkdirAll(t.cfg.HomesDir, 0o711); err != nil {
		return err
	}
	name := strconv.FormatInt(u.ID, 10)
	if err := beneath.Make(t.cfg.HomesDir, name, func(dir *os.File) error { return dir.Chown(u.UID, u.UID) }); err != nil {
		return err
	}
	return beneath.OwnersOnly(t.cfg.HomesDir, name)
}
