package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpulab/gpulab/internal/nfs"
)

// probeNFS looks whether the machine can have its part in homes that lie on the
// head and are mounted by the other machines.
func probeNFS(h host, opts Options) []Finding {
	var err error
	is := "Homes are not exported over NFS; nothing is needed for that."
	means := ""
	switch machine := (nfs.Machine{Root: h.root}); {
	case opts.ServeNFS:
		err, is, means = machine.CanServe(), "This machine can serve homes over NFS.",
			"The other machines of the pool would find no homes: storage.export in the configuration asks for it."
	case opts.MountNFS:
		err, is, means = machine.CanMount(), "This machine can mount homes over NFS.",
			"Notebooks here would find no homes: they lie on the head, which exports them."
	}
	if missing := (*nfs.MissingError)(nil); errors.As(err, &missing) {
		return []Finding{{Probe: "nfs", State: Fail, Seen: sentence(missing.Seen), Means: means,
			Mend: sentence(missing.Mend)}}
	}
	if err != nil {
		return []Finding{{Probe: "nfs", State: Warn, Seen: fmt.Sprintf("It cannot be seen whether NFS works: %v.", err),
			Means: means}}
	}
	return []Finding{{Probe: "nfs", State: OK, Seen: is}}
}

// sentence begins with a capital and ends with a full stop.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }
