package doctor

import (
	"os"
	"testing"
	"time"
)

func TestMembership(t *testing.T) {
	h, opts := member(t)
	finds(t, h, "membership", opts, OK, "gpu-two in the pool of Pool lab", "good until")
	h.now = func() time.Time { return time.Now().AddDate(0, 0, 70) }
	finds(t, h, "membership", opts, Warn, "was not renewed")
	h.now = func() time.Time { return time.Now().AddDate(0, 0, 100) }
	finds(t, h, "membership", opts, Fail, "ran out on", "`gpulab doctor clock`", "`gpulab leave`")
	if err := os.Remove(h.path("/var/lib/gpulab/tls/node.crt")); err != nil {
		t.Fatal(err)
	}
	finds(t, h, "membership", opts, Fail, "cannot be read", "`gpulab invite-node`")
}
