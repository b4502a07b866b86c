//go:build tools

// Package nvidia names the programs of NVIDIA's device plugin, so that this
// module's go.mod pins them and everything they need. It is a module of its
// own: they do not compile with the go-nvml version that gpulab itself uses.
package nvidia

import (
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/config-manager"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/mps-control-daemon"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"
)
