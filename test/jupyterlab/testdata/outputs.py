"""What is kept of outputs, and into which cell they go (gpulab_outputs)."""

import asyncio
import logging
import os
import tempfile
import types

import gpulab_outputs as o
from jupyter_client.session import Session

t = o.Text()
for piece in ["10%\r", "100", "%\rdone\r\n", "ab\b", "c\n", "last"]:
    t.write(piece)
assert str(t) == "done\nac\nlast", str(t)

t = o.Text()
for i in range(600_000):
    t.write(f"line {i}\n")
said = str(t)
assert said.startswith("line 0\nline 1\n") and said.endswith("line 599999\n")
assert len(said) < o.HEAD + 2 * o.TAIL + 200 and "characters are left out here]\nline " in said
assert t.left_out == sum(len(f"line {i}\n") for i in range(600_000)) - len(t)

run = o.Run("m", "s", "c", "")
image = {"data": {"image/png": "x" * (1 << 20)}, "metadata": {}}
for i in range(40):
    run.hear("display_data", image, {"header": {"msg_type": "display_data"}, "content": image})
assert run.size <= o.MOST and len(run.notebook()) < 20 and any("outputs are left out" in x.get("text", "") for x in run.notebook())
huge = {"data": {"image/png": "x" * (o.MOST + 1)}, "metadata": {}}
run.hear("display_data", huge, {"header": {"msg_type": "display_data"}, "content": huge})
assert "is left out here" in run.notebook()[-1]["text"]
run = o.Run("m", "s", "c", "")
for i in range(3 * o.MOST_OUTPUTS):
    run.hear("stream", {"name": ("stdout", "stderr")[i % 2], "text": "x\n"}, None)
assert len(run.outputs) == o.MOST_OUTPUTS


# A cell that was deleted stays deleted, and what was typed meanwhile is left as it
# is: a file that changes between its reading and its writing is read again.
def cell(source, **more):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": 1, **more}


def book(*cells):
    return {"type": "notebook", "format": "json", "content": {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)}}


class Meddled(o.Contents):
    """Somebody saves just before the first time that the keeper does."""

    person, saves = None, 0

    async def save(self, model, path=""):
        if self.person:
            person, self.person = self.person, None
            await o.Contents.save(self, person, path)
        self.saves += 1
        return await super().save(model, path)


def keeper_of(contents):
    keeper = o.Keeper(types.SimpleNamespace(log=None, parent=types.SimpleNamespace(contents_manager=contents), _kernel_connections={}))
    contents.register_pre_save_hook(keeper.saved)
    return keeper


async def meddle(folder):
    contents = Meddled(root_dir=folder)
    keeper = keeper_of(contents)
    await contents.save(book(cell("a", id="1"), cell("b", id="2")), "x.ipynb")
    contents.person, contents.saves = book(cell("a = 1  # typed", id="1")), 0
    runs = []
    for number in "12":
        run = o.Run(number, "s", number, "")
        run.hear("execute_input", {"execution_count": 7}, None)
        run.hear("stream", {"name": "stdout", "text": "said\n"}, None)
        runs.append(run)
    assert await keeper._write_into("x.ipynb", runs) == {runs[0]} and contents.saves == 2
    (only,) = (await contents.get("x.ipynb"))["content"]["cells"]
    assert only["source"] == "a = 1  # typed" and only["outputs"][0]["text"] == "said\n", only
    assert only["execution_count"] == 7 and not runs[0].changed and runs[1].changed and not keeper.saving


# Whoever reads a notebook while it is being saved gets what is saved.
async def read_while_saving(folder):
    contents = o.Contents(root_dir=folder)
    cells = [cell("x" * 1000, id=str(i)) for i in range(2000)]
    for number in range(3):
        cells[0]["source"] = f"typed {number}"
        saving = asyncio.ensure_future(contents.save(book(*cells), "y.ipynb"))
        while not saving.done():
            await asyncio.sleep(0.01)
            if os.path.exists(f"{folder}/y.ipynb"):
                assert (await contents.get("y.ipynb"))["content"]["cells"][0]["source"] == f"typed {number}"
        await saving
    assert not [name for name in os.listdir(folder) if "invalid" in name], os.listdir(folder)


