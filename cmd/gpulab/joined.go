package main

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
)

// joinedFile is /etc/gpulab/node.json: by it a machine knows that it belongs to
// the pool of another, and what that wants. It is written last when a machine
// joins, and goes last when it leaves.
type joinedFile struct {
	Name string           `json:"name"`
	Head []netip.AddrPort `json:"head"` // its door for machines
	// Names lead to the head where none of its addresses does any more.
	Names    []string         `json:"names,omitempty"`
	Settings nodeapi.Settings `json:"settings"`
	// GPUs is what this machine's are: real, simulated or none.
	GPUs          string `json:"gpus"`
	SimulatedGPUs int    `json:"simulatedGPUs,omitempty"`

	path string
}

// joinedPath is beside the configuration, of which a joined machine has none.
func joinedPath(a *app) string { return filepath.Join(filepath.Dir(a.configPath), "node.json") }

// loadJoined reads the file; without one it returns nil.
func loadJoined(a *app) (*joinedFile, error) {
	path := joinedPath(a)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	f := &joinedFile{path: path}
	if err == nil {
		err = json.Unmarshal(data, f)
	}
	if err == nil && (len(f.Head) == 0 || f.Name == "" || f.Settings.DataDir == "") {
		err = errors.New("it is not whole")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; run `gpulab leave` on this machine and join it again", path, err)
	}
	return f, nil
}

// places are where the head is looked for.
func (f *joinedFile) places() nodeapi.Places {
	return nodeapi.Places{Addresses: f.Head, Names: f.Names, URL: f.Settings.URL}
}

func (f *joinedFile) save() error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return nodes.WriteSecret(f.path, append(data, '\n'))
}

// config is what of a configuration means something on a joined machine.
func (f *joinedFile) config() config.Config {
	c := config.Config{SimulatedGPUs: max(f.SimulatedGPUs, 1), GPUSharing: max(f.Settings.GPUSharing, 1)}
	c.DataDir, c.GPUs, c.Lab = f.Settings.DataDir, config.Word(f.GPUs), f.Settings.Lab
	c.K3s.PodMaxPIDs = f.Settings.PodMaxPIDs
	c.Network.Proxy, c.Network.NoProxy, c.Network.Encrypt = f.Settings.Proxy, f.Settings.NoProxy, f.Settings.Encrypt
	c.Storage.Shared, c.Storage.Export = f.Settings.Shared, f.Settings.Export
	c.SetDefaults()
	return c
}

// machineConfig is what holds for this machine, be it a head or one that has joined.
func machineConfig(a *app) (config.Config, error) {
	f, err := loadJoined(a)
	switch {
	case err != nil:
		return config.Config{}, err
	case f != nil:
		return f.config(), nil
	}
	return loadConfig(a.configPath)
}

// inputs is a digest of what the agent was started with.
func (f *joinedFile) inputs() (string, error) {
	what := *f
	// Followed by a running agent.
	what.Head, what.Names, what.Settings.URL, what.Settings.Encrypt = nil, nil, "", false
	data, err := json.Marshal(what)
	if err != nil {
		return "", err
	}
	c := what.config()
	own, err := c.Digest(nil)
	sum := sha256.Sum256(append(data, own...))
	return hex.EncodeToString(sum[:8]), err
}

// Files of a joined machine in its folder of certificates.
const (
	nodeKeyFile         = "node.key"
	nodeCertificateFile = "node.crt"
	nodeAuthorityFile   = "nodes-ca.crt"
)

// passport is by what a machine and its head know each other.
type passport struct {
	authority   *x509.Certificate
	key         *ecdsa.PrivateKey
	certificate *tls.Certificate
}

func loadPassport(cfg config.Config) (p passport, err error) {
	read := func(name string) (data []byte) {
		if err == nil {
			data, err = os.ReadFile(filepath.Join(tlsDir(cfg), name))
		}
		return data
	}
	authority, key, certificate := read(nodeAuthorityFile), read(nodeKeyFile), read(nodeCertificateFile)
	if err == nil {
		p.authority, err = nodes.ParseCertificate(authority)
	}
	if err == nil {
		p.key, err = nodes.ParseKey(key)
	}
	if err == nil {
		p.certificate, err = p.with(certificate)
	}
	if err != nil {
		return p, fmt.Errorf("by what this machine is known to the pool cannot be read: %w; run `gpulab leave` and join "+
			"it again", err)
	}
	return p, nil
}

// with is the machine's key with a certificate for it.
func (p passport) with(certificate []byte) (*tls.Certificate, error) {
	leaf, err := nodes.ParseCertificate(certificate)
	if err != nil {
		return nil, err
	}
	if !p.key.PublicKey.Equal(leaf.PublicKey) {
		return nil, errors.New("the certificate is for another key")
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: p.key, Leaf: leaf}, nil
}

// machineID is a digest of this machine's, which copies of a disk have in common.
func machineID() (string, error) {
	data, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(data) < 32 {
		return "", errors.New("this machine has no machine-id; run `systemd-machine-id-setup` and try again")
	}
	sum := sha256.Sum256(append([]byte("gpulab machine "), data[:32]...))
	return hex.EncodeToString(sum[:]), nil
}
