package nvidiadriver

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// HoldFile keeps the driver's packages at their versions. It is a file of preferences rather than dpkg's own hold,
// because whoever takes gpulab off can delete it while dpkg is at work, and because it does not mix with what others
// hold.
const HoldFile = "/etc/apt/preferences.d/gpulab-nvidia-driver.pref"

// ErrNoPackages says that the driver did not come in packages.
var ErrNoPackages = errors.New("NVIDIA's driver is not installed from packages on this machine, so there is " +
	"nothing to hold")

// holdText explains itself to whoever finds it.
const holdText = `Explanation: gpulab holds NVIDIA's driver at the version that runs. An upgrade under
Explanation: running notebooks would take their GPUs away until the next reboot. A
Explanation: kernel whose modules of the driver come ready-made is held with them.
Explanation: "gpulab driver unhold" ends that, "gpulab driver hold" begins it again.
`

// Hold keeps the driver's packages at the versions that are installed, and returns which. Versions that changed since
// the last time are held as they are now. Where the driver's modules come ready-made for one kernel, that is held with
// them: a newer one would start without the GPUs.
func Hold(root string) ([]Package, error) {
	t := tree(root)
	all := t.packages()
	packages := driverPackages(all)
	if len(packages) == 0 {
		return nil, ErrNoPackages
	}
	packages = append(packages, kernelsBeside(packages, all, t.read("/proc/sys/kernel/osrelease"))...)
	byVersion := map[string][]string{}
	var versions []string
	for _, p := range packages {
		if len(byVersion[p.Version]) == 0 {
			versions = append(versions, p.Version)
		}
		byVersion[p.Version] = append(byVersion[p.Version], p.Name)
	}
	slices.Sort(versions)
	var text bytes.Buffer
	for _, v := range versions {
		// From 1000 on apt would also go back to it from a newer one.
		fmt.Fprintf(&text, "%sPackage: %s\nPin: version %s\nPin-Priority: 995\n\n", holdText, strings.Join(byVersion[v], " "),
			v)
	}
	path := filepath.Join(root, HoldFile)
	if _, err := atomicfile.Update(path, text.Bytes(), 0o644, 0o755); err != nil {
		return nil, fmt.Errorf("the driver's packages could not be held: %w", err)
	}
	return packages, nil
}

// Unhold lets the driver's packages be upgraded again, and tells whether they were held.
func Unhold(root string) (bool, error) {
	err := os.Remove(filepath.Join(root, HoldFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Held are the names of the packages that Hold keeps.
func Held(root string) []string {
	var names []string
	for line := range strings.Lines(tree(root).read(HoldFile)) {
		if list, ok := strings.CutPrefix(line, "Package: "); ok {
			names = append(names, strings.Fields(list)...)
		}
	}
	slices.Sort(names)
	return names
}
