"""What a home holds keeps no server from starting.

The server reads no settings of its own kind from a home: they were written for
another server, name packages that this one does not have, or take the place of
the lab's own, without which outputs are not kept (start-notebook gives it another
JUPYTER_CONFIG_DIR). Kernels and JupyterLab's extensions and settings of a home are
used, but for those that are broken. What is not used is said in JupyterLab (see the
plugin "home" of the labextension gpulab).
"""

import json
import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import gpulab_python
from gpulab_python import short
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from jupyterlab_server import config, settings_handler, settings_utils
from tornado import web

ENVIRONMENTS = "/opt/gpulab/environments"
MEMORY = "/sys/fs/cgroup/memory.max"
LEAST_MESSAGE, MOST_MESSAGE = 32 << 20, 512 << 20  # bytes
SHARE = 16  # a message takes at most one part in SHARE of the memory

# What Jupyter's programs would read, below ~/.jupyter.
SETTINGS = [
    f"{name}{end}"
    for name in ("jupyter_config", "jupyter_server_config", "jupyter_lab_config", "jupyter_notebook_config", "jupyterhub_singleuser_config")
    for end in (".py", ".json", ".d")
] + ["labconfig"]


def largest_message(memory=MEMORY):
    """How many bytes a page may send a kernel in one message."""
    try:
        limit = int(Path(memory).read_text())
    except (OSError, ValueError):  # no limit is "max"
        return MOST_MESSAGE // 4
    return min(MOST_MESSAGE, max(LEAST_MESSAGE, limit // SHARE))


class LeftOut:
    """What of the home is not used, each with a sentence that says why."""

    def __init__(self):
        self.broken = {}  # path → sentence

    def say(self, path, why):
        """Notes that what is at path is not used, or is again where why is ""."""
        self.broken.pop(str(path), None)
        if why:
            self.broken[str(path)] = f"Not used: {short(path)}: {why}."

    def sentences(self):
        folder = Path.home() / ".jupyter"
        unread = [short(folder / name) for name in SETTINGS if os.path.lexists(folder / name)]
        said = [sentence for _, sentence in sorted(self.broken.items())]
        if unread:
            said.insert(
                0,
                f"Not read: {', '.join(unread)}. The lab sets up this server. "
                "Your kernels, your extensions and what you choose in the menu Settings are used.",
            )
        python = gpulab_python.sentence()
        if python:
            said.insert(0, python)
        return said


left_out = LeftOut()


def wrong_with(spec):
    """What is wrong with a kernel's kernel.json, "" for nothing."""
    try:
        kernel = json.loads(spec.read_text(encoding="utf-8"))
        if "kernel_provisioner" in kernel.get("metadata", {}):
            return ""  # it is started elsewhere
        program, env = kernel["argv"][0], kernel.get("env") or {}
        path = env.get("PATH")
    except json.JSONDecodeError as error:
        return f"line {error.lineno} is not JSON ({error.msg})"
    except UnicodeDecodeError:
        return "it is not UTF-8"
    except (AttributeError, LookupError, TypeError):
        return "it names no program in argv"
    except OSError as error:
        return str(error.strerror)
    # By these names Jupyter means the server's own Python.
    own = ("python", f"python{sys.version_info[0]}", f"python{sys.version_info[0]}.{sys.version_info[1]}")
    if not isinstance(program, str):
        return "it names no program in argv"
    # What Jupyter replaces in argv and env, as far as it can be in a program's name.
    place = program.replace("{resource_dir}", str(spec.parent)).replace("{prefix}", sys.prefix)
    if isinstance(path, str):
        path = os.path.expandvars(path)
    if program not in own and shutil.which(place, path=path) is None:
        return f"its program {program} is not there"
    return ""


class KernelSpecs(KernelSpecManager):
    """The kernels that can start. One of a home that cannot takes no other's place."""

    def find_kernel_specs(self):
        found = {}
        for folder in map(Path, self.kernel_dirs):
            try:
                specs = sorted(folder.glob("*/kernel.json"))
            except OSError as error:
                left_out.say(folder, str(error.strerror))
                continue
            for spec in specs:
                wrong = wrong_with(spec)
                left_out.say(spec, wrong)
                if not wrong:
                    found.setdefault(spec.parent.name.lower(), str(spec.parent))
        if self.allowed_kernelspecs:
            found = {name: place for name, place in found.items() if name in self.allowed_kernelspecs}
        return found

    def _find_spec_directory(self, kernel_name):
        return self.find_kernel_specs().get(kernel_name)

    def get_kernel_spec(self, kernel_name):
        spec = super().get_kernel_spec(kernel_name)
        if spec.argv[:1] == ["/usr/bin/python3"]:
            spec.display_name = re.sub(r"^Python 3(?![\d.])", f"Python {gpulab_python.used()[0]}", spec.display_name)
        return spec


def extensions_of_environments(folder=ENVIRONMENTS):
    """The folders of extensions that came with packages of the lab's environments."""
    return sorted(str(path) for path in Path(folder).glob("*/share/jupyter/labextensions"))


def draws_widgets(extension):
    """Reports whether an extension draws widgets: it has code for @jupyter-widgets/base."""
    shared = extension["jupyterlab"].get("sharedPackages", {})
    return "@jupyter-widgets/base" in {**extension["dependencies"], **shared}


def lacks_server(extension):
    """The package that an extension needs in the server, which lacks it; "" for none. The
    extension's part in the page would show an error at every load."""
    try:
        name = extension["jupyterlab"]["discovery"]["server"]["base"]["name"]
        distribution(name)
    except PackageNotFoundError:
        return name
    except (KeyError, TypeError, ValueError):
        pass  # it needs none, or does not say so
    return ""


def sound_extensions(find):
    """JupyterLab's extensions, as find lists them, without folders of which it cannot
    read one, and without those whose part in the server is missing. Of an environment
    there are only those that draw its widgets, and none that takes the place of another
    one."""

    def sound(folders):
        found = {}
        for folder in sorted(folders, key=lambda folder: folder.startswith(ENVIRONMENTS)):
            try:
                more = find([folder])
                why = ""
                if folder.startswith(f"{ENVIRONMENTS}/"):
                    more = {name: extension for name, extension in more.items() if draws_widgets(extension)}
            except Exception as error:
                more = {}
                why = f"one of its package.json cannot be read ({error})"
            left_out.say(folder, why)
            found = {**more, **found}
        for name, extension in list(found.items()):
            package = lacks_server(extension)
            if package:
                del found[name]
            left_out.say(
                Path(extension["ext_path"]),
                package and f"it needs the package {package} in the notebook's server, and only the image can provide packages there",
            )
        return found

    return sound


def sound_choices(read):
    """What somebody chose for a part of JupyterLab, as read has it, nothing where it cannot be read."""

    def sound(folder, name, schema):
        path = Path(folder, *name.split(":")).with_suffix(".jupyterlab-settings")
        try:
            choices = read(folder, name, schema)
        except Exception as error:
            said = getattr(error, "log_message", None) or str(error)
            before, at, after = said.rpartition("<string>:")  # as JSON's reader names the line
            left_out.say(path, f"line {after}" if at else said)
            return {"raw": "{}", "settings": {}, "warning": None, "last_modified": None, "created": None}
        left_out.say(path, "")
        return choices

    return sound


def careful_choices(save):
    """Saves what somebody chooses for a part of JupyterLab, and keeps a damaged file beside it."""

    def careful(schemas, folder, name, *args, **kwargs):
        path = Path(folder, *name.split(":")).with_suffix(".jupyterlab-settings")
        if str(path) in left_out.broken and path.is_file():
            path.replace(f"{path}.damaged")
        return save(schemas, folder, name, *args, **kwargs)

    return careful


class HomeHandler(APIHandler):
    """What of the home is not used."""

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def get(self):
        self.finish(json.dumps({"leftOut": left_out.sentences()}))


def _jupyter_server_extension_points():
    return [{"module": "gpulab_home"}]


def _load_jupyter_server_extension(server):
    settings = server.web_app.settings
    largest = settings.get("websocket_max_message_size", 10 << 20)  # Tornado's own bound
    settings.setdefault("page_config_data", {})["gpulabLargestMessage"] = str(largest)
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], "gpulab/home"), HomeHandler)])


# JupyterLab calls these by their names in the modules, when it starts and for each page.
# Without them, one damaged file leaves an empty page for good.
config.get_federated_extensions = sound_extensions(config.get_federated_extensions)
settings_utils._get_user_settings = sound_choices(settings_utils._get_user_settings)
settings_handler.save_settings = careful_choices(settings_handler.save_settings)
