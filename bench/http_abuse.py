"""Attacks on an HTTP listener with a concurrent honest client: the cost of the attack, and whether probes are answered.

    python bench/http_abuse.py HOST:PORT --pid PID

In each round of the honest client, which requests every path on a connection of its own with kubelet's timeout, an
attack opens up to ``OPEN_AT_ONCE`` of its connections, and then every open one makes one step. So an attack is as slow
as the client's rounds, and nothing sleeps.
`run_http_abuse` is the whole test as a function. Use it only against listeners on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Protocol, final

PROBE_PATHS: Final = ("/livez", "/readyz", "/v1/status")
PROBE_TIMEOUT_S: Final = 3.0
"""The timeout of kubelet's probes, as the operator sets it."""
OPEN_AT_ONCE: Final = 100
FLOOD_REQUEST: Final = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@final
class Attacker:
    """One hostile connection. Its errors are part of the experiment and are ignored."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer

    def write(self, data: bytes) -> None:
        """Send without waiting; data for a closed connection is dropped."""
        if not self._writer.is_closing():
            self._writer.write(data)

    @property
    def is_closed(self) -> bool:
        """Return whether the server has closed the connection."""
        return self._writer.is_closing() or self._reader.at_eof() or self._reader.exception() is not None

    def stop_reading(self) -> None:
        """Leave every answer in the kernel's buffers."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Close the connection at once, also with unsent or unread data."""
        await _abort(self._writer)


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


class Attack(Protocol):
    """The actions of a connection: one when it was opened, and one in every round, the first included."""

    def begin(self, attacker: Attacker) -> None: ...

    def step(self, attacker: Attacker, number: int) -> None: ...


@final
@dataclass(frozen=True)
class Send:
    """Sends ``first`` at the start, and in each round the next byte of ``rounds``, repeatedly."""

    first: bytes
    rounds: bytes = b""
    is_read: bool = True

    def begin(self, attacker: Attacker) -> None:
        if not self.is_read:
            attacker.stop_reading()
        attacker.write(self.first)

    def step(self, attacker: Attacker, number: int) -> None:
        if self.rounds:
            attacker.write(self.rounds[number % len(self.rounds) :][:1])


_HEAD: Final = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n"
ATTACKS: Final[Mapping[str, Attack]] = {
    "half requests": Send(_HEAD),
    "slow heads": Send(_HEAD, b"X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n"),
    "slow bodies": Send(b"POST /v1/role/fence HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n", b"a"),
    "idle connections": Send(FLOOD_REQUEST),
    "silent connections": Send(b""),
    "requests ahead, unread": Send(FLOOD_REQUEST * 20_000, is_read=False),
    "huge heads": Send(_HEAD + b"X-Padding: " + b"a" * 1_000_000),
    "no HTTP": Send(b"\x16\x03\x01\x00\x05hello\r\n\r\n"),
}
"""The attacks by name. Each uses many connections, from one address or from several."""


@final
@dataclass(kw_only=True)
class HttpAbuseReport:
    """The effects of one attack, and the results of the honest client."""

    attack: str
    connections: int
    answers: dict[str, int] = field(default_factory=dict)
    """Requests of the honest client by `path status`; a timeout or a closed connection is `path error`."""
    p99_ms: float = 0.0
    slowest_ms: float = 0.0
    rss_before_kib: int = 0
    rss_most_kib: int = 0
    descriptors_before: int = 0
    descriptors_most: int = 0
    closed: int = 0
    """Connections of the attack that the server had closed by the end of the last round."""

    @property
    def failures(self) -> dict[str, int]:
        """Return the requests that were not answered with 200."""
        return {answer: count for answer, count in self.answers.items() if not answer.endswith(" 200")}


def read_rss_kib(pid: int) -> int:
    """Return the resident memory of a process; 0 if it has ended."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])
    return 0


def count_descriptors(pid: int) -> int:
    """Return the number of open descriptors of a process."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


async def run_http_abuse(
    address: tuple[str, int],
    pid: int,
    attack: str,
    *,
    connections: int = 600,
    addresses: int = 1,
    rounds: int = 20,
    paths: Sequence[str] = PROBE_PATHS,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> HttpAbuseReport:
    """Attack an HTTP listener of process ``pid``, and request ``paths`` in each round meanwhile.

    The connections come from this number of loopback ``addresses``.
    """
    report = HttpAbuseReport(
        attack=attack,
        connections=connections,
        rss_before_kib=read_rss_kib(pid),
        descriptors_before=count_descriptors(pid),
    )
    answers: Counter[str] = Counter()
    took_ms: list[float] = []
    attackers: list[Attacker] = []
    plan = ATTACKS[attack]
    try:
        for number in range(rounds):
            for _ in range(min(OPEN_AT_ONCE, connections - len(attackers))):
                source = (f"127.0.0.{1 + len(attackers) % addresses}", 0) if addresses > 1 else None
                with suppress(OSError):
                    attackers.append(Attacker(*await asyncio.open_connection(*address, ssl=tls, local_addr=source)))
                    plan.begin(attackers[-1])
            for attacker in attackers:
                plan.step(attacker, number)
            for path in paths:
                began = time.perf_counter()
                answers[f"{path} {await request_status(address, path, headers or {}, tls)}"] += 1
                took_ms.append((time.perf_counter() - began) * 1000)
            report.rss_most_kib = max(report.rss_most_kib, read_rss_kib(pid))
            report.descriptors_most = max(report.descriptors_most, count_descriptors(pid))
        report.closed = sum(attacker.is_closed for attacker in attackers)
    finally:
        await asyncio.gather(*(attacker.close() for attacker in attackers))
    report.answers = dict(answers)
    report.slowest_ms = round(max(took_ms), 1)
    report.p99_ms = round(sorted(took_ms)[max(0, -(-len(took_ms) * 99 // 100) - 1)], 1)
    return report


async def request_status(
    address: tuple[str, int], path: str, headers: Mapping[str, str], tls: ssl.SSLContext | None
) -> str:
    """Send one honest request on a connection of its own; return the status, or `error`."""
    writer: asyncio.StreamWriter | None = None
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*address, ssl=tls)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{lines}\r\n".encode())
            line = await reader.readline()
            await reader.read()
        return line.split()[1].decode()
    except (OSError, TimeoutError, IndexError, asyncio.IncompleteReadError):
        return "error"
    finally:
        if writer is not None:
            await _abort(writer)


def main() -> None:
    """Run every attack in turn; print one line of JSON for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", help="HOST:PORT on loopback")
    parser.add_argument("--pid", type=int, required=True, help="the process that listens")
    parser.add_argument("--connections", type=int, default=600)
    parser.add_argument("--addresses", type=int, default=1, help="number of loopback addresses of the attacker")
    parser.add_argument("--attack", choices=list(ATTACKS), action="append")
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    for name in options.attack or ATTACKS:
        report = asyncio.run(
            run_http_abuse(
                (host, int(port)), options.pid, name, connections=options.connections, addresses=options.addresses
            )
        )
        print(json.dumps(asdict(report)))


if __name__ == "__main__":
    main()
