package embedk8s

import (
	_ "embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// rbac is what k3s expects in the cluster and a build from its module does not
// bring: without it logs, exec and the pod network wait for ever.
//
//go:embed rbac.yaml
var rbac []byte

// Reserved is what pods cannot have.
type Reserved struct {
	MilliCPU  int64 // thousandths of a core
	MemoryMiB int64
}

// reservedPIDs is how many processes and threads pods cannot have.
const reservedPIDs = 8192

// ReservedFor is a sensible reservation for a machine with that many cores and
// that much memory: enough for k3s, gpulab, the hub and the page to stay
// responsive while notebooks take everything else.
func ReservedFor(cores int, memoryMiB int64) Reserved {
	r := Reserved{MilliCPU: 300, MemoryMiB: 1024}
	if cores >= 4 {
		r.MilliCPU = 500
	}
	if cores >= 16 {
		r.MilliCPU = 1000
	}
	r.MemoryMiB = max(r.MemoryMiB, min(memoryMiB/20, 4096))
	return r
}

// ThisMachine returns the reservation for the machine we run on.
func ThisMachine() Reserved {
	var kib int64
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
				kib, _ = strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			}
		}
	}
	return ReservedFor(runtime.NumCPU(), kib/1024)
}

func (c *Cluster) configFile() string { return filepath.Join(c.cfg.DataDir, "k3s.yaml") }
func (c *Cluster) templateFile() string {
	return filepath.Join(c.k3sDir(), "agent", "etc", "containerd", "config-v3.toml.tmpl")
}

// kubeletFile is read besides k3s's own, which it is beside.
func (c *Cluster) kubeletFile() string {
	return filepath.Join(c.k3sDir(), "agent", "etc", "kubelet.conf.d", "50-gpulab.conf")
}

// Prepare writes k3s's configuration and says whether it differs from what was
// there. It refuses state from which no way leads to this gpulab's Kubernetes.
func (c *Cluster) Prepare() (changed bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cfg.Join == nil {
		if changed, err = checkMinor(c.k3sDir(), KubernetesMinor); err != nil {
			return false, err
		}
	}
	resolv, err := c.resolvConf()
	if err != nil {
		return false, err
	}
	config, err := yaml.Marshal(c.k3sConfig(resolv))
	if err != nil {
		return false, err
	}
	if c.cfg.Join != nil && c.cfg.Encrypt {
		// It asks the head what it is to do, and that only when it starts.
		config = append([]byte("# Traffic between machines is encrypted.\n"), config...)
	}
	spec, err := containerSpec(hardLimit)
	if err != nil {
		return false, err
	}
	type file struct {
		path string
		data []byte
		mode fs.FileMode
	}
	files := []file{
		{c.configFile(), config, 0o600},
		{c.templateFile(), containerdTemplate(c.extraFile()), 0o600},
		{c.extraFile(), containerdExtra(c.containerSpecFile(), hasCapability(capSysResource)), 0o600},
		{c.containerSpecFile(), spec, 0o600},
		{c.kubeletFile(), []byte(kubeletConfig), 0o600},
	}
	if c.cfg.Join == nil {
		files = append(files, file{filepath.Join(c.k3sDir(), "server", "manifests", "gpulab-rbac.yaml"), rbac, 0o600})
	}
	for _, f := range files {
		did, err := atomicfile.Update(f.path, f.data, f.mode, 0o700)
		if err != nil {
			return false, err
		}
		changed = changed || did
	}
	return changed, nil
}

