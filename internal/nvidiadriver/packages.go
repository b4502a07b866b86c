package nvidiadriver

import (
	"regexp"
	"slices"
	"strings"
)

// Package is an installed package, or one that dpkg left halfway.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	state   string // the last word of dpkg's Status
	source  string
}

// unfinished tells whether dpkg stopped in the middle of it.
func (p Package) unfinished() bool {
	return slices.Contains([]string{"unpacked", "half-installed", "half-configured", "triggers-awaited",
		"triggers-pending"}, p.state)
}

// driverSource are the source packages that the driver is built from, driverName its packages in NVIDIA's own
// repository, where each is its own source. What lies beside a driver, such as the libraries for programs that were
// made for a newer one (cuda-compat), comes from the same sources and is not it.
var (
	driverSource = regexp.MustCompile(`^(nvidia-graphics-drivers|nvidia-open-gpu-kernel-modules|` +
		`linux-restricted-modules|linux-restricted-signatures|nvidia-kmod)`)
	driverName = regexp.MustCompile(`^(cuda-drivers|nvidia-open|nvidia-(open-)?kernel-|nvidia-dkms-|nvidia-driver|` +
		`nvidia-tesla-|nvidia-headless-|nvidia-utils-|nvidia-compute-utils-|nvidia-firmware-|firmware-nvidia-gsp|` +
		`nvidia-smi$|libcuda1$|libcuda-|libcudadebugger1$|libnvcuvid1$|libnvoptix1$|libnvidia-|linux-modules-nvidia-|` +
		`xserver-xorg-video-nvidia)`)
	notDriver = regexp.MustCompile(`^(cuda-compat-|linux-modules-nvidia-fs-|libnvidia-container|nvidia-container|` +
		`libnvidia-egl-(wayland|gbm))`)
	kernelPart = regexp.MustCompile(`^(nvidia-(open-)?kernel-(open-)?(dkms|source)|nvidia-dkms-|` +
		`nvidia-kernel-source-|nvidia-tesla-.*kernel-dkms|linux-modules-nvidia-)`)
	kernelMeta = regexp.MustCompile(`^linux-image-([a-z][a-z0-9.-]*)$`)
)

// kernelPart tells whether the package holds the kernel modules or their source.
func (p Package) kernelPart() bool { return kernelPart.MatchString(p.Name) }

func driverPackages(all []Package) []Package {
	out := []Package{}
	for _, p := range all {
		if (driverSource.MatchString(p.source) || driverName.MatchString(p.Name)) && !notDriver.MatchString(p.Name) {
			out = append(out, p)
		}
	}
	return out
}

// kernelPackages are those that bring the newest kernel of a kind, such as linux-image-amd64, by that kind.
func kernelPackages(all []Package) []string {
	var kinds []string
	for _, p := range all {
		if m := kernelMeta.FindStringSubmatch(p.Name); m != nil && m[1] != "unsigned" {
			kinds = append(kinds, m[1])
		}
	}
	return kinds
}

// readyMade is a package with the driver's modules for one kernel (6.8.0-85-generic), or the newest of a kind
// (generic).
var readyMade = regexp.MustCompile(`^linux-modules-nvidia-[0-9]+(?:-server)?(?:-open)?-((?:[0-9][0-9.]*-[0-9]+-)?)` +
	`([a-z][a-z0-9.-]*)$`)

// kernelsBeside are the packages that bring a newer kernel of a kind whose modules of the driver come ready-made, as
// Ubuntu has them (linux-modules-nvidia-580-generic): those belong to one kernel and one driver. A machine that builds
// its modules makes them for a newer kernel, too. driver are the driver's packages of all, running is the kernel's
// release.
func kernelsBeside(driver, all []Package, running string) []Package {
	if slices.ContainsFunc(driver, func(p Package) bool { return strings.Contains(p.Name, "dkms") }) {
		return nil
	}
	var out []Package
	for _, kind := range kernelPackages(all) {
		forKind := func(p Package) bool {
			m := readyMade.FindStringSubmatch(p.Name)
			switch {
			case m == nil:
				return false
			case m[1] == "":
				return m[2] == kind
			}
			// Of the kernel that runs: its kind is called generic, or generic-hwe-24.04, or virtual.
			return m[1]+m[2] == running && (kind == m[2] || strings.HasPrefix(kind, m[2]+"-") || m[2] == "generic" &&
				strings.HasPrefix(kind, "virtual"))
		}
		if !slices.ContainsFunc(driver, forKind) {
			continue
		}
		for _, p := range all {
			if slices.Contains([]string{"linux-" + kind, "linux-image-" + kind, "linux-headers-" + kind,
				"linux-modules-extra-" + kind}, p.Name) {
				out = append(out, p)
			}
		}
	}
	return out
}

// packages reads dpkg's list, in the order of names.
func (t tree) packages() []Package {
	var out []Package
	for _, stanza := range strings.Split(t.read("/var/lib/dpkg/status"), "\n\n") {
		var p Package
		for line := range strings.Lines(stanza) {
			key, value, _ := strings.Cut(line, ": ")
			value = strings.TrimSpace(value)
			switch key {
			case "Package":
				p.Name = value
			case "Version":
				p.Version = value
			case "Source":
				p.source = value
			case "Status":
				p.state = value[strings.LastIndexByte(value, ' ')+1:]
			}
		}
		if p.Name != "" && p.state != "not-installed" && p.state != "config-files" {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b Package) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// unfinished tells whether dpkg was killed before it wrote down what it had done.
func (t tree) unfinished() bool {
	return slices.ContainsFunc(t.list("/var/lib/dpkg/updates"), func(name string) bool {
		return strings.Trim(name, "0123456789") == "" && name != ""
	})
}
