package embedk8s

import (
	"os"
	"path/filepath"
)

// KubernetesMinor is the Kubernetes that this gpulab brings. Within it any two releases of gpulab may follow one another;
// forwards it is changed one by one, and the cluster's database goes back to an older one never.
const KubernetesMinor = "1.35"

// ForgetCluster removes Kubernetes' own state, all pods having ended: the next start begins with an empty cluster. The
// node keeps its identity, and containerd its images.
func ForgetCluster(dataDir string) error {
	return os.RemoveAll(filepath.Join(dataDir, "k3s", "server"))
}
