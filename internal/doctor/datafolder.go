package doctor

import (
	"errors"
	"fmt"

	"github.com/gpulab/gpulab/internal/diskspace"
)

// probeDataFolder looks whether databases can be in the data folder.
func probeDataFolder(h host, opts Options) []Finding {
	err := diskspace.Suits(h.path(opts.DataDir))
	var unfit *diskspace.UnfitError
	switch {
	case err == nil:
		return []Finding{{Probe: "data folder", State: OK, Seen: fmt.Sprintf("Databases can be in %s.", opts.DataDir)}}
	case errors.As(err, &unfit) && unfit.Type == "":
		return []Finding{{
			Probe: "data folder", State: Fail,
			Seen:  fmt.Sprintf("The file system of %s is mounted read-only.", opts.DataDir),
			Means: "The kernel does that after errors of a disk.",
			Mend:  "Look at dmesg; mount it with mount -o remount,rw, or name a folder on another disk as dataDir in the configuration.",
		}}
	case errors.As(err, &unfit):
		return []Finding{{
			Probe: "data folder", State: Fail,
			Seen:  fmt.Sprintf("%s is on a file system of the type %s.", opts.DataDir, unfit.Type),
			Means: "Databases get damaged there: they need a disk of this machine.",
			Mend:  fmt.Sprintf("Name a folder on such a disk as dataDir in the configuration; %s/homes alone may be mounted from elsewhere.", opts.DataDir),
		}}
	}
	return []Finding{{
		Probe: "data folder", State: Fail,
		Seen: fmt.Sprintf("The file system of %s cannot be looked at: %v.", opts.DataDir, err),
		Mend: "Name another folder as dataDir in the configuration.",
	}}
}
