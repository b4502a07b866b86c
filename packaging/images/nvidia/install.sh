#!/bin/sh
# Runs inside a root made of the base and tools layers, with the building
# machine's Go and its module cache (already filled); the image is /out.
#
# go-nvml is cgo and leaves NVML's symbols open until the driver's library is
# loaded at run time: they must be ignored by the linker and bound lazily, or
# the programs die at start on a machine without a GPU. Compiling in here and
# not on the machine itself keeps them to this libc.
set -eu
version=$(cd /src && go list -m -f '{{.Version}}' github.com/NVIDIA/k8s-device-plugin)
link='-Wl,--export-dynamic -Wl,--unresolved-symbols=ignore-in-object-files -Wl,-z,lazy'
mkdir -p /out/usr/bin /out/usr/lib/x86_64-linux-gnu /out/tmp
chmod 1777 /out/tmp
cd /src
for program in nvidia-device-plugin gpu-feature-discovery config-manager mps-control-daemon; do
  CGO_ENABLED=1 go build \
    -ldflags "-s -w '-extldflags=$link' -X github.com/NVIDIA/k8s-device-plugin/internal/info.version=$version" \
    -o /out/usr/bin/ "github.com/NVIDIA/k8s-device-plugin/cmd/$program"
done
install -D -m 0644 "$(go list -m -f '{{.Dir}}' github.com/NVIDIA/k8s-device-plugin)/LICENSE" /out/licenses/k8s-device-plugin

# The programs and the driver's library need these, and no more.
for library in ld-linux-x86-64.so.2 libc.so.6 libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1; do
  cp -L "/usr/lib/x86_64-linux-gnu/$library" /out/usr/lib/x86_64-linux-gnu/
done
ln -s usr/bin /out/bin
ln -s usr/lib /out/lib
mkdir -p /out/usr/lib64
ln -s usr/lib64 /out/lib64
ln -s ../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 /out/usr/lib64/ld-linux-x86-64.so.2

# Debian's driver lies behind its alternatives: absolute links that go on in the
# machine's own /etc and /usr, which are below /driver-root here.
mkdir -p /out/etc
ln -s /driver-root/etc/alternatives /out/etc/alternatives
ln -s /driver-root/usr/lib/nvidia /out/usr/lib/nvidia
ln -s /driver-root/usr/lib/x86_64-linux-gnu/nvidia /out/usr/lib/x86_64-linux-gnu/nvidia
