"""Keeps what cells print while no browser is there.

JupyterLab writes outputs into a notebook; the server does not, so what a cell
prints after its page was closed would be lost. Here the server follows every
kernel. From a request to run a cell it knows the cell (JupyterLab names it in
the request's metadata), and from the session the notebook. What the kernel then
says is collected, within bounds. As long as a page is connected to the kernel,
the page has it and saves it. When none is, it is written into the notebook's
file: the file is read anew each time, and nothing but the outputs and the number
of the cells that ran is changed. A page that comes back asks for what it missed
(see the plugin "outputs" of the labextension gpulab). Of very much output a page
gets in the end what is kept here, so the file has the same with and without one.
"""

import asyncio
import functools
import json
import os
import re
import time
import weakref

import gpulab_trash
import zmq
from jupyter_client.session import DELIM, Session
from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.services.contents.largefilemanager import AsyncLargeFileManager
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from jupyter_server.utils import ensure_async, url_path_join
from nbformat.v4 import output_from_msg
from tornado import web
from tornado.websocket import WebSocketClosedError
from traitlets import Bool

LINE = 1 << 16  # characters of a line that can still be written over
HEAD = 1 << 20  # characters kept of an output's beginning
TAIL = 1 << 20  # and of its end
MOST = 16 << 20  # characters that one run of a cell may have, images included
MOST_OUTPUTS = 2000  # of one run of a cell
MOST_KEPT = 64 << 20  # characters of all runs that are remembered
MOST_RUNS = 1000  # that are remembered
WAIT = 3  # seconds between two times that a notebook is written, at least
SHARE = 20  # writing takes at most one part in SHARE of the time
LONGEST_WAIT = 60  # seconds
MOST_BUFFERED = 4000  # messages that the server holds back for a page that was cut off
MOST_QUEUED = 100_000  # messages of a kernel that wait for the server; more are lost
TOGETHER = 0.05  # seconds in which a page is sent at most one message of what is printed
NOTE = 2  # seconds between two times that a page is told how much there is, at least
MOST_NAME = 255 - len("-checkpoint")  # bytes of a file's name
UNHEARD = 10  # seconds that a page waits for what is kept of a run
QUIET = 3  # seconds without a word from the threads of a cell that has ended, until a page gets the end

DIED = "The kernel died before this cell had ended. It may have run out of memory.\n"

_moves = re.compile(r"([\n\r\b])")
_colours = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]?")


class Text:
    """What was printed to a stream, as a terminal would show it: a line that is
    written over, such as a progress bar, is kept as it was last. Of much text
    the beginning and the end are kept."""

    def __init__(self):
        self.head, self.tail = [], []  # pieces
        self.room = HEAD  # that is left in head
        self.size, self.left_out = 0, 0  # of tail, and between head and tail
        self.line, self.column = "", 0

    def write(self, text):
        done = []
        for piece in _moves.split(text):
            if piece == "\n":
                done.append(self.line + "\n")
                self.line, self.column = "", 0
            elif piece == "\r":
                self.column = 0
            elif piece == "\b":
                self.column = max(0, self.column - 1)
            elif piece:
                end = self.column + len(piece)
                self.line = self.line[: self.column] + piece + self.line[end:]
                self.column = end
        if len(self.line) > LINE:
            done.append(self.line)
            self.line, self.column = "", 0
        if done:
            self._keep("".join(done))

    def _keep(self, text):
        if self.room:
            self.head.append(text[: self.room])
            text = text[self.room :]
            self.room -= len(self.head[-1])
        if text:
            self.tail.append(text)
            self.size += len(text)
        if self.size > 2 * TAIL:
            text = "".join(self.tail)
            cut = len(text) - TAIL
            cut = text.find("\n", cut, cut + LINE) + 1 or cut
            self.left_out += cut
            self.tail, self.size = [text[cut:]], len(text) - cut

    def __len__(self):
        return HEAD - self.room + self.size + len(self.line)

    def latest(self):
        """The line that was printed last, without its colours, the beginning of a long one."""
        pieces = self.tail or self.head
        line = self.line or (pieces[-1][-LINE:].rstrip("\n").rpartition("\n")[2] if pieces else "")
        return _colours.sub("", line[:200])[:80]

    def __str__(self):
        between = f"\n[gpulab: {self.left_out} characters are left out here]\n" if self.left_out else ""
        return "".join([*self.head, between, *self.tail, self.line])


