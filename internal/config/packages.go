package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpulab/gpulab/internal/environments"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Packages says where pip in notebooks and jobs gets packages from.
type Packages struct {
	// Index is where the lab's cache gets them from; empty is PyPI.
	Index string `json:"index,omitempty"`
	// Cache is how much of them is kept on the head for all, as "20Gi"; "0" keeps nothing.
	Cache string `json:"cache,omitempty"`
}

func (c Packages) Check() error {
	if _, err := CacheBytes("packages.cache", c.Cache); err != nil {
		return err
	}
	return checkUpstream("packages.index", c.Index, environments.CheckIndex)
}

// Models says where notebooks and jobs get models from.
type Models struct {
	// Hub is where the lab's cache gets them from; empty is Hugging Face.
	Hub string `json:"hub,omitempty"`
	// Cache is how much of them is kept on the head for all, as "50Gi"; with "0" there is no cache.
	Cache string `json:"cache,omitempty"`
}

func (c Models) Check() error {
	if _, err := CacheBytes("models.cache", c.Cache); err != nil {
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

// CacheBytes is the size of a cache as the configuration has it under a key.
func CacheBytes(key, size string) (int64, error) {
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

// Environments says where environments' packages come from.
type Environments struct {
	// Index is where packages come from; empty is PyPI.
	Index string `json:"index,omitempty"`
	// Debian is the mirror that Debian packages come from; empty is Debian's own.
	Debian string `json:"debian,omitempty"`
	// Cache is how much of what was downloaded is kept, as "10Gi".
	Cache string `json:"cache,omitempty"`
}

func (c Environments) CacheBytes() (int64, error) {
	q, err := resource.ParseQuantity(c.Cache)
	if err != nil || q.Sign() < 0 {
		return 0, fmt.Errorf("environments.cache is %q, which is no size; write it as 10Gi", c.Cache)
	}
	return q.Value(), nil
}
