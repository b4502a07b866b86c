#!/bin/bash
# Runs the unit tests of every module. Arguments go to go test.
#
# What has passed is not run again, in another clone either: Go keeps results by the names and times of the files that a
# test opens, so files get times by their content, and root runs the tests where each clone has the same path.
set -euo pipefail
cd "$(dirname "$0")/.."

place=/var/tmp/gpulab-unit
if [ "$(id -u)" = 0 ] && [ "$PWD" != "$place" ] && [ -z "${GPULAB_UNIT_HERE:-}" ]; then
  mkdir -p "$place"
  trap 'rmdir "$place" 2>/dev/null || true' EXIT # somebody else's tests may run there
  GPULAB_UNIT_HERE=yes unshare --mount bash -euc 'mount --bind . "$0" && cd "$0" && exec test/unit.sh "$@"' "$place" "$@"
  exit
fi

go run ./test/mtimes
# NVIDIA's library is loaded by the probe as it runs: its symbols bind late. The linters run vet.
flags=(-vet=off -timeout 20m -ldflags=-extldflags=-Wl,-z,lazy "$@")
# Their tests give files of the repository to other programs, of which Go's cache knows nothing.
programs=(./cmd/gpulab-client ./packaging/... ./test/structure ./test/run ./internal/sftpd)
go test "${flags[@]}" $(go list ./... | grep -vFxf <(go list "${programs[@]}"))
go test -count=1 "${flags[@]}" "${programs[@]}"
(cd packaging/runtime/cni && go test "$@" ./...)
(cd packaging/images/packages && go test "$@" .)
(cd packaging/runtime/k3s && go test "$@" ./hostip)
[ ! -e assets/bundle/runtime.tar.zst ] || go test -vet=off -tags bundle "$@" ./assets
