package main

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gpulab/gpulab/internal/charts"
)

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
	trusted, err := os.ReadFile(authorities)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return charts.Packages{}, err
	}
	return charts.Packages{
		Dir: dirs["packages"], Keep: l.cfg.Packages.Cache.Bytes(),
		Index: cmp.Or(l.cfg.Packages.Index, "https://pypi.org/simple"),
		Models: charts.Models{
			Dir: dirs["models"], Keep: l.cfg.Models.Cache.Bytes(), Hub: cmp.Or(l.cfg.Models.Hub, "https://huggingface.co"),
		},
		Env: l.cfg.Network.ProxyEnv(l.id),

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

// modelCache is where a pod on the machine "on", any of the lab's where that is "", asks for models; "" where there is
// no cache. Whoever asks may show their token for Hugging Face, which must not be readable on the wire between
// machines.
func (l *appliance) modelCache(on string) string {
	encrypted := l.cfg.Network.Encrypt || len(l.pool.list()) == 0 || on == l.id.NodeName
	if l.cfg.Models.Cache.Bytes() == 0 || !encrypted {
		return ""
	}
	return "http://models." + systemNamespace + ".svc.cluster.local"
}
