package webca

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// Where programs on Debian and Ubuntu look.
const (
	localCertsDir   = "/usr/local/share/ca-certificates"
	etcCertsDir     = "/etc/ssl/certs"
	firefoxPolicies = "/etc/firefox/policies/policies.json"
)

var (
	chromiumCommands = []string{
		"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "brave-browser",
	}
	firefoxCommands = []string{"firefox", "firefox-esr"}
)

// Trust makes this machine's programs trust the CA: the system store, and Chromium's and Firefox's where
// they are installed. It returns a line for each: what was done, or what stands in the way and mends it.
// Chromium keeps its store by user: that of whoever called sudo, else of the user who runs this. Done
// again it changes nothing.
func Trust(caPEM []byte) []string {
	return thisHost().each(caPEM, host.trustSystem, host.trustChromium, host.trustFirefox)
}

// Untrust takes back what Trust did, whoever called it, and leaves everything else in those places as it is.
func Untrust(caPEM []byte) []string {
	return thisHost().each(caPEM, host.untrustFirefox, host.untrustChromium, host.untrustSystem)
}

// host is a machine as seen from root (/), and the person whose Chromium is meant.
type host struct {
	root      string
	home      string
	uid, gid  int // of the person; -1: run helpers as ourselves
	installed func(commands ...string) bool
}

func thisHost() host {
	h := host{root: "/", uid: -1, gid: -1, installed: inPath}
	h.home, _ = os.UserHomeDir()
	if os.Geteuid() != 0 {
		return h
	}
	if caller, err := user.Lookup(os.Getenv("SUDO_USER")); err == nil && caller.Uid != "0" {
		uid, err1 := strconv.Atoi(caller.Uid)
		gid, err2 := strconv.Atoi(caller.Gid)
		if err1 == nil && err2 == nil {
			h.home, h.uid, h.gid = caller.HomeDir, uid, gid
		}
	}
	return h
}

func inPath(commands ...string) bool {
	return slices.ContainsFunc(commands, func(c string) bool {
		_, err := findCommand(c)
		return err == nil
	})
}

// findCommand also looks where sudo and snaps put things.
func findCommand(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/snap/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// mark names the CA in each store; part of its fingerprint keeps labs apart.
type mark struct {
	pem  []byte
	file string // in the system store, which Firefox is pointed to
	nick string // in Chromium's
}

func (h host) each(caPEM []byte, steps ...func(host, mark) string) []string {
	cert, err := parseCert(caPEM)
	if err != nil {
		return []string{fmt.Sprintf("Nothing was changed: the CA's file cannot be read (%v).", err)}
	}
	short := strings.ToLower(strings.ReplaceAll(fingerprint(cert), ":", "")[:8])
	m := mark{
		pem: encodeCert(cert.Raw), file: filepath.Join(localCertsDir, "gpulab-"+short+".crt"), nick: "gpulab web CA " + short,
	}
	lines := make([]string, len(steps))
	for i, step := range steps {
		lines[i] = step(h, m)
	}
	return lines
}

// everybody is the host as each person of it sees it who may have called Trust.
func (h host) everybody() []host {
	list := []host{h}
	accounts, err := os.ReadFile(h.path("/etc/passwd"))
	if err != nil || os.Geteuid() != 0 {
		return list
	}
	for line := range strings.Lines(string(accounts)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) < 7 || fields[5] == "" {
			continue
		}
		uid, err1 := strconv.Atoi(fields[2])
		gid, err2 := strconv.Atoi(fields[3])
		other := host{root: h.root, home: h.path(fields[5]), uid: uid, gid: gid, installed: h.installed}
		if err1 == nil && err2 == nil && other.home != h.home && slices.ContainsFunc(other.nssStores(), isStore) {
			list = append(list, other)
		}
	}
	return list
}

// path is where a path of the machine is for us.
func (h host) path(p string) string { return filepath.Join(h.root, p) }

func (h host) trustSystem(m mark) string {
	path := h.path(m.file)
	if _, err := os.Stat(path); err == nil && h.inBundle(m) {
		return "System: trusted already."
	}
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = atomicfile.Write(path, m.pem, 0o644)
	}
	if err == nil {
		err = h.updateSystem()
	}
	if err != nil {
		return fmt.Sprintf("System: not trusted (%v). Install ca-certificates, run as root and try again.", err)
	}
	return "System: trusted, by " + m.file + "."
}

