"""Makes an environment: runs in a pod from the image of notebooks, as nobody in particular.

    build.py TARGET WORK CACHE MIRROR [PIP OPTION...]

TARGET  an empty folder at the path at which notebooks will see it: what a virtual
        environment holds names that path, so it is never moved in a pod's eyes
WORK    a folder with requirements.txt; lock.txt and packages.json are left there
CACHE   a folder that keeps what was downloaded
MIRROR  the address of a mirror of Debian

First it is found out what exactly is to be installed, without installing it. That
is the lock: each package with its version and the hashes of its file. Then the lock
alone is installed. Only wheels: no code of a package runs while it is built.

Debian packages are named by "# deb: FILE SHA-256", as debian.sh writes it: they are
unpacked into TARGET/debian, and their programs are on the environment's path. A line
"# man: FILE SHA-256" unpacks only the manual pages of a package.

With the line "# programs: everywhere" the environment has no Python and no kernel. The line
"# python: 3.11" chooses one of the Pythons that the image of notebooks has.
"""
import glob
import hashlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

(target, work, cache, mirror), options = sys.argv[1:5], sys.argv[5:]
# With this line in the requirements, the environment has no kernel, and its programs are on everybody's path.
EVERYWHERE = "# programs: everywhere"
PYTHON = re.compile(r"\s*#\s*python\s*:\s*(\d\S*)\s*", re.IGNORECASE)
# What the image has, the newest first.
pythons = sorted((path.removeprefix("/usr/bin/python") for path in glob.glob("/usr/bin/python3.*") if re.fullmatch(r".*/python3\.\d+", path)),
                 key=lambda version: int(version.removeprefix("3.")), reverse=True)
# What a kernel needs, and what people's own additions are installed with.
own = ["ipykernel", "pip"]
quiet = ["--no-input", "--progress-bar=off", "--disable-pip-version-check", "--no-warn-script-location"]


def fail(text):
    print("! " + text, flush=True)
    sys.exit(1)


def say(text):
    print("@ " + text, flush=True)


def chosen(asked):
    """The Python that requirements are for."""
    for line in asked.splitlines():
        if re.match(r"\s*#\s*python\s*:\s*[\"'\w.]*3\.\d", line, re.IGNORECASE) and not PYTHON.fullmatch(line):
            fail(f"the line \"{line.strip()}\" does not name a Python; write only \"# python: {pythons[0]}\" in it")
    named = [line[1] for line in map(PYTHON.fullmatch, asked.splitlines()) if line]
    if len(set(named)) > 1:
        fail(f"the lines \"# python:\" name {' and '.join(named)}; name one Python")
    if named and named[0] not in pythons:
        fail(f"the image of notebooks has no Python \"{named[0]}\"; name one that it has: {' or '.join(pythons)}")
    if named:
        return named[0]
    # A lock names one file of each package, so it is for one Python. Until Debian 13 came, locks did not say which.
    lines = [line for line in asked.splitlines() if line.strip() and not line.startswith("#")]
    if "3.11" in pythons and lines and all(re.fullmatch(r"\S+==\S+ --hash=sha256:[0-9a-f]{64}", line.strip()) for line in lines):
        print(f"This lock names no Python, so it is built with Python 3.11, as earlier versions of gpulab did. For Python {pythons[0]}, remove the hashes from the lock.", flush=True)
        return "3.11"
    return pythons[0]


def pip(*arguments, python=None):
    """Run pip, and pass on what it says. Its last errors are the reason for a failure."""
    command = [f"/usr/bin/python{version}", "-I", "-m", "pip", *(["--python", python] if python else []), "install", *quiet, *arguments]
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


# People's own packages go into their homes, whether anybody is there to be asked or not.
profile = """
local({
  own <- Sys.getenv("R_LIBS_USER")
  if (nzchar(own)) {
    dir.create(own, showWarnings = FALSE, recursive = TRUE)
    .libPaths(c(own, .libPaths()))
  }
})
"""


def sum_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(address, to):
    with urllib.request.urlopen(address, timeout=60) as answer, open(to, "wb") as file:
        shutil.copyfileobj(answer, file, 1 << 20)
        if answer.length:
            raise OSError("it was cut short")