for test in (meddle, read_while_saving):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(test(folder))

old = {"cells": [cell("x"), cell("y"), cell("y")]}
assert o.cell_of(old, o.Run("m", "s", "?", "x")) is old["cells"][0]
assert o.cell_of(old, o.Run("m", "s", "?", "y")) is None

# Equal cells without IDs are told apart by their places; so is one whose ID is new at each reading.
first, second = old["cells"][1:]
assert o.cell_of(old, o.Run("m", "s", "?", "y", [0, 2])) is first
assert o.cell_of(old, o.Run("m", "s", "?", "y", [1, 2])) is second
assert o.cell_of(old, o.Run("m", "s", "?", "y", [1, 3])) is None  # one is gone, and nobody knows which
assert o.cell_of(old, o.Run("m", "s", "?", "x", [0, 2])) is old["cells"][0]
new = {"cells": [cell("y", id="aa"), cell("y", id="bb")]}
assert o.cell_of(new, o.Run("m", "s", "cc", "y", [1, 2])) is new["cells"][1]
assert o.cell_of(new, o.Run("m", "s", "cc", "y", [0, 1])) is None
double = {"cells": [cell("y", id="aa"), cell("y", id="aa")]}
assert o.cell_of(double, o.Run("m", "s", "aa", "y", [1, 2])) is double["cells"][1]
assert [o.place_of({"gpulabPlace": place}) for place in ([1, 2], [2, 2], [-1, 2], "12", [0], None)] == [[1, 2], *[None] * 5]


class Kernel:
    """What a page gets of what a kernel says."""

    def __init__(self):
        self.session = Session(key=b"k")
        self.runs, self.got = {}, []  # got: (kind, content)
        self.outlet = o.Outlet(self.session, lambda: self.runs, self._send, None)

    def _send(self, parts):
        self.got.append((self.session.unpack(parts[0])["msg_type"], self.session.unpack(parts[3])))

    def run(self, number, followed=True):
        if followed:
            self.runs[number] = o.Run(number, "s", number, "")
        return number

    def hears(self, number, kind, content):
        """The Keeper does, before the page or after it."""
        if kind == "status":
            self.runs[number].end()
        else:
            self.runs[number].hear(kind, content, {"header": {"msg_type": kind}, "content": content})

    def says(self, number, kind, **content):
        pack = self.session.pack
        self.outlet.take([pack(self.session.msg_header(kind)), pack({"msg_id": number}), b"{}", pack(content)])

    def both(self, number, kind, **content):
        self.hears(number, kind, content)
        self.says(number, kind, **content)

    def shown(self):
        """The text that the page shows."""
        text = ""
        for kind, content in self.got:
            if kind == "clear_output":
                text = ""
            text += content.get("text", "")
        return text


async def little():
    k = Kernel()
    run = k.run("1", followed=False)
    for i in range(20_000):
        k.says(run, "stream", name="stdout", text=f"{i}\n")
        if i % 100 == 0:
            await asyncio.sleep(0)
    k.says(run, "stream", name="stderr", text="oops\n")
    k.says(run, "status", execution_state="idle")
    assert k.shown() == "".join(f"{i}\n" for i in range(20_000)) + "oops\n"
    assert len(k.got) < 200 and k.got[-1][0] == "status", len(k.got)
    k.says(run, "stream", name="stdout", text="later")
    await asyncio.sleep(3 * o.TOGETHER)
    assert k.got[-1] == ("stream", {"name": "stdout", "text": "later"})
    # What is cleared at once is not sent at all.
    k.got.clear()
    for i in range(1000):
        k.says(run, "clear_output", wait=True)
        k.says(run, "stream", name="stdout", text=str(i))
    k.says(run, "status", execution_state="idle")
    assert k.shown() == "999" and len(k.got) < 100, len(k.got)


