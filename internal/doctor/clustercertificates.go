package doctor

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

const (
	leafSoon = 30 * 24 * time.Hour  // k3s renews them at a start, long before
	caSoon   = 180 * 24 * time.Hour // a new authority is a new cluster
)

// probeClusterCertificates looks at the certificates with which the parts of
// Kubernetes know one another. They last a year, and k3s renews them whenever
// it starts: one that runs for a year does not.
func probeClusterCertificates(h host, opts Options) []Finding {
	folder := filepath.Join(opts.DataDir, "k3s")
	var files []string
	for _, pattern := range []string{"server/tls/*.crt", "agent/*.crt"} {
		found, _ := filepath.Glob(h.path(filepath.Join(folder, pattern)))
		files = append(files, found...)
	}
	if len(files) == 0 {
		if h.installed(opts) && !h.isRoot() {
			return []Finding{{Probe: "clustercertificates", State: Unseen,
				Seen: "Only root can read the certificates of Kubernetes."}}
		}
		return []Finding{{Probe: "clustercertificates", State: OK,
			Seen: "There are no certificates of Kubernetes yet; `gpulab init` makes them."}}
	}
	soonest := time.Time{}
	var findings []Finding
	reported := map[string]bool{}
	for _, file := range files {
		name := strings.TrimPrefix(file, h.path(folder)+"/")
		cert, err := h.certificate(filepath.Join(folder, name))
		if err != nil {
			continue // k3s writes it anew at its next start
		}
		if soonest.IsZero() || cert.NotAfter.Before(soonest) {
			soonest = cert.NotAfter
		}
		finding := Finding{Probe: "clustercertificates", Mend: fmt.Sprintf("Run `%s`: k3s renews them when it starts, and "+
			"notebooks go on.", h.restart(opts))}
		switch late := outOfTime("A certificate of Kubernetes ("+name+")", cert, h.now()); {
		case late != "":
			finding.State, finding.Seen, finding.Means = Fail, late, "The parts of Kubernetes refuse one another: no "+
				"notebook starts or stops. "+theClock(h.now())
		case cert.IsCA && cert.NotAfter.Sub(h.now()) < caSoon:
			finding.State = Warn
			finding.Seen = fmt.Sprintf("The authority of Kubernetes (%s) runs out on %s.", name,
				cert.NotAfter.Format(time.DateOnly))
			finding.Means, finding.Mend = "Then nothing in the cluster works any more.",
				"Make the cluster anew before that day: `gpulab reset --help` says how to keep homes and accounts."
		case !cert.IsCA && cert.NotAfter.Sub(h.now()) < leafSoon:
			finding.State = Warn
			finding.Seen = fmt.Sprintf("A certificate of Kubernetes (%s) runs out on %s.", name,
				cert.NotAfter.Format(time.DateOnly))
			finding.Means = "It is renewed when Kubernetes starts, and this one has run for a year."
		}
		// A dozen of them are of one age: the first stands for all.
		if kind := finding.State + finding.Mend; finding.State != "" && !reported[kind] {
			reported[kind] = true
			findings = append(findings, finding)
		}
	}
	if findings == nil {
		return []Finding{{Probe: "clustercertificates", State: OK,
			Seen: "The certificates of Kubernetes are good until " + soonest.Format(time.DateOnly) + "."}}
	}
	return findings
}
