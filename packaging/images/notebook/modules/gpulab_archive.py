"""A folder as one file to download.

The archive is written by a process of its own while it is sent: nothing of it is
kept, and a person who goes away ends it.
"""

import asyncio
import os
import stat
import sys
import time
import zipfile
from urllib.parse import quote

# Times of files that ZIP can have: from 1980 to 2107, in any time zone.
EARLIEST, LATEST = 315_619_200, 4_354_732_800
LEFT_OUT = "NOT IN THIS ARCHIVE.txt"


def write(folder, out):
    """Writes the folder to out as a ZIP file. Links are kept as links. Files that
    cannot be read are named in a file beside the others."""
    top, left_out = os.path.basename(folder), []

    def failed(error):
        left_out.append(f"{os.path.relpath(error.filename, folder)}: {error.strerror}")

    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for place, folders, files in os.walk(folder, onerror=failed):
            name = os.path.join(top, os.path.relpath(place, folder)) if place != folder else top
            links = [below for below in folders if os.path.islink(os.path.join(place, below))]
            if not files and len(links) == len(folders):
                archive.writestr(f"{shown(name)}/", "")
            for below in sorted([*files, *links]):
                try:
                    add(archive, os.path.join(place, below), os.path.join(name, below))
                except OSError as error:
                    error.filename = os.path.join(place, below)
                    failed(error)
        if left_out:
            archive.writestr(os.path.join(shown(top), LEFT_OUT), "\n".join(left_out).encode(errors="backslashreplace"))


def shown(name):
    """A name as ZIP files can have it."""
    return os.fsencode(name).decode(errors="replace")


def add(archive, path, name):
    """Adds a file or a link; anything else, such as a socket, is left out."""
    name = shown(name)
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        changed = min(max(os.lstat(path).st_mtime, EARLIEST), LATEST)
        entry = zipfile.ZipInfo(name, time.localtime(changed)[:6])
        entry.external_attr = mode << 16
        archive.writestr(entry, os.fsencode(os.readlink(path)))
    elif stat.S_ISREG(mode):
        with open(path, "rb"):  # before anything of it is in the archive
            pass
        archive.write(path, name)


def _jupyter_server_extension_points():
    return [{"module": "gpulab_archive"}]


def _load_jupyter_server_extension(server):
    from jupyter_server.auth.decorator import authorized
    from jupyter_server.base.handlers import JupyterHandler
    from jupyter_server.utils import url_path_join
    from tornado import web
    from tornado.iostream import StreamClosedError

    class ArchiveHandler(JupyterHandler):
        """Sends a folder as a ZIP file."""

        auth_resource = "contents"
        process = None

        @web.authenticated
        @authorized
        async def get(self, path):
            folder = self.contents_manager._get_os_path(path.strip("/"))
            if not os.path.isdir(folder):
                raise web.HTTPError(404, f"{path} is not a folder.")
            name = os.path.basename(os.path.realpath(folder))
            self.set_header("Content-Type", "application/zip")
            self.set_header("Cache-Control", "no-store")
            self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{quote(os.fsencode(name))}.zip")
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", __file__, folder, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
            )
            try:
                while data := await self.process.stdout.read(1 << 18):
                    self.write(data)
                    await self.flush()
                if await self.process.wait():
                    # The browser then knows that it does not have all.
                    self.request.connection.stream.close()
            except StreamClosedError:
                pass
            finally:
                self.on_connection_close()

        def on_connection_close(self):
            if self.process is not None and self.process.returncode is None:
                self.process.kill()

    base = server.web_app.settings["base_url"]
    server.web_app.add_handlers(".*$", [(url_path_join(base, "gpulab/archive", r"/(.*)"), ArchiveHandler)])


if __name__ == "__main__":
    write(sys.argv[1].rstrip("/"), sys.stdout.buffer)
