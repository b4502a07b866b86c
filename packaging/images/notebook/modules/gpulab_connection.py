"""Lets a page find out that its connection to a kernel is lost, and loses nothing of what it sends.

Where a network drops what is sent, nothing tells a page so, and a busy kernel does not
answer. So the server itself answers a message of the type gpulab_alive, with the kernel's
state. A page that gets no answer connects again, and sends again what it has not heard
of (see the plugin "connection" of the labextension gpulab). What had arrived before is
not passed on twice.
"""

import asyncio

import gpulab_outputs
from jupyter_client.session import DELIM
from jupyter_server.services.kernels.connection.base import deserialize_msg_from_ws_v1

MOST = 10_000  # requests that are remembered


class Connection(gpulab_outputs.Connection):
    arrived = {}  # IDs of requests to run something, in their order

    async def prepare(self):
        # The page has given up its earlier connection. While that is open, it receives the
        # kernel's answers. Once it is closed, the server buffers them for this connection.
        stale = self._open_sessions.get(f"{self.kernel_id}:{self.session.session}")
        if stale is not None and stale.ws_connection is not None:
            stale.ws_connection.stream.close()
            for _ in range(100):
                if stale.connection is None:
                    break
                await asyncio.sleep(0.01)
        await super().prepare()

    connected = False

    def connect(self):
        self.connected = True
        return super().connect()

    def disconnect(self):
        # Closing lowers the server's count of the kernel's connections. A page that left
        # before its connection was made has not been counted.
        if self.connected:
            return super().disconnect()
        if self._open_sessions.get(self.session_key) is self.websocket_handler:
            del self._open_sessions[self.session_key]

    def handle_incoming_message(self, incoming_msg):
        if self.websocket_handler.ws_connection is None:
            return  # it has been closed, and the page has another
        try:
            if self._settled(incoming_msg):
                return
        except Exception:
            self.log.warning("A message to kernel %s is not understood", self.kernel_id, exc_info=True)
        super().handle_incoming_message(incoming_msg)

    def _settled(self, message):
        """Answers a message that is not for the kernel, or that the kernel has had; reports whether it is one."""
        if not self.channels or self.subprotocol != "v1.kernel.websocket.jupyter.org":
            return False
        if b"execute_request" not in message and b"gpulab_alive" not in message:
            return False
        _, parts = deserialize_msg_from_ws_v1(message)
        header = self.session.unpack(parts[0])
        if header["msg_type"] == "gpulab_alive":
            self._answer(parts[0])
            return True
        if header["msg_type"] != "execute_request":
            return False
        if header["msg_id"] in self.arrived:
            return True
        self.arrived[header["msg_id"]] = True
        if len(self.arrived) > MOST:
            del self.arrived[next(iter(self.arrived))]
        return False

    def _answer(self, parent):
        state = getattr(self.kernel_manager, "execution_state", None)
        kind, content = ("status", {"execution_state": state}) if state in ("busy", "idle") else ("gpulab_alive", {})
        parts = [self.session.pack(self.session.msg_header(kind)), bytes(parent), b"{}", self.session.pack(content)]
        self.handle_outgoing_message("iopub", [DELIM, self.session.sign(parts), *parts])
