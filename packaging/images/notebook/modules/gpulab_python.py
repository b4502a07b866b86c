"""Which Python a home uses, as the image's /usr/bin/python3 decides (python3.c).

A home that has packages for Python 3.11, from the time when that was the image's only
one, uses it until its owner chooses another with use-python.
"""

import json
import os
import re
import shlex
import urllib.parse
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

VERSIONS = ["3.13", "3.11"]  # of the image, the newest first


def choice():
    """The file that holds the choice."""
    return Path.home() / ".config/gpulab/python"


def packages(version):
    """Where a home's packages for a Python are."""
    return Path.home() / f".local/lib/python{version}/site-packages"


def short(path):
    """A path as its owner knows it."""
    path, home = str(path), str(Path.home())
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path


def chosen():
    """The version that somebody chose, None if nobody did."""
    try:
        if not choice().is_file():  # opening a pipe would wait
            return None
        with open(choice(), "rb") as file:
            version = re.match(rb"[0-9.]*", file.readline(15))[0].decode().split(".")
    except OSError:
        return None
    version = ".".join(version[:2])
    return version if version in VERSIONS else None


def used():
    """The version that a home uses, and why, which is "" for the image's newest."""
    version = chosen()
    if version:
        return version, f"{short(choice())} says so"
    newest, *earlier = VERSIONS
    for version in earlier:
        if has_packages(version) and not has_packages(newest):
            return version, f"it has packages in {short(packages(version))}"
    return newest, ""


def has_packages(version):
    try:
        with os.scandir(packages(version)) as entries:
            return any(not entry.name.startswith(".") and entry.name != "__pycache__" for entry in entries)
    except OSError:
        return False


def other(version):
    """A version that the image has besides."""
    return next(v for v in VERSIONS if v != version)


def use(version):
    """Chooses the version that the home uses. Its folder for packages is made, since a Python that starts without it
    does not find what pip puts there."""
    file = choice()
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.is_dir():
        raise IsADirectoryError(21, "it is a folder", str(file))
    new = file.with_name("python.new")
    try:
        new.write_text(version + "\n", encoding="utf-8")
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    packages(version).mkdir(parents=True, exist_ok=True)


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def found(folder):
    """The distributions in a folder, by their normal names. Damaged ones are left out."""
    by_name = {}
    for distribution in distributions(path=[str(folder)]):
        try:
            name = distribution.metadata["Name"]
        except Exception:
            continue
        if name and re.fullmatch(r"[\w.-]+", name, re.ASCII):
            by_name[normal(name)] = distribution
    return by_name


def requires(distribution, version):
    """The normal names of what a distribution needs with a Python."""
    for line in distribution.requires or []:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"python_version": version, "python_full_version": f"{version}.0", "extra": ""}):
            yield normal(requirement.name)


def origin(distribution):
    """What pip is told to install a distribution again: its name, or where it came from if that is no index."""
    name = distribution.metadata["Name"]
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        url = origin["url"]
        part = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
        if "vcs_info" in origin:
            return shlex.quote(f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}{part}")
        if "dir_info" not in origin:  # a file, which may be for another Python
            return name
        place = urllib.parse.unquote(urllib.parse.urlsplit(url).path)
        return ("-e " if origin["dir_info"].get("editable") else "") + shlex.quote(place)
    except (KeyError, ValueError, TypeError, AttributeError):
        return name


def missing(version):
    """What pip has to be told to give a home for a Python what it has for others: packages that no other one needs."""
    there = found(packages(version)).keys() | found(f"/usr/local/lib/python{version}/dist-packages").keys()
    again = {}
    for other in VERSIONS:
        if other != version:
            again |= {name: d for name, d in found(packages(other)).items() if name not in there}
    needs = {name: set(requires(d, version)) & again.keys() - {name} for name, d in again.items()}
    covered, told = set(), []

    def cover(name):
        if name not in covered:
            covered.add(name)
            for needed in needs[name]:
                cover(needed)

    # First those that nothing needs; of those that need one another, the first.
    for name in sorted(again, key=lambda name: (any(name in n for n in needs.values()), name)):
        if name not in covered:
            told.append(origin(again[name]))
            cover(name)
    return sorted(told)


def sentence():
    """What somebody should know about the home's Python; "" for nothing."""
    version, newest = used()[0], VERSIONS[0]
    if version == newest:
        return ""
    why = f"because it has packages in {short(packages(version))}" if has_packages(version) else "as you chose with use-python"
    again = " It names the packages to install again." if has_packages(version) else ""
    return f"Your home uses Python {version}, {why}. The lab's newest Python is {newest}. To change to it, run in a terminal: use-python {newest}.{again}"