// inBundle looks whether an earlier run was interrupted between the file and the bundle.
func (h host) inBundle(m mark) bool {
	bundle, err := os.ReadFile(h.path(etcCertsDir + "/ca-certificates.crt"))
	return err == nil && strings.Contains(string(bundle), strings.TrimSpace(string(m.pem)))
}

func (h host) untrustSystem(m mark) string {
	err := os.Remove(h.path(m.file))
	if errors.Is(err, fs.ErrNotExist) && !h.inBundle(m) {
		return "System: was not trusted."
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		// Without --fresh it leaves dangling links behind when nothing else changed.
		err = h.updateSystem("--fresh")
	}
	if err != nil {
		return fmt.Sprintf("System: still trusted (%v). Run as root and try again.", err)
	}
	return "System: forgotten."
}

func (h host) updateSystem(args ...string) error {
	if h.root != "/" {
		args = append(args, "--localcertsdir", h.path(localCertsDir), "--etccertsdir", h.path(etcCertsDir),
			"--certsconf", h.path("/etc/ca-certificates.conf"), "--hooksdir", h.path("/etc/ca-certificates/update.d"))
	}
	return run(-1, -1, "", "update-ca-certificates", args...)
}

// nssStores are Chromium's: the usual one, and the snap's where there is one.
func (h host) nssStores() []string {
	stores := []string{filepath.Join(h.home, ".pki/nssdb")}
	if snap := filepath.Join(h.home, "snap/chromium/current/.pki/nssdb"); exists(snap) {
		stores = append(stores, snap)
	}
	return stores
}

func (h host) trustChromium(m mark) string {
	if h.home == "" || !h.installed(chromiumCommands...) {
		return "Chromium: not installed here."
	}
	if !h.installed("certutil") {
		return "Chromium: not trusted, because certutil is missing. Run “apt install libnss3-tools” and try again."
	}
	for _, dir := range h.nssStores() {
		if err := h.trustNSS(dir, m); err != nil {
			return fmt.Sprintf("Chromium: not trusted (%v). Import the CA in its settings instead.", err)
		}
	}
	return fmt.Sprintf("Chromium: trusted, by %s. Restart it.", strings.Join(h.nssStores(), " and "))
}

// storeMark lies in a store that Trust made. Chromium makes its own, and uses one that it finds.
const storeMark = "made-by-gpulab"

func isStore(dir string) bool { return exists(filepath.Join(dir, "cert9.db")) }

func (h host) trustNSS(dir string, m mark) error {
	if !isStore(dir) {
		// Each folder of its own: with -p, a mode is the last one's only.
		for _, args := range [][]string{
			{"mkdir", "-p", "-m", "0700", filepath.Dir(dir)},
			{"mkdir", "-p", "-m", "0700", dir},
			{"certutil", "-N", "--empty-password", "-d", "sql:" + dir},
			{"touch", filepath.Join(dir, storeMark)},
		} {
			if err := h.asPerson(args[0], args[1:]...); err != nil {
				return err
			}
		}
	}
	// From standard input: the person need not be able to read our files. C: trusted for web pages only.
	return run(h.uid, h.gid, string(m.pem), "certutil", "-A", "-d", "sql:"+dir, "-n", m.nick, "-t", "C,,")
}

func (h host) untrustChromium(m mark) string {
	found := false
	for _, person := range h.everybody() {
		for _, dir := range person.nssStores() {
			did, err := person.untrustNSS(dir, m)
			if err != nil {
				return fmt.Sprintf("Chromium: still trusted by %s (%v). Remove the CA in its settings.", dir, err)
			}
			found = found || did
		}
	}
	if !found {
		return "Chromium: was not trusted."
	}
	return "Chromium: forgotten. Restart it."
}

func (h host) untrustNSS(dir string, m mark) (found bool, err error) {
	if !isStore(dir) {
		return false, nil
	}
	if h.asPerson("certutil", "-L", "-d", "sql:"+dir, "-n", m.nick) == nil {
		if err := h.asPerson("certutil", "-D", "-d", "sql:"+dir, "-n", m.nick); err != nil {
			return true, err
		}
		found = true
	}
	if !exists(filepath.Join(dir, storeMark)) {
		return found, nil
	}
	// Ours, and as empty as we made it: it goes too. A folder that holds
	// anything else stays.
	list, err := output(h.uid, h.gid, "", "certutil", "-L", "-d", "sql:"+dir)
	if err != nil {
		return found, err
	}
	if strings.Count(strings.TrimSpace(list), "\n") > 1 { // more than the two lines of the heading
		return found, nil
	}
	for _, name := range []string{storeMark, "cert9.db", "key4.db", "pkcs11.txt"} {
		if err := h.asPerson("rm", "-f", filepath.Join(dir, name)); err != nil {
			return found, err
		}
	}
	_ = h.asPerson("rmdir", dir, filepath.Dir(dir))
	return found, nil
}

