package embedk8s

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// resolverFiles are where a machine's name servers stand; the second is what lies
// behind systemd-resolved's own.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// Resolvers are this machine's name servers that pods can reach, in its order: not
// those on its own loopback, and only IPv4, as pods have no other. None without a network.
func Resolvers() []netip.Addr {
	_, list := resolversIn(resolverFiles)
	return list
}

func resolversIn(files []string) (file string, list []netip.Addr) {
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			f := strings.Fields(line)
			if len(f) < 2 || f[0] != "nameserver" {
				continue
			}
			if a, err := netip.ParseAddr(f[1]); err == nil && a.Is4() && !a.IsLoopback() && !a.IsUnspecified() &&
				!slices.Contains(list, a) {
				list = append(list, a)
			}
		}
		if list != nil {
			return file, list
		}
	}
	return "", nil
}

// resolvConf names a file with resolvers that pods can use. A file with only
// loopback resolvers (systemd-resolved's stub) would make k3s use 8.8.8.8.
func (c *Cluster) resolvConf() (string, error) {
	if file, _ := resolversIn(resolverFiles); file != "" {
		return file, nil
	}
	path := filepath.Join(c.cfg.DataDir, "resolv.conf")
	_, err := atomicfile.Update(path, []byte("# This machine has no resolver that pods could reach.\n"), 0o644, 0o700)
	return path, err
}
