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
	if len(j.Exported) > 0 {
		return h.exported(j)
	}
	if j.Shared == "" {
		return []Finding{{Probe: "sharedstorage", State: OK, Seen: fmt.Sprintf("Homes lie on the own disk of %s, so "+
			"notebooks start there; nothing is to be mounted here.", j.Head)}}
	}
	missing := Finding{
		Probe: "sharedstorage", State: Fail,
		Means: "Notebooks here find no homes; gpulab does not go on without them when it is started.",
		Mend: fmt.Sprintf("Mount at %s what the lab's other machines have there, and keep it in /etc/fstab: `findmnt "+
			"%[1]s` says what is there now.", j.Shared),
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

// exported looks at what gpulab itself mounts.
func (h host) exported(j *Joined) []Finding {
	for _, path := range j.Exported {
		if h.read(filepath.Join(path, markFile)) != j.Mark {
			return []Finding{{
				Probe: "sharedstorage", State: Fail,
				Seen:  fmt.Sprintf("What %s exports is not mounted at %s.", j.Head, path),
				Means: "Notebooks here find no homes, and gpulab starts none.",
				Mend: fmt.Sprintf("Run `gpulab doctor head nfs`; on %s, `exportfs -v` shows what is exported, and its firewall "+
					"has to let in TCP port 2049. Then `gpulab status` says whether it is mounted: gpulab tries again by itself "+
					"while it starts.", j.Head),
			}}
		}
	}
	return []Finding{{Probe: "sharedstorage", State: OK,
		Seen: fmt.Sprintf("Homes and shared folders of %s are mounted here.", j.Head)}}
}
