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
//	<root>/run/simgpu/script       what happens when, see Play
//	<root>/run/simgpu/faults       what happens at once, see Inject
//	<root>/run/simgpu/limits/               what control groups may take of a GPU's memory, as NVML was told
//	<root>/run/simgpu/kmsg         what the kernel's log says of it, as /dev/kmsg
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
// like one; its GPU memory follows its resident memory. A program that is
// started with the environment variable
//
//	GPULAB_SIMULATED_LOAD="sm=70 memory=4GiB"
//
// takes exactly that instead, in a pod too; of several on one GPU each is told to
// a twentieth of what they take together, as a real driver tells it by turns.
//
// # Scripts
//
// A script is a text of one line for each thing that happens, in any order;
// "#" begins a comment. Its beginning is when its file was written.
//
//	[at TIME] init NUMBER                    NVML cannot start: 18 is a library that does not fit, 0 heals
//	[at TIME] gpu GPU lost                   it has fallen off the bus
//	[at TIME] gpu GPU hang                   calls about it do not return
//	[at TIME] gpu GPU removed                it is not counted any more
//	[at TIME] gpu GPU fail NUMBER            calls about it return this NVML error
//	[at TIME] gpu GPU xid NUMBER [times N] [by PID NAME] [logged]   an XID error, or a storm of
//	                                         them; by this process; in the kernel's log alone
//	[at TIME] gpu GPU ecc KIND N             N more memory errors; KIND is corrected or uncorrected
//	[at TIME] gpu GPU remapped KIND N [pending] [failed]   N more memory rows replaced
//	[at TIME] gpu GPU retired N [pending]    an older card, with N pages of memory given up
//	[at TIME] gpu GPU throttle REASON...     brake, clocks, display, hardware, power, sync, temperature; or none
//	[at TIME] gpu GPU recovery ACTION        what the driver asks for: none, reset, reboot, drain, drain-and-reset
//	[at TIME] gpu GPU persistence on|off
//	[at TIME] gpu GPU limits on|off          it can limit what a control group takes of its memory, as it does, or not
//	[at TIME] gpu GPU lists on|off           it says which processes are on it, as it does, or not
//	[at TIME] gpu GPU mig PROFILE...|off     split into instances such as 1g.6gb; off: it could be
//	[at TIME] gpu GPU ok                     all of the above is over
//	[at TIME] gpu GPU use PERCENT [for TIME]
//	[at TIME] gpu GPU use FROM..TO over TIME [for TIME]    a ramp, then TO
//	[at TIME] gpu GPU process PID sm PERCENT memory SIZE [graphics] [instance INDEX] [for TIME]
//	[at TIME] gpu GPU process PID ends
//
// A TIME is written like 5s or 2m, a SIZE like 512MiB or 1.5GiB. Without "at" a
// line is in force from the beginning, without "for" for good. Of two lines
// about the same thing the later counts. The GPU's use is the sum of its
// processes' unless a line says otherwise. The simulation moves once a second,
// so everything happens up to a second late.
//
// A pod sees a GPU only if its device cgroup lets it open the GPU's node, so the
// isolation between pods is the real one. The nodes bear numbers from the range
// that Linux keeps for local use, never those of a real NVIDIA card: whatever a
// pod is given here can not reach hardware.
//
// cmd/gpulab, the runtime bundle and tests may import this package.
package simdriver
