// Package config reads, checks and writes /etc/gpulab/config.yaml.
//
// Config has the values, each with a type that parses it. The table of keys in keys.go has everything else about a key:
// its default, its check and its documentation. Save writes the file with that documentation, Reference makes
// docs/configuration.md from it, and errors name the key and its line.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/power"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/webca"
)

const (
	// DefaultPath is where the configuration is.
	DefaultPath = "/etc/gpulab/config.yaml"
	// DefaultDataDir is the folder with all state.
	DefaultDataDir = "/var/lib/gpulab"
	// DefaultNodesPort is the port on which machines join.
	DefaultNodesPort = 8444
	// MaxSharing is the largest number of notebooks that take turns on one GPU.
	MaxSharing = 48
)

// Values of Config.GPUs.
const (
	GPUsReal      = "real"
	GPUsSimulated = "simulated"
	GPUsNone      = "none"
)

// SignUpApproval is a value of Config.SignUp: people request accounts, and an admin decides.
const SignUpApproval Word = "approval"

// Config is the configuration. Every key may be left out. The table of keys documents each.
type Config struct {
	Lab            string    `json:"lab,omitempty"`
	Address        string    `json:"address,omitempty"`
	Names          []string  `json:"names,omitempty"`
	LocalName      LocalName `json:"localName,omitempty"`
	TLS            TLS       `json:"tls,omitzero"`
	TrustedProxies []Prefix  `json:"trustedProxies,omitempty"`
	HTTPSPort      int       `json:"httpsPort,omitempty"`
	HubPort        int       `json:"hubPort,omitempty"`
	HTTPPort       *int      `json:"httpPort,omitempty"` // 0 for none; not nil after SetDefaults
	ServicePorts   Ports     `json:"servicePorts,omitzero"`
	NotebookPorts  Ports     `json:"notebookPorts,omitzero"`
	NodesPort      int       `json:"nodesPort,omitempty"`
	NodesHidden    bool      `json:"nodesHidden,omitempty"`

	GPUs          Word     `json:"gpus,omitempty"` // GPUsReal, GPUsSimulated or GPUsNone; init decides and writes it
	SimulatedGPUs int      `json:"simulatedGPUs,omitempty"`
	StayAwake     Word     `json:"stayAwake,omitempty"` // a power.Policy
	TimeZone      TimeZone `json:"timezone,omitempty"`
	GPUSharing    int      `json:"gpuSharing,omitempty"`
	DataDir       string   `json:"dataDir,omitempty"`
	ImagesDir     string   `json:"imagesDir,omitempty"`

	Profiles []notebooks.Profile `json:"profiles,omitempty"`
	SignUp   Word                `json:"signUp,omitempty"` // Off or SignUpApproval
	SignIn   []signin.Config     `json:"signin,omitempty"`
	Tailnet  Tailnet             `json:"tailnet,omitzero"`
	Metrics  Metrics             `json:"metrics,omitzero"`

	Quotas Quotas `json:"quotas,omitzero"`
	Queue  Queue  `json:"queue,omitzero"`
	Idle   Idle   `json:"idle,omitzero"`

	Storage      Storage      `json:"storage,omitzero"`
	Environments Environments `json:"environments,omitzero"`
	Packages     Packages     `json:"packages,omitzero"`
	Models       Models       `json:"models,omitzero"`

	Files   Files       `json:"files,omitzero"`
	Mail    mail.Config `json:"mail,omitzero"`
	Network Network     `json:"network,omitzero"`
	K3s     K3s         `json:"k3s,omitempty"`
}

// TLS names the files of a certificate from another authority.
type TLS struct {
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
}

func (t TLS) check() error {
	switch {
	case t == TLS{}:
		return nil
	case t.Certificate == "" || t.Key == "":
		return errors.New("tls needs both: certificate, the file with the certificate, and key, the file with its key")
	case !filepath.IsAbs(t.Certificate) || !filepath.IsAbs(t.Key):
		return errors.New("tls.certificate and tls.key must be full paths of files")
	}
	return nil
}

// Open reads the certificate; without one it is nil.
func (t TLS) Open() (*webca.Own, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	return webca.OpenOwn(t.Certificate, t.Key)
}

// Metrics says who may read /metrics without its token.
type Metrics struct {
	Enabled  *bool    `json:"enabled,omitempty"` // not nil after SetDefaults
	Networks []Prefix `json:"networks,omitempty"`
}

// Quotas says from when quotas count, and how long they wait.
type Quotas struct {
	TermBegins Day      `json:"termBegins,omitzero"`
	Grace      Duration `json:"grace,omitzero"`
}

// Storage says where homes and shared folders are.
type Storage struct {
	MeasureEvery Duration `json:"measureEvery,omitzero"`
	Shared       string   `json:"shared,omitempty"`
	Export       string   `json:"export,omitempty"` // ExportNFS, or empty
	Scratch      Size     `json:"scratch,omitzero"`
}

// ExportNFS is the value of storage.export with which the head exports homes to its pool over NFS.
const ExportNFS = "nfs"

// Everywhere reports whether every machine of the pool has everyone's homes.
func (s Storage) Everywhere() bool { return s.Shared != "" || s.Export != "" }

func (s Storage) checkExport() error {
	switch {
	case s.Export != "" && s.Export != ExportNFS:
		return fmt.Errorf("storage.export is %q; it may be nfs, or left out", s.Export)
	case s.Export != "" && s.Shared != "":
		return errors.New("storage.export and storage.shared are both given: homes are on the head, which exports them to " +
			"the other machines (export), or on storage that all mount (shared)")
	}
	return nil
}

