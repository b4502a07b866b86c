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
gotestsum=$(go tool -modfile=tools/go.mod -n gotestsum)
log=$PWD/test/output/unit
rm -rf "$log" && mkdir -p "$log"

# unit DIRECTORY PACKAGES FLAG...: a failed test runs a second time, and flaky.txt names it if it passes then.
unit() {
  local n
  n=$(find "$log" -name '*.json' | wc -l)
  (cd "$1" && "$gotestsum" --format standard-quiet --hide-summary skipped --jsonfile "$log/$n.json" \
    --rerun-fails=1 --rerun-fails-run-root-test --rerun-fails-report "$log/$n.flaky" --packages "$2" -- "${@:3}")
  [ ! -s "$log/$n.flaky" ] || sed "s|\$| (log: test/output/unit/$n.json)|" "$log/$n.flaky" >>"$log/flaky.txt"
}

# NVIDIA's library is loaded by the probe as it runs: its symbols bind late. The linters run vet.
flags=(-vet=off -timeout 20m -ldflags=-extldflags=-Wl,-z,lazy "$@")
# Their tests give files of the repository to other programs, of which Go's cache knows nothing.
programs="./cmd/gpulab-client ./packaging/... ./test/structure ./test/run ./internal/sftpd"
unit . "$(go list ./... | grep -vFxf <(go list $programs) | xargs)" "${flags[@]}"
unit . "$programs" -count=1 "${flags[@]}"
unit packaging/runtime/cni ./... "$@"
unit packaging/images/packages . "$@"
unit packaging/runtime/k3s ./hostip "$@"
[ ! -e assets/bundle/runtime.tar.zst ] || unit . ./assets -vet=off -tags bundle "$@"
if [ -s "$log/flaky.txt" ]; then
  echo "FLAKY: these unit tests failed once and then passed:"
  cat "$log/flaky.txt"
fi
