#!/bin/bash
# Runs the unit tests of every module. Arguments go to go test.
#
# What has passed is not run again, in another clone either: Go keeps results by the names and times of the files that a
# test opens, and by the variables that it reads. So files get times by their content, root runs the tests where each
# clone has the same path, and PATH, which every test that looks for a program reads, is the same for everybody.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$(dirname "$(command -v go)"):/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

place=/var/tmp/gpulab-unit
if [ "$(id -u)" = 0 ] && [ "$PWD" != "$place" ] && [ -z "${GPULAB_UNIT_HERE:-}" ]; then
  mkdir -p "$place"
  trap 'rmdir "$place" 2>/dev/null || true' EXIT # somebody else's tests may run there
  GPULAB_UNIT_HERE=yes unshare --mount bash -euc 'mount --bind . "$0" && cd "$0" && exec test/unit.sh "$@"' "$place" "$@"
  exit
fi

go run ./test/mtimes
log=$PWD/test/output/unit
rm -rf "$log" && mkdir -p "$log"
flaky() {
  [ ! -s "$log/flaky.txt" ] || printf '%s\n' "FLAKY: these unit tests failed once and then passed:" "$(cat "$log/flaky.txt")"
}
trap flaky EXIT

# unit DIRECTORY PACKAGES FLAG...: packages that fail are tested a second time, as a whole. If they pass then, flaky.txt
# names what failed.
unit() {
  local n again
  n=$(find "$log" -name '*.log' | wc -l)
  (cd "$1" && go test "${@:3}" $2 2>&1) | tee "$log/$n.log" && return
  again=$(awk '$1 == "FAIL" && NF > 2 { print $2 }' "$log/$n.log")
  [ -n "$again" ] && [ "$(wc -w <<<"$again")" -le 5 ] || return 1
  echo "Once more: $again"
  (cd "$1" && go test "${@:3}" -count=1 $again 2>&1) | tee "$log/$n.again.log" || return 1
  sed -n "s|^ *--- FAIL: \([^ ]*\).*|\1 (test/output/unit/$n.log)|p; s|^FAIL\t\(.*\)\t.*|\1 (test/output/unit/$n.log)|p" \
    "$log/$n.log" >>"$log/flaky.txt"
}

# NVIDIA's library is loaded by the probe as it runs: its symbols bind late. The linters run vet.
flags=(-vet=off -timeout 40m -ldflags=-extldflags=-Wl,-z,lazy "$@")
# Their tests give files of the repository to other programs, of which Go's cache knows nothing.
programs="./cmd/gpulab-client ./packaging/... ./test/structure ./test/run ./internal/sftpd"
unit . "$(go list ./... | grep -vFxf <(go list $programs) | xargs)" "${flags[@]}"
unit . "$programs" -count=1 "${flags[@]}"
unit packaging/runtime/cni ./... "$@"
unit packaging/images/packages . "$@"
unit packaging/runtime/k3s ./hostip "$@"
[ ! -e assets/bundle/runtime.tar.zst ] || unit . ./assets -vet=off -tags bundle "$@"
