// Package nvidiadriver finds out how a machine stands with NVIDIA's driver, says
// what that means and which commands mend it, and runs them on request. Whatever
// sets a machine up or looks after it may import it.
//
// It reads files and asks no driver, so a sick one cannot hang it.
package nvidiadriver

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Kind names a situation.
type Kind string

// The situations that are told apart, in the order in which they are looked for.
const (
	NoCard         Kind = "no-card"
	Reserved       Kind = "reserved"         // for a virtual machine (vfio-pci)
	Unsupported    Kind = "unsupported"      // the card is too old for this driver, or for any
	TooNew         Kind = "too-new"          // the card is newer than the driver
	NeedsOpen      Kind = "needs-open"       // the card works with NVIDIA's open kernel modules only
	NoMemoryWindow Kind = "no-memory-window" // the firmware gave the card no room (Above 4G Decoding)
	NoLibrary      Kind = "no-library"
	Mismatch       Kind = "mismatch" // kernel module and library are of two versions
	Lost           Kind = "lost"     // fell off the bus
	InitFailed     Kind = "init-failed"
	Working        Kind = "working"
	Interrupted    Kind = "interrupted" // dpkg stopped halfway through the driver's packages
	FreeDriver     Kind = "free-driver" // nouveau or nova holds the card
	NoDriver       Kind = "no-driver"
	NoHeaders      Kind = "no-headers"   // nothing to build the module for this kernel with
	BuildFailed    Kind = "build-failed" // DKMS could not build the module
	NoModule       Kind = "no-module"    // none for this kernel
	KeyPending     Kind = "key-pending"  // Secure Boot: the key is enrolled at the next boot, at the screen
	KeyUnknown     Kind = "key-unknown"  // Secure Boot: the firmware does not know the module's key
	Unsigned       Kind = "unsigned"     // Secure Boot: the module has no signature
	Forbidden      Kind = "forbidden"    // modprobe is told not to load the module
	NotLoaded      Kind = "not-loaded"
)

// Situation is how a machine stands with NVIDIA's driver.
type Situation struct {
	Kind  Kind   `json:"kind"`
	Cards []Card `json:"cards"`
	// Driver is the version of the loaded driver, Library that of the library that programs use; "" for none.
	Driver  string `json:"driver,omitempty"`
	Library string `json:"library,omitempty"`
	// Packages are the driver's, in the order of their names.
	Packages []Package `json:"packages"`
	Kernel   string    `json:"kernel"` // release of the running kernel
	// SecureBoot says that the kernel loads signed modules only.
	SecureBoot bool   `json:"secureBoot"`
	System     System `json:"system"`
	// Evidence is the line of a log that tells, where one does.
	Evidence string `json:"evidence,omitempty"`
	// Sick are cards that do not start although others work.
	Sick []string `json:"sick,omitempty"`

	key     string // the file of the key that modules are signed with
	headers bool   // of the running kernel
	other   string // another kernel that has a module
	module  string // file of the module for this kernel
	sources sources
	mokutil bool     // is installed
	kernels []string // kinds of kernels that are kept up to date: amd64 of linux-image-amd64
}

// Usable tells whether GPUs can be used now.
func (s Situation) Usable() bool { return s.Kind == Working }

// HasCard tells whether there is an NVIDIA card that is meant for this machine.
func (s Situation) HasCard() bool { return s.Kind != NoCard && s.Kind != Reserved }

// tree is a machine's file system.
type tree string

// Look finds out how the machine stands whose files are below root.
func Look(root string) Situation {
	t := tree(root)
	s := Situation{
		Cards: t.cards(), Kernel: t.read("/proc/sys/kernel/osrelease"), System: t.system(),
		Library: t.library(), Driver: versionPattern.FindString(t.read("/proc/driver/nvidia/version")),
		SecureBoot: t.secureBoot(), Packages: []Package{}, Kind: NoCard,
	}
	if len(s.Cards) == 0 {
		return s // what follows takes some milliseconds
	}
	packages := t.packages()
	s.Packages, s.kernels = driverPackages(packages), kernelPackages(packages)
	s.mokutil = slices.ContainsFunc(packages, func(p Package) bool { return p.Name == "mokutil" })
	s.headers, s.sources = t.exists("/lib/modules/"+s.Kernel+"/build"), t.sources()
	s.module, s.other = t.module(s.Kernel)
	s.Kind = s.kind(t, t.kernelLog())
	return s
}

// kind decides; it adds what it decides by.
func (s *Situation) kind(t tree, log kernelLog) Kind {
	if s.all(func(c Card) bool { return c.Bound == "vfio-pci" }) {
		return Reserved
	}
	if kind := s.refused(log); kind != "" {
		return kind
	}
	if s.Driver != "" {
		return s.loaded(log)
	}
	installed := len(s.Packages) > 0 || s.module != "" || s.other != "" || s.Library != ""
	switch {
	case slices.ContainsFunc(s.Packages, Package.unfinished) || t.unfinished():
		return Interrupted
	case s.any(func(c Card) bool { return c.free() }):
		return FreeDriver
	case !installed && s.System.known() && s.all(func(c Card) bool {
		return c.before(Maxwell) && s.offer(c.Generation).none()
	}):
		return Unsupported
	case !installed:
		return NoDriver
	case s.module == "":
		return s.withoutModule(t)
	case s.any(Card.onlyOpen) && !strings.Contains(s.module, "open") && len(s.Packages) > 0 && !s.open():
		return NeedsOpen
	}
	return s.notLoaded(t, log)
}

