package main

import (
	"strings"
	"testing"

	"github.com/gpulab/gpulab/internal/ctl"
)

func TestDiskState(t *testing.T) {
	const gib = 1 << 30
	for _, tc := range []struct {
		free, total uint64
		want        ctl.State
	}{
		{60 * gib, 100 * gib, ctl.OK},
		{6 * gib, 100 * gib, ctl.OK},
		{4 * gib, 20 * gib, ctl.Warning},    // enough of a small disk, but little
		{40 * gib, 1000 * gib, ctl.Warning}, // a lot, but soon gone
		{0, 100 * gib, ctl.Warning},
	} {
		c := diskState("/var/lib/gpulab/homes", tc.free, tc.total)
		if c.State != tc.want || (c.State == ctl.Warning) != strings.Contains(c.NextStep, "/var/lib/gpulab/homes") {
			t.Errorf("%d of %d GiB: %+v, want %s", tc.free/gib, tc.total/gib, c, tc.want)
		}
	}
}
