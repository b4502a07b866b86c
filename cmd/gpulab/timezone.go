package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// TimeZone is the time zone of notebooks, jobs and services, such as Europe/Berlin; ""
// stands for this machine's.
type TimeZone string

func (z TimeZone) check() error {
	if z == "" || knownZone(string(z)) {
		return nil
	}
	return fmt.Errorf("timezone is %q, which is no time zone that this machine knows; it is written as Europe/Berlin, and `timedatectl list-timezones` lists them", string(z))
}

// name returns the time zone now; "" if the machine's has no name.
func (z TimeZone) name() string {
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

// imageEnv returns the environment that an image sets; nil if it is unknown.
func (l *appliance) imageEnv(ctx context.Context, image string) []string {
	parts := l.attached.Load()
	if parts == nil {
		return nil
	}
	env, err := parts.images.Environment(ctx, image)
	if err != nil {
		slog.Debug("what an image has in its environment is not known", "image", image, "err", err)
	}
	return env
}
