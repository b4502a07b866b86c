"""Tests gpulab_pip: its message in a read-only environment, and that pip works as usual everywhere else."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

program, home = Path(sys.argv[1]), Path.home()
environment = home / "environment"
version = "%d.%d" % sys.version_info[:2]
packages = environment / f"lib/python{version}/site-packages"

python = os.path.realpath(sys.executable)  # in the image, below /usr/bin
subprocess.run([python, "-I", "-m", "venv", "--without-pip", environment], check=True)
for path in Path(sys.prefix, f"lib/python{version}/site-packages").iterdir():
    (packages / path.name).symlink_to(path)
shutil.copy(program / "gpulab_pip.py", packages)
(packages / "gpulab_pip.pth").write_text("import gpulab_pip\n")
(environment / "bin/own-kernel").write_text((program / "own-kernel").read_text().replace("#!/usr/bin/python3", f"#!{python}").replace("/usr/bin/{version}", python))
(environment / "bin/own-kernel").chmod(0o755)
(environment / "environment.json").write_text(json.dumps({"name": "small", "version": "1", "title": "Small", "python": version}))
(environment / "bin/pip").write_text(
    f"#!{environment}/bin/python3\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"
)
(environment / "bin/pip").chmod(0o755)
wheel = home / "proof-1.0-py3-none-any.whl"
with zipfile.ZipFile(wheel, "w") as archive:
    archive.writestr("proof.py", "")
    archive.writestr("proof-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: proof\nVersion: 1.0\n")
    archive.writestr("proof-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    names = ["proof.py", *(f"proof-1.0.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD"))]
    archive.writestr("proof-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in names))
# As a notebook has it. The test has mounts of its own.
subprocess.run(["mount", "--bind", environment, environment], check=True)
subprocess.run(["mount", "-o", "remount,bind,ro", environment], check=True)

os.environ.pop("PYTHONPATH")
os.environ["PATH"] = f"{environment}/bin:{os.environ['PATH']}"
os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
SAYS = "run `!own-kernel NAME` in a cell"


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def says(*command):
    code, said = run(*command)
    assert code and said.count(SAYS) == 1, (command, code, said)
    assert said.index("Read-only file system") < said.index(SAYS), (command, said)


def works(*command, code=0):
    got, said = run(*command)
    assert got == code and "own-kernel" not in said, (command, got, said)


install = ["install", "--no-index", "--no-deps"]
says("pip", *install, wheel)
says("python3", "-m", "pip", "-q", *install, wheel)
says("pip", "uninstall", "-y", "pip")
code, said = run("python3", "-m", "IPython", "--colors=NoColor", "-c", f"%pip {' '.join(install)} {wheel}")
assert said.count(SAYS) == 1, said
works("pip", "--version")
works("pip", *install, "pip")  # it is there already
works("pip", *install, "--target", home / "elsewhere", wheel)
works("pip", "download", "--no-index", "absent", code=1)
works("python3", "-c", "raise SystemExit(3)", "pip", "install", code=3)

# A kernel of one's own on top of it, and another virtual environment.
code, said = run("own-kernel", "mine")
assert code == 0 and "The kernel mine is yours" in said, said
mine = home / ".local/share/gpulab/kernels/mine/bin/python3"
works(mine, "-m", "pip", *install, wheel)
works(mine, "-m", "pip", *install, "absent", code=1)
works(mine, "-c", "import proof")
shell = {"VIRTUAL_ENV": str(mine.parent.parent), "PATH": f"{mine.parent}:{os.environ['PATH']}"}
works("env", *(f"{name}={value}" for name, value in shell.items()), "pip", "uninstall", "-y", "proof")
works(mine, "-c", "import proof", code=1)
(mine.parent / "pip").unlink()  # as earlier kernels have it
code, said = run("env", *(f"{name}={value}" for name, value in shell.items()), "pip", *install, wheel)
assert code and said.count("Run `%pip install` in a cell") == 1 and SAYS not in said, said
works("python3", "-m", "venv", "--without-pip", home / "other")
other = home / "other/bin/python3"
works("pip", "--python", other, *install, wheel)
works("pip", "--python", other, *install, "absent", code=1)
works(other, "-c", "import proof")
