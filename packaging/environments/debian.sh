#!/bin/bash
# Prints the lines for a file of assets/environments that bring Debian packages into
# an environment, with all that they need beyond the notebooks' image. It needs apt,
# the keys of Debian (debian-archive-keyring) and a network; the release is the image's:
#
#	packaging/environments/debian.sh r-base-core r-cran-irkernel … >> assets/environments/r.txt
#	packaging/environments/debian.sh ffmpeg -libllvm19       # leave out libllvm19
#	packaging/environments/debian.sh --man coreutils bash    # only the manual pages of these packages
#
# The lines are a lock: each names a file on every mirror of Debian and its SHA-256.
set -euo pipefail
export LC_ALL=C
images="$(dirname "$0")/../images"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
kind=deb
[ "${1:-}" != --man ] || { kind=man; shift; }
wanted=() without=()
for name in "$@"; do
	case $name in
	-*) without+=("${name#-}") ;;
	*) wanted+=("$name") ;;
	esac
done
# As if nothing were installed here, whichever release this machine has.
release="$(sed -n 's/^\tsuite *= "\(.*\)"$/\1/p' "$images/build/debian.go")"
mkdir -p "$work"/{archives,lists}/partial "$work/parts"
: > "$work/status"
from="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org"
printf '%s\n' "$from/debian $release main" "$from/debian $release-updates main" \
	"$from/debian-security $release-security main" > "$work/sources.list"
export APT_CONFIG="$work/apt.conf"
cat > "$APT_CONFIG" <<CONF
Dir::State::status "$work/status";
Dir::State::lists "$work/lists";
Dir::Cache "$work";
Dir::Cache::archives "$work/archives";
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "$work/parts";
Dir::Etc::preferences "$work/none";
Dir::Etc::preferencesparts "$work/parts";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
CONF
apt-get -qq update
if [ $kind = man ]; then
	printf '%s\n' "${wanted[@]}" | sort > "$work/needed"
else
	sed -n 's/^\([a-z0-9][a-z0-9+.-]*\) .*/\1/p' "$images"/*/packages.lock | sort -u - <(printf '%s\n' "${without[@]}") > "$work/there"
	apt-get -q --print-uris --no-install-recommends -y install "${wanted[@]}" > "$work/uris"
	sed -n "s#^'[^']*/pool/[^']*' \([^_]*\)_.*#\1#p" "$work/uris" | sort > "$work/all"
	join -v 1 "$work/all" "$work/there" > "$work/needed"
fi
# With --no-all-versions, apt shows the version that it would install.
xargs apt-cache show --no-all-versions < "$work/needed" | awk -v kind="$kind" '
	/^Package: / { name = $2 }
	/^Filename: / { path = $2 }
	/^SHA256: / { print "# " kind ": " path " " $2; said[name] = 1 }
	END { while ((getline line < ARGV[2]) > 0) if (!(line in said)) { print "debian.sh: apt knows no package " line "; check its name" > "/dev/stderr"; failed = 1 }; exit failed }
' - "$work/needed"
