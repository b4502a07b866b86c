#!/bin/sh
# Runs inside a root made of the base and tools layers; /src is this folder.
# What it leaves behind in the root becomes the notebook's own layer.
set -eu

# Two Pythons. Cells and terminals run on Debian's, which looks into the
# person's ~/.local first: what they install there comes before what the image
# has. The server runs in /opt/lab, which never looks into a home, so that no
# package of theirs can keep JupyterLab from starting.
python3 -m venv /tmp/bootstrap
/tmp/bootstrap/bin/pip --python /usr/bin/python3 install --break-system-packages \
  --no-deps --no-compile --require-hashes --only-binary :all: -r /src/kernel.txt
# The marker forbids `pip install`, even into a home; here that is the one way.
rm /usr/lib/python3.11/EXTERNALLY-MANAGED
ln -s /usr/bin/python3 /usr/local/bin/python

# The server shares the kernel's packages instead of holding them twice.
python3 -m venv --without-pip /opt/lab
echo /usr/local/lib/python3.11/dist-packages >/opt/lab/lib/python3.11/site-packages/kernel.pth
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

# What no notebook server serves: the hub's own pages, JupyterLab's second copy
# of itself (for "core mode") and its browser tests, source maps.
rm -rf /opt/lab/share/jupyterhub/static/components \
  /opt/lab/lib/python3.11/site-packages/jupyterlab/static /opt/lab/lib/python3.11/site-packages/jupyterlab/galata
find /opt/lab/share -name '*.map' -delete

# vim-tiny calls itself vi alone.
ln -s /usr/bin/vim.tiny /usr/local/bin/vim

cp -R /src/files/. /
chmod 0755 /usr/local/bin/start-notebook /usr/local/bin/run-notebook
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
ln -s "$(/usr/bin/python3 -c 'import os, tzdata; print(os.path.dirname(tzdata.__file__))')/zoneinfo" /usr/share/zoneinfo

# Compiled by content, not by time: every file of an image has the same time.
# All of it (-f): what ran above has left files compiled by time.
python3 -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/lab/lib /usr/local/lib/python3.11
/opt/lab/bin/jupyterhub-singleuser --version
/opt/lab/bin/jupyter lab --version
