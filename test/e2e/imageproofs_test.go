//go:build e2e

package e2e

import (
	"os/exec"
	"testing"
)

// TestImages inspects the images that come with gpulab, and tries in each what the lab relies on: in the notebook's a
// person's commands, both Pythons, homes and virtual environments of the earlier one, and the notebook server.
//
//test:about packaging/images
func TestImages(t *testing.T) {
	t.Parallel()
	check := exec.CommandContext(t.Context(), "go", "run", "./packaging/images/build", "-check", "-out", "bin/images")
	check.Dir = "../.."
	out, err := check.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
