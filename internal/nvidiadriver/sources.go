package nvidiadriver

import (
	"slices"
	"strings"
)

// component is the part of a distribution's archive in which the driver lies.
type component string

const (
	nonFree    component = "contrib non-free non-free-firmware" // Debian
	restricted component = "restricted"                         // Ubuntu
)

// SourceFile is where a missing component is added to apt's sources.
const SourceFile = "/etc/apt/sources.list.d/non-free.sources"

// source is one entry of apt's sources.
type source struct{ uris, suites, components, signedBy string }

type sources []source

// sources reads apt's sources, in both formats.
func (t tree) sources() sources {
	var all sources
	add := func(path string) {
		text := t.read(path)
		if strings.HasSuffix(path, ".sources") {
			all = append(all, deb822(text)...)
			return
		}
		for line := range strings.Lines(text) {
			if s, ok := oneLine(line); ok {
				all = append(all, s)
			}
		}
	}
	add("/etc/apt/sources.list")
	for _, name := range t.list("/etc/apt/sources.list.d") {
		if strings.HasSuffix(name, ".list") || strings.HasSuffix(name, ".sources") {
			add("/etc/apt/sources.list.d/" + name)
		}
	}
	return all
}

// oneLine reads "deb [signed-by=…] URI SUITE COMPONENT…".
func oneLine(line string) (s source, ok bool) {
	line, _, _ = strings.Cut(line, "#")
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
	if !ok {
		return s, false
	}
	rest = strings.TrimSpace(rest)
	if options, after, found := strings.Cut(rest, "]"); found && strings.HasPrefix(rest, "[") {
		for _, option := range strings.Fields(options[1:]) {
			if value, is := strings.CutPrefix(option, "signed-by="); is {
				s.signedBy = value
			}
		}
		rest = after
	}
	fields := strings.Fields(rest)
	if len(fields) < 3 {
		return s, false
	}
	s.uris, s.suites, s.components = fields[0], fields[1], strings.Join(fields[2:], " ")
	return s, true
}

// deb822 reads stanzas of "Key: value" lines. A value on several lines, such as a key, is left out.
func deb822(text string) sources {
	var all sources
	for _, stanza := range strings.Split(text, "\n\n") {
		values := map[string]string{}
		for line := range strings.Lines(stanza) {
			if key, value, ok := strings.Cut(line, ":"); ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, " ") {
				values[strings.ToLower(key)] = strings.TrimSpace(value)
			}
		}
		if slices.Contains(strings.Fields(values["types"]), "deb") && values["enabled"] != "no" {
			all = append(all, source{values["uris"], values["suites"], values["components"], values["signed-by"]})
		}
	}
	return all
}

// add is the command that adds the distribution's component, empty where it is there.
func (all sources) add(system System, want component) Step {
	base := source{
		uris: "http://deb.debian.org/debian", suites: system.Codename,
		signedBy: "/usr/share/keyrings/debian-archive-keyring.gpg",
	}
	if system.ubuntu() {
		base.uris, base.signedBy = "http://archive.ubuntu.com/ubuntu", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
	}
	have, found := []string{}, false
	for _, s := range all {
		if slices.Contains(strings.Fields(s.suites), system.Codename) &&
			slices.Contains(strings.Fields(s.components), "main") {
			if !found {
				base, found = s, true
			}
		}
		if slices.Contains(strings.Fields(s.suites), system.Codename) {
			have = append(have, strings.Fields(s.components)...)
		}
	}
	var missing []string
	for _, c := range strings.Fields(string(want)) {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return Step{}
	}
	lines := []string{
		"Types: deb", "URIs: " + base.uris, "Suites: " + all.suitesLike(system, base),
		"Components: " + strings.Join(missing, " "),
	}
	if base.signedBy != "" {
		lines = append(lines, "Signed-By: "+base.signedBy)
	}
	quoted := make([]string, len(lines))
	for i, l := range lines {
		quoted[i] = "'" + strings.ReplaceAll(l, "'", `'\''`) + "'"
	}
	return Step{
		Why:     "add the part of the archive that the driver is in (" + strings.Join(missing, ", ") + ")",
		Command: `printf '%s\n' ` + strings.Join(quoted, " ") + " >" + SourceFile,
	}
}

// suitesLike are the release and its updates, as far as this machine follows them.
func (all sources) suitesLike(system System, base source) string {
	suites := system.Codename
	for _, s := range all {
		if s.uris == base.uris && slices.Contains(strings.Fields(s.suites), system.Codename+"-updates") {
			return suites + " " + system.Codename + "-updates"
		}
	}
	return suites
}
