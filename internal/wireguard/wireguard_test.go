package wireguard

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestLook(t *testing.T) {
	for what, c := range map[string]struct {
		file, content string
		want          error
	}{
		"loaded":                {"sys/module/wireguard/version", "1.0.0\n", nil},
		"a module":              {"lib/modules/6.1.0-49-cloud-amd64/modules.dep", "kernel/drivers/net/wireguard/wireguard.ko: kernel/net/ipv4/udp_tunnel.ko\n", nil},
		"a packed module":       {"lib/modules/6.1.0-49-cloud-amd64/modules.dep", "kernel/drivers/net/wireguard/wireguard.ko.xz:\n", nil},
		"built in":              {"lib/modules/6.1.0-49-cloud-amd64/modules.builtin", "kernel/drivers/net/wireguard/wireguard.ko\n", nil},
		"of another kernel":     {"lib/modules/6.1.0-1-cloud-amd64/modules.dep", "kernel/drivers/net/wireguard/wireguard.ko:\n", ErrMissing},
		"a kernel without":      {"lib/modules/6.1.0-49-cloud-amd64/modules.dep", "kernel/net/ipv4/udp_tunnel.ko:\n", ErrMissing},
		"no modules to be seen": {"etc/hostname", "labhead\n", ErrMissing},
	} {
		t.Run(what, func(t *testing.T) {
			root := t.TempDir()
			for path, content := range map[string]string{"proc/sys/kernel/osrelease": "6.1.0-49-cloud-amd64\n", c.file: c.content} {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := Look(root); !errors.Is(err, c.want) {
				t.Errorf("%v, not %v", err, c.want)
			}
		})
	}
}
