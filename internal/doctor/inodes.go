package doctor

import "fmt"

const (
	fewInodes = 200_000 // a conda environment has 30,000 files
	noInodes  = 10_000
)

// probeInodes: a file system may have space and yet no room for one more file,
// which programs report as a full disk.
func probeInodes(h host, opts Options) []Finding {
	folder := h.existingParent(opts.DataDir)
	stat, err := h.statfs(h.path(folder))
	if err != nil || stat.Files == 0 {
		return nil // some file systems have no such limit
	}
	seen := fmt.Sprintf("%d more files can be made on the file system of %s.", stat.Ffree, opts.DataDir)
	finding := Finding{
		Probe: "inodes", State: Warn, Seen: seen,
		Means: "When there are none left, saving fails with \"no space left on device\", although there is space.",
		Mend:  fmt.Sprintf("Find folders with very many files: `du --inodes -xd2 %s | sort -n | tail`.", folder),
	}
	switch {
	case stat.Ffree < noInodes:
		finding.State = Fail
	case stat.Ffree >= fewInodes || stat.Ffree*10 > stat.Files:
		return []Finding{{Probe: "inodes", State: OK, Seen: seen}}
	}
	return []Finding{finding}
}
