package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Notebooks get the machine's time zone as it is now, by a name that their image knows.
func TestMachineZone(t *testing.T) {
	for _, c := range []struct{ link, file, want string }{
		{"/usr/share/zoneinfo/Asia/Tokyo", "", "Asia/Tokyo"},
		{"../usr/share/zoneinfo/America/Argentina/Buenos_Aires", "Etc/UTC\n", "America/Argentina/Buenos_Aires"},
		{"/usr/share/zoneinfo/right/Europe/Berlin", "Europe/Berlin\n", "Europe/Berlin"},
		{"", "Europe/Paris\n", "Europe/Paris"},
		{"", "Local", ""},
		{"/srv/own-zone", "Nowhere/There", ""},
		{"", "", ""},
	} {
		root := t.TempDir()
		mustDo(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
		if c.link != "" {
			mustDo(t, os.Symlink(c.link, filepath.Join(root, "etc/localtime")))
		}
		if c.file != "" {
			mustDo(t, os.WriteFile(filepath.Join(root, "etc/timezone"), []byte(c.file), 0o600))
		}
		if got := machineZone(root); got != c.want {
			t.Errorf("%q and %q: %q, want %q", c.link, c.file, got, c.want)
		}
	}
}

// A key that earlier versions of gpulab do not know is written only if it has a value.
func TestTimeZoneKey(t *testing.T) {
	for text, written := range map[string]bool{"lab: Physics\n": false, "timezone: Asia/Tokyo\n": true} {
		path := write(t, text)
		c, err := Load(path)
		mustDo(t, err)
		_, err = Save(path, c)
		mustDo(t, err)
		now, err := os.ReadFile(path)
		mustDo(t, err)
		if strings.Contains(string(now), "\ntimezone:") != written {
			t.Errorf("%q has become\n%s", text, now)
		}
		if again, err := Load(path); err != nil || again.TimeZone != c.TimeZone {
			t.Errorf("%q: %q, %v", text, again.TimeZone, err)
		}
	}
}
