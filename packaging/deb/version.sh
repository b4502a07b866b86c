#!/bin/bash
# Prints the version of the packages that are made from this commit: a tag's
# own, and after it one that grows with every commit: 1.2.3+git20260102030405.abc1234.
set -euo pipefail
cd "$(dirname "$0")/../.."
describe=$(git describe --tags --match 'v[0-9]*' 2>/dev/null || true)
case $describe in
v*-*-g*) base=${describe#v} base=${base%-*-g*}+git ;;
v*) echo "${describe#v}" && exit ;;
# Before the first release.
*) base=0.1.0~git ;;
esac
echo "$base$(TZ=UTC git log -1 --date=format-local:%Y%m%d%H%M%S --format=%cd.%h)"
