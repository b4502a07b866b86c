package nodeapi

import (
	"fmt"
	"net/http"

	"github.com/gpulab/gpulab/internal/version"
)

// Skew says that a machine's gpulab and the head's are too far apart to work
// together, and what to install where; nil where they do work together. What
// newer ones say beyond the older ones' knowledge is ignored.
func Skew(machine, ofMachine, ofHead string) error {
	if version.Works(ofMachine, ofHead) {
		return nil
	}
	older, want := machine, ofHead
	if n, ok := version.Compare(ofMachine, ofHead); ok && n > 0 {
		older, want = "the head", ofMachine
	}
	if ofMachine == "" {
		ofMachine = "an unknown version"
	}
	return &Problem{
		Message: fmt.Sprintf("%s runs gpulab %s and the head %s, and only neighbouring releases work together: install "+
			"the packages gpulab and gpulab-images of version %s on %s",
			machine, ofMachine, ofHead, want, older),
		Skewed: true, Status: http.StatusUpgradeRequired,
	}
}
