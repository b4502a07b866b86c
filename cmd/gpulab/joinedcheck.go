package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"sync"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/doctor"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/version"
)

// isJoined tells whether this machine has joined another's pool, which everybody
// may see who may see the folder of the configuration.
func isJoined(a *app) bool {
	_, err := os.Stat(joinedPath(a))
	return err == nil
}

// joinedOptions is doctorOptions for a machine that has joined.
func joinedOptions(a *app) doctor.Options {
	file, err := loadJoined(a)
	if err == nil && file == nil {
		err = fs.ErrNotExist // it has left in this moment
	}
	cfg := config.Config{SimulatedGPUs: 1, GPUSharing: 1}
	cfg.SetDefaults()
	joined := &doctor.Joined{Unseen: errors.Is(err, fs.ErrPermission)}
	if err == nil {
		cfg = file.config()
		s := file.Settings
		joined.Name, joined.Lab, joined.Head = file.Name, s.Lab, s.Head
		joined.Doors, joined.Shared, joined.Mark = file.Head, s.Shared, s.Mark
		for _, door := range file.Head {
			joined.Kubernetes = append(joined.Kubernetes, netip.AddrPortFrom(door.Addr(), uint16(s.APIPort)))
		}
		if services, err := netip.ParsePrefix(s.ServiceCIDR); err == nil {
			joined.NameServer = embedk8s.Identity{ServiceCIDR: services}.ClusterDNS()
		}
		joined.Greet = greeter(file)
		if s.Export != "" {
			for _, f := range exported(s.DataDir) {
				joined.Exported = append(joined.Exported, f.Path)
			}
		}
	}
	opts := machineOptions(cfg)
	opts.ServeNFS, opts.MountNFS = false, len(joined.Exported) > 0
	opts.Ports = []int{kubeletPort}
	opts.ImagesError = nil // the head hands them over
	opts.Joined, opts.ConfigError = joined, err
	opts.Version, opts.Socket, opts.Ask = version.Version, a.socket, a.askLab
	return opts
}

// kubeletPort is where the head asks a machine's kubelet.
const kubeletPort = 10250

// greeter asks the head of a machine's pool who it is, once for all who want to know.
func greeter(file *joinedFile) func(context.Context) (doctor.Greeting, error) {
	var once sync.Once
	var greeting doctor.Greeting
	var err error
	return func(ctx context.Context) (doctor.Greeting, error) {
		once.Do(func() {
			var pass passport
			if pass, err = loadPassport(file.config()); err != nil {
				return
			}
			var hello nodeapi.Hello
			client := nodeapi.Member(file.places(), pass.authority, func() (*tls.Certificate, error) {
				return pass.certificate, nil
			})
			hello, _, err = client.Hello(ctx)
			greeting = doctor.Greeting{Version: hello.Version, Time: hello.Time}
		})
		return greeting, err
	}
}