# Of very much the page gets the beginning at once, and in the end what is kept: the same that the file would have.
async def much():
    k = Kernel()
    run = k.run("1")
    k.both(run, "display_data", data={"image/png": "x"}, metadata={}, transient={"display_id": "d"})
    for i in range(40_000):
        k.both(run, "stream", name="stdout", text=f"{'-' * 90} line {i}\n")
    before = sum(len(content.get("text", "")) for _, content in k.got)
    assert before < o.HEAD + (1 << 17), before
    assert "characters so far" in k.got[-1][1]["text"] and "latest line: ---" in k.got[-1][1]["text"], k.got[-1]
    k.says(run, "status", execution_state="idle")  # the page's connection is the first to hear it
    assert k.got[-1][0] == "stream"
    k.says("2", "status", execution_state="busy")
    k.hears(run, "status", {})
    kept = "".join(output.get("text", "") for output in k.runs[run].notebook())
    assert k.shown() == kept and kept.endswith("line 39999\n") and "characters are left out here" in kept
    assert [content["execution_state"] for kind, content in k.got if kind == "status"] == ["idle", "busy"]
    assert ("display_data", {"data": {"image/png": "x"}, "metadata": {}, "transient": {"display_id": "d"}}) == k.got[-4], k.got[-4][0]
    # The next run of the same page is not affected.
    k.got.clear()
    k.both(k.run("3"), "stream", name="stdout", text="well")
    k.says("3", "status", execution_state="idle")
    assert k.shown() == "well"


# One message that is too large; the Keeper has heard of the end before the page's connection has.
async def at_once():
    k = Kernel()
    run = k.run("1")
    for text in ("x" * 6_000_000 + "\n", "LAST\n"):
        k.hears(run, "stream", {"name": "stdout", "text": text})
    k.hears(run, "status", {})
    for text in ("x" * 6_000_000 + "\n", "LAST\n"):
        k.says(run, "stream", name="stdout", text=text)
    k.says(run, "status", execution_state="idle")
    assert k.shown().endswith("x\nLAST\n") and len(k.shown()) < o.HEAD + 2 * o.TAIL + 200
    assert sum(len(content.get("text", "")) for _, content in k.got) < o.HEAD + 2 * o.TAIL + 2000


# A kernel that dies does not say that the run has ended.
async def dies():
    k = Kernel()
    run = k.run("1")
    for _ in range(3):
        k.both(run, "stream", name="stdout", text="y" * 1_000_000 + "\n")
    k.runs[run].died()
    k.runs[run].end(died=True)
    assert k.shown().endswith(o.DIED)


# What threads print after their cell has ended is bounded, too; the end comes when they pause.
async def threads():
    k = Kernel()
    run = k.run("1")
    k.hears(run, "status", {})
    k.says(run, "status", execution_state="idle")
    for i in range(100):
        k.both(run, "stream", name="stdout", text="-" * 100_000 + f" {i}\n")
    await asyncio.sleep(0)
    assert sum(len(content.get("text", "")) for _, content in k.got) < 2 * o.HEAD
    assert "Threads of the cell still print" in k.got[-1][1]["text"], k.got[-1]
    k.both(run, "stream", name="stdout", text="LAST\n")
    await asyncio.sleep(o.QUIET + 1)
    assert k.shown().endswith("- 99\nLAST\n") and len(k.shown()) < o.HEAD + 2 * o.TAIL + 200
    # The page is gone: nothing waits any more.
    k.both(run, "stream", name="stdout", text="x")
    k.outlet.end()
    assert not k.outlet.cut


