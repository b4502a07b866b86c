#!/bin/sh
# Runs inside a root made of the layers below; /src is this folder.
# What it leaves behind in the root becomes the notebook's own layer.
set -eu

# The base's Python, and the Python of homes from the time of Debian 12.
newest=$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
older=3.11

# Cells and terminals run on Debian's Pythons, which look into the person's
# ~/.local first: what they install there comes before what the image has. The
# server runs in /opt/lab, which never looks into a home, so that no package of
# theirs can keep JupyterLab from starting.
"/usr/bin/python$newest" -m venv /tmp/bootstrap
for python in "python$older" "python$newest"; do
  /tmp/bootstrap/bin/pip --python "/usr/bin/$python" install --break-system-packages \
    --no-deps --no-compile --require-hashes --only-binary :all: -r /src/kernel.txt
  # The marker forbids `pip install`, even into a home; here that is the one way.
  rm "/usr/lib/$python/EXTERNALLY-MANAGED"
done
# Files that are the same for both are stored once, as hard links.
"/usr/bin/python$newest" - "/usr/local/lib/python$newest" "/usr/local/lib/python$older" <<'EOF'
import filecmp, os, sys
one, other = sys.argv[1:]
for folder, _, files in os.walk(other):
    for path in (os.path.join(folder, name) for name in files):
        same = one + path.removeprefix(other)
        if os.path.isfile(same) and filecmp.cmp(same, path, shallow=False):
            os.unlink(path)
            os.link(same, path)
EOF

# The server shares the newer kernel's packages instead of holding them twice.
"/usr/bin/python$newest" -m venv --without-pip /opt/lab
server=/opt/lab/lib/python$newest/site-packages
echo "/usr/local/lib/python$newest/dist-packages" >"$server/kernel.pth"
/usr/local/bin/pip --python /opt/lab/bin/python install \
  --no-deps --no-compile --require-hashes --only-binary :all: -r /src/lab.txt -r /src/labextensions.txt
rm -rf /opt/lab/include
# jsonschema uses it if it is there, to check the formats "iri" and
# "iri-reference", which nothing here uses: its grammar takes a second to build,
# at every start of every notebook.
/usr/local/bin/pip --python /opt/lab/bin/python uninstall --yes rfc3987-syntax lark
# Commands of shared packages that are about the server run in the server's Python.
for command in /usr/local/bin/jupyter*; do
  sed '1s|.*|#!/opt/lab/bin/python3|' "$command" >"/opt/lab/bin/${command##*/}"
  chmod 0755 "/opt/lab/bin/${command##*/}"
  rm "$command"
done
# The remaining commands run in the home's Python, unless they name one.
for command in /usr/local/bin/*; do
  case ${command##*/} in
  *3.[0-9]*) ;;
  *) sed -i '1s|^#!/usr/bin/python3.*|#!/usr/bin/python3|' "$command" ;;
  esac
done

# What no notebook server serves: the hub's own pages, JupyterLab's second copy
# of itself (for "core mode") and its browser tests, source maps; names of places
# and days in languages that this JupyterLab has no translation for.
rm -rf /opt/lab/share/jupyterhub/static/components "$server/jupyterlab/static" "$server/jupyterlab/galata"
find /opt/lab/share -name '*.map' -delete
find "$server/babel/locale-data" -name '*.dat' ! -name root.dat ! -name 'en*.dat' -delete

# vim-tiny calls itself vi alone.
ln -s /usr/bin/vim.tiny /usr/local/bin/vim

cp -R /src/files/. /
cp /src/modules/*.py "$server/"
chmod 0755 /usr/local/bin/start-notebook /usr/local/bin/run-notebook /usr/local/bin/use-python /usr/local/bin/python3-config
# One kernel, by its full path: "python3" alone would be the server's own.
cp /src/files/usr/local/share/jupyter/kernels/python3/kernel.json /usr/local/share/jupyter/kernels/python3/kernel.json

# A user ID without a name is what most pods have. start-notebook writes the
# name to this place, and name lookups read it.
sed -i -E 's/^(passwd|group|shadow):.*/& extrausers/' /etc/nsswitch.conf
ln -s /tmp/.gpulab/passwd /var/lib/extrausers/passwd
ln -s /tmp/.gpulab/group /var/lib/extrausers/group
# The same for what git takes where the person's own ~/.gitconfig says nothing;
# it includes what git-lfs has put there.
mv /etc/gitconfig /etc/gitconfig-lfs
ln -s /tmp/.gpulab/gitconfig /etc/gitconfig

# The C library and all that ask it get their time zones where Python has them.
ln -s "$("/usr/bin/python$newest" -c 'import os, tzdata; print(os.path.dirname(tzdata.__file__))')/zoneinfo" /usr/share/zoneinfo

# Compiled by content, not by time: every file of an image has the same time.
# All of it (-f): what ran above has left files compiled by time.
for python in "python$older" "python$newest"; do
  "$python" -m compileall -q -f -j 1 --invalidation-mode unchecked-hash "/usr/local/lib/$python"
done
"python$newest" -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/lab/lib

# Last: the commands above need Debian's own python3, which does not look into a home.
rm /usr/bin/python3
gcc -Os -s -Wall -Wextra -Werror -D_GNU_SOURCE -DNEWEST="\"$newest\"" -DOLDER="\"$older\"" -o /usr/bin/python3 /src/python3.c
ln -s /usr/bin/python3 /usr/local/bin/python
/opt/lab/bin/jupyterhub-singleuser --version
/opt/lab/bin/jupyter lab --version
