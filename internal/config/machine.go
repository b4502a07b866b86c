package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/power"
)

// StayAwake says what keeps this machine awake.
type StayAwake power.Policy

// UnmarshalJSON takes the words off and on, which are false and true in YAML.
func (s *StayAwake) UnmarshalJSON(data []byte) error {
	var word string
	switch {
	case string(data) == "false":
		word = string(power.Never)
	case string(data) == "true":
		word = string(power.Always)
	case json.Unmarshal(data, &word) != nil:
		word = string(data)
	}
	*s = StayAwake(word)
	return nil
}

func (s StayAwake) Check() error {
	switch power.Policy(s) {
	case power.Always, power.LidOpen, power.Never:
		return nil
	}
	return fmt.Errorf("stayAwake is %q; it may be notebooks (while some run), lid-open (the same, but not with the lid closed) or off", string(s))
}

// TimeZone is the time zone of notebooks, jobs and services, such as Europe/Berlin; ""
// stands for this machine's.
type TimeZone string

func (z TimeZone) Check() error {
	if z == "" || knownZone(string(z)) {
		return nil
	}
	return fmt.Errorf("timezone is %q, which is no time zone that this machine knows; it is written as Europe/Berlin, and `timedatectl list-timezones` lists them", string(z))
}

// name returns the time zone now; "" if the machine's has no name.
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
