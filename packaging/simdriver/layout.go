package simdriver

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// MaxGPUs is the largest number of GPUs that Install accepts.
const MaxGPUs = 16

const (
	nvmlName = "libnvidia-ml.so"
	cudaName = "libcuda.so"
	smiName  = "nvidia-smi"
)

func libraryDir(root string) string {
	triplet := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	return filepath.Join(root, "usr/lib", triplet)
}

func stateDir(root string) string    { return filepath.Join(root, "run/simgpu") }
func faultsFile(root string) string  { return filepath.Join(stateDir(root), "faults") }
func firmwareDir(root string) string { return filepath.Join(root, "lib/firmware/nvidia") }

// limitsDir holds a file for each limit of a control group's GPU memory, as
// src/nvml/files.c writes it: soft and hard limit in bytes, and the group's folder.
func limitsDir(root string) string { return filepath.Join(stateDir(root), "limits") }

// KernelLog is where Run writes what NVIDIA's driver would write to the kernel's
// log, in the form of /dev/kmsg: a file, or a fifo that somebody has put there.
func KernelLog(root string) string { return filepath.Join(stateDir(root), "kmsg") }

// ScriptFile is the timeline that Run follows; Play writes it.
func ScriptFile(root string) string { return filepath.Join(stateDir(root), "script") }

// keptDir holds a link to every libcuda ever installed: processes that loaded
// an earlier one go on using it, and its inode number must not come to mean
// another file meanwhile.
func keptDir(root string) string { return filepath.Join(stateDir(root), "libcuda") }

// StateFile is the file in which Run writes the state of the GPUs.
func StateFile(root string) string { return filepath.Join(stateDir(root), "gpus.conf") }

// Library is the path of the simulated NVML library, for programs that are
// told where to find it.
func Library(root string) string { return filepath.Join(libraryDir(root), nvmlName+".1") }

// Installed says whether root holds a complete simulated driver.
func Installed(root string) bool {
	// The control node is made last.
	_, err := os.Stat(filepath.Join(root, "dev", controlNode.name))
	return err == nil
}

// builtVersion finds the driver's version in the names of the files in dir.
func builtVersion(dir string) (string, error) {
	found, err := filepath.Glob(filepath.Join(dir, nvmlName+".*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%s holds %d files %s.<version>, want one: build the simulated driver first", dir, len(found), nvmlName)
	}
	return strings.TrimPrefix(filepath.Base(found[0]), nvmlName+"."), nil
}

// node is a character device of the driver.
type node struct {
	name         string
	major, minor uint32
}

// Linux keeps majors 120 to 127 for local use and never assigns them. NVIDIA's
// own 195 would make a pod's simulated GPU a real one on a machine that has
// both, and opening it would load the real kernel module.
const (
	localMajor    = 120
	localMajorUVM = 121
)

var controlNode = node{"nvidiactl", localMajor, 255}

var sharedNodes = []node{
	{"nvidia-modeset", localMajor, 254},
	{"nvidia-uvm", localMajorUVM, 0},
	{"nvidia-uvm-tools", localMajorUVM, 1},
}

func gpuNode(index int) node {
	return node{fmt.Sprintf("nvidia%d", index), localMajor, uint32(index)}
}
