package units

import (
	"math"
	"testing"
)

func TestBytes(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 MiB", 1: "0 MiB", 1 << 19: "1 MiB", 430 << 20: "430 MiB", 1<<30 - 1<<20: "1023 MiB", 1<<30 - 1: "1 GiB", 1 << 30: "1 GiB",
		3 << 29: "1.5 GiB", 24564 << 20: "24 GiB", 22*1<<30 + 1<<29: "22.5 GiB", 100<<30 - 1: "100 GiB", 141<<30 + 1<<29 + 1: "142 GiB",
		math.MaxUint64: "17179869184 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
	if got := GiB(1 << 29); got != "0.5" {
		t.Errorf("half a GiB is %q", got)
	}
}