func checkShared(path, dataDir string) error {
	dataDir = filepath.Clean(dataDir)
	switch {
	case path == "":
		return nil
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fmt.Errorf("storage.shared is %q, but must be the full path of a folder that every machine mounts, such as "+
			"/srv/lab", path)
	case path == dataDir || strings.HasPrefix(path, dataDir+"/") || strings.HasPrefix(dataDir, path+"/"):
		return fmt.Errorf("storage.shared is %s, which lies in or around dataDir, %s; mount the storage elsewhere", path,
			dataDir)
	}
	return nil
}

// Environments says where the packages of environments come from.
type Environments struct {
	Index  string `json:"index,omitempty"`
	Debian string `json:"debian,omitempty"`
	Cache  Size   `json:"cache,omitzero"`
}

// Packages says where pip in notebooks and jobs gets packages from.
type Packages struct {
	Index string `json:"index,omitempty"`
	Cache Size   `json:"cache,omitzero"`
}

// Models says where notebooks and jobs get models from.
type Models struct {
	Hub   string `json:"hub,omitempty"`
	Cache Size   `json:"cache,omitzero"`
}

// K3s is for unusual machines.
type K3s struct {
	PodMaxPIDs  int      `json:"podMaxPids,omitempty"`
	KubeletArgs []string `json:"kubeletArgs,omitempty"`
}

// Error is a mistake in the file. Its text names the file, the line and the key.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// Load reads the file. A missing file is an empty one. Unknown keys are an error, so that a typing mistake is noticed.
func Load(path string) (Config, error) {
	var c Config
	c.setNumbers()
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("the configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return c, &Error{fmt.Errorf("%s: %w; correct it and try again", path, explain(data, err))}
	}
	c.SetDefaults()
	if err := c.Check(); err != nil {
		return c, &Error{fmt.Errorf("%s: %w", path, withLine(data, err))}
	}
	return c, nil
}

// setNumbers sets the defaults of numbers for which 0 is a mistake rather than an absent key.
func (c *Config) setNumbers() {
	for _, k := range keys() {
		if f := c.field(k.path); k.zero && f.Kind() == reflect.Int {
			k.set(f)
		}
	}
}

// SetDefaults gives every absent key its default.
func (c *Config) SetDefaults() {
	for _, k := range keys() {
		if f := c.field(k.path); k.usual != "" && f.IsZero() && (!k.zero || f.Kind() == reflect.Pointer) {
			k.set(f)
		}
	}
	c.DataDir = filepath.Clean(c.DataDir) // it is compared with other paths
	if c.StayAwake == "true" {
		c.StayAwake = Word(power.Always) // YAML reads on as true
	}
	if c.NotebookPorts.IsZero() {
		c.NotebookPorts = c.usualNotebookPorts()
	}
}

// set gives a field the key's default.
func (k *key) set(field reflect.Value) {
	if err := yaml.Unmarshal([]byte(k.usual), field.Addr().Interface()); err != nil {
		panic(fmt.Sprintf("the default of %s: %v", k.path, err)) // a test reads all defaults
	}
}

// Check reports the first mistake, in the order of the file.
func (c *Config) Check() error {
	for _, k := range keys() {
		if k.check == nil {
			continue
		}
		if err := k.check(c); err != nil {
			return err
		}
	}
	return nil
}

// field returns the field of a key.
func (c *Config) field(path string) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = fieldNamed(v, name)
	}
	return v
}

// fieldNamed returns the field of a struct by the name it has in the file.
func fieldNamed(of reflect.Value, name string) reflect.Value {
	for _, f := range reflect.VisibleFields(of.Type()) {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return of.FieldByIndex(f.Index)
		}
	}
	panic("the configuration has no key " + name) // a test looks up all keys
}

// LaunchProfiles returns the profiles that the configuration replaces the default ones with; nil for those of package
// notebooks. Where notebooks share GPUs, the default ones say so.
func (c *Config) LaunchProfiles() []notebooks.Profile {
	if len(c.Profiles) > 0 || c.GPUSharing < 2 {
		return c.Profiles
	}
	usual := notebooks.DefaultProfiles()
	for i := range usual {
		if usual[i].GPUs > 0 {
			usual[i].Description = fmt.Sprintf("JupyterLab with a GPU that up to %d notebooks take turns on; "+
				"they share its memory.", c.GPUSharing)
		}
	}
	return usual
}

// UsualProfiles returns the profiles that the lab has.
func (c *Config) UsualProfiles() []notebooks.Profile {
	if list := c.LaunchProfiles(); len(list) > 0 {
		return list
	}
	return notebooks.DefaultProfiles()
}

// CheckLab reports what is wrong with a lab's name.
func CheckLab(name string) error {
	if len(name) > 60 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("lab must be one line of at most 60 characters")
	}
	return nil
}

// URL is where people open the lab: under its first name, or at an address.
func (c *Config) URL(address func() netip.Addr) string {
	return URL(c.HostOf(address()), c.HTTPSPort)
}

// HostOf is the name under which people open the lab at an address.
func (c *Config) HostOf(address netip.Addr) string {
	switch {
	case len(c.OwnNames()) > 0:
		return c.OwnNames()[0]
	case address.IsValid():
		return address.String()
	}
	return "localhost"
}

// URL is where people open a port under a name or an IP address.
func URL(host string, port int) string {
	switch {
	case port != 443:
		host = net.JoinHostPort(host, strconv.Itoa(port))
	case strings.Contains(host, ":"): // IPv6
		host = "[" + host + "]"
	}
	return "https://" + host
}
