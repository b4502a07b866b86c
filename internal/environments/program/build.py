"""Makes an environment: runs in a pod from the image of notebooks, as nobody in particular.

    build.py TARGET WORK [PIP OPTION...]

TARGET  an empty folder at the path at which notebooks will see it: what a virtual
        environment holds names that path, so it is never moved in a pod's eyes
WORK    a folder with requirements.txt; lock.txt and packages.json are left there

First it is found out what exactly is to be installed, without installing it. That
is the lock: each package with its version and the hashes of its file. Then the lock
alone is installed. Only wheels: no code of a package runs while it is built.
"""
import compileall
import json
import os
import re
import shutil
import subprocess
import sys

target, work, options = sys.argv[1], sys.argv[2], sys.argv[3:]
# What a kernel needs, and what people's own additions are installed with.
own = ["ipykernel", "pip"]
quiet = ["--no-input", "--progress-bar=off", "--disable-pip-version-check", "--no-warn-script-location"]


def fail(text):
    print("! " + text, flush=True)
    sys.exit(1)


def say(text):
    print("@ " + text, flush=True)


def pip(*arguments, python=None):
    """Run pip, and pass on what it says. Its last errors are the reason for a failure."""
    command = ["/usr/bin/python3", "-I", "-m", "pip", *(["--python", python] if python else []), "install", *quiet, *arguments]
    errors = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            print(line.rstrip(), flush=True)
            if line.startswith("ERROR: "):
                errors.append(line[len("ERROR: "):].strip())
    if process.returncode:
        fail(" ".join(errors[:2]) or f"pip ended with {process.returncode}")


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


with open(f"{work}/requirements.txt", encoding="utf-8") as file:
    asked = file.read()
hashed = "--hash" in asked
say("finding out which packages that takes")
pip(
    "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", f"{work}/report.json",
    *options, "-r", f"{work}/requirements.txt", *([] if hashed else own),
)
with open(f"{work}/report.json", encoding="utf-8") as file:
    found = json.load(file)["install"]

lock, packages = [], []
for item in sorted(found, key=lambda item: normal(item["metadata"]["name"])):
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    sums = item["download_info"].get("archive_info", {}).get("hashes", {})
    if "sha256" not in sums:
        fail(f"{name} comes from a place that says no SHA-256 of it; name it by a version that an index has")
    lock.append(f"{normal(name)}=={version} --hash=sha256:{sums['sha256']}\n")
    packages.append({"name": normal(name), "version": version})
missing = [name for name in own if name not in {package["name"] for package in packages}]
if missing:
    fail(f"these requirements have hashes but lack {' and '.join(missing)}, which every environment needs; add them, with hashes")
with open(f"{work}/lock.txt", "w", encoding="utf-8") as file:
    file.writelines(lock)

say(f"installing {len(packages)} packages")
subprocess.run(["/usr/bin/python3", "-I", "-m", "venv", "--without-pip", target], check=True)
python = f"{target}/bin/python3"
pip(
    "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:",
    *options, "-r", f"{work}/lock.txt", python=python,
)
shutil.rmtree(f"{target}/include", ignore_errors=True)

say("compiling")
# By content, not by time: copies on other machines have other times.
compileall.compile_dir(
    f"{target}/lib", quiet=2, workers=1, invalidation_mode=compileall.py_compile.PycInvalidationMode.UNCHECKED_HASH,
)
# It has to work before anybody sees it.
subprocess.run([python, "-I", "-c", "import ipykernel, pip"], check=True)
with open(f"{work}/packages.json", "w", encoding="utf-8") as file:
    json.dump({"python": "%d.%d" % sys.version_info[:2], "packages": packages}, file)
say("built")
