#!/bin/bash
# Imports the most used wheels (wheels.txt) in the notebook image in bin/images, and lists those that fail, because a
# library is missing for example. Run it as root before the image moves to another Debian or Python. It needs PyPI,
# 12 GB below $TMPDIR and some ten minutes, and leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'umount "$work"/root/{proc,dev} 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
mkdir "$work/root"
python3 - "$work/root" <<'PY'
import json, subprocess, sys
def blob(digest): return "bin/images/blobs/sha256/" + digest.split(":")[1]
index = json.load(open("bin/images/index.json"))
image = next(m for m in index["manifests"] if "/notebook:" in m["annotations"].get("org.opencontainers.image.ref.name", ""))
for layer in json.load(open(blob(image["digest"])))["layers"]:
    unpack = "zstd" if "zstd" in layer["mediaType"] else "gzip"
    subprocess.run(f"{unpack} -dc {blob(layer['digest'])} | tar -x -C {sys.argv[1]} --exclude='dev/*'", shell=True, check=True)
PY
python=$(ls "$work"/root/usr/bin/python3.[0-9]* | grep -o '3\.[0-9]*$' | sort -V | tail -n 1)
python3 -m venv "$work/uv"
"$work/uv/bin/pip" -q install uv
# Where the newest versions exclude each other, uv takes older ones.
UV_NO_CACHE=1 "$work/uv/bin/uv" pip install -q --target "$work/root/wheels" --python-version "$python" \
  --python-platform x86_64-manylinux_2_40 --only-binary :all: -r packaging/images/wheels.txt
cp packaging/images/wheels.{txt,py} "$work/root/"
mount -t proc proc "$work/root/proc"
mount --bind /dev "$work/root/dev"
chroot "$work/root" env -i PATH=/usr/bin:/bin HOME=/tmp "python$python" /wheels.py
