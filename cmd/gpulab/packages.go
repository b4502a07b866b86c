package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/gpulab/gpulab/internal/charts"
	"github.com/gpulab/gpulab/internal/environments"
)

// PackagesConfig says where pip in notebooks and jobs gets packages from.
type PackagesConfig struct {
	// Index is where the lab's cache gets them from; empty is PyPI.
	Index string `json:"index,omitempty"`
	// Cache is how much of them is kept on the head for all, as "20Gi"; "0" keeps nothing.
	Cache string `json:"cache,omitempty"`
}

func (c PackagesConfig) cacheBytes() (int64, error) {
	q, err := resource.ParseQuantity(c.Cache)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("packages.cache is %q, which is no size; write it as 20Gi, or 0 to keep nothing", c.Cache)
	}
	if b := q.Value(); b == 0 || b >= leastPackages {
		return b, nil
	}
	return 0, fmt.Errorf("packages.cache is %q, too little for one large package; write 1Gi or more, or 0 to keep nothing", c.Cache)
}

// leastPackages is the least of a cache, in bytes: packages of half of it and more pass through it.
const leastPackages = 1 << 30

func (c PackagesConfig) check() error {
	if _, err := c.cacheBytes(); err != nil {
		return err
	}
	if err := environments.CheckIndex(c.Index); err != nil {
		return fmt.Errorf("packages.index: %w", err)
	}
	return nil
}

// packagesUID owns what the package cache keeps, and is whom it runs as: nobody of the lab, nor of the machine.
const packagesUID = 65001

// packageCache is the cache as the configuration wants it, after its folder.
func (l *appliance) packageCache() (charts.Packages, error) {
	dir := filepath.Join(l.cfg.DataDir, "packages")
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return charts.Packages{}, err
	}
	if err := os.Chown(dir, packagesUID, packagesUID); err != nil {
		return charts.Packages{}, err
	}
	keep, err := l.cfg.Packages.cacheBytes()
	if err != nil {
		return charts.Packages{}, err
	}
	index := l.cfg.Packages.Index
	if index == "" {
		index = "https://pypi.org/simple"
	}
	return charts.Packages{
		Dir: dir, Keep: keep, Index: index, Env: l.cfg.Network.proxyEnv(l.id),
		Never: []string{l.id.ClusterCIDR.String(), l.id.ServiceCIDR.String()},
	}, nil
}
