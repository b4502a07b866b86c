// Package config reads, checks and writes /etc/gpulab/config.yaml.
package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/power"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/webca"
	"sigs.k8s.io/yaml"
)

const (
	DefaultPath    = "/etc/gpulab/config.yaml"
	DefaultDataDir = "/var/lib/gpulab"
)

// DefaultNodesPort is the port for machines that join.
const DefaultNodesPort = 8444

// MaxSharing bounds how many notebooks take turns on one GPU.
const MaxSharing = 48

// GPU modes of Config.GPUs.
const (
	GPUsReal      = "real"
	GPUsSimulated = "simulated"
	GPUsNone      = "none"
)

// Config is /etc/gpulab/config.yaml. Every key may be left out.
type Config struct {
	// Lab is the lab's name as the page shows it.
	Lab string `json:"lab,omitempty"`
	// Address is this machine's address; empty finds the one with the default
	// route at every start.
	Address string `json:"address,omitempty"`
	// Names are further names people reach this machine by. "*.lab.example.org" gives each
	// person's notebooks a name below lab.example.org.
	Names []string `json:"names,omitempty"`
	// LocalName is the lab's name on the local network, without ".local", or off.
	LocalName LocalName `json:"localName,omitempty"`
	// TLS is a certificate of the lab's own for some of its names.
	TLS TLS `json:"tls,omitzero"`
	// TrustedProxies are the reverse proxies before this lab: "10.1.2.3", or a network.
	TrustedProxies []string `json:"trustedProxies,omitempty"`
	// HTTPSPort serves pages, HubPort leads to notebooks and services by their
	// lasting addresses, HTTPPort redirects to HTTPS (0 turns it off).
	HTTPSPort int  `json:"httpsPort,omitempty"`
	HubPort   int  `json:"hubPort,omitempty"`
	HTTPPort  *int `json:"httpPort,omitempty"`
	// ServicePorts are the head's ports through which services are to be had, each
	// an origin of its own: 8500-8699, or off.
	ServicePorts ServicePorts `json:"servicePorts,omitempty"`
	// NotebookPorts are the head's ports for notebooks, one for each person: 21000-21999.
	NotebookPorts NotebookPorts `json:"notebookPorts,omitempty"`
	// NodesPort is where further machines join and report, once there are any.
	NodesPort int `json:"nodesPort,omitempty"`
	// NodesHidden keeps this head from being announced on the local network while
	// machines may join.
	NodesHidden bool `json:"nodesHidden,omitempty"`
	// GPUs is real, simulated or none; init decides and writes it down.
	GPUs string `json:"gpus,omitempty"`
	// SimulatedGPUs is how many GPUs to simulate.
	SimulatedGPUs int `json:"simulatedGPUs,omitempty"`
	// StayAwake says what keeps this machine awake: notebooks, lid-open or off.
	StayAwake StayAwake `json:"stayAwake,omitempty"`
	// TimeZone is the time zone of notebooks, jobs and services; empty stands for this machine's.
	TimeZone TimeZone `json:"timezone,omitempty"`
	// GPUSharing is how many notebooks share each GPU by taking turns.
	GPUSharing int `json:"gpuSharing,omitempty"`
	// DataDir holds all state.
	DataDir string `json:"dataDir,omitempty"`
	// ImagesDir holds the container images; empty looks beside the program,
	// then in /usr/share/gpulab/images.
	ImagesDir string `json:"imagesDir,omitempty"`
	// Profiles are the cards people launch notebooks from, in this order;
	// empty gives one without a GPU and one with one.
	Profiles []notebooks.Profile `json:"profiles,omitempty"`
	// SignUp says whether anybody may ask for an account: off or approval.
	SignUp SignUp `json:"signUp,omitempty"`
	// SignIn are outside identity providers with which people sign in.
	SignIn []signin.Config `json:"signin,omitempty"`
	// Tailnet says who comes in over the tailnet, where the lab is in one.
	Tailnet Tailnet `json:"tailnet,omitzero"`
	// Metrics says who may read /metrics.
	Metrics Metrics `json:"metrics,omitzero"`
	// Quotas says what quotas count from and how long they wait; the quotas
	// themselves are set while the lab runs.
	Quotas Quotas `json:"quotas,omitzero"`
	// Queue says how past use counts in the line for GPUs.
	Queue Queue `json:"queue,omitzero"`
	// Idle says what becomes of GPUs that nobody uses, and how old notebooks get.
	Idle Idle `json:"idle,omitzero"`
	// Storage says how homes and shared folders are looked after.
	Storage Storage `json:"storage,omitzero"`
	// Environments says where their packages come from.
	Environments Environments `json:"environments,omitzero"`
	// Packages says where pip in notebooks gets packages from.
	Packages Packages `json:"packages,omitzero"`
	// Models says where notebooks get models from.
	Models Models `json:"models,omitzero"`
	// Files says where people bring files in and out.
	Files Files `json:"files,omitzero"`
	// Mail is the server that takes the lab's mails.
	Mail mail.Config `json:"mail,omitzero"`
	// Network says what notebooks may reach besides the internet.
	Network Network `json:"network,omitzero"`
	// K3s passes further options on.
	K3s K3s `json:"k3s,omitempty"`
}

