#!/bin/sh
# Runs inside a root made of the base and tools layers, with the building
# machine's Go and its module cache (already filled); the image is /out.
#
# The chart wants the program at /manager. Without cgo it needs nothing beside it.
set -eu
module=sigs.k8s.io/kueue
cd /src
version=$(go list -m -f '{{.Version}}' $module)
mkdir -p /out/tmp
chmod 1777 /out/tmp
CGO_ENABLED=0 go build -trimpath -buildvcs=false \
  -ldflags "-s -w -X $module/pkg/version.GitVersion=$version -X $module/pkg/version.GitCommit= -X $module/pkg/version.BuildDate=" \
  -o /out/manager $module/cmd/kueue
install -D -m 0644 "$(go list -m -f '{{.Dir}}' $module)/LICENSE" /out/licenses/kueue
