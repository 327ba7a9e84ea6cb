"""A kubelet that runs nothing: a real API server asks it for logs, and has it "run" programs, as it would a real one.

The API server finds it by the address of a Node, and speaks HTTPS with it: `/containerLogs/...` for logs, and a web
socket at `/exec/...` whose channels are standard output, standard error and the outcome. A test says what comes.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple, final

import trustme
from aiohttp import web

PROTOCOL: Final = "v4.channel.k8s.io"


class Outcome(NamedTuple):
    """Of a program."""

    output: bytes
    errors: str = ""
    code: int = 0


Run = Callable[[str, str, list[str]], Outcome | None]
"""Pod, container and command; None hangs."""
Log = Callable[[str, str, bool], str | None]
"""Pod, container, and whether it is that of the run before; None is not there."""


@final
class Kubelet:
    """Owned by the test; its loop runs in a thread of its own."""

    def __init__(self) -> None:
        self.run: Run = lambda pod, container, command: Outcome(b"", "no such program", 127)
        self.log: Log = lambda pod, container, is_previous: f"{container} of {pod}\n"
        self.ran: Final[list[tuple[str, str, list[str]]]] = []
        self.port = 0
        self._loop: Final = asyncio.new_event_loop()
        self._ready: Final = threading.Event()
        self._stop: Final = asyncio.Event()
        self._thread: Final = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(120), "it listens"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(120)
        self._loop.close()

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        app.router.add_get("/exec/{namespace}/{pod}/{container}", self._exec)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _logs(self, request: web.Request) -> web.Response:
        is_previous = request.query.get("previous") == "true"
        text = self.log(request.match_info["pod"], request.match_info["container"], is_previous)
        return web.Response(status=404, text="not found") if text is None else web.Response(text=text)

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


@contextmanager
def scripted_kubelet() -> Iterator[Kubelet]:
    """Until the end of the test."""
    made = Kubelet()
    made.start()
    try:
        yield made
    finally:
        made.stop()


def node_of(kubelet: Kubelet, name: str) -> dict[str, object]:
    """Its machine, as it would say itself."""
    return {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port}},
        "conditions": [{"type": "Ready", "status": "True", "reason": name, "message": ""}],
    }
