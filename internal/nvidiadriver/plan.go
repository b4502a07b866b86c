package nvidiadriver

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Step is one command line on the way to a driver that works.
type Step struct {
	Why     string `json:"why"`     // what it is for, in a few words
	Command string `json:"command"` // for a shell of root
	// Terminal says that it asks something of whoever sits at the terminal.
	Terminal bool `json:"terminal,omitempty"`
}

// Plan is what mends a situation.
type Plan struct {
	Steps []Step `json:"steps"`
	// Reboot says that the machine has to be started anew after the steps, or instead of them.
	Reboot bool `json:"reboot"`
	// AtScreen says that somebody must sit at the machine's screen meanwhile.
	AtScreen bool `json:"atScreen"`
	// ByHand says that a person has to decide or to look up something: the steps are not run, and Advice says why.
	ByHand bool   `json:"byHand"`
	Advice string `json:"advice,omitempty"`
}

// Empty tells whether there is nothing to do.
func (p Plan) Empty() bool { return len(p.Steps) == 0 && !p.Reboot && p.Advice == "" }

// Runnable tells whether Install can do something.
func (p Plan) Runnable() bool { return len(p.Steps) > 0 && !p.ByHand }

// AtTheScreen is what whoever sits there is to do, line by line.
var AtTheScreen = []string{
	"Somebody must sit at this machine's screen and keyboard while it boots; a remote console of its",
	"management board will do, SSH will not. A blue screen asks for ten seconds, and then boots without the key:",
	"  1. Press any key when it says \"Press any key to perform MOK management\".",
	"  2. Choose \"Enroll MOK\", then \"Continue\", then \"Yes\".",
	"  3. Type the password that was chosen for the key. The keyboard is an American one there.",
	"  4. Choose \"Reboot\".",
}

// guide is where NVIDIA describes the installation for every distribution.
const guide = "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/"

// offer is a driver that a distribution has.
type offer struct {
	packages []string
	open     bool
	component
}

func (o offer) none() bool { return len(o.packages) == 0 }

// ubuntuBranch is the branch of NVIDIA's driver that knows every card from Maxwell to Blackwell.
const ubuntuBranch = "580"

// offer is the driver of this machine's distribution for cards of a generation; one that is not known is new.
func (s Situation) offer(g Generation) offer {
	old := func(than Generation) bool { return (Card{Generation: g}).before(than) }
	switch {
	case old(Kepler):
		return offer{}
	case s.System.ubuntu() && g == Kepler:
		return offer{packages: []string{"nvidia-driver-470-server"}, component: restricted}
	case s.System.ubuntu() && old(Turing):
		return offer{packages: []string{"nvidia-driver-" + ubuntuBranch + "-server"}, component: restricted}
	case s.System.ubuntu():
		return offer{packages: []string{"nvidia-driver-" + ubuntuBranch + "-server-open"}, open: true, component: restricted}
	case s.System.debian() && g == Kepler && s.System.Version == "12":
		return offer{packages: []string{"nvidia-tesla-470-driver"}, component: nonFree}
	case s.System.debian() && g != Kepler && (g != "" && g != Blackwell):
		return offer{packages: []string{"nvidia-driver", "nvidia-kernel-dkms", "nvidia-smi", "libcuda1"}, component: nonFree}
	}
	return offer{}
}

// best is the offer for all cards of the machine, which have one driver.
func (s Situation) best() offer {
	var best offer
	for i, c := range s.Cards {
		o := s.offer(c.Generation)
		if i > 0 && strings.Join(o.packages, " ") != strings.Join(best.packages, " ") {
			// An older card decides: what drives it also drives the others, within limits.
			if !c.before(s.Cards[0].Generation) {
				continue
			}
		}
		best = o
	}
	return best
}

// Plan is what mends the situation.
func (s Situation) Plan() Plan {
	switch s.Kind {
	case NoCard, Working:
		if len(s.Sick) > 0 {
			return Plan{ByHand: true, Advice: "Switch the machine off, look at the card's seat, cables and fans, and switch " +
				"it on again."}
		}
		return Plan{}
	case Reserved:
		return Plan{ByHand: true, Advice: "Take the card off vfio-pci (the options of vfio-pci in /etc/modprobe.d, or " +
			"vfio-pci.ids on the kernel's command line), and reboot."}
	case FreeDriver:
		if len(s.Packages) > 0 { // they forbid nouveau from the next boot on
			return Plan{Reboot: true}
		}
		p := s.install()
		p.Reboot = p.Runnable()
		return p
	case NoDriver, Unsupported, TooNew, NeedsOpen:
		return s.installFor()
	case NoMemoryWindow:
		return Plan{ByHand: true, Reboot: true, Advice: "Switch on \"Above 4G Decoding\" (also \"Resizable BAR\" or " +
			"\"Memory mapped I/O above 4 GB\") in the firmware's settings."}
	case NoLibrary:
		return s.library()
	case Mismatch:
		return Plan{Reboot: true}
	case Lost:
		return Plan{ByHand: true, Advice: "Switch the machine off, look at the card's seat, cables and fans, and switch " +
			"it on again."}
	case InitFailed:
		return s.initFailed()
	case Interrupted:
		return Plan{Steps: []Step{{Why: "finish what was interrupted",
			Command: "dpkg --configure -a && apt-get --yes --fix-broken install"}}}
	}
	return s.moduleMissing()
}

