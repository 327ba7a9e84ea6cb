"""The victim of an attack: a real server process, with an honest client beside the attack, and its measured memory.

Memory is what the kernel counts for the process: `VmRSS` before and after, and `VmHWM` for the highest that it ever was
in between, which no sampling can miss. Latencies are printed and never judged.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, final

from crash.processes import HOST, ServerProcess, broker, name_server

from gantry_access import SignatureKind, signer
from gantry_remoting import CannotConnect, Channel, ConnectionClosed, RemotingTimeout
from gantry_testing.accounts import ADMIN
from gantry_testing.local import pull_ext, send_ext
from gantry_testing.ports import free_broker_port, free_port
from gantry_wire import Command, RequestCode
from gantry_wire.message import decode_records

MIB: Final = 1 << 20
REPLY_TIMEOUT_MS: Final = 60_000
SETTLED_S: Final = 3.0
ATTACKER: Final = Path(__file__).resolve().parent / "attacker.py"
NO_REFUSALS: Final = {
    "diskMaxUsedSpaceRatio": "95",
    "diskSpaceCleanForciblyRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
    "waitTimeMillsInSendQueue": "60000",
    "mappedFileSizeCommitLog": str(256 * MIB),
    "mappedFileSizeConsumeQueue": "200000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "40000",
}
"""Settings that exclude refusals by a full disk or a busy test machine."""


class Honest(Protocol):
    """The honest client: it keeps the protocol, and must be served during the attack."""

    async def prepare(self) -> None:
        """Create the state that the attack needs."""

    async def ask(self) -> None:
        """Send one request, and raise unless its answer is correct."""

    async def close(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The measured cost of one attack."""

    name: str
    rss_before: int = 0
    """Resident bytes of the server before the attack; the next two are their peak, and their end."""
    rss_peak: int = 0
    rss_after: int = 0
    files_before: int = 0
    """Open files of the server before the attack; the next two are their peak, and their end."""
    files_peak: int = 0
    files_after: int = 0
    log_bytes: int = 0
    """What the server logged during the attack."""
    tracebacks: int = 0
    quiet_ms: list[float] = field(default_factory=list)
    """Latencies of the honest client before the attack."""
    attacked_ms: list[float] = field(default_factory=list)
    """Latencies of the honest client during the attack."""
    errors: list[str] = field(default_factory=list)
    """Answers that the honest client missed, or that were wrong."""
    opened: int = 0
    """Connections that the attacker has opened."""
    closed: int = 0
    """How often the server closed one of them."""
    sent_bytes: int = 0
    """Bytes that the attacker has sent."""
    sent_per_answer: float = 0.0
    """Bytes of the attack for each answer of the honest client, counted from the attacker's `ready` on."""

    @property
    def growth(self) -> int:
        """The peak growth of the server's memory by the attack, in bytes."""
        return self.rss_peak - self.rss_before