# A page goes on to hear of its kernel where what is kept of a run cannot be sent, or a message cannot be read.
async def goes_on():
    k = Kernel()
    k.outlet.log = logging.getLogger("quiet")
    k.outlet.log.disabled = True
    run = k.run("1")
    k.hears(run, "stream", {"name": "stdout", "text": "x" * (o.HEAD + o.LINE + 1)})
    k.says(run, "stream", name="stdout", text="x")
    k.says(run, "status", execution_state="idle")
    k.says("2", "status", execution_state="busy")
    k.runs[run].messages = lambda: 1 / 0
    k.hears(run, "status", {})
    assert [content["execution_state"] for kind, content in k.got if kind == "status"] == ["idle", "busy"]
    got = []
    k.outlet.send = got.append
    k.outlet.take([b"not", b"a", b"message", b"{}"])
    k.says("2", "status", execution_state="idle")
    assert len(got) == 2 and got[0][0] == b"not"


for test in (little, much, at_once, dies, threads, goes_on):
    asyncio.run(test())


# A page that saves is done with a run once it has shown its end, or has all of it. What it then has is what its owner
# wants, and what a thread prints later is added to that.
def saves(shown, outputs, count):
    keeper = keeper_of(types.SimpleNamespace(register_pre_save_hook=lambda hook: None))
    run = o.Run("m", "s", "id", "code")
    run.hear("execute_input", {"execution_count": 7}, None)
    run.hear("stream", {"name": "stdout", "text": "one\ntwo\n"}, None)
    run.end()
    keeper.runs, keeper.paths = {"kernel": {"m": run}}, {"kernel": ["a.ipynb"]}
    if shown:
        keeper.shown({"m", "gone"})
    keeper.saved(book(cell("code", id="id", outputs=outputs, execution_count=count)), "a.ipynb", None)
    return run


whole = [{"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]}]
part = [{"output_type": "stream", "name": "stdout", "text": "one\n"}]
assert saves(False, [], None).changed and saves(False, part, None).changed and saves(False, part, 7).changed
assert not saves(False, whole, 7).changed and not saves(True, part, 7).changed
assert not saves(True, [], None).changed and not saves(True, [], None).outputs

# What is printed after it was cleared is little again.
run = o.Run("m", "s", "c", "")
run.hear("stream", {"name": "stdout", "text": "x" * (o.HEAD + o.LINE + 1)}, None)
assert run.much
run.hear("clear_output", {"wait": True}, None)
run.hear("stream", {"name": "stdout", "text": "x"}, None)
assert not run.much


# A name to which the name of its checkpoint would not fit is refused before there is a file.
async def names(folder):
    contents = o.Contents(root_dir=folder)
    longest = "n" * (o.MOST_NAME - len(".ipynb")) + ".ipynb"
    await contents.save(book(cell("a", id="1")), longest)
    await contents.create_checkpoint(longest)
    for act in (lambda: contents.save(book(), "n" + longest), lambda: contents.rename_file(longest, "ü" * 130)):
        try:
            await act()
        except o.web.HTTPError as error:
            assert error.status_code == 400 and "too long" in error.log_message, error
        else:
            raise AssertionError("it was taken")
    assert sorted(os.listdir(folder)) == [".ipynb_checkpoints", longest]


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(names(folder))


# Reading theirs/ raises PermissionError, and the page gets a 403 that says so. The test replaces os.listdir, because
# root may read every folder.
async def unreadable(folder):
    def no_right(path):
        raise PermissionError(13, "no right to read", path)

    os.mkdir(f"{folder}/theirs")
    contents, listdir = o.Contents(root_dir=folder), os.listdir
    os.listdir = no_right
    try:
        await contents.get("theirs")
    except o.web.HTTPError as error:
        assert error.status_code == 403 and error.log_message == "Permission denied: theirs", error
    else:
        raise AssertionError("it was read")
    finally:
        os.listdir = listdir


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(unreadable(folder))