// kubeletConfig is what the kubelet takes from files alone. Where memory runs out, the
// kernel ends the one program that it chose: with control groups version 2 it would
// be all of the container, and with one cell the whole notebook.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
singleProcessOOMKill: true
`

func (c *Cluster) k3sConfig(resolvConf string) map[string]any {
	r := c.cfg.Reserved
	// Kubernetes makes this folder; its own choice is below /usr/libexec.
	plugins := filepath.Join(c.cfg.DataDir, "volume-plugins")
	kubelet := []string{
		// Kubernetes 1.35 refuses hosts with version 1 control groups unless told.
		"fail-cgroupv1=false",
		// All pods together leave the machine these processes, whatever each may have.
		fmt.Sprintf("system-reserved=cpu=%dm,memory=%dMi,pid=%d", r.MilliCPU, r.MemoryMiB, reservedPIDs),
		// Not for a full disk: homes fill it, which no eviction frees, and it
		// would end everybody's notebooks and let nobody in to tidy up. gpulab
		// itself takes no launch there.
		"eviction-hard=memory.available<200Mi",
		// Images that nobody uses go from 85 % to 80 % of the disk. gpulab's own
		// and those that were brought in are pinned: they stay.
		"image-gc-high-threshold=85", "image-gc-low-threshold=80",
		// What a container prints is kept for as long as it lasts in 3 files. The kubelet looks every 10 s;
		// PodBounds bounds those that print faster.
		"container-log-max-size=10Mi", "container-log-max-files=3",
		// Every 30 to 60 s it counts what pods have on the disk; its own choice is every 1 to 2 minutes.
		"volume-stats-agg-period=30s",
		fmt.Sprintf("pod-max-pids=%d", c.cfg.PodMaxPIDs),
		// How soon a GPU that came, fell ill or got well is seen by the scheduler.
		"node-status-update-frequency=2s",
		"volume-plugin-dir=" + plugins,
	}
	config := map[string]any{
		"data-dir":      c.k3sDir(),
		"node-name":     c.cfg.Identity.NodeName,
		"node-ip":       c.cfg.Address.String(),
		"flannel-iface": c.cfg.Interface,
		"pause-image":   c.cfg.PauseImage,
		"resolv-conf":   resolvConf,
		"kubelet-arg":   append(kubelet, c.cfg.KubeletArgs...),
	}
	backend := "vxlan"
	if c.cfg.Encrypt {
		backend = "wireguard-native"
	}
	// What the one knows is an error for the other.
	if c.cfg.Join != nil {
		config["server"], config["token-file"] = c.cfg.Join.Server, c.cfg.Join.TokenFile
		return config
	}
	maps.Copy(config, map[string]any{
		"flannel-backend": backend,
		"cluster-cidr":    c.cfg.Identity.ClusterCIDR.String(),
		"service-cidr":    c.cfg.Identity.ServiceCIDR.String(),
		"cluster-dns":     c.cfg.Identity.ClusterDNS().String(),
		"disable": []string{
			"traefik", "servicelb", "local-storage", "metrics-server", "coredns", "runtimes",
		},
		"disable-cloud-controller": true,
		"disable-helm-controller":  true,
		"write-kubeconfig":         c.Kubeconfig(),
		"write-kubeconfig-mode":    "0600",
		"secrets-encryption":       true,
		// A home's claim that the binder met too early waits this long, not 15 s.
		"kube-controller-manager-arg": []string{"pvclaimbinder-sync-period=2s", "flex-volume-plugin-dir=" + plugins,
			// Pods that have ended stay to be looked at, for a while.
			"terminated-pod-gc-threshold=200"},
	})
	return config
}

func (c *Cluster) extraFile() string { return filepath.Join(c.cfg.DataDir, "containerd.toml") }

// containerdTemplate is k3s's own configuration plus one import, which
// containerd merges key by key.
func containerdTemplate(extra string) []byte {
	return fmt.Appendf(nil, "imports = [%q]\n{{ template \"base\" . }}\n", extra)
}

// containerdExtra holds what this machine needs beyond k3s's configuration.
func containerdExtra(containerSpec string, canRaisePriority bool) []byte {
	text := fmt.Appendf(nil, `version = 3

# Limits that hold for every container, see containerspec.go.
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  base_runtime_spec = %q

# Nothing here uses containerd's plug-in socket, which other containerds of the
# machine would have at the same place.
[plugins.'io.containerd.nri.v1.nri']
  disable = true
`, containerSpec)
	if canRaisePriority {
		return text
	}
	return append(text, `
# Without CAP_SYS_RESOURCE nobody may lower an OOM score, and every sandbox
# would fail to start.
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
`...)
}

// capSysResource is CAP_SYS_RESOURCE's number in linux/capability.h.
const capSysResource = 24

func hasCapability(n uint) bool {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err != nil || set&(1<<n) != 0
		}
	}
	return true
}
