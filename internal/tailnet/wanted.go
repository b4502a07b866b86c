package tailnet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// TailscaleServer is the control server of tailnets that Tailscale runs.
const TailscaleServer = "https://controlplane.tailscale.com"

// usualHostname is what a lab is called in its tailnet unless somebody has said otherwise.
const usualHostname = "gpulab"

// wanted is what somebody asked for last; it outlives the process.
type wanted struct {
	Up bool `json:"up"`
	// LoginServer is the control server that the lab is known to, "" as long as it is known to none.
	LoginServer string `json:"loginServer,omitempty"`
	Hostname    string `json:"hostname,omitempty"`
	// Funnel opens the lab to the public internet.
	Funnel bool `json:"funnel,omitempty"`
}

func wantedPath(dir string) string { return filepath.Join(dir, "wanted.json") }

func loadWanted(dir string) (w wanted, err error) {
	data, err := os.ReadFile(wantedPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return w, nil
	}
	if err != nil {
		return w, fmt.Errorf("what was wanted of the tailnet is not known: %w", err)
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return wanted{}, fmt.Errorf("what was wanted of the tailnet is not known, for %s is damaged (%w)", wantedPath(dir),
			err)
	}
	return w, nil
}

func (w wanted) save(dir string) error {
	data, err := json.Marshal(w)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the folder of the tailnet: %w", err)
	}
	return atomicfile.Write(wantedPath(dir), data, 0o600)
}

// namesPath is where the lab's names are between its end and the time when it is in the tailnet again: links and
// certificates hold them.
func namesPath(dir string) string { return filepath.Join(dir, "names.json") }

func loadNames(dir string) (names []string) {
	data, err := os.ReadFile(namesPath(dir))
	if err != nil || json.Unmarshal(data, &names) != nil {
		return nil // they are told soon
	}
	return names
}

func saveNames(dir string, names []string) error {
	data, err := json.Marshal(names)
	if err != nil {
		return err
	}
	return atomicfile.Write(namesPath(dir), data, 0o600)
}

// checkServer returns a control server's address as it is kept.
func checkServer(address string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(address))
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", &Error{Text: fmt.Sprintf("the control server %q is no address; write it like "+
			"https://headscale.example.org", address)}
	case u.User != nil:
		return "", &Error{Text: "the control server's address holds a name or a password; leave it out"}
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "", &Error{Text: fmt.Sprintf("the control server %q has something behind its name; write it like "+
			"https://headscale.example.org", address)}
	}
	return strings.ToLower(u.Scheme + "://" + u.Host), nil
}

var hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func checkHostname(name string) error {
	if !hostnamePattern.MatchString(name) {
		return &Error{Text: fmt.Sprintf("%q cannot be the lab's name in the tailnet; it takes up to 63 small letters, "+
			"figures and hyphens, such as %s", name, usualHostname)}
	}
	return nil
}

// checkKey refuses what would be taken for the names of files, or is none.
func checkKey(key string) error {
	if len(key) > 4096 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return &Error{Text: "this is no key of a tailnet: it must be one word, such as tskey-auth-…"}
	}
	return nil
}

// Error is a sentence, with the next step, for whoever asked for something that cannot be.
type Error struct{ Text string }

func (e *Error) Error() string { return e.Text }
