"""A kubelet that runs nothing: a real API server requests logs from it, and lets it "run" programs and forward ports.

The API server finds it by the address of a Node, and uses HTTPS: `/containerLogs/...` for logs, and a web
socket at `/exec/...` whose channels are standard output, standard error and the outcome. The test chooses the answers.
A web socket at `/portForward/...` has a channel for data and one for errors, and is connected to an address that the
test chooses.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final, NamedTuple, final

import trustme
from aiohttp import web

from gantry_testing.http_server import http_server
from gantry_testing.loop_thread import LoopThread

PROTOCOL: Final = "v4.channel.k8s.io"
"""The version of the protocol of `exec`: the first byte of a message is its channel."""


class Outcome(NamedTuple):
    """The outcome of a program."""

    output: bytes
    errors: str = ""
    code: int = 0


Run = Callable[[str, str, list[str]], Outcome | None]
"""Pod, container and command; None: the program never ends."""
Log = Callable[[str, str, bool], str | None]
"""Pod, container, and whether the log is that of the previous run; None: there is no such log."""


Forward = Callable[[str, int], tuple[str, int] | None]
"""Pod and port; returns the address to connect to, or None: nothing listens there."""


@final
class Kubelet:
    """The kubelet, on a loop in a thread of its own; the test chooses its answers."""

    def __init__(self) -> None:
        self.run: Run = lambda pod, container, command: Outcome(b"", "no such program", 127)
        """Returns the outcome of a program that the kubelet is asked to run."""

        self.log: Log = lambda pod, container, is_previous: f"{container} of {pod}\n"
        """Returns the log of a container."""

        self.ran: Final[list[tuple[str, str, list[str]]]] = []
        """Pod, container and command of each program that it was asked to run."""

        self.forward: Forward = lambda pod, port: None
        """Returns the address behind a port of a pod."""

        self.forwards: Final[dict[web.WebSocketResponse, str]] = {}
        """The open web sockets of forwarded ports, with their pods."""

        self.port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Final = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve requests until the context ends."""
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        app.router.add_get("/portForward/{namespace}/{pod}", self._forward)
        self._loop = asyncio.get_running_loop()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        async with http_server(app, tls=context) as self.port:
            yield
            self._stop.set()

    async def _logs(self, request: web.Request) -> web.Response:
        is_previous = request.query.get("previous") == "true"
        text = self.log(request.match_info["pod"], request.match_info["container"], is_previous)
        if text is None:
            return web.Response(status=404, text="not found")
        if "tailLines" in request.query:
            text = "".join(text.splitlines(keepends=True)[-int(request.query["tailLines"]) :])
        limit = request.query.get("limitBytes")
        return web.Response(text=text if limit is None else text[: int(limit)])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        place, command = request.match_info, request.query.getall("command")
        self.ran.append((place["pod"], place["container"], command))
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        outcome = self.run(place["pod"], place["container"], command)
        if outcome is None:
            await self._stop.wait()
            return socket
        for begin in range(0, len(outcome.output), 1 << 15):
            await socket.send_bytes(b"\x01" + outcome.output[begin : begin + (1 << 15)])
        if outcome.errors:
            await socket.send_bytes(b"\x02" + outcome.errors.encode())
        cause = {"reason": "ExitCode", "message": str(outcome.code)}
        failed = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
        failed["message"] = f"command terminated with non-zero exit code {outcome.code}"
        await socket.send_bytes(b"\x03" + json.dumps(failed if outcome.code else {"status": "Success"}).encode())
        await socket.close()
        return socket

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        pod, port = request.match_info["pod"], int(request.query["port"])
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        for channel in (0, 1):
            await socket.send_bytes(bytes((channel,)) + struct.pack("<H", port))
        address = self.forward(pod, port)
        if address is None:
            await socket.send_bytes(b"\x01" + f"failed to connect to localhost:{port}".encode())
            await socket.close()
            return socket
        reader, writer = await asyncio.open_connection(*address)
        self.forwards[socket] = pod
        try:
            copying = asyncio.ensure_future(_copy_out(reader, socket))
            async for message in socket:
                assert message.data[:1] == b"\0", "a client sends data only"
                writer.write(message.data[1:])
                await writer.drain()
            copying.cancel()
        finally:
            del self.forwards[socket]
            writer.close()
        return socket

    def cut_forwards(self, pod: str) -> None:
        """Close all forwarded ports of a pod, as when it is deleted. Called from any thread."""
        assert self._loop is not None, "the kubelet listens"

        async def cut() -> None:
            for socket, name in list(self.forwards.items()):
                if name == pod:
                    await socket.close()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(60)


async def _copy_out(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    while piece := await reader.read(1 << 15):
        await socket.send_bytes(b"\0" + piece)
    await socket.close()


@contextmanager
def scripted_kubelet() -> Iterator[Kubelet]:
    """Run a kubelet until the end of the block."""
    with LoopThread("kubelet") as loop:
        made, stack = Kubelet(), AsyncExitStack()
        loop.run(stack.enter_async_context(made.listening()))
        try:
            yield made
        finally:
            loop.run(stack.aclose())


def node_of(kubelet: Kubelet, name: str) -> dict[str, object]:
    """Return the status of its Node, as the kubelet would report it."""
    return {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "conditions": [{"type": "Ready", "status": "True", "reason": name, "message": ""}],
    }
