// Package simdriver installs and runs the simulated NVIDIA driver: the lowest
// layer of gpulab on a machine without an NVIDIA card.
//
// The driver is three files built from C by the Makefile here: a
// libnvidia-ml.so that exports every NVML function, a libcuda.so that loads but
// computes nothing, and an nvidia-smi. On them NVIDIA's own device plugin,
// feature discovery and CDI tools run unmodified. Install lays the files out as
// a driver root:
//
//	<root>/usr/lib/<multiarch>/    the libraries and their links
//	<root>/usr/bin/nvidia-smi
//	<root>/dev/                    real character devices nvidia0, nvidiactl, …
//	<root>/run/simgpu/gpus.conf    the state of the GPUs
//	<root>/run/simgpu/faults       faults to simulate, see Inject
//	<root>/lib/firmware/nvidia/<version>/gsp_simgpu.bin   the same file as gpus.conf
//
// Run is the kernel's side: once a second it looks which processes use which
// GPU, moves the readings, and rewrites the state. NVIDIA's CDI tools mount
// firmware files into containers, which carries the state into every pod
// without any change to them. It is therefore rewritten in place (a rename
// would part it from the running pods), and closed by a checksum, because a
// reader may meet it half written.
//
// A process uses a GPU when it has mapped our libcuda: `ctypes.CDLL("libcuda.so.1")`
// is enough. It uses those GPUs whose device nodes it has, narrowed by the
// CUDA_VISIBLE_DEVICES it was started with. The load it makes follows the
// processor time it takes, so that a notebook that only holds a GPU looks just
// like one; its GPU memory follows its resident memory.
//
// A pod sees a GPU only if its device cgroup lets it open the GPU's node, so the
// isolation between pods is the real one. The nodes bear numbers from the range
// that Linux keeps for local use, never those of a real NVIDIA card: whatever a
// pod is given here can not reach hardware.
//
// cmd/gpulab, the runtime bundle and tests may import this package.
package simdriver
