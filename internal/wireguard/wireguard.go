// Package wireguard tells whether this machine can encrypt what pods of different
// machines say to each other.
package wireguard

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Port is where machines take each other's encrypted packets, UDP; OpenPort where
// they take them unencrypted (VXLAN, as Linux has it).
const (
	Port     = 51820
	OpenPort = 8472
)

// TunnelPort is where machines take each other's packets, UDP.
func TunnelPort(encrypted bool) int {
	if encrypted {
		return Port
	}
	return OpenPort
}

// Link is the name of the interface to the other machines; OpenLink that without
// encryption.
const (
	Link     = "flannel-wg"
	OpenLink = "flannel.1"
)

// ErrMissing is that the kernel has no WireGuard.
var ErrMissing = errors.New("this machine's kernel has no WireGuard, which Linux has from 5.6 on; in a container it " +
	"is the kernel of the machine around it that needs it: run `modprobe wireguard` there")

// Look returns ErrMissing where the kernel of the machine whose files are below root
// neither has WireGuard nor could load it, which it does by itself.
func Look(root string) error {
	if _, err := os.Stat(filepath.Join(root, "sys/module/wireguard")); err == nil {
		return nil
	}
	if off, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/modules_disabled")); err == nil &&
		strings.TrimSpace(string(off)) == "1" {
		return ErrMissing
	}
	release, err := os.ReadFile(filepath.Join(root, "proc/sys/kernel/osrelease"))
	if err != nil {
		return err
	}
	for _, list := range []string{"modules.builtin", "modules.dep"} {
		modules, err := os.ReadFile(filepath.Join(root, "lib/modules", strings.TrimSpace(string(release)), list))
		if err == nil && strings.Contains(string(modules), "/wireguard.ko") {
			return nil
		}
	}
	return ErrMissing
}
