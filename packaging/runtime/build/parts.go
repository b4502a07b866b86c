package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/gpulab/gpulab/packaging/gobuild"
)

// part is one group of files that is built, and built again, as a whole.
type part struct {
	name     string
	dir      string          // its module or folder; everything in it counts as input
	packages []string        // instead of all of dir: these packages of the module, with what they import
	patches  []gobuild.Patch // of modules it is built from
	tools    []tool          // beyond Go
	steps    []step
	linked   linkage
	folder   string // where its files go inside the bundle
	version  string // of files whose build information does not tell
}

// step is one command, run in the part's folder. The word OUT in args stands
// for the folder that receives what it makes. Both are part of the hash under
// which the result is cached.
type step struct {
	Args, Env []string
	build     *gobuild.Build // what Args do, where they compile Go
}

// Programs that call NVML leave its symbols open until the driver's library is
// loaded. They have to start on a machine that has none: bound lazily, never
// linked statically.
const lazyBinding = "-s -w '-extldflags=-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'"

const k3sTags = "ctrd netgo osusergo providerless urfave_cli_no_docs no_cri_dockerd sqlite_omit_load_extension " +
	"static_build apparmor seccomp"

// parts lists what the bundle is made of. Programs that do not need a driver's
// library are linked statically, so they ask nothing of the host's C library.
func parts(root string) ([]part, error) {
	k3s, err := k3sVersion(filepath.Join(root, "packaging/runtime/k3s/go.mod"))
	if err != nil {
		return nil, err
	}
	list := []part{
		{
			name:    "k3s",
			dir:     "packaging/runtime/k3s",
			patches: k3sPatches,
			tools:   []tool{gcc, glibc},
			linked:  nothing,
			version: k3s,
			steps: []step{goBuild{
				packages: []string{"./cmd/k3s"},
				cgo:      true,
				cflags:   "-DSQLITE_ENABLE_DBSTAT_VTAB=1 -DSQLITE_USE_ALLOCA=1",
				tags:     k3sTags,
				ldflags:  "-s -w -extldflags=-static" + k3sVersionFlags(k3s),
			}.step()},
		},
		{
			name:   "oci",
			dir:    "packaging/runtime/oci",
			tools:  []tool{gcc, glibc, libseccomp},
			linked: nothing,
			steps: []step{
				goBuild{
					packages: []string{"github.com/opencontainers/runc"},
					cgo:      true,
					// Without seccomp every pod with the default profile fails.
					tags:    "seccomp netgo osusergo",
					ldflags: "-s -w -extldflags=-static",
				}.step(),
				goBuild{packages: []string{"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"}}.step(),
			},
		},
		{
			name:   "cni",
			dir:    "packaging/runtime/cni",
			linked: nothing,
			steps: []step{goBuild{packages: []string{
				"./cmd/flannel",
				"github.com/containernetworking/plugins/plugins/ipam/host-local",
				"github.com/containernetworking/plugins/plugins/main/bridge",
				"github.com/containernetworking/plugins/plugins/main/loopback",
				"github.com/containernetworking/plugins/plugins/meta/bandwidth",
				"github.com/containernetworking/plugins/plugins/meta/firewall",
				"github.com/containernetworking/plugins/plugins/meta/portmap",
			}}.step()},
		},
		{
			name:   "nvidia",
			dir:    "packaging/runtime/nvidia",
			tools:  []tool{gcc, glibc},
			linked: lazyOnLibc,
			steps: []step{goBuild{
				packages: []string{"github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook"},
				cgo:      true,
				ldflags:  lazyBinding,
			}.step()},
		},
		{
			name:     "probe",
			dir:      ".",
			packages: []string{"./cmd/gpulab-probe"},
			tools:    []tool{gcc, glibc},
			linked:   lazyOnLibc,
			steps: []step{goBuild{
				packages: []string{"./cmd/gpulab-probe"},
				cgo:      true,
				ldflags:  lazyBinding,
			}.step()},
		},
		{
			name:   "simdriver",
			dir:    "packaging/simdriver",
			tools:  []tool{gcc, glibc, gnuMake, nvmlHeader},
			folder: "simdriver",
			steps:  []step{{Args: []string{"make", "--no-print-directory", "OUT=" + outWord}}},
		},
	}
	return list, nil
}

const goFlags = "-mod=readonly"

// goBuild is how Go programs are built here.
type goBuild struct {
	packages      []string
	cgo           bool
	tags, ldflags string
	cflags        string
}

func (b goBuild) step() step {
	ldflags := b.ldflags
	if ldflags == "" {
		ldflags = "-s -w"
	}
	cgo := "0"
	if b.cgo {
		cgo = "1"
	}
	build := gobuild.Build{
		Flags: []string{"-tags", b.tags, "-ldflags", ldflags}, Packages: b.packages, Out: outWord + "/",
	}
	return step{
		build: &build,
		Args:  append([]string{"go"}, build.Args()...),
		// Said in full, so that nobody's own settings get into what is cached.
		Env: []string{
			"CGO_ENABLED=" + cgo,
			"CGO_CFLAGS=" + strings.TrimSpace("-O2 -g "+b.cflags),
			"CGO_LDFLAGS=-O2 -g",
			"CC=gcc",
			"GOFLAGS=" + goFlags,
			"GOWORK=off",
			"GOOS=" + runtime.GOOS,
			"GOARCH=" + runtime.GOARCH,
			"GOAMD64=v1",
			"GOARM64=v8.0",
		},
	}
}

var kubernetesReplaced = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes => github\.com/k3s-io/kubernetes (v(\d+)\.(\d+)\.\d+)-(k3s\d+)\s*$`)

// k3sVersion is k3s's name for the Kubernetes its module is pinned to, such as
// v1.35.0+k3s3.
func k3sVersion(gomod string) (string, error) {
	text, err := os.ReadFile(gomod)
	if err != nil {
		return "", fmt.Errorf("find the version of k3s: %w", err)
	}
	found := kubernetesReplaced.FindSubmatch(text)
	if found == nil {
		return "", errors.New("find the version of k3s: " + gomod + " replaces k8s.io/kubernetes in an unknown way")
	}
	return fmt.Sprintf("%s+%s", found[1], found[4]), nil
}

// k3sVersionFlags tells the linked program what it is. k3s refuses to start
// when the version of Go it was built with is not the one named here.
func k3sVersionFlags(version string) string {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var flags strings.Builder
	for _, variable := range [][2]string{
		{"github.com/k3s-io/k3s/pkg/version.Version", version},
		{"github.com/k3s-io/k3s/pkg/version.UpstreamGolang", runtime.Version()},
		{"k8s.io/client-go/pkg/version.gitVersion", version},
		{"k8s.io/component-base/version.gitVersion", version},
		{"k8s.io/component-base/version.gitMajor", major},
		{"k8s.io/component-base/version.gitMinor", minor},
	} {
		flags.WriteString(" -X " + variable[0] + "=" + variable[1])
	}
	return flags.String()
}