// moduleMissing is the plan where the driver's packages are there and its module is not loaded.
func (s Situation) moduleMissing() Plan {
	switch s.Kind {
	case NoHeaders:
		if !s.apt() {
			return s.pointer("Install the headers of the kernel " + s.Kernel + ", and build the driver's module with them.")
		}
		return Plan{Steps: []Step{update, {Why: "bring the kernel's headers; the module is built with them",
			Command: "apt-get install --yes --no-install-recommends " + strings.Join(s.headerPackages(), " ")}}}
	case NoModule:
		if slices.ContainsFunc(s.Packages, func(p Package) bool { return strings.Contains(p.Name, "dkms") }) {
			return Plan{Steps: []Step{{Why: "build the module for this kernel",
				Command: "dkms autoinstall --kernelver " + s.Kernel}}}
		}
		if o := s.best(); !o.none() {
			return s.install()
		}
		return s.pointer("Install the driver's module for the kernel " + s.Kernel + ".")
	case BuildFailed:
		return Plan{ByHand: true, Advice: "Take a driver that knows this kernel (apt-get update, then apt-get install " +
			"--only-upgrade of its packages), or boot the kernel before."}
	case KeyPending:
		return Plan{Reboot: true, AtScreen: true}
	case KeyUnknown:
		return Plan{Steps: s.enrol(), Reboot: true, AtScreen: true}
	case Unsigned:
		if s.System.ubuntu() {
			return Plan{Steps: append([]Step{{Why: "make a key and sign the module",
				Command: "update-secureboot-policy --new-key; dkms unbuild --all --kernelver " + s.Kernel +
					"; dkms autoinstall --kernelver " + s.Kernel}}, s.enrolKey("/var/lib/shim-signed/mok/MOK.der")), Reboot: true,
				AtScreen: true, ByHand: true,
				Advice: "Or switch Secure Boot off in the firmware's settings."}
		}
		return Plan{ByHand: true, Advice: "Sign the module with a key that is enrolled, or switch Secure Boot off in the " +
			"firmware's settings."}
	case Forbidden:
		file, line, _ := strings.Cut(s.Evidence, ": ")
		return Plan{ByHand: true, Steps: []Step{
			{Why: "let it be loaded", Command: fmt.Sprintf("sed -i 's|^[[:space:]]*%s|# &|' %s", line, file)},
			{Why: "also at the next boot", Command: "update-initramfs -u"},
			{Why: "load the driver", Command: "modprobe nvidia"},
		}, Advice: "Somebody, or a program that saves a laptop's battery, did that on purpose: ask before you take it back."}
	}
	return Plan{Steps: []Step{{Why: "load the driver", Command: "modprobe nvidia"},
		{Why: "and its part for CUDA", Command: "modprobe nvidia-uvm"}}}
}

var update = Step{Why: "fetch the lists of packages", Command: "apt-get update"}

// apt tells whether this machine's packages come from apt.
func (s Situation) apt() bool { return s.System.ID == "debian" || s.System.ID == "ubuntu" }

// installFor is the plan where a driver, or another one, has to come.
func (s Situation) installFor() Plan {
	if s.Kind == Unsupported && len(s.Packages) == 0 {
		if s.any(func(c Card) bool { return c.Generation == Kepler }) {
			return Plan{ByHand: true, Advice: "The last driver for it, branch 470, is in Debian 12 and in Ubuntu; or put a " +
				"newer card in."}
		}
		return Plan{ByHand: true, Advice: "Put a newer card in, or use the machine without GPUs."}
	}
	if s.Kind == TooNew && s.System.debian() {
		return s.fromNVIDIA()
	}
	return s.install()
}

// install is the plan that brings the distribution's driver.
func (s Situation) install() Plan {
	if s.System.debian() && s.any(func(c Card) bool { return c.onlyOpen() || c.Generation == "" }) {
		return s.fromNVIDIA()
	}
	o := s.best()
	switch {
	case !s.System.known():
		return s.pointer("Install NVIDIA's driver the way " + s.System.Name + " does it.")
	case o.none():
		return s.pointer("No driver of " + s.System.Name + " is known to drive this card.")
	case s.Kind == NeedsOpen && s.System.debian():
		o.packages = []string{"nvidia-open-kernel-dkms", "nvidia-driver", "nvidia-smi", "libcuda1"}
	}
	var p Plan
	if step := s.sources.add(s.System, o.component); step.Command != "" {
		p.Steps = append(p.Steps, step)
	}
	packages := slices.Concat(s.headerPackages(), o.packages)
	if s.SecureBoot {
		packages = append(packages, "mokutil")
	}
	why := "install the driver, and what its module is built with"
	p.Steps = append(p.Steps, update, Step{
		Why: why, Command: "apt-get install --yes --no-install-recommends " + strings.Join(packages, " "),
	})
	p.AtScreen = s.SecureBoot
	p.Reboot = s.SecureBoot || s.Driver != "" || s.any(Card.free)
	return p
}

