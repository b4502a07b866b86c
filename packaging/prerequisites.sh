#!/bin/bash
# Installs what gpulab needs from Debian's or Ubuntu's own packages, and only
# what is missing: with everything there it changes nothing and needs no network.
#
#   packaging/prerequisites.sh build|run|test|deb|vm...
#
# build  what turns a clone into bin/gpulab
# run    what a machine of the pool needs while gpulab runs
# test   what the tests need besides (a Chromium and a Firefox; a Prometheus and an OpenLDAP that are not started)
# deb    what makes and tests the Debian packages and their repository
# vm     what tests them in a virtual machine
#
# Debian 12 and 13, Ubuntu 24.04. Go itself is not installed: whoever runs this
# through `go tool task` has it.
set -euo pipefail

build=(gcc make libc6-dev libseccomp-dev pkg-config mmdebstrap debian-archive-keyring zstd ca-certificates git)
run=(iptables nftables ipset iproute2 kmod mount ca-certificates)
recommended=(lxcfs) # the Debian package recommends it; gpulab runs without it
test=(chromium curl dbus-daemon e2fsprogs firefox-esr libnss3-tools openssh-client prometheus slapd python3 python3-venv util-linux procps)
deb=(lintian apt-utils gnupg curl mmdebstrap debian-archive-keyring systemd systemd-container iproute2 procps util-linux)
vm=(qemu-system-x86 qemu-utils e2fsprogs openssh-client gcc make flex bison bc xz-utils mmdebstrap debian-archive-keyring)

. /etc/os-release
case "${ID:-}${VERSION_ID:-}" in
debian12 | debian13 | ubuntu24.04) ;;
*) echo "prerequisites: ${PRETTY_NAME:-this system} is not one of Debian 12, Debian 13, Ubuntu 24.04; going on as if it were" >&2 ;;
esac
if ! command -v apt-get >/dev/null; then
  echo "prerequisites: there is no apt-get here; install the equivalents of: ${build[*]} ${run[*]}" >&2
  exit 1
fi

wanted=()
for set in "$@"; do
  case $set in
  build) wanted+=("${build[@]}") ;;
  run) wanted+=("${run[@]}" "${recommended[@]}") ;;
  test) wanted+=("${test[@]}") ;;
  deb) wanted+=("${deb[@]}") ;;
  vm) wanted+=("${vm[@]}") ;;
  *)
    echo "usage: $0 build|run|test|deb|vm..." >&2
    exit 2
    ;;
  esac
done

missing=()
for package in "${wanted[@]}"; do
  # Ubuntu's chromium is a snap, which enters no network namespace of a test.
  if [ "$package" = chromium ] && [ "${ID:-}" = ubuntu ]; then
    if [ -z "${GPULAB_CHROMIUM:-}" ]; then
      echo "prerequisites: Ubuntu has Chromium only as a snap, which the tests cannot use;" \
        "install another Chromium or Chrome and set GPULAB_CHROMIUM to its program" >&2
    fi
    continue
  fi
  # Its firefox is a snap as well, which reads no profile below /tmp, and it has no firefox-esr.
  if [ "$package" = firefox-esr ] && [ "${ID:-}" = ubuntu ]; then
    if [ -z "${GPULAB_FIREFOX:-}" ] && ! command -v firefox-esr >/dev/null; then
      echo "prerequisites: Ubuntu has Firefox only as a snap, which the tests cannot use;" \
        "install firefox or firefox-esr from Mozilla's repository (packages.mozilla.org/apt)" \
        "and set GPULAB_FIREFOX to its program" >&2
    fi
    continue
  fi
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "prerequisites: root is needed to install: ${missing[*]}" >&2
    exit 77
  fi
  sudo=(sudo)
fi
echo "prerequisites: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -q -o DPkg::Lock::Timeout=300 "$@" </dev/null >>"$log" 2>&1; }
# Debian would start a Prometheus and an OpenLDAP of the machine's own, and at every
# boot again. The tests start theirs themselves.
policy=/usr/sbin/policy-rc.d
quiet=()
for service in prometheus slapd; do
  case " ${missing[*]} " in *" $service "*) quiet+=("$service") ;; esac
done
if [ ${#quiet[@]} -gt 0 ] && [ ! -e "$policy" ]; then
  printf '#!/bin/sh\ncase "${1%%.service}" in prometheus | slapd) exit 101 ;; esac\n' | "${sudo[@]}" tee "$policy" >/dev/null
  "${sudo[@]}" chmod 755 "$policy"
  trap 'rm -f "$log"; "${sudo[@]}" rm -f "$policy"' EXIT
fi
# The lists of a fresh machine are absent or old; a first install may still pass without.
if ! { apt install --no-install-recommends "${missing[@]}" || { apt update && apt install --no-install-recommends "${missing[@]}"; }; }; then
  tail -n 20 "$log" >&2
  echo "prerequisites: apt could not install ${missing[*]}; the lines above say why" >&2
  exit 1
fi
if command -v systemctl >/dev/null; then
  for service in "${quiet[@]}"; do
    "${sudo[@]}" systemctl disable "$service" >>"$log" 2>&1 || echo "prerequisites: Debian's $service starts at the next boot; \`systemctl disable $service\` takes it off" >&2
  done
fi
