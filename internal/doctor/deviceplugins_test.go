package doctor

import (
	"os"
	"testing"
)

func TestDevicePlugins(t *testing.T) {
	const dir = "/var/lib/kubelet/device-plugins/"
	finds(t, machine(t, nil), "deviceplugins", Options{}, OK)
	ours := map[string]string{dir + "kubelet.sock": "", dir + "gpulab.sock": "", dir + "nvidia-gpu.sock": "", dir + "gpulab-nvidia-gpu.sock": "", dir + "rdma.sock": "", dir + "kubelet_internal_checkpoint": "{}"}
	finds(t, machine(t, ours), "deviceplugins", Options{}, OK)
	ours[dir+"nvidia-mig-1g.10gb.sock"] = ""
	finds(t, machine(t, ours), "deviceplugins", Options{}, Warn, "nvidia-mig-1g.10gb.sock", "`gpulab kubectl get daemonsets -A`")

	if os.Geteuid() != 0 {
		h := machine(t, ours)
		if err := os.Chmod(h.path(dir), 0); err != nil {
			t.Fatal(err)
		}
		finds(t, h, "deviceplugins", Options{}, Unseen)
		_ = os.Chmod(h.path(dir), 0o755)
	}
}