// refused is a card that the driver has looked at and refused.
func (s *Situation) refused(log kernelLog) Kind {
	if s.Driver != "" && s.any(func(c Card) bool { return c.Bound == "nvidia" }) {
		return "" // what the log says of it is of before
	}
	for _, sign := range []struct {
		pattern *regexp.Regexp
		kind    Kind
	}{
		{openNeeded, NeedsOpen}, {legacy, Unsupported}, {notSupported, TooNew}, {noWindow, NoMemoryWindow},
		{noPower, InitFailed},
	} {
		line := log.last(sign.pattern)
		if line == "" {
			continue
		}
		s.Evidence = line
		if sign.kind == TooNew && s.all(func(c Card) bool { return c.Generation != "" && c.before(Turing) }) {
			return Unsupported
		}
		return sign.kind
	}
	return ""
}

// loaded tells how a driver does that is in the kernel.
func (s *Situation) loaded(log kernelLog) Kind {
	switch {
	case s.Library == "":
		return NoLibrary
	case s.Library != s.Driver:
		return Mismatch
	}
	kind := Working
	for _, c := range s.Cards {
		line := log.last(lostCard(c.Address))
		why := Lost
		if line == "" {
			line, why = log.last(initFailed(c.Address)), InitFailed
		}
		if line != "" {
			s.Sick = append(s.Sick, c.Address)
			s.Evidence, kind = line, why
		}
	}
	if len(s.Sick) < len(s.Cards) {
		return Working // with the others
	}
	return kind
}

// withoutModule tells why there is none for this kernel.
func (s *Situation) withoutModule(t tree) Kind {
	if !s.headers {
		return NoHeaders
	}
	if line := t.buildError(); line != "" {
		s.Evidence = line
		return BuildFailed
	}
	return NoModule
}

// notLoaded tells why a module that is there is not in the kernel.
func (s *Situation) notLoaded(t tree, log kernelLog) Kind {
	if file, line := t.forbidden(); line != "" {
		s.Evidence = file + ": " + line
		return Forbidden
	}
	if !s.SecureBoot {
		return NotLoaded
	}
	s.Evidence = log.last(keyRejected)
	if path, der := t.signingKey(); path != "" {
		s.key = path
		switch {
		case t.enrolled(der):
			s.key = ""
		case t.pending(der):
			return KeyPending
		default:
			return KeyUnknown
		}
	}
	if s.Evidence != "" {
		return Unsigned
	}
	return NotLoaded
}

func (s *Situation) all(is func(Card) bool) bool {
	return !slices.ContainsFunc(s.Cards, func(c Card) bool { return !is(c) })
}
func (s *Situation) any(is func(Card) bool) bool { return slices.ContainsFunc(s.Cards, is) }

// open tells whether the installed kernel modules are NVIDIA's open ones.
func (s *Situation) open() bool {
	return slices.ContainsFunc(s.Packages, func(p Package) bool {
		return strings.Contains(p.Name, "open") && p.kernelPart()
	})
}

var versionPattern = regexp.MustCompile(`\b\d{3}\.\d+(\.\d+)?\b`)

// path is where the machine's absolute path p is found, links within the machine followed.
func (t tree) path(p string) string {
	for range 40 { // as many links as the kernel follows
		next, linked := t.follow(p)
		if !linked {
			break
		}
		p = next
	}
	return filepath.Join(string(t), p)
}

// follow replaces the first link in p.
func (t tree) follow(p string) (string, bool) {
	parts := strings.Split(strings.Trim(filepath.Clean("/"+p), "/"), "/")
	for i := range parts {
		here := "/" + filepath.Join(parts[:i+1]...)
		target, err := os.Readlink(filepath.Join(string(t), here))
		if err != nil {
			continue
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(here), target)
		}
		return filepath.Join(append([]string{target}, parts[i+1:]...)...), true
	}
	return p, false
}

// read returns a file without surrounding space, "" when it cannot be read.
func (t tree) read(p string) string {
	data, err := os.ReadFile(t.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func (t tree) exists(p string) bool {
	_, err := os.Stat(t.path(p))
	return err == nil
}

// list is the names in a folder.
func (t tree) list(folder string) []string {
	entries, err := os.ReadDir(t.path(folder))
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// library is the version in the name that libnvidia-ml.so.1 leads to. It has to lie where
// Debian and Ubuntu have libraries: elsewhere, containers are not given it.
func (t tree) library() string {
	for _, folder := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"} {
		name := folder + "/libnvidia-ml.so.1"
		if t.exists(name) {
			return versionPattern.FindString(filepath.Base(t.path(name)))
		}
	}
	return ""
}

// System is the distribution.
type System struct {
	ID       string `json:"id"`       // debian, ubuntu, …
	Version  string `json:"version"`  // 12, 24.04, …
	Codename string `json:"codename"` // bookworm, noble, …
	Name     string `json:"name"`     // for people
}

func (t tree) system() System {
	values := map[string]string{}
	for line := range strings.Lines(t.read("/etc/os-release")) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = strings.Trim(value, `"'`)
		}
	}
	name := values["PRETTY_NAME"]
	if name == "" {
		name = "this Linux"
	}
	return System{ID: values["ID"], Version: values["VERSION_ID"], Codename: values["VERSION_CODENAME"], Name: name}
}

// known tells whether gpulab knows this distribution's packages of the driver.
func (s System) known() bool { return s.debian() || s.ubuntu() }

func (s System) debian() bool { return s.ID == "debian" && (s.Version == "12" || s.Version == "13") }

func (s System) ubuntu() bool {
	return s.ID == "ubuntu" && (s.Version == "22.04" || s.Version == "24.04")
}
