"""What is kept of outputs, and into which cell they go (gpulab_outputs)."""

import asyncio
import os
import tempfile
import types

import gpulab_outputs as o

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
