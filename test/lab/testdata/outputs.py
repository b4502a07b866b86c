"""What is kept of outputs, and into which cell they go (gpulab_outputs)."""

import asyncio
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


# A cell that was deleted stays deleted, one without ID is found by its source, and
# what was typed meanwhile is left as it is; a file that changes is read again.
class Contents:
    def __init__(self, cells):
        self.cells, self.version, self.saves, self.meddle = cells, 1, 0, None

    def get(self, path, content=True, type=None):
        model = {"last_modified": self.version, "content": {"cells": [dict(c, metadata={}) for c in self.cells]}}
        if not content and self.meddle:
            self.meddle, meddle = None, self.meddle
            meddle()
            model["last_modified"] = self.version
        return model

    def save(self, model, path):
        self.cells, self.saves, self.version = model["content"]["cells"], self.saves + 1, self.version + 1
        return {"last_modified": self.version}


def cell(source, **more):
    return {"cell_type": "code", "source": source, "outputs": ["old"], "execution_count": 1, **more}


contents = Contents([cell("a", id="1"), cell("b", id="2")])
keeper = o.Keeper(types.SimpleNamespace(log=None, parent=types.SimpleNamespace(contents_manager=contents), _kernel_connections={}))


def person():
    contents.cells = [cell("a = 1  # typed", id="1")]
    contents.version += 1


contents.meddle = person
runs = []
for number in "12":
    run = o.Run(number, "s", number, "")
    run.hear("execute_input", {"execution_count": 7}, None)
    run.hear("stream", {"name": "stdout", "text": "said\n"}, None)
    runs.append(run)
found = asyncio.run(keeper._write_into("x.ipynb", runs))
assert found == {runs[0]} and contents.saves == 1 and len(contents.cells) == 1
assert contents.cells[0]["source"] == "a = 1  # typed" and contents.cells[0]["outputs"][0]["text"] == "said\n"
assert contents.cells[0]["execution_count"] == 7 and not runs[0].changed and runs[1].changed

old = {"cells": [cell("x"), cell("y"), cell("y")]}
assert o.cell_of(old, o.Run("m", "s", "?", "x")) is old["cells"][0]
assert o.cell_of(old, o.Run("m", "s", "?", "y")) is None
