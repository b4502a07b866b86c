package tenancy

import (
	"errors"
	"fmt"
	"os"

	"github.com/gpulab/gpulab/internal/users"
)

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
