package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// TimeZone is the time zone of notebooks, jobs and services, such as Europe/Berlin. Empty: this machine's.
type TimeZone string

func (z TimeZone) check() error {
	if z == "" || knownZone(string(z)) {
		return nil
	}
	return fmt.Errorf("timezone is %q, which is no time zone that this machine knows; it is written as Europe/Berlin, "+
		"and `timedatectl list-timezones` lists them", string(z))
}

// Name returns the time zone now; empty if the machine's has no name.
func (z TimeZone) Name() string {
	if z != "" {
		return string(z)
	}
	return machineZone("/")
}

// knownZone reports whether this machine has a time zone of that name, and images have it too.
func knownZone(name string) bool {
	if name == "Local" || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return false
	}
	_, err := time.LoadLocation(name)
	return err == nil && name != ""
}

// machineZone returns the time zone of the machine whose root folder is root, as timedatectl
// and tzselect set it; "" if it is unknown.
func machineZone(root string) string {
	link, _ := os.Readlink(filepath.Join(root, "etc/localtime"))
	_, fromLink, _ := strings.Cut(link, "zoneinfo/")
	file, _ := os.ReadFile(filepath.Join(root, "etc/timezone"))
	for _, name := range []string{fromLink, strings.TrimSpace(string(file))} {
		if knownZone(name) {
			return name
		}
	}
	return ""
}
