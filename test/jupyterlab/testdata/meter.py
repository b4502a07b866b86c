"""Tests gpulab_meter: its figures, who may read them, and that reading them does not count as activity."""

import asyncio
import json
import threading
import time
from pathlib import Path

import gpulab_meter as m
import pynvml
from jupyter_server.serverapp import ServerApp
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port

home = Path.home()


def write(name, files):
    for path, text in files.items():
        path = home / name / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return home / name


stat = "anon 5\ninactive_file 30\nactive_file 7"
two = {"memory.current": 100, "memory.max": 200, "memory.stat": stat}
assert m.memory(write("two", two)) == {"used": 70, "limit": 200}
assert m.memory(write("free", {**two, "memory.max": "max"})) == {"used": 70, "limit": None}
assert m.memory(write("early", {**two, "memory.current": 10})) == {"used": 0, "limit": 200}
one = {
    "memory/memory.usage_in_bytes": 100,
    "memory/memory.limit_in_bytes": 200,
    "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 30",
}
assert m.memory(write("one", one)) == {"used": 70, "limit": 200}
free = {**one, "memory/memory.limit_in_bytes": 0x7FFFFFFFFFFFF000}
assert m.memory(write("one-free", free)) == {"used": 70, "limit": None}
assert m.memory(write("odd", {**two, "memory.current": "?"})) is None
assert m.memory(home / "absent") is None

assert m.Driver().gpus() is None, "a machine without a driver"


class Driver:
    """A driver that answers only after let is set."""

    def __init__(self):
        self.asked, self.let = 0, threading.Event()

    def gpus(self):
        self.asked += 1
        self.let.wait(60)
        return [{"name": "Card", "busy": 5, "used": 1, "total": 2}]


async def hangs():
    driver = Driver()
    meter = m.Meter(home / "two", driver)
    began = time.monotonic()
    # Many pages, for longer than an answer is fresh.
    answers = await asyncio.gather(*(meter.read() for _ in range(20)))
    answers.append(await meter.read())
    assert all(answer == {"memory": {"used": 70, "limit": 200}, "gpus": None} for answer in answers), answers
    assert driver.asked == 1 and time.monotonic() - began < 3 * m.PATIENCE, driver.asked
    driver.let.set()
    while not meter.look.done():
        await asyncio.sleep(0.01)
    meter.looked = float("-inf")
    answers = await asyncio.gather(*(meter.read() for _ in range(20)))
    assert all(answer["gpus"][0]["busy"] == 5 for answer in answers) and driver.asked == 2, (answers, driver.asked)


asyncio.run(hangs())


# A driver that fails is asked again after a while, not each time.
calls = []
pynvml.nvmlInit = lambda: calls.append("start")
pynvml.nvmlShutdown = lambda: calls.append("stop")


def fails():
    calls.append("count")
    raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)


pynvml.nvmlDeviceGetCount = fails
driver = m.Driver()
assert [driver.gpus() for _ in range(3)] == [None] * 3 and calls == ["start", "count", "stop"], calls
driver.again = 0
pynvml.nvmlDeviceGetCount = lambda: 0
assert driver.gpus() == [] and driver.gpus() == [] and calls[3:] == ["start"], calls


async def serves():
    app = ServerApp()
    app.initialize(
        [
            "--IdentityProvider.token=secret",
            f"--ServerApp.root_dir={home}",
            f"--ServerApp.jpserver_extensions={ {'gpulab_meter': True} }",
        ],
        find_extensions=True,
        new_httpserver=False,
    )
    socket, port = bind_unused_port()
    HTTPServer(app.web_app).add_socket(socket)

    async def ask(path, method="GET", token="secret"):
        headers = {"Authorization": f"token {token}"} if token else {}
        body = "{}" if method == "POST" else None
        place = f"http://127.0.0.1:{port}/{path}"
        return await AsyncHTTPClient().fetch(place, method=method, headers=headers, body=body, raise_error=False)

    before = app.web_app.last_activity()  # what JupyterHub is told, too
    await asyncio.sleep(0.01)
    for _ in range(3):
        answer = await ask("gpulab/meter")
        assert answer.code == 200 and set(json.loads(answer.body)) == {"memory", "gpus"}, (answer.code, answer.body)
    assert app.web_app.last_activity() == before, "reading the figures counted as activity"
    await ask("api/kernels")
    assert app.web_app.last_activity() > before, "this test would not notice activity"
    assert (await ask("gpulab/meter", token=None)).code == 403
    assert (await ask("gpulab/meter", token="wrong")).code == 403
    assert (await ask("gpulab/meter", method="POST")).code == 405


asyncio.run(serves())
