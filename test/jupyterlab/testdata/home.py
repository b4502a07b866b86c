"""What of a home is used, and what is not (gpulab_home)."""

import json
import os
from pathlib import Path

import gpulab_home as h

home = Path.home()


def write(path, text):
    path = home / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


write("max", "max\n")
write("few", f"{1 << 30}\n")
write("some", f"{8 << 30}\n")
write("many", f"{1 << 40}\n")
sizes = [h.largest_message(home / name) >> 20 for name in ("max", "few", "some", "many", "absent")]
assert sizes == [128, 64, 512, 512, 128], sizes

assert h.left_out.sentences() == []
write(".jupyter/jupyter_server_config.py", "")
write(".jupyter/lab/user-settings/x", "")
os.symlink("nowhere", home / ".jupyter/jupyter_config.json")
(said,) = h.left_out.sentences()
assert said.startswith("Not read: ~/.jupyter/jupyter_config.json, ~/.jupyter/jupyter_server_config.py. "), said

# A kernel that cannot start takes no other's place; it is named, with the line.
theirs, images = home / "theirs", home / "images"


def kernel(folder, name, text):
    return write(f"{folder.name}/{name}/kernel.json", text)


sound = json.dumps({"argv": ["python3", "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": "P", "language": "python"})
kernel(images, "python3", sound)
kernel(theirs, "python3", json.dumps({"argv": ["/gone/bin/python"]}))
kernel(theirs, "half", '{\n  "argv": [')
kernel(theirs, "none", "[]")
kernel(theirs, "empty", '{"argv": []}')
kernel(theirs, "own", sound)
write("theirs/bundled/run", "#!/bin/sh\n").chmod(0o700)
kernel(theirs, "bundled", json.dumps({"argv": ["{resource_dir}/run", "{connection_file}"]}))
kernel(theirs, "lacking", json.dumps({"argv": ["{resource_dir}/gone"]}))
write("programs/odd-kernel", "#!/bin/sh\n").chmod(0o700)
kernel(theirs, "path", json.dumps({"argv": ["odd-kernel"], "env": {"PATH": "${HOME}/programs:${PATH}"}}))
(theirs / "folder/kernel.json").mkdir(parents=True)
write("file", "")
specs = h.KernelSpecs(kernel_dirs=[str(theirs), str(home / "absent"), str(home / "file"), str(images)])
mine = {name: str(theirs / name) for name in ("bundled", "own", "path")}
assert specs.find_kernel_specs() == {**mine, "python3": str(images / "python3")}, specs.find_kernel_specs()
assert specs.get_kernel_spec("python3").argv[0] == "python3" and set(specs.get_all_specs()) == {*mine, "python3"}
for name in ("half", "absent"):
    try:
        specs.get_kernel_spec(name)
    except KeyError:
        continue
    raise AssertionError(name)
said = "\n".join(h.left_out.sentences())
assert "~/theirs/python3/kernel.json: its program /gone/bin/python is not there." in said, said
assert "~/theirs/half/kernel.json: line 2 is not JSON" in said, said
assert said.count("it names no program") == 2, said
kernel(theirs, "half", sound)
assert "half" in specs.find_kernel_specs() and "half" not in "".join(h.left_out.sentences())

# Nor does a broken extension keep JupyterLab from starting.
write("broken/one/package.json", "{")
write("whole/two/package.json", json.dumps({"name": "two", "version": "1", "jupyterlab": {}}))
found = h.config.get_federated_extensions([str(home / "broken"), str(home / "whole"), str(home / "absent")])
assert list(found) == ["two"], found
assert "~/broken: one of its package.json cannot be read" in "\n".join(h.left_out.sentences())

# Nor does a file of choices, which is left as it is.
for text in ("{\n  // mine\n  x", "7", '{"theme": "JupyterLab Dark"}'):
    path = write("chosen/@jupyterlab/apputils-extension/themes.jupyterlab-settings", text)
    choices = h.settings_utils._get_user_settings(str(home / "chosen"), "@jupyterlab/apputils-extension:themes", {"type": "object"})
    sound = text.startswith('{"')
    assert choices["settings"] == ({"theme": "JupyterLab Dark"} if sound else {}), choices
    assert ("themes.jupyterlab-settings" in "".join(h.left_out.sentences())) != sound, h.left_out.sentences()
    assert path.read_text() == text
    if text[-1] == "x":
        assert "~/chosen/@jupyterlab/apputils-extension/themes.jupyterlab-settings: line 3 " in "".join(h.left_out.sentences()), h.left_out.sentences()

# What is chosen next takes its place, and the damaged file is kept beside it.
write("schemas/mine/p.json", json.dumps({"type": "object"}))
path = write("chosen/mine/p.jupyterlab-settings", "{ damaged")
h.settings_utils._get_user_settings(str(home / "chosen"), "mine:p", {"type": "object"})
h.settings_handler.save_settings(str(home / "schemas"), str(home / "chosen"), "mine:p", '{"a": 1}', {})
assert path.read_text() == '{"a": 1}' and Path(f"{path}.damaged").read_text() == "{ damaged"