def fetch(name, sha256):
    """Download a file of the mirror, or take it from what was downloaded before.

    Security updates lie beside the mirror, as at deb.debian.org.
    """
    place = f"{mirror}-security" if name.startswith("pool/updates/") else mirror
    kept = f"{cache}/debian/{sha256}.deb"
    if os.path.exists(kept) and sum_of(kept) == sha256:
        os.utime(kept)
        return kept
    os.makedirs(os.path.dirname(kept), exist_ok=True)
    for again in (True, True, False):
        try:
            download(f"{place}/{urllib.parse.quote(name)}", kept + ".part")
            break
        except (OSError, ValueError, http.client.HTTPException) as error:
            if not again or isinstance(error, urllib.error.HTTPError):
                fail(f"{name} cannot be had from {place}: {error}")
            time.sleep(2)
    found = sum_of(kept + ".part")
    if found != sha256:
        fail(f"{name} from {place} is another file than the one that was asked for: its SHA-256 is {found}")
    os.rename(kept + ".part", kept)
    return kept


def replace(path, change):
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(change(text))


def relocate(tree):
    """Make what was made for / work below tree."""
    for folder, folders, files in os.walk(tree):
        for path in (os.path.join(folder, name) for name in folders + files):
            if not os.path.islink(path):
                continue
            to = os.readlink(path)
            inside = tree + to if to.startswith("/") else os.path.normpath(os.path.join(folder, to))
            if os.path.lexists(inside):
                place = inside if to.startswith("/") else to
            else:
                place = inside.removeprefix(tree)  # the image has what it leads to
            if place != to:
                os.unlink(path)
                os.symlink(place, path)
    r = f"{tree}/usr/lib/R"
    if os.path.exists(f"{r}/bin/R"):
        # What its package's own script does after unpacking.
        shutil.copyfile(f"{r}/etc/Renviron.ucf", f"{tree}/etc/R/Renviron")
        os.unlink(f"{r}/etc/Renviron")
        os.symlink(f"{tree}/etc/R/Renviron", f"{r}/etc/Renviron")
        for path in (f"{r}/bin/R", f"{tree}/usr/bin/R", *glob.glob(f"{tree}/etc/R/*")):
            replace(path, lambda text: re.sub(r"(?<![\w/.-])/usr/(lib|share)/R\b", rf"{tree}/usr/\1/R", text))
        replace(f"{tree}/etc/R/Rprofile.site", lambda text: text + profile)
    replace(f"{tree}/etc/fonts/fonts.conf", lambda text: text.replace("<dir>/usr/share/fonts</dir>", f"<dir>{tree}/usr/share/fonts</dir><dir>/usr/share/fonts</dir>"))


