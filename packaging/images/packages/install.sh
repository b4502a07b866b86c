#!/bin/sh
# Runs inside a root made of the base and tools layers, with the building
# machine's Go; the image is /out. Whom to trust for TLS is the head's to say.
set -eu
cd /src
mkdir -p /out/tmp
chmod 1777 /out/tmp
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o /out/packages .
