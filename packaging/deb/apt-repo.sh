#!/bin/bash
# Makes a signed apt repository of the packages in a folder, to be served by any
# web server as it is:
#
#   packaging/deb/apt-repo.sh [PACKAGES [REPOSITORY]]     (default: dist dist/apt)
#
# GPULAB_APT_URL is where it will be served, as https://apt.example.org; without
# it, gpulab.sources, which tells apt about the repository, leads to the folder here.
# GPULAB_APT_KEY names a file with the secret key that signs it (gpg
# --export-secret-keys --armor KEY). Without it, a key is made for this one
# repository and forgotten: good for trying it out, since the next has another.
set -euo pipefail
packages=$(realpath "${1:-dist}")
repository=${2:-${1:-dist}/apt}
umask 022
export LC_ALL=C.UTF-8 TZ=UTC

shopt -s nullglob
debs=("$packages"/gpulab*.deb)
[ ${#debs[@]} -gt 0 ] || { echo "apt-repo: there is no package in $packages; run \`go tool task deb\` first" >&2; exit 1; }

GNUPGHOME=$(mktemp -d)
export GNUPGHOME
trap 'gpgconf --kill all; rm -rf "$GNUPGHOME" "$repository.new"' EXIT
if [ -n "${GPULAB_APT_KEY:-}" ]; then
  gpg --quiet --batch --import "$GPULAB_APT_KEY"
else
  echo "apt-repo: GPULAB_APT_KEY is not set; signing with a key made for this repository alone" >&2
  gpg --quiet --batch --passphrase '' --quick-generate-key 'gpulab trial repository' ed25519 sign never
fi

# Made beside the old one and put in its place whole.
repository=$(realpath --canonicalize-missing "$repository")
url=${GPULAB_APT_URL:-file:$repository}
rm -rf "$repository.new"
mkdir -p "$repository.new/pool" "$repository.new/dists/stable/main/binary-amd64"
cp --link "${debs[@]}" "$repository.new/pool/" 2>/dev/null || cp --preserve=timestamps "${debs[@]}" "$repository.new/pool/"
gpg --export --armor >"$repository.new/gpulab.asc"
{
  printf 'Types: deb\nURIs: %s\nSuites: stable\nComponents: main\nArchitectures: amd64\nSigned-By:\n' "$url"
  sed 's/^$/./; s/^/ /' "$repository.new/gpulab.asc"
} >"$repository.new/gpulab.sources"
cd "$repository.new"
apt-ftparchive packages pool >dists/stable/main/binary-amd64/Packages
gzip -9nk dists/stable/main/binary-amd64/Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=gpulab -o APT::FTPArchive::Release::Label=gpulab \
  -o APT::FTPArchive::Release::Suite=stable -o APT::FTPArchive::Release::Codename=stable \
  -o APT::FTPArchive::Release::Architectures=amd64 -o APT::FTPArchive::Release::Components=main \
  release dists/stable >"$GNUPGHOME/Release"
mv "$GNUPGHOME/Release" dists/stable/Release
gpg --quiet --batch --no-auto-check-trustdb --clearsign --output dists/stable/InRelease dists/stable/Release
gpg --quiet --batch --no-auto-check-trustdb --armor --detach-sign --output dists/stable/Release.gpg dists/stable/Release
cd - >/dev/null
rm -rf "$repository"
mv "$repository.new" "$repository"
echo "$repository: $(grep -c ^Package: "$repository/dists/stable/main/binary-amd64/Packages") packages, key $(gpg --show-keys --with-colons "$repository/gpulab.asc" | awk -F: '$1 == "fpr" { print $10; exit }')"