func (h host) trustFirefox(m mark) string {
	if !h.installed(firefoxCommands...) {
		return "Firefox: not installed here."
	}
	changed, err := h.editPolicies(func(install []string) []string {
		if slices.Contains(install, m.file) {
			return install
		}
		return append(install, m.file)
	})
	switch {
	case err != nil:
		return fmt.Sprintf("Firefox: not trusted (%v). Import the CA in its settings instead.", err)
	case !changed:
		return "Firefox: trusted already."
	}
	return "Firefox: trusted, by " + firefoxPolicies + ". Restart it."
}

func (h host) untrustFirefox(m mark) string {
	changed, err := h.editPolicies(func(install []string) []string {
		return slices.DeleteFunc(install, func(path string) bool { return path == m.file })
	})
	switch {
	case err != nil:
		return fmt.Sprintf("Firefox: still trusted (%v). Take %s out of %s.", err, m.file, firefoxPolicies)
	case !changed:
		return "Firefox: was not trusted."
	}
	return "Firefox: forgotten. Restart it."
}

// editPolicies changes policies.Certificates.Install and nothing else. What becomes empty disappears,
// the file included.
func (h host) editPolicies(edit func(install []string) []string) (changed bool, err error) {
	path := h.path(firefoxPolicies)
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	top, policies, certificates := object{}, object{}, object{}
	var install []string
	if len(data) > 0 {
		err := errors.Join(json.Unmarshal(data, &top), top.get("policies", &policies),
			policies.get("Certificates", &certificates), certificates.get("Install", &install))
		if err != nil {
			return false, fmt.Errorf("%s holds something unexpected: %w", firefoxPolicies, err)
		}
		for _, o := range []*object{&top, &policies, &certificates} {
			if *o == nil { // null in the file
				*o = object{}
			}
		}
	}
	edited := edit(slices.Clone(install))
	if slices.Equal(edited, install) {
		return false, nil
	}
	err = errors.Join(certificates.set("Install", edited, len(edited) == 0),
		policies.set("Certificates", certificates, len(certificates) == 0), top.set("policies", policies, len(policies) == 0))
	if err != nil {
		return false, err
	}
	return true, savePolicies(path, top)
}

func savePolicies(path string, top object) error {
	if len(top) == 0 {
		if err := os.Remove(path); err != nil {
			return err
		}
		// Both stay where they hold anything else.
		_ = os.Remove(filepath.Dir(path))
		_ = os.Remove(filepath.Dir(filepath.Dir(path)))
		return nil
	}
	data, err := json.MarshalIndent(top, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o644)
}

// object is a JSON object whose other values stay as they are written.
type object map[string]json.RawMessage

func (o object) get(name string, into any) error {
	raw, ok := o[name]
	if !ok {
		return nil
	}
	return json.Unmarshal(raw, into)
}

func (o object) set(name string, value any, empty bool) error {
	if empty {
		delete(o, name)
		return nil
	}
	raw, err := json.Marshal(value)
	o[name] = raw
	return err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (h host) asPerson(name string, args ...string) error {
	return run(h.uid, h.gid, "", name, args...)
}

func run(uid, gid int, stdin, name string, args ...string) error {
	_, err := output(uid, gid, stdin, name, args...)
	return err
}

// output runs a helper as the given user (-1: as ourselves) and returns what it said; its error is the
// last of that.
func output(uid, gid int, stdin, name string, args ...string) (string, error) {
	path, err := findCommand(name)
	if err != nil {
		return "", fmt.Errorf("%s is not installed", name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.Stdin = strings.NewReader(stdin)
	if uid >= 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		said := strings.TrimSpace(string(out))
		if i := strings.LastIndexByte(said, '\n'); i >= 0 {
			said = said[i+1:]
		}
		return "", fmt.Errorf("%s: %w: %s", name, err, said)
	}
	return string(out), nil
}
