package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

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

func (c PackagesConfig) check() error {
	if _, err := cacheBytes("packages.cache", c.Cache); err != nil {
		return err
	}
	return checkUpstream("packages.index", c.Index, environments.CheckIndex)
}

// ModelsConfig says where notebooks and jobs get models from.
type ModelsConfig struct {
	// Hub is where the lab's cache gets them from; empty is Hugging Face.
	Hub string `json:"hub,omitempty"`
	// Cache is how much of them is kept on the head for all, as "50Gi"; with "0" there is no cache.
	Cache string `json:"cache,omitempty"`
}

func (c ModelsConfig) check() error {
	if _, err := cacheBytes("models.cache", c.Cache); err != nil {
		return err
	}
	return checkUpstream("models.hub", c.Hub, environments.CheckHub)
}

// checkUpstream says what is wrong with an address that the cache is to ask, behind which it puts paths.
func checkUpstream(key, address string, check func(string) error) error {
	err := check(address)
	if err == nil && strings.ContainsAny(address, "?#") {
		err = errors.New("the address may have neither a ? nor a #")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// cacheBytes is the size of a cache as the configuration has it under a key.
func cacheBytes(key, size string) (int64, error) {
	q, err := resource.ParseQuantity(size)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("%s is %q, which is no size; write it as 20Gi, or 0 to keep nothing", key, size)
	}
	if b := q.Value(); b == 0 || b >= leastCache {
		return b, nil
	}
	return 0, fmt.Errorf("%s is %q, too little for one large file; write 1Gi or more, or 0 to keep nothing", key, size)
}

// leastCache is the least of a cache, in bytes: files of half of it and more pass through it.
const leastCache = 1 << 30

// packagesUID owns what the package cache keeps, and is whom it runs as: nobody of the lab, nor of the machine.
const packagesUID = 65001

// packageCache is the cache as the configuration wants it, after its folders.
func (l *appliance) packageCache() (charts.Packages, error) {
	dirs := map[string]string{}
	for _, name := range []string{"packages", "models"} {
		dirs[name] = filepath.Join(l.cfg.DataDir, name)
		if err := ownedBy(dirs[name], packagesUID); err != nil {
			return charts.Packages{}, err
		}
	}
	keep, err := cacheBytes("packages.cache", l.cfg.Packages.Cache)
	if err != nil {
		return charts.Packages{}, err
	}
	keepModels, err := cacheBytes("models.cache", l.cfg.Models.Cache)
	if err != nil {
		return charts.Packages{}, err
	}
	trusted, err := os.ReadFile(authorities)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return charts.Packages{}, err
	}
	return charts.Packages{
		Dir: dirs["packages"], Keep: keep, Index: cmp.Or(l.cfg.Packages.Index, "https://pypi.org/simple"),
		Models: charts.Models{Dir: dirs["models"], Keep: keepModels, Hub: cmp.Or(l.cfg.Models.Hub, "https://huggingface.co")},
		Env:    l.cfg.Network.proxyEnv(l.id),

		Authorities: fmt.Sprintf("%x", sha256.Sum256(trusted))[:16],
	}, nil
}

// ownedBy makes a folder that is a user's alone. One that has something of others in it is not taken from them.
func ownedBy(dir string, uid int) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); !ok || !info.IsDir() || int(stat.Uid) != uid {
		if list, err := os.ReadDir(dir); err != nil || !info.IsDir() || len(list) > 0 {
			return fmt.Errorf("%s is where gpulab keeps what it downloads, and something else is there; move that away", dir)
		}
	}
	return errors.Join(os.Chown(dir, uid, uid), os.Chmod(dir, 0o700))
}

// modelCache is where a pod on the machine "on", any of the lab's where that is "", asks for models; "" where there is no
// cache. Whoever asks may show their token for Hugging Face, which must not be readable on the wire between machines.
func (l *appliance) modelCache(on string) string {
	encrypted := l.cfg.Network.Encrypt || len(l.pool.list()) == 0 || on == l.id.NodeName
	if keep, err := cacheBytes("models.cache", l.cfg.Models.Cache); err != nil || keep == 0 || !encrypted {
		return ""
	}
	return "http://models." + systemNamespace + ".svc.cluster.local"
}
