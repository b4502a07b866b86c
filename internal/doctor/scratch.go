package doctor

import (
	"fmt"
	"strings"
)

// A Stray is a folder of pods that is not on the disk of the data folder.
type Stray struct {
	Dir, Part string // what Kubernetes uses, and the part of the data folder
	Here      bool   // files are in Dir
	Kept      bool   // others are in Part, where nothing shows them
	Lost      bool   // Dir shows a folder that was deleted, or that is another data folder's
	Foreign   bool   // some in Dir may be older than this lab, so they are not moved
}

// probeScratch looks whether the temporary files and the logs of pods are on the disk of the
// data folder. An earlier version of gpulab that runs after a restart of the machine does not
// put them there.
func probeScratch(_ host, opts Options) []Finding {
	if opts.Strays == nil {
		return nil
	}
	list, err := opts.Strays()
	if err != nil {
		return []Finding{{
			Probe: "scratch", State: Warn,
			Seen:  fmt.Sprintf("Where the temporary files of notebooks lie cannot be read: %v.", err),
			Means: "They may fill the system's disk instead of the one of the data folder.",
			Mend:  "Run `sudo gpulab doctor scratch`.",
		}}
	}
	if len(list) == 0 {
		return []Finding{{Probe: "scratch", State: OK, Seen: "Temporary files and logs of notebooks are where they belong."}}
	}
	finding := Finding{
		Probe: "scratch", State: Warn,
		Means: "Temporary files or logs of notebooks fill another disk than that of the data folder, " +
			"or lie where nothing shows them.",
		Mend: "Restart the machine when its notebooks may end: gpulab then moves the files together, and deletes none. " +
			"The data folder's disk needs twice their size of free space.",
	}
	var seen []string
	for _, s := range list {
		switch {
		case s.Lost:
			seen = append(seen, fmt.Sprintf("%s shows a folder that was deleted or belongs to another data folder.", s.Dir))
			finding.Means = "New notebooks may fail to start, because Kubernetes cannot make files there."
		case s.Here && s.Kept:
			seen = append(seen, fmt.Sprintf("Files of notebooks lie in %s, which is not on the disk of %s, and others in %s.",
				s.Dir, opts.DataDir, s.Part))
		case s.Here:
			seen = append(seen, fmt.Sprintf("Files of notebooks lie in %s, which is not on the disk of %s.",
				s.Dir, opts.DataDir))
		default:
			seen = append(seen, fmt.Sprintf("Files of notebooks lie in %s, and %s does not show them.", s.Part, s.Dir))
		}
	}
	for _, s := range list {
		if s.Foreign {
			finding.Mend = fmt.Sprintf("Some files in %s may be older than this lab, so gpulab does not move them. "+
				"Move away what nobody needs there while gpulab is stopped, then restart the machine.", s.Dir)
		}
	}
	finding.Seen = strings.Join(seen, " ")
	return []Finding{finding}
}
