"""A gRPC server with a service of each kind, clients of gRPC's own library, and clients that send what they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from http2_wire import Frame, split

from gantry_proxy.http2 import frames
from gantry_proxy.http2.frames import ErrorCode, Setting, make_frame, make_reset, make_settings
from gantry_proxy.http2.hpack import HpackDecoder, encode
from gantry_proxy.rpc.call import Call
from gantry_proxy.rpc.limits import RpcLimits
from gantry_proxy.rpc.protocol import CallFailed, Method, MethodKind, StatusCode, with_prefix
from gantry_proxy.rpc.server import RpcServer

LIMITS = RpcLimits(
    message_bytes_max=1 << 20, header_bytes_max=4_096, streams_per_connection_max=100, connections_max=20, calls_max=200
)


LARGE_BYTES = 60_000
"""How often some replies repeat their request."""


class Echo:
    """A service of each kind, and what its handlers saw."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.cancelled = 0
        self.headers: dict[str, str] = {}
        self.begun: list[Call] = []
        """Calls of `begin` that the test finishes."""

    async def echo(self, request: bytes, call: Call) -> bytes:
        self.headers = call.headers
        return request

    async def hold(self, request: bytes, _call: Call) -> bytes:
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return request

    async def fail(self, request: bytes, _call: Call) -> bytes:
        if request == b"bug":
            raise ZeroDivisionError("secret")
        raise CallFailed(StatusCode.NOT_FOUND, "no caf\u00e9 100%")

    async def repeat(self, request: bytes, call: Call) -> None:
        for _ in range(5):
            await call.write(request)

    async def enlarge(self, request: bytes, _call: Call) -> bytes:
        return request * LARGE_BYTES

    async def flood(self, request: bytes, call: Call) -> None:
        for _ in range(5):
            await call.write(request * LARGE_BYTES)

    async def chat(self, _request: None, call: Call) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)
        await call.write(b"bye")

    def begin(self, request: bytes, call: Call) -> bool:
        """Begin a call without a task, unless its request is empty."""
        if request:
            self.begun.append(call)
        return bool(request)

    def methods(self) -> dict[str, Method]:
        kinds = {"echo": MethodKind.UNARY, "hold": MethodKind.UNARY, "fail": MethodKind.UNARY,
                 "enlarge": MethodKind.UNARY, "flood": MethodKind.STREAMING,
                 "repeat": MethodKind.STREAMING, "chat": MethodKind.BIDIRECTIONAL}  # fmt: skip
        methods = {f"/t/{name}": Method(kind, getattr(self, name), bytes, bytes) for name, kind in kinds.items()}
        return {**methods, "/t/begin": Method(MethodKind.UNARY, self.echo, bytes, bytes, self.begin)}


@asynccontextmanager
async def serving(limits: RpcLimits = LIMITS) -> AsyncIterator[tuple[Echo, RpcServer, int]]:
    echo = Echo()
    server = RpcServer(echo.methods(), limits, None)
    port = await server.start("127.0.0.1", 0)
    try:
        yield echo, server, port
    finally:
        await server.stop(0)


@asynccontextmanager
async def client(port: int, *options: tuple[str, Any]) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield channel


async def status_of(awaitable: Any) -> tuple[grpc.StatusCode, str | None]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await awaitable
    return caught.value.code(), caught.value.details()


class RawClient:
    """A client that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.decoder = HpackDecoder()

    def begin(
        self, stream_id: int, path: str = "/t/echo", *, method: str = "POST", kind: str = "application/grpc",
        encoding: str = "",
    ) -> None:  # fmt: skip
        """Open a stream; ``encoding`` is that of compressed messages."""
        fields = [(b":method", method.encode()), (b":path", path.encode()), (b"content-type", kind.encode())]
        block = encode(fields + ([(b"grpc-encoding", encoding.encode())] if encoding else []))
        self.writer.write(make_frame(frames.HEADERS, frames.END_HEADERS, stream_id, block))

    def reset(self, stream_id: int) -> None:
        self.writer.write(make_reset(stream_id, ErrorCode.CANCEL))

    def data(self, stream_id: int, data: bytes, *, is_last: bool = False) -> None:
        self.writer.write(make_frame(frames.DATA, frames.END_STREAM if is_last else 0, stream_id, data))

    def message(self, stream_id: int, data: bytes, *, is_last: bool = True) -> None:
        """Send a message in as many frames as it needs."""
        data = with_prefix(data)
        for start in range(0, len(data), frames.FRAME_BYTES_DEFAULT):
            end = start + frames.FRAME_BYTES_DEFAULT
            self.data(stream_id, data[start:end], is_last=is_last and end >= len(data))

    async def frames_until(self, kind: int) -> list[Frame]:
        """Return what the server sends up to the first frame of a kind."""
        found: list[Frame] = []
        async with asyncio.timeout(20):
            while not found or found[-1].kind != kind:
                head = await self.reader.readexactly(frames.HEADER_BYTES)
                found += split(head + await self.reader.readexactly(int.from_bytes(head[:3], "big")))
        return found

    async def reply_headers(self) -> dict[str, str]:
        [*_, last] = await self.frames_until(frames.HEADERS)
        return dict(self.decoder.decode(last.payload))

    async def wait_for_end(self) -> None:
        async with asyncio.timeout(20):
            while await self.reader.read(1 << 16):
                pass


@asynccontextmanager
async def raw_client(
    port: int, settings: dict[Setting, int] | None = None, *, begins: bool = True, address: str = "127.0.0.1"
) -> AsyncIterator[RawClient]:
    """Connect a client from an address, which sends what every client of HTTP/2 begins with, unless it shall not."""
    one = RawClient(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
    if begins:
        one.writer.write(frames.PREFACE + make_settings(settings or {}))
    try:
        yield one
    finally:
        one.writer.transport.abort()
        await asyncio.gather(one.writer.wait_closed(), return_exceptions=True)
