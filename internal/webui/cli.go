package webui

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/gpulab/gpulab/internal/units"
)

// A clientBuild is one program for people's own computers.
type clientBuild struct {
	File   string `json:"file"`
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// readClients reads what programs there are; none were built where there is no list.
func readClients(files fs.FS) ([]clientBuild, error) {
	text, err := fs.ReadFile(files, "index.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var builds []clientBuild
	return builds, json.Unmarshal(text, &builds)
}

// A cliView says how to get the commands onto one's own computer, and what to do with them.
type cliView struct {
	Systems     []cliSystem // the visitor's own first
	Missing     string      // names of systems without a program
	Login       string      // the command that signs in
	Fingerprint bool        // the command names the lab's own authority
}

// A cliSystem is a kind of computer.
type cliSystem struct {
	key, Name string
	Shell     string // where its lines are typed
	Builds    []cliBuildView
}

type cliBuildView struct{ File, Machine, Size, Line string }

// cliSystems are the kinds of computers, with the line that fetches a program: %[1]s is its address, %[2]s its SHA-256.
// The line takes any certificate (-k) because the sum, which comes from a page that the visitor trusts, says more.
var cliSystems = []struct {
	key, name, shell, line string
	machines               map[string]string
}{
	{"linux",
		"Linux",
		"a terminal",
		`mkdir -p ~/.local/bin && curl -fsSko ~/.local/bin/gpulab %[1]s && ` +
			`echo "%[2]s  $HOME/.local/bin/gpulab" | sha256sum -c && chmod +x ~/.local/bin/gpulab`,
		map[string]string{"amd64": "Intel or AMD", "arm64": "ARM"}},
	{"darwin",
		"Mac",
		"the Terminal",
		`sudo mkdir -p /usr/local/bin && sudo curl -fsSko /usr/local/bin/gpulab %[1]s && ` +
			`echo "%[2]s  /usr/local/bin/gpulab" | shasum -a 256 -c && sudo chmod +x /usr/local/bin/gpulab`,
		map[string]string{"arm64": "Apple M1 and newer", "amd64": "Intel"}},
	{"windows",
		"Windows",
		"PowerShell",
		`$f = "$env:LOCALAPPDATA\Microsoft\WindowsApps\gpulab.exe"; curl.exe -fsSko $f %[1]s; ` +
			`if ((Get-FileHash $f).Hash -ne "%[2]s") { Remove-Item $f; "This is not what the lab offers." }`,
		map[string]string{"amd64": "Intel or AMD", "arm64": "ARM"}},
}

// systemOf is the kind of computer that a browser runs on.
func systemOf(userAgent string) string {
	switch deviceOf(userAgent) {
	case "macos", "ios":
		return "darwin"
	case "windows":
		return "windows"
	}
	if strings.Contains(userAgent, "Windows") {
		return "windows"
	} else if strings.Contains(userAgent, "Macintosh") {
		return "darwin"
	}
	return "linux"
}

func (s *Server) cliPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	view := cliView{Login: "gpulab login https://" + r.Host}
	if certificate, err := s.authority(); err == nil {
		view.Login += " --fingerprint " + strings.ReplaceAll(fingerprint(certificate.Raw), ":", "")
		view.Fingerprint = true
	}
	own := systemOf(r.UserAgent())
	var missing []string
	for _, system := range cliSystems {
		shown := cliSystem{key: system.key, Name: system.name, Shell: system.shell}
		for _, b := range s.builds {
			if b.OS == system.key {
				shown.Builds = append(shown.Builds, cliBuildView{File: b.File, Machine: orElse(system.machines[b.Arch], b.Arch),
					Size: units.Bytes(uint64(b.Size)),
					Line: fmt.Sprintf(system.line, "https://"+r.Host+"/cli/"+b.File, b.SHA256)})
			}
		}
		if len(shown.Builds) > 0 {
			view.Systems = append(view.Systems, shown)
			for _, arch := range slices.Sorted(maps.Keys(system.machines)) {
				if !slices.ContainsFunc(s.builds, func(b clientBuild) bool { return b.OS == system.key && b.Arch == arch }) {
					missing = append(missing, system.name+" on "+system.machines[arch])
				}
			}
		} else {
			missing = append(missing, system.name)
		}
	}
	view.Missing = units.List(missing)
	slices.SortStableFunc(view.Systems, func(a, b cliSystem) int { return notOwn(a.key, own) - notOwn(b.key, own) })
	s.render(w, r, http.StatusOK, cliPage(s.page(w, r, v, "Command line", ""), view))
	return nil
}

func notOwn(key, own string) int {
	if key == own {
		return 0
	}
	return 1
}

// downloadClient sends a program to whoever asks: there is nothing of the lab in it.
func (s *Server) downloadClient(w http.ResponseWriter, r *http.Request, _ visitor) error {
	i := slices.IndexFunc(s.builds, func(b clientBuild) bool { return b.File == r.PathValue("file") })
	if i < 0 {
		return errNoPage
	}
	packed, err := s.cfg.Clients.Open(s.builds[i].File + ".zst")
	if err != nil {
		return fmt.Errorf("open a program for people's computers: %w", err)
	}
	defer func() { _ = packed.Close() }()
	unpacked, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("unpack a program for people's computers: %w", err)
	}
	defer unpacked.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+s.builds[i].File+`"`)
	w.Header().Set("Content-Length", strconv.FormatInt(s.builds[i].Size, 10))
	if r.Method == http.MethodHead {
		return nil
	}
	if _, err := io.Copy(w, unpacked); err != nil && r.Context().Err() == nil {
		s.cfg.Log.Error("download broke off", "file", s.builds[i].File, "error", err)
		panic(http.ErrAbortHandler) // part of it is sent: the browser must see that it is not all
	}
	return nil
}