class Run:
    """One execution of a cell: what it has said so far, as outputs of a notebook."""

    def __init__(self, number, session, cell, source, place=None):
        self.number, self.session, self.cell, self.source = number, session, cell, source
        self.place = place  # which one, of how many code cells with this source, from 0; None if that is not known
        self.count = None  # execution_count, once it has begun
        self.outputs = []  # each [output, its size, its display_id]; a stream's text is a Text
        self.left_out = 0  # outputs
        self.clear = False  # before the next output
        self.ended = False
        self.changed = False  # since it was last written to the file
        self.written = False  # to the file by us, since a page last saved it
        self.told = False  # to a page, all of it
        self.shown = False  # to its end, by a page that has said so
        self.revision = 0
        self.much = False  # more than a page is sent while it is being said
        self.after = []  # called when it has ended, with whether the kernel died

    @property
    def size(self):
        return sum(len(o["text"]) if isinstance(o.get("text"), Text) else size for o, size, _ in self.outputs)

    def hear(self, kind, content, msg):
        """Takes in a message of the kernel; reports whether it changed anything."""
        if kind == "execute_input":
            self.count = content.get("execution_count")
        elif kind == "clear_output":
            self.clear = True
            if not content.get("wait"):
                self._cleared()
        elif kind == "stream":
            self._stream(content.get("name", "stdout"), content.get("text", ""))
        elif kind in ("display_data", "execute_result", "error"):
            display = (content.get("transient") or {}).get("display_id")
            self._add(dict(output_from_msg(msg)), display)
        else:
            return False
        self.changed, self.told = True, False
        return True

    def _stream(self, name, text):
        self._cleared()
        if self.outputs and self.outputs[-1][0].get("name") == name:
            last = self.outputs[-1][0]
        else:
            last = {"output_type": "stream", "name": name, "text": Text()}
            self._add(last)
        last["text"].write(text)
        self.much = self.much or last["text"].size > 0

    def _cleared(self):
        if self.clear:
            self.forget()
            self.clear = False

    def _add(self, output, display=None):
        self._cleared()
        size = 0 if output["output_type"] == "stream" else len(json.dumps(output))
        if size > MOST:
            note = Text()
            note.write(f"[gpulab: an output of {size} characters is left out here]\n")
            output, size = {"output_type": "stream", "name": "stderr", "text": note}, 0
        self.outputs.append([output, size, display])
        # The first ones stay, and the newest.
        while len(self.outputs) > MOST_OUTPUTS or len(self.outputs) > 2 and self.size > MOST:
            del self.outputs[min(len(self.outputs) // 10, 20)]
            self.left_out += 1
            self.much = True

    def update(self, display, content):
        """Replaces the outputs with that display_id; reports whether there was one."""
        found = False
        for entry in self.outputs:
            if entry[2] == display and "data" in entry[0]:
                new = {**entry[0], "data": content.get("data", {}), "metadata": content.get("metadata", {})}
                size = len(json.dumps(new))
                if size <= MOST:
                    entry[0], entry[1], found = new, size, True
        if found:
            self.changed, self.told = True, False
        return found

    def forget(self):
        """Its owner has cleared what it said."""
        self.outputs, self.left_out, self.much = [], 0, False

    def died(self):
        self._stream("stderr", DIED)
        self.changed, self.told = True, False

    def end(self, died=False):
        self.ended = True
        after, self.after = self.after, []
        for call in after:
            call(died)

    def notebook(self):
        """The outputs as they stand in a notebook."""
        out = [{**o, "text": str(o["text"])} if isinstance(o.get("text"), Text) else o for o, _, _ in self.outputs]
        if self.left_out:
            note = f"[gpulab: {self.left_out} outputs are left out here]\n"
            out.insert(min(len(out) // 10, 20), {"output_type": "stream", "name": "stderr", "text": note})
        return out

    def messages(self):
        """The outputs as a kernel says them: what kind each is, and its content."""
        displays = {id(output): display for output, _, display in self.outputs if display}
        for output in self.notebook():
            content = {key: value for key, value in output.items() if key != "output_type"}
            if display := displays.get(id(output)):
                content["transient"] = {"display_id": display}
            yield output["output_type"], content


class Keeper:
    """Follows the kernels of one server."""

    def __init__(self, kernels):
        self.kernels = kernels
        self.log = kernels.log
        self.runs = {}  # kernel → message's ID → Run, in the order of the requests
        self.paths = {}  # kernel → notebooks that it ran cells of, as last known
        self.writers = {}  # kernel → (task, event that wakes it)
        self.saving = {}  # ID of a model that is being written by us → when the file it is made from had been changed
        self.ours = {}  # path → when the file had been changed before we wrote to it, and when we last did
        self.revision = 0

    @property
    def server(self):
        return self.kernels.parent

    def connected(self, kernel):
        return self.kernels._kernel_connections.get(kernel, 0) > 0

    # What is run.

    def asked(self, kernel, header, metadata, content):
        """A page asks a kernel to run a cell."""
        cell = metadata.get("cellId")
        if not isinstance(cell, str) or content.get("silent"):
            return  # not a notebook's
        fresh = Run(header["msg_id"], header.get("session"), cell, content.get("code", ""), place_of(metadata))
        runs = self.runs.setdefault(kernel, {})
        for number in [n for n, run in runs.items() if run.cell == cell and not twins(run, fresh)]:
            del runs[number]
        runs[fresh.number] = fresh
        self._bound()

    def _bound(self):
        """Forgets the oldest runs that the notebooks have, where there is too much."""
        every = [(run, runs) for runs in self.runs.values() for run in runs.values()]
        total, count = sum(run.size for run, _ in every), len(every)
        for run, runs in every:
            if total <= MOST_KEPT and count <= MOST_RUNS:
                return
            if run.ended and not run.changed:
                total -= run.size
                count -= 1
                del runs[run.number]

    # What a kernel says.

    def heard(self, kernel, session, parts):
        runs = self.runs.get(kernel)
        if not self.connected(kernel):
            self._bound_buffer(kernel)
        if not runs:
            return
        msg = session.deserialize(session.feed_identities(parts)[1], content=False)
        kind = msg["header"]["msg_type"]
        run = runs.get((msg["parent_header"] or {}).get("msg_id"))
        if run is None and kind != "update_display_data":
            return
        content = msg["content"] = session.unpack(msg["content"])
        changed = [run] if run else []
        if kind == "update_display_data":
            display = (content.get("transient") or {}).get("display_id")
            changed = [r for r in runs.values() if r.update(display, content)]
        elif kind == "status" and content.get("execution_state") == "idle":
            run.end()
        elif run.hear(kind, content, msg):
            if kind == "execute_input":
                self._skip(runs, run)
        else:
            return
        self.revision += 1
        for run in changed:
            run.revision = self.revision
        if not self.connected(kernel):
            self.write(kernel, now=any(run.ended for run in changed))

    def _skip(self, runs, begun):
        """Runs that were asked for before one that begins now are over, or never
        were: an error drops what waits behind it."""
        for number, run in list(runs.items()):
            if run is begun:
                return
            if not run.ended:
                run.end()
                if run.count is None:
                    del runs[number]

    def _bound_buffer(self, kernel):
        """The server holds back all messages for a page that was cut off. Of what
        is printed the page gets the rest from here."""
        info = self.kernels._kernel_buffers.get(kernel)
        if info and len(info["buffer"]) > MOST_BUFFERED:
            held = info["buffer"]
            held[:] = [m for m in held[: -MOST_BUFFERED // 2] if m[0] != "iopub"] + held[-MOST_BUFFERED // 2 :]

    def over(self, kernel, died):
        """The kernel's process has ended: what ran will not go on."""
        runs = self.runs.get(kernel, {})
        for number, run in list(runs.items()):
            if run.ended:
                continue
            if run.count is None:
                del runs[number]
                continue
            if died:
                run.died()
            run.end(died)
            self.revision += 1
            run.revision = self.revision
        if not self.connected(kernel):
            self.write(kernel, now=True)

    def forget(self, kernel):
        self.runs.pop(kernel, None)
        for path in self.paths.pop(kernel, []):
            self.ours.pop(path, None)

    # The notebooks.

    async def notebooks(self, kernel):
        """The paths of the notebooks that the kernel belongs to."""
        paths = [s["path"] for s in await self.server.session_manager.list_sessions() if s["kernel"]["id"] == kernel and s["type"] == "notebook"]
        if paths:
            self.paths[kernel] = paths
        return self.paths.get(kernel, [])

    def write(self, kernel, now=False):
        """Sees to it that the notebooks are written soon, or now."""
        task, wake = self.writers.get(kernel, (None, None))
        if task is None or task.done():
            if not any(run.changed for run in self.runs.get(kernel, {}).values()):
                return None
            wake = asyncio.Event()
            task = asyncio.ensure_future(self._write_on(kernel, wake))
            self.writers[kernel] = (task, wake)
            task.add_done_callback(lambda t: self.writers.pop(kernel) if self.writers.get(kernel, (None,))[0] is t else None)
        if now:
            wake.set()
        return task

    async def _write_on(self, kernel, wake):
        """Writes as long as no page is there and there is something new."""
        wait = WAIT
        while True:
            try:
                await asyncio.wait_for(wake.wait(), wait)
            except TimeoutError:
                pass
            wake.clear()
            if self.connected(kernel) or not any(run.changed for run in self.runs.get(kernel, {}).values()):
                return
            began = time.monotonic()
            try:
                await self._write(kernel)
                wait = min(LONGEST_WAIT, max(WAIT, SHARE * (time.monotonic() - began)))
            except Exception:
                self.log.warning("What cells of kernel %s printed cannot be written now", kernel, exc_info=True)
                wait = LONGEST_WAIT
            # Cells that end one after the other are written together.
            await asyncio.sleep(max(1, 3 * (time.monotonic() - began)))

    async def _write(self, kernel):
        runs = [run for run in self.runs.get(kernel, {}).values() if run.changed]
        paths = await self.notebooks(kernel)
        missing, found = None, set()
        for path in paths:
            try:
                found |= await self._write_into(path, runs)
            except web.HTTPError as e:
                if e.status_code != 404:
                    raise
                missing = e  # moved or removed behind the server's back
        if missing and not found:
            raise missing
        for run in runs:
            if run not in found:
                run.changed = False  # the cell is gone

    async def _write_into(self, path, runs):
        """Puts what the runs have said into the notebook, and returns those whose
        cells are in it."""
        contents = self.server.contents_manager
        for _ in range(5):
            model = await ensure_async(contents.get(path, type="notebook", content=True))
            book = model["content"]
            found, states = set(), []
            for run in runs:
                cell = cell_of(book, run)
                if cell is None:
                    continue
                found.add(run)
                states.append((run, run.revision))
                cell["outputs"], cell["execution_count"] = run.notebook(), run.count
                # Its owner ran it: that is what JupyterLab trusts, too.
                cell["metadata"]["trusted"] = True
            if not found:
                return found
            out = {"type": "notebook", "format": "json", "content": book}
            self.saving[id(out)] = model["last_modified"]
            try:
                now = await ensure_async(contents.save(out, path))
            except web.HTTPError as e:
                if e.status_code == 409:
                    continue  # somebody has just written it
                raise
            finally:
                del self.saving[id(out)]
            before, last = self.ours.get(path, (None, None))
            self.ours[path] = (before if last == model["last_modified"] else model["last_modified"], now["last_modified"])
            for run, revision in states:
                run.written = True
                if run.revision == revision:
                    run.changed = False
            return found
        raise RuntimeError(f"{path} is being written by somebody else all the time")

    def saved(self, model, path, contents_manager, **_):
        """Called before a notebook is saved. If a page has shown a run to its end, the
        saved notebook has the outputs that its owner wants, and the server writes nothing
        more of that run. A page may also save before it has seen what a cell printed. A
        save of the server is refused if the file has changed since the server read it."""
        path = path.strip("/")
        if id(model) in self.saving:
            try:
                modified = contents_manager._base_model(path)["last_modified"]
            except OSError:
                modified = None  # it is gone
            if modified != self.saving[id(model)]:
                raise web.HTTPError(409, f"{path} has been changed")
            return
        if model.get("type") != "notebook":
            return
        self.ours.pop(path, None)
        code = [cell for cell in model["content"]["cells"] if cell["cell_type"] == "code"]
        cleared = {cell.get("id") for cell in code if not cell.get("outputs") and cell.get("execution_count") is None}
        for kernel, paths in self.paths.items():
            if path not in paths:
                continue
            for run in self.runs.get(kernel, {}).values():
                if run.shown and run.cell in cleared:
                    run.forget()  # a thread of the cell may still print
                if not run.changed and not run.written:
                    continue
                # What the server wrote stays known until a page was told.
                known = run.told or not run.written
                saved = known and run.ended and (run.shown or has(model, run))
                run.changed, run.written = not saved and (run.changed or run.written), False

    def shown(self, numbers):
        """A page has shown these runs to their ends."""
        for runs in self.runs.values():
            for number in numbers & runs.keys():
                runs[number].shown = True

    async def missed(self, path, since, again=False):
        """What a page of the notebook may not have, for the page; again says that
        it will ask for the same once more."""
        answer = []
        for kernel, runs in list(self.runs.items()):
            if runs and path in await self.notebooks(kernel):
                for run in runs.values():
                    if run.ended and not run.changed and not run.written:
                        continue
                    told = {"run": run.number, "session": run.session, "cell": run.cell, "source": run.source, "place": run.place}
                    told |= {"begun": run.count is not None}
                    told |= {"ended": run.ended, "written": run.written, "count": run.count}
                    told["there"] = f"{kernel}:{run.session}" in Connection._open_sessions
                    if run.revision > since:
                        told["outputs"] = run.notebook()
                        run.told = run.told or not again
                    answer.append(told)
        before, last = (t.isoformat() if t else None for t in self.ours.get(path, (None, None)))
        return {"revision": self.revision, "runs": answer, "before": before, "last": last}


def place_of(metadata):
    """Where the page says that the cell it runs is, see Run."""
    place = metadata.get("gpulabPlace")
    if isinstance(place, list) and len(place) == 2 and all(isinstance(n, int) for n in place) and 0 <= place[0] < place[1]:
        return place
    return None


def twins(one, other):
    """Reports whether two runs are of different cells, though these have the same ID and source."""
    return bool(one.place and other.place) and one.source == other.source and one.place[0] != other.place[0]


def cell_of(book, run):
    """The code cell that a run belongs to, None if it is gone. Cells of old notebooks
    have no IDs, and an ID that a file has twice is another one at each reading: then
    it is the cell with the source that was run, and of several equal ones the one at
    the same place among them."""
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    named = [cell for cell in code if cell.get("id") == run.cell]
    if len(named) == 1:
        return named[0]
    same = [cell for cell in code if cell["source"] == run.source]
    if run.place and run.place[1] == len(same):
        return same[run.place[0]]
    if named:
        return named[0]
    if any("id" in cell for cell in code):
        return None
    return same[0] if len(same) == 1 else None


def has(model, run):
    """Reports whether a notebook has the end of what a run that has ended said."""
    cell = cell_of(model["content"], run)
    if cell is None or run.count is None or cell.get("execution_count") != run.count:
        return False
    mine, its = run.notebook(), cell.get("outputs") or []
    return len(mine) == len(its) and (not mine or text_of(mine[-1]) == text_of(its[-1]))


def text_of(output):
    """The text of a stream; in a file it may be a list of lines. None for other outputs."""
    text = output.get("text")
    return "".join(text) if isinstance(text, list) else text


class Contents(AsyncLargeFileManager):
    """Nobody reads a notebook that is being written: the server would take what
    is half there for a crash, and bring the version before it back. What is deleted
    goes to the trash."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._locks = weakref.WeakValueDictionary()  # path → its lock, while it is used

    def _lock(self, path):
        return self._locks.setdefault(path.strip("/"), asyncio.Lock())

    async def get(self, path, content=True, type=None, format=None, require_hash=False):
        if not content and not require_hash:  # saving ends with this
            return await super().get(path, content, type, format, require_hash)
        async with self._lock(path):
            with self.perm_to_403():  # for example, another member's private folder in a shared folder
                return await super().get(path, content, type, format, require_hash)

    async def save(self, model, path=""):
        async with self._lock(path):
            self._bound_name(path)
            return await super().save(model, path)

    async def delete_file(self, path):
        place = self._get_os_path(path.strip("/"))
        if not os.path.lexists(place):
            raise web.HTTPError(404, f"{path} does not exist")
        try:
            with self.perm_to_403():
                await asyncio.to_thread(gpulab_trash.remove, place)
        except OSError as error:
            # A folder that the lab has mounted, for one.
            raise web.HTTPError(400, f"{path} cannot be deleted: {error.strerror}") from None

    async def rename_file(self, old_path, new_path):
        self._bound_name(new_path)
        return await super().rename_file(old_path, new_path)

    def _bound_name(self, path):
        """Refuses a new name to which the name of its checkpoint would not fit a file
        system: the file would be made, and then neither saved nor renamed."""
        size = len(os.fsencode(path.rpartition("/")[2]))
        if size > MOST_NAME and not os.path.lexists(self._get_os_path(path)):
            raise web.HTTPError(400, f"This name is too long: it has {size} bytes, and {MOST_NAME} are possible.")


class Kernels(AsyncMappingKernelManager):
    """The kernels of a server, followed by a Keeper."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.keeper = Keeper(self)
        # ZeroMQ drops what a kernel says while more than 1000 messages wait: that is
        # soon so while a loop prints. It has no effect on sockets that only send.
        self.context.setsockopt(zmq.RCVHWM, MOST_QUEUED)

    async def _async_start_kernel(self, *, kernel_id=None, path=None, **kwargs):
        # Programs of cells read the settings in the home; the server does not (see gpulab_home).
        env = kwargs.get("env") or os.environ
        kwargs["env"] = {name: value for name, value in env.items() if name != "JUPYTER_CONFIG_DIR"}
        return await super()._async_start_kernel(kernel_id=kernel_id, path=path, **kwargs)

    start_kernel = _async_start_kernel

    def start_watching_activity(self, kernel_id):
        super().start_watching_activity(kernel_id)
        kernel = self._kernels[kernel_id]
        session = Session(config=kernel.session.config, key=kernel.session.key)
        kernel._outputs_stream = stream = kernel.connect_iopub()

        def heard(parts):
            try:
                self.keeper.heard(kernel_id, session, parts)
            except Exception:  # a kernel may say anything
                self.log.warning("A message of kernel %s is not understood", kernel_id, exc_info=True)

        stream.on_recv(heard)
        kernel._outputs_died = lambda: self.keeper.over(kernel_id, died=True)
        kernel.add_restart_callback(kernel._outputs_died, "restart")
        kernel.add_restart_callback(kernel._outputs_died, "dead")

    def stop_watching_activity(self, kernel_id):
        super().stop_watching_activity(kernel_id)
        kernel = self._kernels[kernel_id]
        if getattr(kernel, "_outputs_stream", None):
            kernel._outputs_stream.close()
            kernel._outputs_stream = None
            kernel.remove_restart_callback(kernel._outputs_died, "restart")
            kernel.remove_restart_callback(kernel._outputs_died, "dead")

    def notify_disconnect(self, kernel_id):
        super().notify_disconnect(kernel_id)
        if not self.connections(kernel_id):
            self.keeper.write(kernel_id, now=True)

    def connections(self, kernel_id):
        return self._kernel_connections.get(kernel_id, 0)

    async def _async_shutdown_kernel(self, kernel_id, now=False, restart=False):
        # One that has failed to start stays among those that are being started, and
        # would keep the server from ending.
        if kernel_id not in self and self._pending_kernels.pop(kernel_id, None):
            return None
        if not self.connections(kernel_id):
            task = self.keeper.write(kernel_id, now=True)
            if task is not None:
                await asyncio.wait([task], timeout=5)
        self.keeper.forget(kernel_id)
        return await super()._async_shutdown_kernel(kernel_id, now=now, restart=restart)

    shutdown_kernel = _async_shutdown_kernel

    async def _async_restart_kernel(self, kernel_id, now=False):
        self.keeper.over(kernel_id, died=False)
        return await super()._async_restart_kernel(kernel_id, now=now)

    restart_kernel = _async_restart_kernel


class Outlet:
    """What a page is sent of what its kernel says. What is printed in quick succession
    goes together. Of a run that says more than a page can take, the page gets the
    beginning, how much there is, and when it has ended what is kept of it instead.

    A message is its parts: header, parent's header, metadata, content, buffers.
    """

    def __init__(self, session, runs, send, log):
        self.session, self.runs, self.send, self.log = session, runs, send, log
        self.gathered = []  # each [message, its run's number, the stream's name, texts]; no name: it clears
        self.timer = None  # that sends what is gathered
        self.sent = 0.0  # when that was done last
        self.cut = {}  # number of a run of which the page does not get all → Cut
        self.waits = None  # number of the run whose outputs the page is to get now
        self.behind = []  # messages that come after these

    def take(self, parts):
        """Passes a message on, now or later."""
        try:
            self._take(parts)
        except Exception:  # a kernel may say anything
            self.log.warning("A message of a kernel is not understood", exc_info=True)
            self.send(parts)

    def _take(self, parts):
        if self.waits is not None:
            self.behind.append(parts)
            return
        kind = self.session.unpack(parts[0])["msg_type"]
        number = (self.session.unpack(parts[1]) or {}).get("msg_id")
        run = self.runs().get(number)
        said = kind in ("stream", "display_data", "execute_result", "error")
        if said and run is not None and (run.much or number in self.cut or kind == "stream" and len(parts[3]) > HEAD):
            self.flush()
            self._hold_back(run, parts[1])
        elif kind == "stream":
            content = self.session.unpack(parts[3])
            last = self.gathered[-1] if self.gathered else None
            if last and last[1] == number and last[2] == content["name"]:
                last[3].append(content["text"])
            else:
                self._gather([parts, number, content["name"], [content["text"]]])
        elif kind == "clear_output":
            self._uncut(number)
            self.gathered = [held for held in self.gathered if held[1] != number]
            self._gather([parts, number, None, None])
        else:
            self.flush()
            idle = kind == "status" and self.session.unpack(parts[3]).get("execution_state") == "idle"
            if idle and number in self.cut and run is not None:
                self._end(run, parts)
            else:
                self.send(parts)

    def _gather(self, held):
        self.gathered.append(held)
        if self.timer is None:
            wait = self.sent + TOGETHER - time.monotonic()
            if wait > 0:
                self.timer = asyncio.get_running_loop().call_later(wait, self.flush)
            else:
                self.flush()

    def flush(self):
        self.close()
        held, self.gathered = self.gathered, []
        if held:
            self.sent = time.monotonic()
        for parts, _, name, texts in held:
            if texts and len(texts) > 1:
                parts = [*parts[:3], self.session.pack({"name": name, "text": "".join(texts)})]
            self.send(parts)

    def close(self):
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def end(self):
        """The page is gone."""
        self.close()
        for number in list(self.cut):
            self._uncut(number)

    def _say(self, kind, content, parent):
        self.send([self.session.pack(self.session.msg_header(kind)), parent, b"{}", self.session.pack(content)])

    def _hold_back(self, run, parent):
        cut = self.cut.get(run.number)
        if cut is None:
            cut = self.cut[run.number] = Cut()
            if not run.ended:
                run.after.append(functools.partial(self._ended, run, parent))
        if run.ended:
            self._when_quiet(run, parent, cut)
        if time.monotonic() - cut.told < NOTE:
            return
        texts = [output["text"] for output, _, _ in run.outputs if isinstance(output.get("text"), Text)]
        size = sum(len(text) + text.left_out for text in texts)
        latest = f" The latest line: {texts[-1].latest()}" if texts else ""
        end = "Threads of the cell still print. The last of their output is shown when they pause." if run.ended else "The end is shown when the cell has ended."
        note = f"[gpulab: {size} characters so far. {end}{latest}]"
        back = "\r" if cut.width else ""
        self._say("stream", {"name": "stderr", "text": back + note.ljust(cut.width)}, parent)
        cut.told, cut.width = time.monotonic(), max(cut.width, len(note))

    def _when_quiet(self, run, parent, cut):
        """Shows the end of what threads print after their cell has ended, once they pause."""
        cut.heard = time.monotonic()
        if cut.timer is not None:
            return

        def look():
            left = cut.heard + QUIET - time.monotonic()
            if left > 0:
                cut.timer = asyncio.get_running_loop().call_later(left, look)
                return
            cut.timer = None
            try:
                self._show(run, parent)
            except Exception:
                self.log.warning("A page does not get all outputs", exc_info=True)

        cut.timer = asyncio.get_running_loop().call_later(QUIET, look)

    def _uncut(self, number):
        cut = self.cut.pop(number, None)
        if cut is not None and cut.timer is not None:
            cut.timer.cancel()

    def _end(self, run, idle):
        """The page gets what is kept, then that the run has ended. Both are heard from
        the kernel on ways of their own."""
        self.behind = [idle]
        self.waits = run.number
        if run.ended:
            self._ended(run, idle[1], False)
        else:
            asyncio.get_running_loop().call_later(UNHEARD, self._ended, run, idle[1], False, True)

    def _ended(self, run, parent, died, late=False):
        awaited = self.waits == run.number
        if not awaited and (not died or late or run.number not in self.cut):
            return
        try:
            self._show(run, parent)
        except Exception:
            self.log.warning("A page does not get all outputs", exc_info=True)
        if awaited:
            self._go_on()

    def _show(self, run, parent):
        self._uncut(run.number)
        self._say("clear_output", {"wait": bool(run.outputs)}, parent)
        for kind, content in run.messages():
            self._say(kind, content, parent)

    def _go_on(self):
        self.waits, behind, self.behind = None, self.behind, []
        self.send(behind[0])
        for parts in behind[1:]:
            self.take(parts)


class Cut:
    """A run of which a page does not get all."""

    def __init__(self):
        self.told, self.width = 0.0, 0  # when the page was told how much there is, and how long that note was
        self.heard, self.timer = 0.0, None  # when threads printed last, and what shows their end


class Connection(ZMQChannelsWebsocketConnection):
    """A page's connection to a kernel, which tells the Keeper what is run."""

    limit_rate = Bool(False)  # what is beyond the limits would be lost; see Outlet

    @functools.cached_property
    def outlet(self):
        return Outlet(self.session, lambda: self.multi_kernel_manager.keeper.runs.get(self.kernel_id, {}), self._send, self.log)

    def handle_outgoing_message(self, stream, outgoing_msg):
        channel = stream if isinstance(stream, str) else getattr(stream, "channel", None)
        if channel == "iopub":
            try:
                self.outlet.take(self.session.feed_identities(outgoing_msg)[1][1:])
                return
            except Exception:  # a kernel may say anything
                self.log.warning("A message of kernel %s is not understood", self.kernel_id, exc_info=True)
        self._pass(stream, outgoing_msg)

    def _send(self, parts):
        if "iopub" in self.channels:
            self._pass("iopub", [DELIM, self.session.sign(parts[:4]), *parts])

    def _pass(self, stream, message):
        try:
            super().handle_outgoing_message(stream, message)
        except WebSocketClosedError:
            pass  # the page has just gone

    def disconnect(self):
        self.outlet.end()
        return super().disconnect()

    def handle_incoming_message(self, incoming_msg):
        try:
            self._look(incoming_msg)
        except Exception:
            self.log.warning("A message to kernel %s is not understood", self.kernel_id, exc_info=True)
        super().handle_incoming_message(incoming_msg)

    def _look(self, text):
        word = "execute_request" if isinstance(text, str) else b"execute_request"
        if word not in text:
            return
        if self.subprotocol == "v1.kernel.websocket.jupyter.org":
            channel, parts = deserialize_msg_from_ws_v1(text)
            header, _, metadata, content = (self.session.unpack(part) for part in parts[:4])
        elif isinstance(text, str):
            msg = json.loads(text)
            channel, header, metadata, content = (msg.get(key) for key in ("channel", "header", "metadata", "content"))
        else:
            return  # the old protocol's form for messages with attachments, which no cell has
        if channel == "shell" and header["msg_type"] == "execute_request":
            keeper = self.multi_kernel_manager.keeper
            keeper.asked(self.kernel_id, header, metadata, content)
            # The path is known before the page can vanish.
            asyncio.ensure_future(keeper.notebooks(self.kernel_id))


class OutputsHandler(APIHandler):
    """What a page of a notebook has missed, and what it has shown."""

    auth_resource = "contents"

    @web.authenticated
    @authorized
    async def get(self):
        try:
            since = int(self.get_query_argument("since", "0"))
        except ValueError:
            raise web.HTTPError(400, "since is a number") from None
        path = self.get_query_argument("path").strip("/")
        again = bool(self.get_query_argument("again", ""))
        self.finish(json.dumps(await self.kernel_manager.keeper.missed(path, since, again)))

    @web.authenticated
    @authorized
    async def post(self):
        """The page has shown the named runs to their ends, and saves now."""
        shown = (self.get_json_body() or {}).get("shown")
        if not isinstance(shown, list) or not all(isinstance(number, str) for number in shown):
            raise web.HTTPError(400, "shown is a list of runs")
        self.kernel_manager.keeper.shown(set(shown))
        self.set_status(204)


def _jupyter_server_extension_points():
    return [{"module": "gpulab_outputs"}]


def _load_jupyter_server_extension(server):
    settings = server.web_app.settings
    if not isinstance(server.kernel_manager, Kernels):
        server.log.warning("gpulab_outputs: another kernel manager is configured; what is printed without a browser is not kept")
        return
    server.contents_manager.register_pre_save_hook(server.kernel_manager.keeper.saved)
    server.web_app.add_handlers(".*$", [(url_path_join(settings["base_url"], "gpulab/outputs"), OutputsHandler)])
