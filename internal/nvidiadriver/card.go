package nvidiadriver

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Card is an NVIDIA display controller on PCI.
type Card struct {
	Address string `json:"address"` // 0000:01:00.0
	ID      string `json:"id"`      // device number, such as 2684
	// the kernel driver that has it: nvidia, nouveau, vfio-pci, … or ""
	Bound      string     `json:"bound,omitempty"`
	Generation Generation `json:"generation,omitempty"` // "" where the number is not known
}

// Generation is a family of NVIDIA's chips.
type Generation string

// Generations, oldest first.
const (
	Tesla     Generation = "Tesla"
	Fermi     Generation = "Fermi"
	Kepler    Generation = "Kepler"
	Maxwell   Generation = "Maxwell"
	Pascal    Generation = "Pascal"
	Volta     Generation = "Volta"
	Turing    Generation = "Turing"
	Ampere    Generation = "Ampere"
	Hopper    Generation = "Hopper"
	Ada       Generation = "Ada Lovelace"
	Blackwell Generation = "Blackwell"
)

var generations = []Generation{Tesla, Fermi, Kepler, Maxwell, Pascal, Volta, Turing, Ampere, Hopper, Ada, Blackwell}

// ranges are the first PCI device numbers of the chips, in order; each goes on to the next.
var ranges = []struct {
	first uint64
	is    Generation
}{
	{0x0191, Tesla}, {0x06c0, Fermi}, {0x06e0, Tesla}, {0x0dc0, Fermi}, {0x0fb0, Kepler}, {0x1040, Fermi},
	{0x1180, Kepler},
	{0x1200, Fermi}, {0x1280, Kepler}, {0x1340, Maxwell}, {0x15f0, Pascal}, {0x1600, Maxwell}, {0x1b00, Pascal},
	{0x1d80, Volta},
	{0x1e00, Turing}, {0x2080, Ampere}, {0x2180, Turing}, {0x2200, Ampere}, {0x2300, Hopper}, {0x2400, Ampere},
	{0x2680, Ada},
	{0x2900, Blackwell}, {0x4000, ""},
}

func generation(id uint64) (is Generation) {
	for _, r := range ranges {
		if id < r.first {
			break
		}
		is = r.is
	}
	return is
}

// before tells whether the card is of an earlier generation; one that is not known is new.
func (c Card) before(g Generation) bool {
	return c.Generation != "" && slices.Index(generations, c.Generation) < slices.Index(generations, g)
}

// onlyOpen tells whether the card works with NVIDIA's open kernel modules only.
func (c Card) onlyOpen() bool { return c.Generation == Blackwell }

// free tells whether one of Linux's own drivers has the card.
func (c Card) free() bool { return c.Bound == "nouveau" || strings.HasPrefix(c.Bound, "nova") }

// cards lists display controllers (class 03) of vendor 10de.
func (t tree) cards() []Card {
	cards := []Card{}
	for _, address := range t.list("/sys/bus/pci/devices") {
		device := "/sys/bus/pci/devices/" + address
		if t.read(device+"/vendor") != "0x10de" || !strings.HasPrefix(t.read(device+"/class"), "0x03") {
			continue
		}
		c := Card{Address: address, ID: strings.TrimPrefix(t.read(device+"/device"), "0x")}
		if id, err := strconv.ParseUint(c.ID, 16, 32); err == nil {
			c.Generation = generation(id)
		}
		if driver, err := os.Readlink(filepath.Join(t.path(device), "driver")); err == nil {
			c.Bound = filepath.Base(driver)
		}
		cards = append(cards, c)
	}
	return cards
}
