// Package spegel takes the place of k3s's package of this name, a registry from which machines fetch images of each other.
// gpulab hands images out itself, and without it k3s is a tenth smaller.
package spegel

import (
	"context"
	"errors"

	"github.com/k3s-io/k3s/pkg/agent/https"
	"github.com/k3s-io/k3s/pkg/daemons/config"
)

var errNone = errors.New("this k3s is built without the registry of its machines (--embedded-registry)")

// Config is what k3s sets of a registry.
type Config struct {
	ClientCAFile, ClientCertFile, ClientKeyFile string
	ServerCAFile, ServerCertFile, ServerKeyFile string

	ExternalAddress, InternalAddress, RegistryPort string

	PSK          []byte
	Bootstrapper any
	Router       https.RouterFunc
}

// DefaultRegistry is the registry that k3s configures.
var DefaultRegistry = &Config{}

// InjectMirror fails.
func (*Config) InjectMirror(*config.Node) error { return errNone }

// Start fails.
func (*Config) Start(context.Context, *config.Node, <-chan struct{}) error { return errNone }

// Each of these finds the machines of a registry, of which there is none.

func NewSelfBootstrapper() any { return nil }

func NewAgentBootstrapper(server, token, dataDir string) any { return nil }

func NewServerBootstrapper(*config.Control) any { return nil }

func NewChainingBootstrapper(...any) any { return nil }
