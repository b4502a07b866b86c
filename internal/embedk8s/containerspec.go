package embedk8s

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/gpulab/gpulab/internal/lxcfs"
	"github.com/gpulab/gpulab/internal/room"
)

// Limits of one container on what the kernel counts for the whole machine. A pod
// in a user namespace is charged to root too, so without them one job takes these
// from every other notebook and from the machine itself.
const (
	// containerQueueBytes holds one POSIX message queue of the default size
	// (83 kB). Root's own programs have 800 KiB together with all pods.
	containerQueueBytes = 100 << 10
	// containerSignals is how many timers and queued signals a container's user may
	// have. The kernel's default for all of root's is half of its threads-max.
	containerSignals = 1024
)

func (c *Cluster) containerSpecFile() string { return filepath.Join(c.cfg.DataDir, "container.json") }

// containerSpec is what containerd makes every container of, before it adds what
// the pod asks for: containerd's own default, with limits, and with LXCFS's files,
// which show them. Both hold from a container's first process on.
func containerSpec(limit func(resource int) (hard uint64, err error)) ([]byte, error) {
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	spec, err := oci.GenerateSpec(ctx, nil, &containers.Container{ID: "container"})
	if err != nil {
		return nil, fmt.Errorf("containerd's default for containers: %w", err)
	}
	// containerd drops these from its default for pods, but keeps those of a file.
	spec.Process.Rlimits = nil
	for _, l := range []struct {
		name string
		what int
		most uint64
	}{
		// A core file would go where the machine collects them, beside all quotas.
		{"RLIMIT_CORE", unix.RLIMIT_CORE, 0},
		{"RLIMIT_MSGQUEUE", rlimitMsgqueue, containerQueueBytes},
		{"RLIMIT_SIGPENDING", rlimitSigpending, containerSignals},
	} {
		hard, err := limit(l.what)
		if err != nil {
			return nil, fmt.Errorf("the limit %s of this process: %w", l.name, err)
		}
		// Raising one needs CAP_SYS_RESOURCE, which not every machine has.
		most := min(l.most, hard)
		spec.Process.Rlimits = append(spec.Process.Rlimits, specs.POSIXRlimit{Type: l.name, Soft: most, Hard: most})
	}
	terminals := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Type == "devpts" })
	if terminals < 0 {
		return nil, fmt.Errorf("containerd's default for containers has no terminals: %v", spec.Mounts)
	}
	options := slices.DeleteFunc(slices.Clone(spec.Mounts[terminals].Options), func(o string) bool {
		return strings.HasPrefix(o, "max=")
	})
	spec.Mounts[terminals].Options = append(options, fmt.Sprintf("max=%d", room.Terminals))
	spec.Hooks = &specs.Hooks{CreateContainer: []specs.Hook{lxcfs.Hook()}}
	text, err := json.MarshalIndent(spec, "", "  ")
	return append(text, '\n'), err
}

// LXCFS is the keeper that shows the containers of this machine their own memory and processors.
func LXCFS(dataDir, cgroupRoot string) *lxcfs.Keeper {
	return &lxcfs.Keeper{
		Containers: func() map[string]int { return Containers(cgroupRoot) },
		LogFile:    filepath.Join(dataDir, lxcfs.LogName),
	}
}

// Numbers of limits that no library names (asm-generic/resource.h; the same on
// amd64 and arm64).
const (
	rlimitSigpending = 11
	rlimitMsgqueue   = 12
)

// hardLimit is this process's own hard limit, which k3s and containerd inherit.
func hardLimit(resource int) (uint64, error) {
	var l syscall.Rlimit
	err := syscall.Getrlimit(resource, &l)
	return l.Max, err
}
