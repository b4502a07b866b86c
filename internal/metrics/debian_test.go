package metrics

import (
	"os/exec"
	"testing"
)

// debian finds a program of Debian's package prometheus.
func debian(t *testing.T, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("there is no %s; install it with `packaging/prerequisites.sh test` or `apt-get install --no-install-recommends prometheus`", program)
	}
	return path
}
