"""What gpulab_python says of a home, whatever is in it."""

import json
import os
from pathlib import Path

import gpulab_home
import gpulab_python as python

newest, older = python.VERSIONS


def package(version, name, *requires, origin=None, metadata=None, **files):
    folder = python.packages(version) / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requires)]
    (folder / "METADATA").write_bytes(metadata or "\n".join(lines).encode())
    if origin:
        (folder / "direct_url.json").write_text(json.dumps(origin))


assert python.used() == (newest, "") and python.sentence() == "" and python.missing(newest) == []

python.use(older)
assert "as you chose with use-python" in python.sentence() and "names the packages" not in python.sentence()
python.choice().unlink()
package(older, "plots", "Numbers", 'Colors; platform_system == "Windows"', 'Old; python_version < "3.12"', 'Extra; extra == "all"')
for name in ("numbers", "Colors", "old", "Extra"):
    package(older, name)
assert python.used()[0] == older
assert "because it has packages in ~/.local/lib" in python.sentence() and f"use-python {newest}" in python.sentence()
assert python.sentence() in gpulab_home.left_out.sentences()
# What plots needs comes with it again, but not what it needs elsewhere only.
assert python.missing(newest) == ["Colors", "Extra", "old", "plots"], python.missing(newest)
# Packages that need one another: one of them is enough.
package(older, "aa-one", "aa-two")
package(older, "aa-two", "aa-one")
assert python.missing(newest)[2:] == ["aa-one", "old", "plots"], python.missing(newest)
# Not from an index: a name could be somebody else's there.
package(older, "mine", origin={"url": f"file://{Path.home()}/my%20code", "dir_info": {"editable": True}})
package(older, "wheel", origin={"url": "file:///data/wheel-1.0-cp311-cp311-any.whl", "archive_info": {}})
package(older, "branch", origin={"url": "https://git.example/branch.git", "vcs_info": {"vcs": "git", "commit_id": "abc; rm x"}, "subdirectory": "lib"})
said = python.missing(newest)
assert f"-e '{Path.home()}/my code'" in said and "wheel" in said, said
assert "'git+https://git.example/branch.git@abc; rm x#subdirectory=lib'" in said, said
assert not {"mine", "branch"} & set(said), said
# Damaged ones, and half of one.
package(older, "latin", metadata="Metadata-Version: 2.1\nName: caf\u00e9\nVersion: 1.0\n".encode("latin-1"))
package(older, "nameless", metadata=b"Metadata-Version: 2.1\n")
package(older, "strange", ">=== nonsense", origin=["a list"])
(python.packages(older) / "half-1.0.dist-info").mkdir()
assert "strange" in python.missing(newest) and not {"half", "caf\u00e9"} & set(python.missing(newest))
" ".join(python.missing(newest)).encode("ascii")
package(newest, "PLOTS")
assert "plots" not in python.missing(newest)
# Packages for both: the newest, unless somebody chose.
assert python.used() == (newest, "")
python.use(older)
assert python.choice().read_text() == f"{older}\n" and python.used()[0] == older
assert python.missing(older) == [], python.missing(older)
python.use(newest)
assert python.used()[0] == newest and os.listdir(python.choice().parent) == ["python"]
python.choice().write_bytes(b"\xff\xfe")
assert python.used() == (newest, "")
python.choice().unlink()
os.mkfifo(python.choice())
assert python.used() == (newest, "")
