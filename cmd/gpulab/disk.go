package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/units"
)

// Below either of these a disk counts as almost full: it is time to look for
// what can go while everything still works.
const (
	lowDisk     = 5 << 30 // bytes
	lowFraction = 0.05
)

// diskComponent tells how full the disk with homes, databases and images is.
// Nothing ends by itself on a full disk: it would not become emptier by that.
func (l *appliance) diskComponent() ctl.Component {
	var stat unix.Statfs_t
	if err := unix.Statfs(l.cfg.DataDir, &stat); err != nil {
		return ctl.Component{Name: "disk", State: ctl.Warning, Detail: fmt.Sprintf("its free space cannot be read: %v", err), NextStep: "look at " + l.cfg.DataDir}
	}
	size := uint64(stat.Bsize)
	return diskState(l.homesDir(), stat.Bavail*size, stat.Blocks*size)
}

func diskState(homes string, free, total uint64) ctl.Component {
	c := ctl.Component{Name: "disk", State: ctl.OK, Detail: units.Bytes(free) + " of " + units.Bytes(total) + " free"}
	if free < lowDisk || float64(free) < lowFraction*float64(total) {
		c.State, c.NextStep = ctl.Warning, fmt.Sprintf("make room; the largest homes: du -xsh %s/* | sort -h", homes)
	}
	return c
}