@final
class BrokerClient:
    """A client that sends messages, and pulls them."""

    def __init__(self, port: int, *, large_messages: int = 0, is_signed: bool = False) -> None:
        self._port = port
        self._large = large_messages
        self._sign = signer(ADMIN, SignatureKind.V1) if is_signed else None
        self._channel: Channel | None = None
        self._sent = 0

    async def prepare(self) -> None:
        self._channel = await Channel.connect(f"{HOST}:{self._port}", timeout_ms=REPLY_TIMEOUT_MS, sign=self._sign)
        for _ in range(self._large):
            await self._send("AbuseLarge", bytes(MIB))
        await self._send("AbuseHonest", b"first")

    async def ask(self) -> None:
        body = b"honest %d" % self._sent
        offset = await self._send("AbuseHonest", body)
        self._sent += 1
        if self._sent % 4:
            return
        reply = await self._request(RequestCode.PULL_MESSAGE, pull_ext(offset, topic="AbuseHonest"))
        if [message.body for message in decode_records(reply.body)] != [body]:
            raise AssertionError("a pull did not give what was sent")

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    async def _send(self, topic: str, body: bytes) -> int:
        code = RequestCode.SEND_MESSAGE_V2
        reply = await self._request(code, send_ext(code, topic=topic), body)
        return int(reply.ext["queueOffset"])

    async def _request(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        assert self._channel is not None, "prepare() comes first"
        reply = await self._channel.request(Command(code=code, ext=ext, body=body), REPLY_TIMEOUT_MS)
        if reply.code != 0:
            raise AssertionError(f"code {reply.code}: {reply.remark}")
        return reply


@final
class NameServerClient:
    """A client that requests the cluster's brokers."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._channel: Channel | None = None

    async def prepare(self) -> None:
        self._channel = await Channel.connect(f"{HOST}:{self._port}", timeout_ms=REPLY_TIMEOUT_MS)
        await self.ask()

    async def ask(self) -> None:
        assert self._channel is not None, "prepare() comes first"
        reply = await self._channel.request(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), REPLY_TIMEOUT_MS)
        if reply.code != 0:
            raise AssertionError(f"code {reply.code}: {reply.remark}")

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()


@dataclass(slots=True, kw_only=True)
class Victim:
    """A server, its attacked port, and its honest client."""

    server: ServerProcess
    port: int
    honest: Honest
    others: Sequence[ServerProcess] = ()
    """What it needs beside it: started before it, ended after it."""


def broker_victim(
    directory: Path,
    settings: Mapping[str, str],
    *,
    large_messages: int = 0,
    is_signed: bool = False,
    port_key: str = "listenPort",
) -> Victim:
    """Return a broker, attacked at the port of the setting `port_key`; the honest client uses `listenPort`.

    `large_messages` is the number of messages of 1 MiB that it has; with `is_signed` the honest client signs.
    """
    port, replication = free_broker_port(), free_port()
    pairs = {**NO_REFUSALS, "haListenPort": str(replication), **settings}
    attacked = port if port_key == "listenPort" else replication
    pairs.setdefault("brokerName", "abuse")
    return Victim(
        server=broker(directory, port, free_port(), pairs),
        port=attacked,
        honest=BrokerClient(port, large_messages=large_messages, is_signed=is_signed),
    )


def name_server_victim(directory: Path, settings: Mapping[str, str]) -> Victim:
    """Return a name server, with no other process beside it."""
    port = free_port()
    file = directory / "namesrv.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return Victim(
        server=name_server(directory, port, ["-c", str(file)]),
        port=port,
        honest=NameServerClient(port),
    )


def memory(pid: int) -> tuple[int, int]:
    """Return (resident bytes of the process, their peak since `reset_peak`)."""
    found = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def reset_peak(pid: int) -> None:
    """Reset the peak of the resident bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def open_files(pid: int) -> int:
    """Return how many files the process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


async def attack(
    name: str, victim: Victim, kind: str, options: Mapping[str, Any], *, requests: int, quiet_requests: int
) -> Outcome:
    """Measure one attack on a fresh server: before, during and after it."""
    outcome = Outcome(name=name)
    server, honest = victim.server, victim.honest
    try:
        for process in (*victim.others, server):
            await process.start()
        await honest.prepare()
        await _ask(honest, quiet_requests, outcome.quiet_ms, outcome.errors)
        outcome.rss_before, _ = memory(server.pid)
        outcome.files_before = open_files(server.pid)
        log_began = server.log_bytes
        reset_peak(server.pid)
        async with _attacker(kind, victim.port, options) as attacker:
            ready = asyncio.create_task(attacker.ready())
            # The honest client asks all the while: until the attacker is ready, and then `requests` times beside it.
            while not ready.done():
                await _ask(honest, 10, outcome.attacked_ms, outcome.errors)
                outcome.files_peak = max(outcome.files_peak, open_files(server.pid))
            ready.result()
            await _ask(honest, requests, outcome.attacked_ms, outcome.errors)
            outcome.files_peak = max(outcome.files_peak, open_files(server.pid))
            outcome.opened, outcome.closed, outcome.sent_bytes, sent_at_ready = await attacker.end()
            outcome.sent_per_answer = (outcome.sent_bytes - sent_at_ready) / max(1, requests)
        await _settle(server.pid, outcome)
        outcome.log_bytes = server.log_bytes - log_began
        outcome.tracebacks = server.logged_since(log_began).count("Traceback")
        await _ask(honest, 10, [], outcome.errors)
    finally:
        await honest.close()
        for process in (server, *reversed(victim.others)):
            await process.kill()
    return outcome


async def _ask(honest: Honest, count: int, times_ms: list[float], errors: list[str]) -> None:
    """Let the honest client send so many requests one after another; record latencies and errors."""
    for _ in range(count):
        if len(errors) >= 10:
            return
        began = time.perf_counter()
        try:
            await honest.ask()
        except (AssertionError, ConnectionClosed, RemotingTimeout, CannotConnect, OSError) as error:
            errors.append(f"{type(error).__name__}: {error}"[:200])
        times_ms.append((time.perf_counter() - began) * 1000)


async def _settle(pid: int, outcome: Outcome) -> None:
    """Wait until the attack's connections are gone; memory may come back a little later."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLED_S
    least = 1 << 62
    while loop.time() < end:
        outcome.files_after = open_files(pid)
        rss, outcome.rss_peak = memory(pid)
        least = min(least, rss)
        if outcome.files_after <= outcome.files_before and rss < outcome.rss_before + 16 * MIB:
            break
        await asyncio.sleep(0.05)
    outcome.rss_after = least


@final
class _Attacker:
    """The process of `attacker.py`, with the pipes to it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ready(self) -> None:
        """Wait until every connection of the attack has sent what it can."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line.strip() != b"ready":
            raise AssertionError(f"the attacker failed with code {await self._process.wait()}")

    async def end(self) -> tuple[int, int, int, int]:
        """Stop the attacker; return (connections opened, closed by the server, bytes sent, bytes sent when ready)."""
        output, _ = await self._process.communicate(b"")
        facts = json.loads(output)
        return facts["opened"], facts["closed"], facts["sent_bytes"], facts["sent_at_ready_bytes"]


@asynccontextmanager
async def _attacker(kind: str, port: int, options: Mapping[str, Any]) -> AsyncIterator[_Attacker]:
    gc.collect()
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(ATTACKER), kind, str(port), json.dumps(options),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield _Attacker(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
