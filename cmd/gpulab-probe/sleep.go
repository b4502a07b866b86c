//go:build cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/gpu"
)

// A laptop's card powers itself down when it has nothing to do. Asking it
// anything wakes it, and asking it again and again keeps it awake. So the
// kernel is asked first, and a card that may sleep and has nothing to do is
// left alone for a while.

// pciTree is the kernel's view of PCI devices, and the driver's of its cards; an
// empty one is that of a machine where nothing can be seen.
type pciTree struct{ sysfs, procfs string }

// address turns NVML's name of a PCI device into the kernel's.
func (t pciTree) address(busID string) string {
	var domain, bus, device uint
	if _, err := fmt.Sscanf(busID, "%x:%x:%x", &domain, &bus, &device); err != nil {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", domain, bus, device)
}

// read returns a device's attribute, "" if it has none of that name.
func (t pciTree) read(address, attribute string) string {
	if t.sysfs == "" || address == "" {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(t.sysfs, "bus/pci/devices", address, attribute))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (t pciTree) suspended(busID string) bool {
	return t.read(t.address(busID), "power/runtime_status") == "suspended"
}

// maySleep says whether the kernel lets the device power itself down. Ubuntu's
// packages have it let every card, desktops' and servers' too.
func (t pciTree) maySleep(busID string) bool {
	return t.read(t.address(busID), "power/control") == "auto"
}

// sleeps says whether the driver makes use of that: most cards it keeps awake.
func (t pciTree) sleeps(busID string) bool {
	address := t.address(busID)
	if t.procfs == "" || address == "" {
		return true
	}
	text, err := os.ReadFile(filepath.Join(t.procfs, "driver/nvidia/gpus", address, "power"))
	if err != nil {
		return true // a driver that does not say
	}
	for line := range strings.Lines(string(text)) {
		if status, ok := strings.CutPrefix(line, "Runtime D3 status:"); ok {
			return strings.HasPrefix(strings.TrimSpace(status), "Enabled")
		}
	}
	return true
}

// gpus returns the NVIDIA GPUs in the order of their addresses, which is
// NVML's, by NVML's names.
func (t pciTree) gpus() []string {
	if t.sysfs == "" {
		return nil
	}
	devices, err := os.ReadDir(filepath.Join(t.sysfs, "bus/pci/devices")) // sorted
	if err != nil {
		return nil
	}
	var found []string
	for _, d := range devices {
		class := t.read(d.Name(), "class")
		if t.read(d.Name(), "vendor") == "0x10de" &&
			(strings.HasPrefix(class, "0x0300") || strings.HasPrefix(class, "0x0302")) {
			var domain, bus, device uint
			if _, err := fmt.Sscanf(d.Name(), "%x:%x:%x", &domain, &bus, &device); err == nil {
				found = append(found, busID(domain, bus, device))
			}
		}
	}
	return found
}

// bound lists the devices that NVIDIA's kernel module drives.
func (t pciTree) bound() []string {
	if t.sysfs == "" {
		return nil
	}
	entries, err := os.ReadDir(filepath.Join(t.sysfs, "bus/pci/drivers/nvidia"))
	if err != nil {
		return nil
	}
	var addresses []string
	for _, e := range entries {
		if strings.Contains(e.Name(), ":") {
			addresses = append(addresses, e.Name())
		}
	}
	slices.Sort(addresses)
	return addresses
}

// busID is how NVML names a PCI device.
func busID[T uint | uint32](domain, bus, device T) string {
	return fmt.Sprintf("%08X:%02X:%02X.0", domain, bus, device)
}

// asleep says that the GPU has powered itself down. One that has never been
// asked is found by its place among the others.
func (r *reader) asleep(d *gpu.Device) bool {
	id := d.PCIBusID
	if id == "" {
		if all := r.tree.gpus(); len(all) == r.driver.count {
			id = all[r.index]
		}
	}
	if !r.tree.suspended(id) {
		return false
	}
	d.PCIBusID = id
	return true
}

// rest decides, after a reading, whether to leave the GPU alone for a while.
func (r *reader) rest(g *gpu.GPU, now time.Time) {
	works := len(g.Processes) > 0 || g.Utilization == nil || *g.Utilization > 0
	if works || g.Error != "" || !r.tree.maySleep(g.PCIBusID) {
		r.idleSince = time.Time{}
		return
	}
	if r.idleSince.IsZero() {
		r.idleSince = now
	}
	if now.Sub(r.idleSince) < r.pace.restAfter {
		return
	}
	if !r.tree.sleeps(g.PCIBusID) {
		r.idleSince = now // asked again after as long
		return
	}
	r.restUntil = now.Add(r.pace.rest)
}