def manual(name, sha256, tree):
    """Unpack the English manual pages of a Debian package."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", fetch(name, sha256)], stdout=subprocess.PIPE) as archive:
        unpacked = subprocess.run(["tar", "-x", "-C", tree, "--wildcards", "./usr/share/man/man[0-9]/*"], stdin=archive.stdout)
    if unpacked.returncode or archive.returncode:
        fail(f"{os.path.basename(name)} has no manual pages, or cannot be read; remove its \"# man:\" line")


def unpack(debs, pages):
    """Unpack Debian packages below target, and put their programs on its path."""
    tree, packages = f"{target}/debian", []
    os.makedirs(tree)
    for name, sha256 in debs:
        print(f"Unpacking {os.path.basename(name)}", flush=True)
        subprocess.run(["dpkg-deb", "--extract", fetch(name, sha256), tree], check=True)
        package, version, _ = os.path.basename(name).split("_")
        packages.append({"name": package, "version": version})
    useless = ["usr/share/info", "usr/share/lintian", "usr/share/locale", "usr/share/doc-base"]
    if pages:
        useless += [os.path.relpath(path, tree) for path in glob.glob(f"{tree}/usr/share/man/*") if not re.search(r"/man\d$", path)]
    else:
        useless.append("usr/share/man")
    for name in useless:
        shutil.rmtree(f"{tree}/{name}", ignore_errors=True)
    for name, sha256 in pages:
        print(f"Unpacking the manual of {os.path.basename(name)}", flush=True)
        manual(name, sha256, tree)
    for path in glob.glob(f"{tree}/usr/share/doc/*/*"):
        if os.path.islink(os.path.dirname(path)) or os.path.basename(path) == "copyright":
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    relocate(tree)
    libraries = f"lib/{os.uname().machine}-linux-gnu"
    path = [f"{tree}/{place}" for place in (f"usr/{libraries}", libraries, f"usr/{libraries}/blas", f"usr/{libraries}/lapack",
                                            f"usr/{libraries}/pulseaudio", "usr/lib/man-db", "usr/lib/R/lib")]
    settings = {
        # What is compiled into programs, or in folders into which Debian links one of several libraries.
        "LD_LIBRARY_PATH": ":".join(filter(os.path.isdir, path)), "FONTCONFIG_PATH": f"{tree}/etc/fonts", "TZDIR": f"{tree}/usr/share/zoneinfo",
        "R_HOME": f"{tree}/usr/lib/R", "RHOME": f"{tree}/usr/lib/R", "pandoc_datadir": f"{tree}/usr/share/pandoc",
        "TCL_LIBRARY": f"{tree}/usr/share/tcltk/tcl8.6", "TK_LIBRARY": f"{tree}/usr/share/tcltk/tk8.6",
        "GROFF_FONT_PATH": f"{tree}/usr/share/groff/current/font", "GROFF_TMAC_PATH": f"{tree}/usr/share/groff/site-tmac:{tree}/usr/share/groff/current/tmac",
        "MANPATH": f"{tree}/usr/share/man", "GVBINDIR": f"{tree}/usr/{libraries}/graphviz",
    }
    lines = [f'export {name}="{value}' + ('${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"' if name == "LD_LIBRARY_PATH" else '"')
             for name, value in settings.items() if value and all(os.path.isdir(place) for place in value.split(":"))]
    # No script of a package runs, so man is told where its configuration is, and dot registers its plugins here.
    arguments = {name: f' -C "{tree}/etc/manpath.config"' for name in ("man", "apropos", "whatis", "manpath", "mandb", "catman")}
    if os.path.exists(f"{tree}/usr/bin/dot"):
        subprocess.run([f"{tree}/usr/bin/dot", "-c"], env={**os.environ, **{name: settings[name] for name in ("LD_LIBRARY_PATH", "GVBINDIR")}},
                       check=True)
    if os.path.isdir(settings["TZDIR"]) or os.path.isdir(settings["R_HOME"]):
        lines.append('export TZ="${TZ:-Etc/UTC}"')
    for place in ("usr/bin", "bin", "usr/games"):
        for program in sorted(os.listdir(f"{tree}/{place}")) if os.path.isdir(f"{tree}/{place}") else []:
            path = f"{target}/bin/{program}"
            # R's little brother looks for it where it was compiled to be.
            if not os.path.lexists(path) and program != "r":
                with open(path, "w", encoding="utf-8") as file:
                    file.write("\n".join(["#!/bin/sh", *lines, f'export PATH="{target}/bin:$PATH:{tree}/{place}"', f'exec "{tree}/{place}/{program}"{arguments.get(program, "")} "$@"', ""]))
                os.chmod(path, 0o755)
    return packages


with open(f"{work}/requirements.txt", encoding="utf-8") as file:
    asked = file.read()
debs, pages = ([line.split()[2:] for line in asked.splitlines() if line.startswith(f"# {kind}: ")] for kind in ("deb", "man"))
for deb in debs + pages:
    if len(deb) != 2 or not re.fullmatch(r"pool/(?:[A-Za-z0-9][A-Za-z0-9.+~-]*/)+[a-z0-9][a-z0-9.+-]*_[A-Za-z0-9.+~:-]+_[a-z0-9]+\.deb", deb[0]) or not re.fullmatch("[0-9a-f]{64}", deb[1]):
        fail(f"\"{' '.join(deb)}\" names no package of Debian; write its file, from pool/ on, and its SHA-256")
if EVERYWHERE in (line.strip() for line in asked.splitlines()):
    if any(PYTHON.fullmatch(line) for line in asked.splitlines()):
        fail(f"an environment with \"{EVERYWHERE}\" has no Python; remove the line \"# python:\"")
    if any(line.strip() and not line.startswith("#") for line in asked.splitlines()):
        fail(f"with \"{EVERYWHERE}\" only packages of Debian can be named; put others into an environment of their own")
    if not debs:
        fail(f"with \"{EVERYWHERE}\" at least one package of Debian has to be named; add a \"# deb:\" line")
    os.mkdir(f"{target}/bin")
    say(f"unpacking {len(debs) + len(pages)} packages of Debian")
    packages = unpack(debs, pages)
    with open(f"{work}/lock.txt", "w", encoding="utf-8") as file:
        file.writelines([f"{EVERYWHERE}\n", *(f"# deb: {name} {sha256}\n" for name, sha256 in debs),
                         *(f"# man: {name} {sha256}\n" for name, sha256 in pages)])
    with open(f"{work}/packages.json", "w", encoding="utf-8") as file:
        json.dump({"python": "", "language": "none", "packages": packages}, file)
    say("built")
    sys.exit()
if pages:
    fail(f"\"# man:\" needs the line \"{EVERYWHERE}\"; add it, or remove the \"# man:\" lines")
hashed = "--hash" in asked
version = chosen(asked)
say("finding out which packages that takes")
pip(
    "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", f"{work}/report.json",
    *options, "-r", f"{work}/requirements.txt", *([] if hashed else own),
)
with open(f"{work}/report.json", encoding="utf-8") as file:
    found = json.load(file)["install"]

lock, packages = [f"# python: {version}\n"], []
for item in sorted(found, key=lambda item: normal(item["metadata"]["name"])):
    name, of_package = item["metadata"]["name"], item["metadata"]["version"]
    sums = item["download_info"].get("archive_info", {}).get("hashes", {})
    if "sha256" not in sums:
        fail(f"{name} comes from a place that says no SHA-256 of it; name it by a version that an index has")
    lock.append(f"{normal(name)}=={of_package} --hash=sha256:{sums['sha256']}\n")
    packages.append({"name": normal(name), "version": of_package})
missing = [name for name in own if name not in {package["name"] for package in packages}]
if missing:
    fail(f"these requirements have hashes but lack {' and '.join(missing)}, which every environment needs; add them, with hashes")
lock += [f"# deb: {name} {sha256}\n" for name, sha256 in debs]
with open(f"{work}/lock.txt", "w", encoding="utf-8") as file:
    file.writelines(lock)

say(f"installing {len(packages)} packages")
subprocess.run([f"/usr/bin/python{version}", "-I", "-m", "venv", "--without-pip", target], check=True)
python = f"{target}/bin/python3"
pip(
    "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:",
    *options, "-r", f"{work}/lock.txt", python=python,
)
shutil.rmtree(f"{target}/include", ignore_errors=True)
# nvcc and NVIDIA's other programs look for files relative to where they are started: a script calls them, not a link.
for path in glob.glob(f"{target}/lib/python*/site-packages/nvidia/*/bin/*"):
    link = f"{target}/bin/{os.path.basename(path)}"
    if os.path.isfile(path) and os.access(path, os.X_OK) and not os.path.lexists(link):
        with open(link, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{path}" "$@"\n')
        os.chmod(link, 0o755)
if debs:
    say(f"unpacking {len(debs)} packages of Debian")
    packages += unpack(debs, [])

say("compiling")
# By content, not by time: copies on other machines have other times. compileall leaves out files that this Python cannot
# compile.
subprocess.run([f"/usr/bin/python{version}", "-I", "-m", "compileall", "-qq", "-j", "1", "--invalidation-mode", "unchecked-hash", f"{target}/lib"])
# It has to work before anybody sees it.
subprocess.run([python, "-I", "-c", "import ipykernel, pip"], check=True)
language = ""
if os.path.exists(f"{target}/debian/usr/lib/R/site-library/IRkernel"):
    language = "R"
    try:
        subprocess.run([f"{target}/bin/Rscript", "--vanilla", "-e", "library(IRkernel)"], check=True)
    except subprocess.CalledProcessError:
        fail("R does not start with the packages that are named; are all there that they need?")
with open(f"{work}/packages.json", "w", encoding="utf-8") as file:
    json.dump({"python": version, "language": language, "packages": packages}, file)
say("built")
