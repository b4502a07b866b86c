package hoststat

import (
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestBooted: the start of the first process, as ps tells it.
func TestBooted(t *testing.T) {
	got, err := Booted()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "etimes=", "-p", "1").Output()
	if err != nil {
		t.Fatalf("ps, of Debian's package procps: %v", err)
	}
	ran, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(got) - time.Duration(ran)*time.Second; d < -5*time.Second || d > 30*time.Second {
		t.Errorf("started at %s, but ps says %d s ago", got, ran)
	}
}
