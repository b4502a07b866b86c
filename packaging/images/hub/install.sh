#!/bin/sh
# Runs inside a root made of the base layer; /src is this folder.
# What it leaves behind in the root becomes the hub's layer.
set -eu

python3 -m venv /opt/hub
/opt/hub/bin/pip install --no-deps --no-compile --require-hashes --only-binary :all: -r /src/requirements.txt
# jsonschema uses it if it is there, to check the formats "iri" and
# "iri-reference", which nothing here uses: its grammar takes a second to build.
/opt/hub/bin/python -m pip --quiet uninstall --yes rfc3987-syntax lark
# Nothing is installed into a running hub.
/opt/hub/bin/python -m pip --quiet uninstall --yes pip setuptools
rm -rf /opt/hub/include
# The pages use the icons as a font; the same icons as files are most of it all.
icons=/opt/hub/share/jupyterhub/static/components/@fortawesome/fontawesome-free
rm -rf $icons/js $icons/metadata $icons/scss $icons/sprites* $icons/svgs*
find /opt/hub/share -name '*.map' -delete

# A name for the user that the image runs as, and a folder it may write to.
echo 'hub:x:19999:' >>/etc/group
echo 'hub:x:19999:19999:JupyterHub:/srv/jupyterhub:/usr/sbin/nologin' >>/etc/passwd
install -d -o 19999 -g 19999 -m 0750 /srv/jupyterhub

# Compiled by content, not by time: every file of an image has the same time.
# All of it (-f): what ran above has left files compiled by time.
python3 -m compileall -q -f -j 1 --invalidation-mode unchecked-hash /opt/hub/lib
/opt/hub/bin/python -c 'import jupyterhub.app, kubespawner, oauthenticator.generic'