// TLS names the files of a certificate that another authority has signed.
type TLS struct {
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
}

func (t TLS) Check() error {
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

// open reads the certificate; without one it is nil.
func (t TLS) Open() (*webca.Own, error) {
	if t == (TLS{}) {
		return nil, nil
	}
	return webca.OpenOwn(t.Certificate, t.Key)
}

// SignUp is how people without an invitation come in.
type SignUp string

// The ways of SignUp.
const (
	SignUpOff      SignUp = "off"
	SignUpApproval SignUp = "approval" // they ask, an admin decides
)

// UnmarshalJSON takes the word off, which is false in YAML.
func (s *SignUp) UnmarshalJSON(data []byte) error {
	*s = SignUp(wordOrOff(data))
	return nil
}

// wordOrOff is the word that stands in the configuration; what is none stays as it
// is there, to be refused by its name.
func wordOrOff(data []byte) (word string) {
	switch {
	case string(data) == "false":
		return "off"
	case json.Unmarshal(data, &word) != nil:
		return string(data)
	}
	return word
}

// Metrics says who may read the metrics besides whoever has the token.
type Metrics struct {
	// Enabled false takes /metrics away.
	Enabled *bool `json:"enabled,omitempty"`
	// Networks may read without the token: "10.1.2.0/24", or one address.
	Networks []string `json:"networks,omitempty"`
}

// On tells whether there are metrics.
func (m Metrics) On() bool { return *m.Enabled }

func (m Metrics) NetworkList() ([]netip.Prefix, error) {
	return ParseNetworks("metrics.networks", m.Networks)
}

// ParseNetworks takes networks and single machines.
func ParseNetworks(key string, list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range list {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Zone() == "" {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s holds %q, but a network is written as 10.1.2.0/24, and one machine as 10.1.2.3", key, text)
		}
		if p != p.Masked() {
			return nil, fmt.Errorf("%s holds %s, which is a machine and a network at once; write %s or %s", key, p, p.Masked(), p.Addr())
		}
		out = append(out, p)
	}
	return out, nil
}

// K3s is for unusual machines.
type K3s struct {
	// PodMaxPIDs is how many processes and threads a notebook may have.
	PodMaxPIDs  int      `json:"podMaxPids,omitempty"`
	KubeletArgs []string `json:"kubeletArgs,omitempty"`
}

func (c *Config) SetDefaults() {
	if c.DataDir != "" {
		c.DataDir = filepath.Clean(c.DataDir) // paths are compared with it
	}
	if c.Lab == "" {
		c.Lab = "GPU lab"
	}
	if c.HTTPSPort == 0 {
		c.HTTPSPort = 443
	}
	if c.HubPort == 0 {
		c.HubPort = 8443
	}
	if c.HTTPPort == nil {
		port := 80
		c.HTTPPort = &port
	}
	if c.NodesPort == 0 {
		c.NodesPort = DefaultNodesPort
	}
	if c.ServicePorts == "" {
		c.ServicePorts = "8500-8699"
	}
	if c.NotebookPorts == "" {
		c.NotebookPorts = c.DefaultNotebookPorts()
	}
	if c.Metrics.Enabled == nil {
		on := true
		c.Metrics.Enabled = &on
	}
	if c.LocalName == "" {
		c.LocalName = "gpulab"
	}
	if c.SignUp == "" {
		c.SignUp = SignUpOff
	}
	if c.Tailnet.SignIn == "" {
		c.Tailnet.SignIn = TailnetOff
	}
	if c.StayAwake == "" {
		c.StayAwake = StayAwake(power.Always)
	}
	if c.Files.Listen == "" {
		c.Files.Listen = ":2022"
	}
	if c.K3s.PodMaxPIDs == 0 {
		c.K3s.PodMaxPIDs = 4096
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	if c.GPUs == "" {
		c.GPUs = GPUsNone
	}
	if c.Quotas.Grace == "" {
		c.Quotas.Grace = "1h"
	}
	if c.Queue.HalfLife == "" {
		c.Queue.HalfLife = "168h"
	}
	if c.Queue.Sampling == "" {
		c.Queue.Sampling = "1m"
	}
	if c.Queue.Preemption == "" {
		c.Queue.Preemption = string(notebooks.PreemptOffered)
	}
	if c.Queue.MinimumRun == "" {
		c.Queue.MinimumRun = "5m"
	}
	c.Idle.SetDefaults()
	if c.Storage.MeasureEvery == "" {
		c.Storage.MeasureEvery = "10m"
	}
	if c.Storage.Scratch == "" {
		c.Storage.Scratch = defaultScratch
	}
	if c.Environments.Cache == "" {
		c.Environments.Cache = "10Gi"
	}
	if c.Packages.Cache == "" {
		c.Packages.Cache = "20Gi"
	}
	if c.Models.Cache == "" {
		c.Models.Cache = "50Gi"
	}
}

func (c *Config) Check() error {
	for name, port := range map[string]int{"httpsPort": c.HTTPSPort, "hubPort": c.HubPort, "httpPort": *c.HTTPPort, "nodesPort": c.NodesPort} {
		if port < 0 || port > 65535 {
			return fmt.Errorf("%s is %d, but ports go from 1 to 65535", name, port)
		}
	}
	if c.HTTPSPort == c.HubPort {
		return fmt.Errorf("httpsPort and hubPort are both %d, but pages and notebooks need a port each", c.HubPort)
	}
	if _, err := c.ServicePortList(); err != nil {
		return err
	}
	if _, err := c.NotebookPortList(); err != nil {
		return err
	}
	if err := c.checkWildcards(); err != nil {
		return err
	}
	switch c.GPUs {
	case GPUsReal, GPUsSimulated, GPUsNone:
	default:
		return fmt.Errorf("gpus is %q; it may be real, simulated or none", c.GPUs)
	}
	if c.SignUp != SignUpOff && c.SignUp != SignUpApproval {
		return fmt.Errorf("signUp is %q; it may be off or approval", c.SignUp)
	}
	if err := c.LocalName.Check(); err != nil {
		return err
	}
	if c.SimulatedGPUs < 1 || c.SimulatedGPUs > 16 {
		return fmt.Errorf("simulatedGPUs is %d; it may be 1 to 16", c.SimulatedGPUs)
	}
	if c.GPUSharing < 1 || c.GPUSharing > MaxSharing {
		return fmt.Errorf("gpuSharing is %d; it may be 1 (each GPU is one notebook's at a time) to %d", c.GPUSharing, MaxSharing)
	}
	if !filepath.IsAbs(c.DataDir) || filepath.Clean(c.DataDir) == "/" {
		return fmt.Errorf("dataDir is %q, but must be the full path of a folder of its own", c.DataDir)
	}
	if err := CheckLab(c.Lab); err != nil {
		return err
	}
	if err := c.StayAwake.Check(); err != nil {
		return err
	}
	if err := c.TimeZone.Check(); err != nil {
		return err
	}
	if _, err := c.Metrics.NetworkList(); err != nil {
		return err
	}
	if _, err := ParseNetworks("trustedProxies", c.TrustedProxies); err != nil {
		return err
	}
	if err := c.TLS.Check(); err != nil {
		return err
	}
	if _, err := c.Quotas.Term(); err != nil {
		return err
	}
	if _, err := c.Quotas.GraceTime(); err != nil {
		return err
	}
	if _, err := c.Queue.HalfLifeTime(); err != nil {
		return err
	}
	if _, err := c.Queue.SamplingTime(); err != nil {
		return err
	}
	if _, err := c.Queue.CheckedShares(); err != nil {
		return err
	}
	if _, err := c.Queue.PreemptionKind(); err != nil {
		return err
	}
	if _, err := c.Queue.MinimumRunTime(); err != nil {
		return err
	}
	if _, err := c.Idle.Policies(c.UsualProfiles()); err != nil {
		return err
	}
	if _, err := c.Storage.MeasureInterval(); err != nil {
		return err
	}
	if _, err := c.Environments.CacheBytes(); err != nil {
		return err
	}
	if err := environments.CheckIndex(c.Environments.Index); err != nil {
		return fmt.Errorf("environments.index: %w", err)
	}
	if err := environments.CheckMirror(c.Environments.Debian); err != nil {
		return fmt.Errorf("environments.debian: %w", err)
	}
	if err := c.Packages.Check(); err != nil {
		return err
	}
	if err := c.Models.Check(); err != nil {
		return err
	}
	if err := c.Storage.checkExport(); err != nil {
		return err
	}
	if err := c.Storage.checkScratch(); err != nil {
		return err
	}
	if err := checkShared(c.Storage.Shared, filepath.Clean(c.DataDir)); err != nil {
		return err
	}
	if err := c.Files.Check(c.HTTPSPort, c.HubPort, *c.HTTPPort, 6443, 10250); err != nil {
		return err
	}
	if err := c.Mail.Check(); err != nil {
		return err
	}
	if err := c.Network.Check(); err != nil {
		return err
	}
	if c.K3s.PodMaxPIDs < 256 || c.K3s.PodMaxPIDs > 1<<20 {
		return fmt.Errorf("k3s.podMaxPids is %d; it may be 256, with which JupyterLab just runs, to %d", c.K3s.PodMaxPIDs, 1<<20)
	}
	if err := notebooks.CheckProfiles(c.Profiles); err != nil {
		return fmt.Errorf("profiles: %w", err)
	}
	if err := signin.Check(c.SignIn); err != nil {
		return fmt.Errorf("signin: %w", err)
	}
	if err := c.Tailnet.Check(c.SignIn); err != nil {
		return fmt.Errorf("tailnet: %w", err)
	}
	return nil
}

// profiles are the launch cards; the usual ones say what sharing means.
func (c *Config) LaunchProfiles() []notebooks.Profile {
	if len(c.Profiles) > 0 || c.GPUSharing < 2 {
		return c.Profiles
	}
	usual := notebooks.DefaultProfiles()
	for i := range usual {
		if usual[i].GPUs > 0 {
			usual[i].Description = fmt.Sprintf("JupyterLab with a GPU that up to %d notebooks take turns on; they share its memory.", c.GPUSharing)
		}
	}
	return usual
}

// Error is a mistake in the file, with its path, line and key.
type Error struct{ err error }

func (e *Error) Error() string { return e.err.Error() }

func (e *Error) Unwrap() error { return e.err }

// Load reads the file; one that is missing is an empty one. Unknown keys
// are an error: a typing mistake must not go unnoticed.
func Load(path string) (Config, error) {
	// 0 of these is a mistake, and no way to leave them out.
	c := Config{SimulatedGPUs: 2, GPUSharing: 1}
	data, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return c, fmt.Errorf("the configuration: %w", err)
	}
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		return c, &Error{fmt.Errorf("%s: %w; correct it and try again", path, configWords(data, err))}
	}
	c.SetDefaults()
	if err := c.Check(); err != nil {
		return c, &Error{fmt.Errorf("%s: %w", path, withLine(data, err))}
	}
	return c, nil
}

// url is where people open the lab; without a name of its own it is at an
// address.
func (c *Config) URL(address func() netip.Addr) string {
	return URL(c.HostOf(address()), c.HTTPSPort)
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

// hostOf is the name under which people open the lab at an address.
func (c *Config) HostOf(address netip.Addr) string {
	switch {
	case len(c.OwnNames()) > 0:
		return c.OwnNames()[0]
	case address.IsValid():
		return address.String()
	}
	return "localhost"
}

// CheckLab reports what is wrong with a lab's name.
func CheckLab(name string) error {
	if len(name) > 60 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("lab must be one line of at most 60 characters")
	}
	return nil
}
