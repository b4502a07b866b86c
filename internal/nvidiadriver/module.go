package nvidiadriver

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// moduleFile is the driver's main module, as Debian, Ubuntu and NVIDIA call it.
var moduleFile = regexp.MustCompile(`^nvidia(-current|-tesla-\d+|-legacy-\w+)?(-open)?\.ko(\.xz|\.zst|\.gz)?$`)

// module finds the driver's module for the kernel; other is another kernel that has one.
func (t tree) module(kernel string) (file, other string) {
	if kernel == "" {
		return "", ""
	}
	if file = t.moduleOf(kernel); file != "" {
		return file, ""
	}
	for _, name := range t.list("/lib/modules") {
		if name != kernel && t.moduleOf(name) != "" {
			other = name
		}
	}
	return "", other
}

func (t tree) moduleOf(kernel string) (found string) {
	base := "/lib/modules/" + kernel
	for _, folder := range []string{"updates", "extra", "kernel"} {
		top := t.path(base + "/" + folder)
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return nil //nolint:nilerr // what cannot be read has no module
			case d.IsDir() && folder == "kernel" && filepath.Dir(path) == top && !strings.HasPrefix(d.Name(), "nvidia"):
				if d.Name() != "drivers" {
					return fs.SkipDir // the kernel's own modules are thousands
				}
			case d.IsDir() && folder == "kernel" && filepath.Base(filepath.Dir(path)) == "drivers" && d.Name() != "video":
				return fs.SkipDir
			case moduleFile.MatchString(d.Name()):
				found = filepath.Join(base, folder, strings.TrimPrefix(path, top))
				return fs.SkipAll
			}
			return nil
		})
		if found != "" {
			return found
		}
	}
	return ""
}

// buildError is the first error in the log of a build of the module that DKMS gave up.
func (t tree) buildError() string {
	for _, name := range t.list("/var/lib/dkms") {
		if !strings.HasPrefix(name, "nvidia") {
			continue
		}
		for _, version := range t.list("/var/lib/dkms/" + name) {
			path := "/var/lib/dkms/" + name + "/" + version + "/build/make.log"
			if log := t.read(path); log != "" {
				return path + ": " + firstError(log)
			}
		}
	}
	return ""
}

var compilerError = regexp.MustCompile(`(?i)(\berror\b|\*\*\*)`)

func firstError(log string) string {
	last := ""
	for line := range strings.Lines(log) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if last = line; compilerError.MatchString(line) {
			break
		}
	}
	return last
}

var blacklist = regexp.MustCompile(`^\s*(blacklist\s+nvidia\s*$|install\s+nvidia\s+(/usr)?/bin/(false|true))`)

// forbidden finds the line that keeps modprobe from loading the driver.
func (t tree) forbidden() (file, line string) {
	for _, folder := range []string{"/etc/modprobe.d", "/usr/lib/modprobe.d", "/run/modprobe.d"} {
		for _, name := range t.list(folder) {
			for l := range strings.Lines(t.read(folder + "/" + name)) {
				if blacklist.MatchString(l) {
					return folder + "/" + name, strings.TrimSpace(l)
				}
			}
		}
	}
	return "", ""
}

// The variables of the firmware and of its boot loader shim.
const (
	efivars    = "/sys/firmware/efi/efivars/"
	firmwareID = "-8be4df61-93ca-11d2-aa0d-00e098032b8c"
	shimID     = "-605dab50-e046-4300-abb6-3dd810dd8b23"
)

// variable is a firmware variable without the four bytes of its attributes.
func (t tree) variable(name string) []byte {
	data, err := os.ReadFile(t.path(efivars + name))
	if err != nil || len(data) < 4 {
		return nil
	}
	return data[4:]
}

// secureBoot tells whether the kernel loads signed modules only: shim can be told not to look.
func (t tree) secureBoot() bool {
	on, off := t.variable("SecureBoot"+firmwareID), t.variable("MokSBStateRT"+shimID)
	return slices.Equal(on, []byte{1}) && !slices.Equal(off, []byte{1})
}

// signingKey is the certificate of the key with which this machine signs the modules that it builds.
func (t tree) signingKey() (path string, der []byte) {
	for _, path := range []string{"/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub"} {
		if data, err := os.ReadFile(t.path(path)); err == nil && len(data) > 0 {
			return path, data
		}
	}
	return "", nil
}

// enrolled tells whether the boot loader knows the key, pending whether it asks about it at the next boot.
func (t tree) enrolled(der []byte) bool {
	list, err := os.ReadFile(t.path("/sys/firmware/efi/mok-variables/MokListRT"))
	if err != nil {
		list = t.variable("MokListRT" + shimID)
	}
	return strings.Contains(string(list), string(der))
}

func (t tree) pending(der []byte) bool {
	return strings.Contains(string(t.variable("MokNew"+shimID)), string(der))
}
