"""The notebook's memory and GPU figures, for JupyterLab's status bar.

Memory is the control group's usage without its inactive file cache, which Linux frees
before it kills programs. GPU figures come from NVML and are for the whole card, with the
programs of everybody who uses it. A figure that is unknown is null, never 0.
"""

import asyncio
import json
import threading
import time
from pathlib import Path

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

CGROUP = "/sys/fs/cgroup"
# Usage, limit, statistics and the name of the inactive file cache in these, for versions 2 and 1 of control groups.
LAYOUTS = (
    ("memory.current", "memory.max", "memory.stat", "inactive_file"),
    ("memory/memory.usage_in_bytes", "memory/memory.limit_in_bytes", "memory/memory.stat", "total_inactive_file"),
)
UNLIMITED = 1 << 60  # version 1 writes a number as large as this for no limit
FRESH = 1  # s for which all pages get the same figures
PATIENCE = 2  # s that a request waits for the driver
AGAIN = 60  # s at least between two attempts to start NVML


def memory(folder=CGROUP):
    """Bytes used and the limit, which is None if there is none; None if unknown."""
    for usage, limit, statistics, cache in LAYOUTS:
        try:
            used = int(Path(folder, usage).read_text())
            lines = Path(folder, statistics).read_text().splitlines()
            cached = next((int(line.split()[1]) for line in lines if line.startswith(f"{cache} ")), 0)
        except (OSError, ValueError, IndexError):
            continue
        try:
            most = int(Path(folder, limit).read_text())
        except (OSError, ValueError):  # no limit is "max"
            most = UNLIMITED
        return {"used": max(0, used - cached), "limit": most if most < UNLIMITED else None}
    return None


class Driver:
    """Asks NVML, in this process. The first call starts it, which may take seconds; after an error it starts again."""

    started = False
    again = 0.0  # when it may be started again

    def gpus(self):
        """The figures of each GPU, [] if the driver has none; None if there is no driver or it does not tell."""
        try:
            # Imported here, because most notebooks have no GPU and do not need it.
            import pynvml

            if not self.started:
                if time.monotonic() < self.again:
                    return None
                self.again = time.monotonic() + AGAIN
                pynvml.nvmlInit()
                self.started = True
            return self._look(pynvml)
        except Exception:
            # There is no driver, it was replaced while it was in use, or the binding lacks a function.
            if self.started:
                self.started = False
                self._stop()
            return None

    def _look(self, nvml):
        def tell(ask):
            try:
                return ask()
            except nvml.NVMLError:
                return None

        # The count may include GPUs that are not the notebook's: those have no handle here.
        handles = [tell(lambda i=i: nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]
        found = []
        for index, handle in enumerate(handles):
            if handle is None:
                continue
            # Version 2 does not count memory that the driver reserves as used. Older drivers have only version 1.
            sizes = tell(lambda h=handle: nvml.nvmlDeviceGetMemoryInfo(h, version=nvml.nvmlMemory_v2))
            sizes = sizes or tell(lambda h=handle: nvml.nvmlDeviceGetMemoryInfo(h))
            busy = tell(lambda h=handle: nvml.nvmlDeviceGetUtilizationRates(h))
            found.append(
                {
                    "index": index,
                    "name": tell(lambda h=handle: nvml.nvmlDeviceGetName(h)),
                    "busy": busy and busy.gpu,  # percent
                    "used": sizes and sizes.used,
                    "total": sizes and sizes.total,
                }
            )
        if handles and not any(gpu["total"] for gpu in found):
            raise RuntimeError("the driver tells nothing about any GPU")
        return found

    def _stop(self):
        try:
            import pynvml

            pynvml.nvmlShutdown()
        except Exception:
            pass  # it has not started, then


class Meter:
    """Reads at most once per FRESH seconds. If the driver hangs, one thread hangs, and requests wait PATIENCE s."""

    def __init__(self, folder=CGROUP, driver=None):
        self.folder, self.driver = folder, driver or Driver()
        self.memory, self.looked = None, float("-inf")
        self.look = None  # what a thread finds out about the GPUs, a future

    async def read(self):
        if time.monotonic() - self.looked >= FRESH:
            self.looked = time.monotonic()
            self.memory = memory(self.folder)
            if self.look is None or self.look.done():
                self.look = self._ask()
        try:
            gpus = await asyncio.wait_for(asyncio.shield(self.look), PATIENCE)
        except TimeoutError:
            gpus = None
        return {"memory": self.memory, "gpus": gpus}

    def _ask(self):
        loop = asyncio.get_running_loop()
        found = loop.create_future()

        def ask():
            gpus = self.driver.gpus()
            try:
                loop.call_soon_threadsafe(found.set_result, gpus)
            except RuntimeError:
                pass  # the server has ended

        # A daemon thread does not delay the server's exit. A thread of an executor would.
        threading.Thread(target=ask, daemon=True).start()
        return found


class MeterHandler(APIHandler):
    """The figures, for the page."""

    auth_resource = "api"
    # An open page asks all the time, whether anybody uses the notebook or not.
    _track_activity = False

    def initialize(self, meter):
        self.meter = meter

    @web.authenticated
    @authorized
    async def get(self):
        figures = await self.meter.read()
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(figures))


def _jupyter_server_extension_points():
    return [{"module": "gpulab_meter"}]


def _load_jupyter_server_extension(server):
    place = url_path_join(server.web_app.settings["base_url"], "gpulab/meter")
    server.web_app.add_handlers(".*$", [(place, MeterHandler, {"meter": Meter()})])
