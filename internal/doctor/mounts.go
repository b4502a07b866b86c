package doctor

import (
	"path/filepath"
	"strings"
)

// mountOf returns where the file system of a folder is mounted.
func (h host) mountOf(folder string) string {
	best := "/"
	for line := range strings.Lines(h.read("/proc/self/mounts")) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`).Replace(fields[1])
		if (folder == at || strings.HasPrefix(folder, filepath.Clean(at)+"/")) && len(at) > len(best) {
			best = at
		}
	}
	return best
}
