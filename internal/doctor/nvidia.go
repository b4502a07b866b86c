package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// NVIDIA is the state of cards and driver on a machine.
type NVIDIA struct {
	Cards   []string // PCI addresses of NVIDIA display controllers
	Bound   string   // the kernel driver of the first card: nvidia, nouveau, vfio-pci, ... or ""
	Driver  string   // version of the loaded NVIDIA driver, "" when none is loaded
	Library string   // version of the NVIDIA library programs use, "" when there is none
}

// DetectNVIDIA reads the situation from the file system at root ("/" on a real
// machine). It asks no driver, so a sick one cannot hang it.
func DetectNVIDIA(root string) NVIDIA {
	h := host{root: root}
	var n NVIDIA
	n.Cards, n.Bound = h.nvidiaCards()
	if match := versionPattern.FindString(h.read("/proc/driver/nvidia/version")); match != "" {
		n.Driver = match
	}
	n.Library = h.nvidiaLibrary()
	return n
}

// Usable reports whether real GPUs can be used now.
func (n NVIDIA) Usable() bool {
	return len(n.Cards) > 0 && n.Driver != "" && (n.Library == "" || n.Library == n.Driver)
}

var versionPattern = regexp.MustCompile(`\b\d{3}\.\d+(\.\d+)?\b`)

// probeNVIDIA: a card that does not work is never taken for no card.
func probeNVIDIA(h host, opts Options) []Finding {
	n := DetectNVIDIA(h.root)
	finding := n.finding(opts.GPUMode)
	finding.Probe = "nvidia"
	if opts.GPUMode == "simulated" && finding.State == Fail {
		finding.State = Warn
		finding.Means = "Simulated GPUs were asked for, so this card is left alone."
	}
	return []Finding{finding}
}

func (n NVIDIA) finding(mode string) Finding {
	switch {
	case len(n.Cards) == 0 && mode == "real":
		return Finding{
			State: Fail,
			Seen:  "There is no NVIDIA card in this machine.",
			Means: "Real GPUs were asked for.",
			Mend:  "Run gpulab init without that choice to try it with simulated GPUs.",
		}
	case len(n.Cards) == 0:
		return Finding{State: OK, Seen: "There is no NVIDIA card in this machine; gpulab can simulate GPUs."}
	case n.Driver == "":
		return n.withoutDriver()
	case n.Library != "" && n.Library != n.Driver:
		return Finding{
			State: Fail,
			Seen:  fmt.Sprintf("The loaded NVIDIA driver is %s, but its library is %s.", n.Driver, n.Library),
			Means: "The driver was upgraded while it was loaded; no program can use the GPUs.",
			Mend:  "Reboot this machine.",
		}
	case mode == "simulated":
		return Finding{
			State: Warn,
			Seen:  fmt.Sprintf("%s with a working driver %s.", n.cards(), n.Driver),
			Means: "Simulated GPUs were asked for, so this card is left alone.",
		}
	}
	return Finding{State: OK, Seen: fmt.Sprintf("%s with driver %s.", n.cards(), n.Driver)}
}

func (n NVIDIA) withoutDriver() Finding {
	finding := Finding{
		State: Fail,
		Seen:  fmt.Sprintf("%s without a driver.", n.cards()),
		Means: "gpulab needs NVIDIA's driver, and nothing else of NVIDIA's, from this machine.",
		Mend:  "Install it (Debian: apt-get install nvidia-driver; Ubuntu: ubuntu-drivers install), reboot, and run this again.",
	}
	switch n.Bound {
	case "nouveau", "nova_core":
		finding.Seen = fmt.Sprintf("%s driven by %s.", n.cards(), n.Bound)
		finding.Means = "That free driver cannot run CUDA programs; gpulab needs NVIDIA's own."
	case "vfio-pci":
		finding.Seen = fmt.Sprintf("%s set aside for a virtual machine (vfio-pci).", n.cards())
		finding.Mend = "Give the card back to this machine, and install NVIDIA's driver."
	case "nvidia":
		finding.Means = "The driver is bound to the card but did not start; the kernel's log says why."
		finding.Mend = "Run: dmesg | grep -i nvrm"
	}
	return finding
}

func (n NVIDIA) cards() string {
	if len(n.Cards) == 1 {
		return "An NVIDIA card (" + n.Cards[0] + ")"
	}
	return fmt.Sprintf("%d NVIDIA cards", len(n.Cards))
}

// nvidiaCards lists display controllers (class 03) of vendor 10de and the
// driver that is bound to the first.
func (h host) nvidiaCards() (cards []string, bound string) {
	folders, _ := filepath.Glob(h.path("/sys/bus/pci/devices/*"))
	for _, folder := range folders {
		device := "/sys/bus/pci/devices/" + filepath.Base(folder)
		if h.read(device+"/vendor") != "0x10de" || !strings.HasPrefix(h.read(device+"/class"), "0x03") {
			continue
		}
		cards = append(cards, filepath.Base(folder))
		if driver, err := os.Readlink(folder + "/driver"); err == nil && bound == "" {
			bound = filepath.Base(driver)
		}
	}
	return cards, bound
}

// nvidiaLibrary returns the version in the name libnvidia-ml.so.1 points at.
func (h host) nvidiaLibrary() string {
	for _, folder := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"} {
		target, err := filepath.EvalSymlinks(h.path(folder + "/libnvidia-ml.so.1"))
		if err == nil {
			return versionPattern.FindString(filepath.Base(target))
		}
	}
	return ""
}
