#!/bin/bash
# Prints the lines for a file of assets/environments that bring Debian packages into
# an environment, with all that they need beyond the notebooks' image. Run it on
# Debian 12 with the lists of apt brought up to date:
#
#	packaging/environments/debian.sh r-base-core r-cran-irkernel … >> assets/environments/r.txt
#	packaging/environments/debian.sh ffmpeg -libllvm15       # leave out libllvm15
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
if [ $kind = man ]; then
	printf '%s\n' "${wanted[@]}" | sort > "$work/needed"
else
	mkdir -p "$work/archives/partial" # as if nothing had been downloaded
	: > "$work/status"                # or were installed
	sed -n 's/^\([a-z0-9][a-z0-9+.-]*\) .*/\1/p' "$images"/{base,tools,libraries}/packages.lock | sort -u - <(printf '%s\n' "${without[@]}") > "$work/there"
	apt-get -q -o Dir::State::status="$work/status" -o Dir::Cache::archives="$work/archives" \
		--print-uris --no-install-recommends -y install "${wanted[@]}" > "$work/uris"
	sed -n "s#^'[^']*/pool/[^']*' \([^_]*\)_.*#\1#p" "$work/uris" | sort > "$work/all"
	join -v 1 "$work/all" "$work/there" > "$work/needed"
fi
# With --no-all-versions, apt shows the version that it would install.
xargs apt-cache show --no-all-versions < "$work/needed" | awk -v kind="$kind" '
	/^Package: / { name = $2 }
	/^Filename: / { path = $2 }
	/^SHA256: / { print "# " kind ": " path " " $2; said[name] = 1 }
	END { while ((getline line < ARGV[2]) > 0) if (!(line in said)) { print "debian.sh: apt knows no package " line "; check its name, or run apt-get update" > "/dev/stderr"; failed = 1 }; exit failed }
' - "$work/needed"
