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
			Seen:  fmt.Sprintf("gpulab cannot find out where notebooks' temporary files are: %v.", err),
			Means: "They may fill the system's disk instead of the data folder's disk.",
			Mend:  "Run `sudo gpulab doctor scratch`.",
		}}
	}
	if len(list) == 0 {
		return []Finding{{Probe: "scratch", State: OK, Seen: "Temporary files and logs of notebooks are where they belong."}}
	}
	finding := Finding{
		Probe: "scratch", State: Warn,
		Means: "Temporary files or logs of notebooks take up space on a disk other than the data folder's, " +
			"or are in a folder that Kubernetes does not see.",
		Mend: "Restart the machine at a time when its notebooks may stop. " +
			"gpulab then moves the files to the data folder's disk and deletes none. " +
			"That disk needs free space of at least twice their size.",
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
				"Move files that nobody needs out of that folder while gpulab is stopped, then restart the machine.", s.Dir)
		}
	}
	finding.Seen = strings.Join(seen, " ")
	return []Finding{finding}
}
