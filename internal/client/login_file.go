package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Login is what this computer keeps of a lab it is signed in to.
type Login struct {
	Server  string    `json:"server"` // such as https://lab.example, without a path
	Lab     string    `json:"lab"`    // its shown name
	Handle  string    `json:"handle"`
	Scope   string    `json:"scope"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// CA is the authority in PEM that was trusted at sign-in, and the only one from then on; empty where the
	// system's own vouch for the lab.
	CA string `json:"ca,omitempty"`
}

// loginVariable names another file for the login, such as for a second lab.
const loginVariable = "GPULAB_LOGIN"

// loginPath is where the login is kept: in the folder that the system has for such things.
func loginPath() (string, error) {
	if path := os.Getenv(loginVariable); path != "" {
		return path, nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", fail(ExitFailure, "this system names no folder for a program's settings (%w); set %s to a file of yours",
			err, loginVariable)
	}
	return filepath.Join(dir, "gpulab", "login.json"), nil
}

// readLogin reads the login. Without one the error's exit code is ExitSignedOut.
func readLogin(path string) (Login, error) {
	var l Login
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, fail(ExitSignedOut, "you are not signed in to a lab; run `gpulab login` with the lab's address")
	}
	if err != nil {
		return l, fmt.Errorf("read the login: %w", err)
	}
	// Windows keeps others out of a person's folders by other means.
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		return l, fail(ExitFailure, "others can read your access token in %s; run `chmod 600 %[1]s`, and revoke the token "+
			"on the page of your account if somebody may have", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return l, fmt.Errorf("read the login: %w", err)
	}
	if err := json.Unmarshal(text, &l); err != nil || l.Server == "" || l.Token == "" {
		return Login{}, fail(ExitSignedOut, "the login in %s cannot be read; sign in again with `gpulab login` and the "+
			"lab's address", path)
	}
	return l, nil
}

// writeLogin keeps a login for this person alone. It is there whole or as it was before.
func writeLogin(path string, l Login) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep the login: %w", err)
	}
	return nil
}

// forgetLogin removes it; none is no error.
func forgetLogin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the login: %w", err)
	}
	return nil
}
