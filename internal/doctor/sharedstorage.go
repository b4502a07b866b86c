package doctor

import (
	"fmt"
	"os"
	"path/filepath"
)

// probeSharedStorage looks whether the lab's homes are mounted on a machine of
// its pool, and not those of another lab or nothing.
func probeSharedStorage(h host, opts Options) []Finding {
	j := opts.Joined
	if found, none := j.nothing("sharedstorage"); none {
		return found
	}
	if j.Shared == "" {
		return []Finding{{Probe: "sharedstorage", State: OK, Seen: fmt.Sprintf("Homes lie on the own disk of %s, so notebooks start there; nothing is to be mounted here.", j.Head)}}
	}
	missing := Finding{
		Probe: "sharedstorage", State: Fail,
		Means: "Notebooks here find no homes; gpulab does not go on without them when it is started.",
		Mend:  fmt.Sprintf("Mount at %s what the lab's other machines have there, and keep it in /etc/fstab: `findmnt %[1]s` says what is there now.", j.Shared),
	}
	if info, err := os.Stat(h.path(j.Shared)); err != nil || !info.IsDir() {
		missing.Seen = fmt.Sprintf("The lab's storage is not at %s.", j.Shared)
		return []Finding{missing}
	}
	switch h.read(filepath.Join(j.Shared, markFile)) {
	case j.Mark:
		return []Finding{{Probe: "sharedstorage", State: OK, Seen: fmt.Sprintf("The lab's storage is at %s.", j.Shared)}}
	case "":
		missing.Seen = fmt.Sprintf("What is at %s is not the lab's storage: it has no file %s.", j.Shared, markFile)
	default:
		missing.Seen = fmt.Sprintf("What is mounted at %s is another lab's storage.", j.Shared)
	}
	return []Finding{missing}
}
