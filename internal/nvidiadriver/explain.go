package nvidiadriver

import (
	"fmt"
	"strings"
)

// Seen is what was found, as a sentence.
func (s Situation) Seen() string {
	switch s.Kind {
	case NoCard:
		if s.Driver != "" {
			return fmt.Sprintf("There is no NVIDIA card in this machine, though NVIDIA's driver %s is loaded.", s.Driver)
		}
		return "There is no NVIDIA card in this machine."
	case Reserved:
		return s.cards() + " set aside for virtual machines (vfio-pci)."
	case FreeDriver:
		return fmt.Sprintf("%s driven by %s.", s.cards(), s.bound())
	case NoDriver:
		return s.cards() + " without a driver."
	case Unsupported:
		return fmt.Sprintf("%s of a generation (%s) that %s.", s.cards(), s.generation(), s.withoutSupport())
	case TooNew:
		return fmt.Sprintf("%s that the installed driver%s does not know.", s.cards(), s.version())
	case NeedsOpen:
		return fmt.Sprintf("%s that needs NVIDIA's open kernel modules, and a driver%s without them.", s.cards(), s.version())
	case NoMemoryWindow:
		return s.cards() + " that the firmware gave no room in the address space."
	case NoLibrary:
		return fmt.Sprintf("%s with driver %s, but without NVIDIA's library.", s.cards(), s.Driver)
	case Mismatch:
		return fmt.Sprintf("The loaded NVIDIA driver is %s, but its library is %s.", s.Driver, s.Library)
	case Lost:
		return fmt.Sprintf("%s with driver %s, which is lost: it does not answer on the bus any more.", s.cards(), s.Driver)
	case InitFailed:
		return s.cards() + " that the driver could not start."
	case Interrupted:
		return fmt.Sprintf("%s, and packages whose installation was interrupted%s.", s.cards(), s.unfinishedNames())
	case NoHeaders:
		return fmt.Sprintf("%s, and a driver%s without a module for the kernel %s, because the kernel's headers are missing.",
			s.cards(), s.version(), s.Kernel)
	case BuildFailed:
		return fmt.Sprintf("%s, and a driver%s whose module could not be built for the kernel %s.", s.cards(), s.version(),
			s.Kernel)
	case NoModule:
		text := fmt.Sprintf("%s, and a driver%s without a module for the kernel %s", s.cards(), s.version(), s.Kernel)
		if s.other != "" {
			text += ", but with one for " + s.other
		}
		return text + "."
	case KeyPending:
		return s.cards() + ", and a driver whose key waits to be enrolled at the next boot."
	case KeyUnknown:
		return s.cards() + ", and a driver that Secure Boot does not let in: the firmware does not know its key."
	case Unsigned:
		return s.cards() + ", and a driver that Secure Boot does not let in: its module is not signed with a key that the " +
			"firmware knows."
	case Forbidden:
		return s.cards() + ", and a driver that this machine is told not to load."
	case NotLoaded:
		return fmt.Sprintf("%s, and a driver%s that is not loaded.", s.cards(), s.version())
	}
	text := fmt.Sprintf("%s with driver %s", s.cards(), s.Driver)
	if len(s.Sick) > 0 {
		text += ", but the driver could not start " + strings.Join(s.Sick, ", ")
	}
	return text + "."
}

// Means is why it matters; "" while there is nothing to do.
func (s Situation) Means() string {
	switch s.Kind {
	case NoCard:
		return ""
	case Working:
		if len(s.Sick) > 0 {
			return "The lab works with the other cards."
		}
		return ""
	case Reserved:
		return "A virtual machine gets the card, and this machine's notebooks cannot."
	case FreeDriver:
		return "That free driver cannot run CUDA programs; gpulab needs NVIDIA's own."
	case NoDriver:
		return "gpulab needs NVIDIA's driver, and nothing else of NVIDIA's, from this machine."
	case Unsupported:
		return "NVIDIA has ended its drivers for such cards, or this system does not have the last one of them."
	case TooNew:
		return "A newer branch of the driver is needed."
	case NeedsOpen:
		return "NVIDIA's newest cards are driven by its open kernel modules only."
	case NoMemoryWindow:
		return "The memory of this card does not fit below 4 GiB, where the firmware put it."
	case NoLibrary:
		return "Programs reach the driver through that library; without it no program can use the GPUs."
	case Mismatch:
		return "The driver was upgraded while it was loaded; no program can use the GPUs."
	case Lost:
		return "The card overheats, lacks power or sits loosely, or its driver crashed."
	case InitFailed:
		if noPower.MatchString(s.Evidence) {
			return "Its power cables are not connected."
		}
		return "The driver is loaded and gave the card up."
	case Interrupted:
		return "The driver is neither there nor gone."
	case NoHeaders, NoModule:
		return "The module is built for each kernel anew; after a kernel's upgrade that did not happen."
	case BuildFailed:
		return "The driver is probably older than this kernel."
	case KeyPending:
		return "Somebody has to confirm it at the machine's screen while it boots."
	case KeyUnknown:
		return "The key is this machine's own; somebody has to enrol it once, at the machine's screen."
	case Unsigned:
		return "With Secure Boot the kernel loads signed modules only."
	case Forbidden, NotLoaded:
		return "Without it no program can use the GPUs."
	}
	return ""
}

func (s Situation) cards() string {
	if len(s.Cards) == 1 {
		return "An NVIDIA card (" + s.Cards[0].Address + ")"
	}
	return fmt.Sprintf("%d NVIDIA cards", len(s.Cards))
}

func (s Situation) bound() string {
	for _, c := range s.Cards {
		if c.free() {
			return c.Bound
		}
	}
	return ""
}

// generation is the oldest one of the cards, for people.
func (s Situation) generation() string {
	oldest := Generation("unknown")
	for i, c := range s.Cards {
		if i == 0 || c.before(oldest) {
			oldest = c.Generation
		}
	}
	if oldest == "" {
		return "unknown"
	}
	return string(oldest)
}

func (s Situation) withoutSupport() string {
	if len(s.Packages) > 0 {
		return "the installed driver" + s.version() + " does not support any more"
	}
	return "no driver of " + s.System.Name + " supports"
}

// version is that of the installed driver, after a space.
func (s Situation) version() string {
	for _, p := range s.Packages {
		if p.kernelPart() {
			if v := versionPattern.FindString(p.Version); v != "" {
				return " " + v
			}
		}
	}
	if s.Library != "" {
		return " " + s.Library
	}
	return ""
}

func (s Situation) unfinishedNames() string {
	var names []string
	for _, p := range s.Packages {
		if p.unfinished() {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " (" + strings.Join(names, ", ") + ")"
}
