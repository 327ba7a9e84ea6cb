"""Compares gRPC servers for Python with one client: unary echo of 1 KiB, and idle streams in both directions.

    python bench/grpc/libraries.py [--seconds 3] [--streams 1000] [grpcio+uvloop grpclib own ...]

Each server runs in its own process, and the client is the same grpcio client for all of them, so the figures compare.
Per server it prints one JSON line: calls per second and CPU microseconds of the server per call at 1, 64 and 256
outstanding calls, and the bytes of resident memory per idle stream. Figures of a shared machine are ratios, no limits.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ECHO = "/gantry.bench.Echo/Unary"
STREAM = "/gantry.bench.Echo/Stream"
BODY = bytes(1024)
OUTSTANDING = (1, 64, 256)
STREAMS_PER_CONNECTION = 1
"""An idle client has a connection of its own, as the Telemetry stream of an SDK does."""


# -- servers -----------------------------------------------------------------------------------------------------------


async def serve_grpcio(is_uvloop: bool) -> None:
    import grpc

    async def unary(request: bytes, _context: Any) -> bytes:
        return request

    async def stream(requests: Any, _context: Any) -> Any:
        async for request in requests:
            yield request

    handlers: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gantry.bench.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


async def serve_grpclib(is_uvloop: bool) -> None:
    from grpclib.const import Cardinality, Handler
    from grpclib.encoding.base import CodecBase
    from grpclib.server import Server

    class Raw(CodecBase):  # type: ignore[misc]  # grpclib has no types
        __content_subtype__ = "proto"

        def encode(self, message: Any, message_type: Any) -> bytes:
            return bytes(message)

        def decode(self, data: bytes, message_type: Any) -> bytes:
            return data

    async def unary(stream: Any) -> None:
        await stream.send_message(await stream.recv_message())

    async def both(stream: Any) -> None:
        async for message in stream:
            await stream.send_message(message)

    class Echo:
        def __mapping__(self) -> dict[str, Handler]:
            return {
                ECHO: Handler(unary, Cardinality.UNARY_UNARY, bytes, bytes),
                STREAM: Handler(both, Cardinality.STREAM_STREAM, bytes, bytes),
            }

    server = Server([Echo()], codec=Raw())
    await server.start("127.0.0.1", 0)
    inner = server._server
    assert inner is not None
    print(inner.sockets[0].getsockname()[1], flush=True)
    await server.wait_closed()


async def serve_own(is_uvloop: bool) -> None:
    """Serve with the proxy's own HTTP/2."""
    from gantry_proxy.rpc.limits import RpcLimits
    from gantry_proxy.rpc.protocol import Method, MethodKind
    from gantry_proxy.rpc.server import RpcServer

    async def unary(request: bytes, _call: Any) -> bytes:
        return request

    async def stream(_request: None, call: Any) -> None:
        while (message := await call.read()) is not None:
            await call.write(message)

    limits = RpcLimits(
        message_bytes_max=1 << 22, header_bytes_max=1 << 14, streams_per_connection_max=1_024, connections_max=1 << 16,
        calls_max=1 << 16,
    )  # fmt: skip
    methods = {
        ECHO: Method(MethodKind.UNARY, unary, bytes, bytes),
        STREAM: Method(MethodKind.BIDIRECTIONAL, stream, bytes, bytes),
    }
    print(await RpcServer(methods, limits, None).start("127.0.0.1", 0), flush=True)
    await asyncio.get_running_loop().create_future()


SERVERS = {"grpcio": serve_grpcio, "grpclib": serve_grpclib, "own": serve_own}


def serve(name: str) -> None:
    import uvloop

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    library, _, loop = name.partition("+")
    (uvloop.run if loop == "uvloop" else asyncio.run)(SERVERS[library](loop == "uvloop"))


# -- the client --------------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def measure_unary(address: str, pid: int, outstanding: int, seconds: float) -> dict[str, float]:
    import grpc

    async with grpc.aio.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(ECHO)
        await call(BODY)
        count, started, cpu = 0, time.monotonic(), cpu_s(pid)
        ends = started + seconds

        async def work() -> None:
            nonlocal count
            while time.monotonic() < ends:
                await call(BODY)
                count += 1

        await asyncio.gather(*(work() for _ in range(outstanding)))
        took = time.monotonic() - started
    return {"calls_per_s": round(count / took), "server_cpu_us": round((cpu_s(pid) - cpu) / count * 1e6)}


async def measure_streams(address: str, pid: int, count: int) -> int:
    """Return the resident bytes of the server per idle stream, each on a connection of its own."""
    import grpc

    before, channels, calls = resident_bytes(pid), [], []
    for index in range(count):
        options = [("grpc.use_local_subchannel_pool", 1), ("gantry.index", index)]
        channel = grpc.aio.insecure_channel(address, options=options)
        call: Any = channel.stream_stream(STREAM)()
        await call.write(BODY)
        await call.read()
        channels.append(channel)
        calls.append(call)
    used = resident_bytes(pid) - before
    for call in calls:
        call.cancel()
    await asyncio.gather(*(channel.close() for channel in channels))
    return used // count


def measure(name: str, seconds: float, streams: int) -> dict[str, Any]:
    process = subprocess.Popen([sys.executable, __file__, "--serve", name], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        unary = {str(n): asyncio.run(measure_unary(address, process.pid, n, seconds)) for n in OUTSTANDING}
        return {
            "server": name,
            "unary": unary,
            "bytes_per_stream": asyncio.run(measure_streams(address, process.pid, streams)),
        }
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", default=["grpcio+uvloop", "grpclib+uvloop", "own+uvloop"])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    for name in options.servers:
        print(json.dumps(measure(name, options.seconds, options.streams)), flush=True)


if __name__ == "__main__":
    main()
