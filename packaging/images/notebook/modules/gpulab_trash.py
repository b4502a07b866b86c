"""What is deleted in JupyterLab goes to a trash first.

It is the trash of FreeDesktop's specification, so that other programs find it:
~/.local/share/Trash for the home, and .Trash-UID at the top of each folder that is
mounted elsewhere (a shared folder, the scratch disk), so that nothing is copied.
After KEEP days a file is deleted for good. If there is no room for one more, the
oldest go first.
https://specifications.freedesktop.org/trash-spec/latest/
"""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import stat
import time
from pathlib import Path
from urllib.parse import quote, unquote

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import PeriodicCallback

KEEP = 30  # days
LOOK = 6 * 3600  # seconds between two looks for what is older
FULL = (errno.ENOSPC, errno.EDQUOT)


def mounts():
    """Where something is mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        # Blanks and the like are written as octal numbers.
        return [os.fsdecode(os.fsencode(line.split()[4]).decode("unicode_escape").encode("latin-1")) for line in lines]


def mount_of(path):
    """The mount that has the file, not what it links to."""
    path = place_of(path)
    above = [mount for mount in mounts() if path == mount or path.startswith(mount.rstrip("/") + "/")]
    return max(above, key=len, default="/")


def place_of(path):
    """A path without links, but for its last part: what is deleted may be a link."""
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


class Trash:
    """The trash of one mount.

    Others may write to a shared folder, so they could put a folder of their own, or a
    link, in the place of somebody's trash: what they name in it would be deleted. A trash
    outside the home is used only if it is a folder that its owner alone can change, and
    by its descriptor, so that nothing takes its place later.
    """

    descriptor = None

    def __init__(self, place, top):
        self.place, self.top = place, top  # top is what its paths are relative to; None if they are absolute

    def __del__(self):
        if self.descriptor is not None:
            os.close(self.descriptor)

    def open(self, make=False):
        """Opens it; raises an OSError if it is not there or is not to be used."""
        if self.top is None:
            folder = Path(self.place)
            if make:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif self.descriptor is None:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.place, 0o700)
            descriptor = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            info = os.fstat(descriptor)
            if info.st_uid != os.getuid() or info.st_mode & 0o077:
                os.close(descriptor)
                raise PermissionError(errno.EACCES, "others can change this trash", self.place)
            self.descriptor = descriptor
        if self.descriptor is not None:
            folder = Path(f"/proc/self/fd/{self.descriptor}")
        self.files, self.info = folder / "files", folder / "info"
        if make:
            for below in (self.files, self.info):
                below.mkdir(mode=0o700, exist_ok=True)
        return self

    @classmethod
    def of(cls, path):
        """The trash that a file goes to."""
        mount, home = mount_of(path), os.path.realpath(Path.home())
        if mount == mount_of(os.path.join(home, "x")):
            data = os.environ.get("XDG_DATA_HOME") or os.path.join(home, ".local/share")
            return cls(os.path.join(data, "Trash"), None)
        return cls(os.path.join(mount, f".Trash-{os.getuid()}"), mount)

    def put(self, path):
        """Moves a file or a folder into the trash. Where there is no room, the oldest go first."""
        while True:
            try:
                self._put(path)
                return
            except OSError as error:
                if error.errno not in FULL or not self._drop_oldest():
                    raise

    def _put(self, path):
        self.open(make=True)
        original = place_of(os.path.abspath(path))
        if self.top is not None:
            original = os.path.relpath(original, self.top)
        text = f"[Trash Info]\nPath={quote(os.fsencode(original))}\nDeletionDate={time.strftime('%Y-%m-%dT%H:%M:%S')}\n"
        base, end = os.path.splitext(os.path.basename(path))
        for number in range(10_000):
            # A long name has to leave room for the number and for ".trashinfo".
            name = (base if not number else f"{base[:100]} {number}") + end[:50]
            if len(os.fsencode(name)) > 240:
                name = (base[:40] if not number else f"{base[:40]} {number}") + end[:10]
            info = self.info / f"{name}.trashinfo"
            try:
                descriptor = os.open(info, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            try:
                with os.fdopen(descriptor, "w") as f:
                    f.write(text)
                move(path, self.files / name)
            except BaseException:
                with contextlib.suppress(OSError):
                    info.unlink()
                raise
            return
        raise FileExistsError(errno.EEXIST, "there are too many files of this name in the trash", path)

    def entries(self):
        """What is in it, the oldest first: (when it was deleted, its name, where it was)."""
        found = []
        try:
            infos = list(self.open().info.glob("*.trashinfo"))
        except OSError:
            return found
        for info in infos:
            try:
                text = info.read_text(encoding="utf-8")
                values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
                path = os.fsdecode(unquote(values["Path"], errors="surrogateescape"))
                within = info.stat().st_mtime_ns  # of the same second
                when = time.mktime(time.strptime(values["DeletionDate"][:19], "%Y-%m-%dT%H:%M:%S"))
            except (OSError, ValueError, KeyError, OverflowError):
                continue  # it is being written, or is another program's
            found.append((when, within, info.name.removesuffix(".trashinfo"), os.path.join(self.top or "/", path)))
        return [(when, name, path) for when, _, name, path in sorted(found)]

    def restore(self, path):
        """Puts back what was deleted last at the path; reports whether there was something."""
        for _, name, where in reversed(self.entries()):
            if place_of(where) == place_of(path) and os.path.lexists(self.files / name):
                if os.path.lexists(path):
                    raise FileExistsError(errno.EEXIST, "there is something else at this place", path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                move(self.files / name, path)
                (self.info / f"{name}.trashinfo").unlink(missing_ok=True)
                return True
        return False

    def has(self, path):
        """Reports whether what was deleted at the path is in it."""
        return any(place_of(where) == place_of(path) and os.path.lexists(self.files / name) for _, name, where in self.entries())

    def drop(self, name):
        """Deletes one for good."""
        delete(self.files / name)
        (self.info / f"{name}.trashinfo").unlink(missing_ok=True)

    def _drop_oldest(self):
        for _, name, _ in self.entries():
            try:
                self.drop(name)
                return True
            except OSError:
                continue
        return False

    def empty(self, before=None):
        """Deletes what was put into it before a time, or all, for good; returns how much."""
        dropped = 0
        for when, name, _ in self.entries():
            if before is None or when < before:
                with contextlib.suppress(OSError):
                    self.drop(name)
                    dropped += 1
        return dropped


def move(path, target):
    """Moves a file or a folder. To move a folder, Linux needs write permission on the folder itself,
    for its "..", so a folder without that gets it during the move. Raises PermissionError with EPERM
    if the folder belongs to somebody else."""
    try:
        os.rename(path, target)
        return
    except PermissionError:
        if os.path.islink(path) or not os.path.isdir(path):
            raise
    # The mode changes through a descriptor: in a shared folder, others could replace the folder with a link.
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        folder, mode = f"/proc/self/fd/{descriptor}", stat.S_IMODE(os.fstat(descriptor).st_mode)
        try:
            os.chmod(folder, mode | stat.S_IRWXU)
        except PermissionError as error:
            raise PermissionError(error.errno, error.strerror, path) from None  # not the descriptor's name
        try:
            os.rename(path, target)
        finally:
            os.chmod(folder, mode)
    finally:
        os.close(descriptor)


def delete(path):
    """Deletes a file or a folder for good, folders included that nobody may write to."""
    if os.path.islink(path) or not os.path.isdir(path):
        Path(path).unlink(missing_ok=True)
        return
    # Another member's folder in a shared folder cannot be changed, and need not be.
    with contextlib.suppress(PermissionError):
        os.chmod(path, 0o700)
    for folder, names, _ in os.walk(path):
        for name in names:
            below = os.path.join(folder, name)
            if not os.path.islink(below):
                with contextlib.suppress(PermissionError):
                    os.chmod(below, 0o700)
    shutil.rmtree(path)


def all_of(root):
    """The trashes of the home, of the folder that JupyterLab shows, and of whatever is mounted."""
    found = [Trash.of(os.path.join(folder, "x")) for folder in (Path.home(), os.path.realpath(root), *mounts())]
    return list({trash.place: trash for trash in found}.values())


def remove(path):
    """Moves a file or a folder into the trash. Deletes it for good where that is not
    possible, and if it is in the trash already."""
    folder = os.path.dirname(path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    trash = Trash.of(path)
    if not f"{os.path.realpath(folder)}/".startswith(f"{os.path.realpath(trash.place)}/"):
        try:
            trash.put(path)
            return
        except OSError as error:
            # There is no room for another name, or something else in the trash's place.
            if error.errno not in (*FULL, errno.EACCES, errno.EXDEV, errno.ENOTDIR, errno.EEXIST, errno.ELOOP):
                raise
    delete(path)


def expire_all(root):
    """Deletes for good what has been in the trashes for KEEP days."""
    for trash in all_of(root):
        trash.empty(time.time() - KEEP * 86400)


class TrashHandler(APIHandler):
    """The trash, for the page."""

    auth_resource = "contents"

    def _root(self):
        return self.contents_manager.root_dir

    @web.authenticated
    @authorized
    async def get(self):
        count = await asyncio.to_thread(lambda: sum(len(trash.entries()) for trash in all_of(self._root())))
        self.finish(json.dumps({"count": count}))

    @web.authenticated
    @authorized
    async def post(self):
        """Puts files back, or answers which of the deleted ones are in the trash."""
        asked = self.get_json_body()
        for act in ("look", "restore"):
            paths = asked.get(act) if isinstance(asked, dict) else None
            if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
                break
        else:
            raise web.HTTPError(400, "look or restore is a list of paths")
        places = {path: self.contents_manager._get_os_path(path.strip("/")) for path in paths}
        if act == "look":
            there = await asyncio.to_thread(lambda: [path for path, place in places.items() if Trash.of(place).has(place)])
            self.finish(json.dumps({"look": there}))
            return
        for path, place in places.items():
            try:
                if not await asyncio.to_thread(Trash.of(place).restore, place):
                    raise web.HTTPError(404, f"{path} is not in the trash any more.")
            except FileExistsError:
                raise web.HTTPError(409, f"{path} exists again. The deleted one stays in the trash.") from None
            except OSError as error:
                raise web.HTTPError(400, f"{path} cannot be put back: {error.strerror}.") from None
        self.set_status(204)

    @web.authenticated
    @authorized
    async def delete(self):
        """Empties it."""
        count = await asyncio.to_thread(lambda: sum(trash.empty() for trash in all_of(self._root())))
        self.finish(json.dumps({"count": count}))


def _jupyter_server_extension_points():
    return [{"module": "gpulab_trash"}]


def _load_jupyter_server_extension(server):
    settings = server.web_app.settings
    root = server.contents_manager.root_dir

    async def expire():
        try:
            await asyncio.to_thread(expire_all, root)
        except Exception:
            server.log.warning("The trash cannot be looked through", exc_info=True)

    PeriodicCallback(expire, LOOK * 1000).start()
    server.io_loop.call_later(60, expire)
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], "gpulab/trash"), TrashHandler)])
