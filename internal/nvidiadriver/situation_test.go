package nvidiadriver

import (
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/said.txt anew")

// record is one machine of testdata/situations.yaml.
type record struct {
	Of    []string           `json:"of"`
	Files map[string]*string `json:"files"`
}

func recorded(t *testing.T) (parts map[string]map[string]*string, machines map[string]record) {
	t.Helper()
	var all struct {
		Parts      map[string]map[string]*string `json:"parts"`
		Situations map[string]record             `json:"situations"`
	}
	data, err := os.ReadFile("testdata/situations.yaml")
	if err == nil {
		err = yaml.UnmarshalStrict(data, &all)
	}
	if err != nil {
		t.Fatal(err)
	}
	return all.Parts, all.Situations
}

// lay writes the files of a machine below a folder of its own.
func lay(t *testing.T, parts map[string]map[string]*string, r record) string {
	t.Helper()
	files := map[string]*string{}
	for _, name := range r.Of {
		if parts[name] == nil {
			t.Fatalf("there is no part %q", name)
		}
		maps.Copy(files, parts[name])
	}
	maps.Copy(files, r.Files)
	root := t.TempDir()
	for path, content := range files {
		if content == nil {
			continue
		}
		path = filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if target, link := strings.CutPrefix(*content, "-> "); link && err == nil {
			err = os.Symlink(target, path)
		} else if err == nil {
			data := []byte(*content)
			if digits, is := strings.CutPrefix(*content, "hex:"); is {
				data, err = hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
			}
			if err == nil {
				err = os.WriteFile(path, data, 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// said is all that is told of a situation.
func said(s Situation) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s: %s\n", s.Kind, strings.TrimSpace(s.Seen()+" "+s.Means()))
	if s.Evidence != "" {
		fmt.Fprintf(&text, "  because of: %s\n", s.Evidence)
	}
	p := s.Plan()
	for _, step := range p.Steps {
		fmt.Fprintf(&text, "  # %s\n  %s\n", step.Why, step.Command)
	}
	if p.Advice != "" {
		fmt.Fprintf(&text, "  %s\n", p.Advice)
	}
	if p.Runnable() {
		text.WriteString("  can be run\n")
	}
	if p.Reboot {
		text.WriteString("  reboot\n")
	}
	if p.AtScreen {
		text.WriteString("  somebody at the screen\n")
	}
	return text.String()
}

// What is found on each recorded machine, what that means and what mends it, as it stands in testdata/said.txt.
func TestSituations(t *testing.T) {
	parts, machines := recorded(t)
	kinds := map[Kind]bool{}
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(machines)) {
		s := Look(lay(t, parts, machines[name]))
		kinds[s.Kind] = true
		fmt.Fprintf(&all, "## %s\n%s\n", name, said(s))
		if bad := s.Kind != Working && s.Kind != NoCard; bad && (s.Plan().Empty() || s.Means() == "") {
			t.Errorf("%s: nothing is said to mend it, or why", name)
		}
		if s.Usable() != strings.HasPrefix(name, "working") && name != "init of one of two failed" {
			t.Errorf("%s: usable is %v", name, s.Usable())
		}
	}
	for _, k := range []Kind{
		NoCard, Reserved, Unsupported, TooNew, NeedsOpen, NoMemoryWindow, NoLibrary, Mismatch, Lost, InitFailed, Working, Interrupted,
		FreeDriver, NoDriver, NoHeaders, BuildFailed, NoModule, KeyPending, KeyUnknown, Unsigned, Forbidden, NotLoaded,
	} {
		if !kinds[k] {
			t.Errorf("no recorded machine is in the situation %s", k)
		}
	}
	if *rewrite {
		if err := os.WriteFile("testdata/said.txt", []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/said.txt")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(want), "## ")
	for i, got := range strings.Split(all.String(), "## ") {
		if i >= len(blocks) || got != blocks[i] {
			t.Errorf("this is said:\n%s", got)
		}
	}
}

// A machine without any of the files, and one whose files say nothing, is no reason to fail.
func TestEmptyMachine(t *testing.T) {
	if s := Look(t.TempDir()); s.Kind != NoCard || s.HasCard() || !s.Plan().Empty() {
		t.Errorf("%+v", s)
	}
	root := lay(t, nil, record{Files: map[string]*string{
		"/sys/bus/pci/devices/0000:01:00.0/vendor": ptr("0x10de"), "/sys/bus/pci/devices/0000:01:00.0/class": ptr("0x03"),
		"/loop": ptr("-> /loop"), "/etc/os-release": ptr("-> /loop"), "/var/lib/dpkg/status": ptr("\n\n\n: :\n"),
	}})
	if s := Look(root); s.Kind != NoDriver || !s.Plan().ByHand {
		t.Errorf("%+v", s)
	}
}

func ptr(s string) *string { return &s }

func TestGenerations(t *testing.T) {
	for id, want := range map[uint64]Generation{
		0x0045: "", 0x05e3: Tesla, 0x06d1: Fermi, 0x06fa: Tesla, 0x1091: Fermi, 0x1004: Kepler, 0x102d: Kepler, 0x1140: Fermi, 0x1189: Kepler,
		0x128b: Kepler, 0x13c2: Maxwell, 0x17f0: Maxwell, 0x15f8: Pascal, 0x1b06: Pascal, 0x1d01: Pascal, 0x1db6: Volta, 0x1eb8: Turing, 0x2182: Turing,
		0x20b2: Ampere, 0x2204: Ampere, 0x2484: Ampere, 0x2330: Hopper, 0x2684: Ada, 0x26b9: Ada, 0x2901: Blackwell, 0x2b85: Blackwell, 0x2f04: Blackwell, 0x9000: "",
	} {
		if got := generation(id); got != want {
			t.Errorf("%04x is %q, want %q", id, got, want)
		}
	}
}
