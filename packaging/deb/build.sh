#!/bin/bash
# Makes the Debian packages gpulab and gpulab-images from a built gpulab and
# bin/images; `go tool task deb` builds both and calls this:
#
#   PROGRAM=bin/release/gpulab packaging/deb/build.sh [FOLDER]     (default: dist)
#
# The same commit, program and images give the same bytes: all times are the
# commit's. VERSION in the environment is the packages' instead of version.sh's,
# and COMPRESSION is a faster one than xz.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-dist}
umask 022
export LC_ALL=C.UTF-8 TZ=UTC

PROGRAM=${PROGRAM:-bin/release/gpulab}
for needed in "$PROGRAM" bin/images/images.json; do
  [ -e "$needed" ] || { echo "deb: $needed is missing; run \`go tool task deb\`" >&2; exit 1; }
done
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
VERSION=${VERSION:-$(packaging/deb/version.sh)}
STAGE=$(mktemp -d)
export SOURCE_DATE_EPOCH VERSION STAGE PROGRAM
trap 'rm -rf "$STAGE"' EXIT
date=$(date --date="@$SOURCE_DATE_EPOCH" --rfc-email)

# doc PACKAGE: what every package of Debian's has in its folder of documents.
doc() {
  local folder=$STAGE/$1/usr/share/doc/$1
  mkdir -p "$folder"
  install -m 644 packaging/deb/copyright "$folder/copyright"
  printf '%s (%s) unstable; urgency=medium\n\n  * Built from commit %s.\n\n -- gpulab maintainers <maintainers@gpulab.example>  %s\n' \
    "$1" "$VERSION" "$(git rev-parse HEAD)" "$date" | gzip -9n >"$folder/changelog.gz"
}

doc gpulab
root=$STAGE/gpulab
# What messages and the configuration call docs/….
cp -r README.md docs "$root/usr/share/doc/gpulab/"
chmod -R u=rwX,go=rX "$root/usr/share/doc/gpulab"
mkdir -p "$root/usr/share/lintian/overrides"
install -m 644 packaging/deb/gpulab/lintian-overrides "$root/usr/share/lintian/overrides/gpulab"
# The units, as init would write them for the package's program.
units=$root/usr/lib/systemd/system
mkdir -p "$units"
for unit in gpulab gpulab-pods; do
  sed -e 's|{{.Exe}}|/usr/bin/gpulab|' -e 's| --config {{.Config}}||' -e 's| --socket {{.Socket}}||' \
    "cmd/gpulab/$unit.service" >"$units/$unit.service"
done
# What preinst compares with what is on a machine.
about=$("$PROGRAM" version --json)
preinst=$(<packaging/deb/gpulab/preinst)
preinst=${preinst/@VERSION@/$VERSION}
preinst=${preinst/@SCHEMA@/$(sed -n 's/.*"schema": \([0-9]*\).*/\1/p' <<<"$about")}
preinst=${preinst/@KUBERNETES@/$(sed -n 's/.*"kubernetes": "\([0-9.]*\)".*/\1/p' <<<"$about")}
preinst=${preinst/@RELEASES@/$(grep -v '^#' packaging/deb/gpulab/releases || true)}
printf '%s\n' "$preinst" >"$STAGE/preinst"
! grep -q "=''$" <(grep -v '^releases=' "$STAGE/preinst") || { echo "deb: the program does not say what preinst compares" >&2; exit 1; }
! grep -q '{{' "$units"/* || { echo "deb: a unit has a variable that this script does not know" >&2; exit 1; }
# Manual pages and completions come from the program itself.
"$PROGRAM" man "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$PROGRAM" completion bash >"$root/usr/share/bash-completion/completions/gpulab"
"$PROGRAM" completion zsh >"$root/usr/share/zsh/vendor-completions/_gpulab"
"$PROGRAM" completion fish >"$root/usr/share/fish/vendor_completions.d/gpulab.fish"

doc gpulab-images
images=$STAGE/gpulab-images/usr/share/gpulab/images
mkdir -p "$images"
cp -r --preserve=timestamps bin/images/. "$images/"
chmod -R u=rwX,go=rX "$images"
find "$images" -type f -exec chmod 644 {} +

mkdir -p "$out"
# Those of other commits would be taken along by whoever takes gpulab*.deb.
rm -f "$out"/gpulab_*.deb "$out"/gpulab-images_*.deb
for package in gpulab gpulab-images; do
  # nfpm knows no variables in the paths of scripts.
  sed -e "s|packaging/deb/gpulab/preinst|$STAGE/preinst|" -e "s|compression: xz|compression: ${COMPRESSION:-xz}|" "packaging/deb/nfpm.$package.yaml" >"$STAGE/nfpm.$package.yaml"
  go tool -modfile=packaging/deb/go.mod nfpm package --config "$STAGE/nfpm.$package.yaml" --packager deb \
    --target "$out/${package}_${VERSION}_amd64.deb" >/dev/null
  ls -l "$out/${package}_${VERSION}_amd64.deb" | awk '{ printf "%s  %.1f MB\n", $NF, $5 / 1e6 }'
done
