#!/bin/sh
# Prints the lines for a file of assets/environments that bring Debian packages into
# an environment, with all that they need beyond the notebooks' image. Run it on
# Debian 12 with the lists of apt brought up to date:
#
#	packaging/environments/debian.sh r-base-core r-cran-irkernel … >> assets/environments/r.txt
#
# The lines are a lock: each names a file on every mirror of Debian and its SHA-256.
set -eu
export LC_ALL=C
images="$(dirname "$0")/../images"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/archives/partial" # as if nothing had been downloaded
: > "$work/status"                # or were installed
sed -n 's/^\([a-z0-9][a-z0-9+.-]*\) .*/\1/p' "$images/base/packages.lock" "$images/tools/packages.lock" | sort -u > "$work/there"
apt-get -q -o Dir::State::status="$work/status" -o Dir::Cache::archives="$work/archives" \
	--print-uris --no-install-recommends -y install "$@" > "$work/uris"
sed -n "s#^'[^']*/\(pool/[^']*\)' \([^_]*\)_.*#\2 \1#p" "$work/uris" |
	sed 's/%2b/+/g; s/%7e/~/g; s/%3a/:/g' | sort > "$work/all"
join -v 1 "$work/all" "$work/there" > "$work/needed"
while read -r name path; do
	line="$(apt-cache show "$name" | awk -v path="$path" '
		/^Filename: / { here = $2 == path }
		/^SHA256: / { sum = $2 }
		/^$/ { if (here && sum != "" && !said) { print "# deb: " path " " sum; said = 1 }; here = 0; sum = "" }
		END { if (here && sum != "" && !said) print "# deb: " path " " sum }')"
	test -n "$line" || { echo "debian.sh: apt knows no SHA-256 of $path" >&2; exit 1; }
	echo "$line"
done < "$work/needed"