// fromNVIDIA is the plan for Debian and a card that only NVIDIA's own packages drive.
func (s Situation) fromNVIDIA() Plan {
	repository := "https://developer.download.nvidia.com/compute/cuda/repos/debian" + s.System.Version +
		"/x86_64/cuda-keyring_1.1-1_all.deb"
	return Plan{ByHand: true, Reboot: true, AtScreen: s.SecureBoot, Steps: []Step{
		{Why: "fetch the key of NVIDIA's repository", Command: "wget " + repository},
		{Why: "add NVIDIA's repository", Command: "apt-get install --yes ./cuda-keyring_1.1-1_all.deb"},
		update,
		{Why: "install the driver with its open kernel modules",
			Command: "apt-get install --yes " + strings.Join(s.headerPackages(), " ") + " nvidia-open"},
	}, Advice: s.System.Name + " has no driver for such a new card, but NVIDIA's own repository has. It is another " +
		"source of programs that run as root: you decide."}
}

// library is the plan where the kernel module works and the library is not there.
func (s Situation) library() Plan {
	name := ""
	switch {
	case s.System.debian():
		name = "nvidia-smi libcuda1"
		for _, p := range s.Packages {
			if m := teslaBranch.FindString(p.Name); m != "" {
				name = "nvidia-" + m + "-smi libnvidia-" + m + "-cuda1"
			}
		}
	case s.System.ubuntu():
		for _, p := range s.Packages {
			if m := ubuntuUtils.FindStringSubmatch(p.Name); m != nil {
				name = "nvidia-utils-" + m[1] + " libnvidia-compute-" + m[1]
			}
		}
	}
	if name == "" {
		return s.pointer("Install the libraries that belong to the driver " + s.Driver +
			" (libnvidia-ml.so.1, libcuda.so.1).")
	}
	return Plan{Steps: []Step{update, {Why: "install the driver's libraries",
		Command: "apt-get install --yes --no-install-recommends " + name}}}
}

var (
	teslaBranch = regexp.MustCompile(`tesla-\d+`)
	ubuntuUtils = regexp.MustCompile(`^(?:nvidia-(?:dkms|driver|headless|kernel-source|kernel-common)|` +
		`linux-modules-nvidia)-(\d+(?:-server)?)`)
)

func (s Situation) initFailed() Plan {
	if noPower.MatchString(s.Evidence) {
		return Plan{ByHand: true, Advice: "Switch the machine off, connect the card's power cables, and switch it on again."}
	}
	return Plan{ByHand: true, Advice: "Switch the machine off and on again (a reboot leaves the card under power). If " +
		"it stays so: look for \"Above 4G Decoding\" in the firmware's settings, update the firmware, try another driver, " +
		"another slot."}
}

// enrol asks the boot loader to take the machine's key at the next boot.
func (s Situation) enrol() []Step {
	if s.mokutil || !s.apt() {
		return []Step{s.enrolKey(s.key)}
	}
	return []Step{{Why: "bring what asks the firmware", Command: "apt-get install --yes mokutil"}, s.enrolKey(s.key)}
}

func (s Situation) enrolKey(path string) Step {
	return Step{Why: "ask for the key to be enrolled; choose a password of 8 letters or more, which you need once, at " +
		"the screen", Command: "mokutil --import " + path, Terminal: true}
}

// pointer is a plan that a person has to make.
func (s Situation) pointer(what string) Plan {
	return Plan{ByHand: true, Advice: what + " NVIDIA describes it for each distribution: " + guide}
}

// kernelFlavour is the kind of the running kernel: amd64 of 6.1.0-35-amd64, generic of 6.8.0-45-generic.
var kernelFlavour = regexp.MustCompile(`^\d+\.\d+\.\d+(?:-\d+)?(?:\+deb\d+)?-([a-z][a-z0-9-]*)$`)

// headerPackages are the headers of this kernel, and those of each kernel that comes later.
func (s Situation) headerPackages() []string {
	out := []string{"linux-headers-" + s.Kernel}
	m := kernelFlavour.FindStringSubmatch(s.Kernel)
	for _, kind := range s.kernels {
		if m != nil && (kind == m[1] || strings.HasPrefix(kind, m[1]+"-")) {
			return append(out, "linux-headers-"+kind)
		}
	}
	return out
}
