"""The servers of a run: echo server, relay, name server and broker, as processes of their own that never outlive it.

Each server writes its output to a file in the run's own folder, and gets SIGTERM before it is killed. If a core is
given, the server is tied to it with all its threads. If a server does not start, the error shows the end of its output.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import Target
from gantry_bench.memory import ResidentMemory, read_resident_memory
from gantry_testing.ports import free_broker_port

ROOT: Final = Path(__file__).resolve().parent.parent.parent
ECHO_SERVER: Final = ROOT / "bench" / "echo_server.py"
START_TIMEOUT_SECONDS: Final = 30.0
STOP_TIMEOUT_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05
SETTLED_SAMPLES: Final = 5
SETTLED_SPREAD_BYTES: Final = 64 * 1024
SEGMENT_BYTES: Final = 1024 * 1024 * 1024
BROKER_NAME: Final = "broker-a"
BROKER_PROGRAM: Final = ("gantry_broker",)


class Server(msgspec.Struct, frozen=True):
    """A running server process with its log."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def process_id(self) -> int:
        return self.process.pid

    def last_lines(self) -> str:
        """Return the end of the server's output, for an error message."""
        return self.log.read_text(errors="replace")[-1500:].strip() or "it wrote nothing"


@contextmanager
def run_server(
    command: list[str], *, log: Path, core: int | None, stop_seconds: float = STOP_TIMEOUT_SECONDS
) -> Iterator[Server]:
    """Run a server for the duration of the context; it has ``stop_seconds`` to stop before it is killed."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),
        )
    try:
        yield Server(process=process, log=log)
    finally:
        process.terminate()
        try:
            process.wait(stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_line(server: Server, *, what: str, beginning: str = "") -> str:
    """Return the first line with this beginning, which the server prints when it is ready."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        *lines, _incomplete = server.log.read_text(errors="replace").split("\n")
        for line in lines:
            if line.startswith(beginning):
                return line
        _give_up_if_ended(server, what=what)
        time.sleep(POLL_SECONDS)
    raise BenchmarkFailed(f"the {what} was not ready within {START_TIMEOUT_SECONDS:.0f} s: {server.last_lines()}")


def wait_for_port(server: Server, port: int, *, what: str) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            _give_up_if_ended(server, what=what)
            time.sleep(POLL_SECONDS)
    raise BenchmarkFailed(f"the {what} did not listen within {START_TIMEOUT_SECONDS:.0f} s: {server.last_lines()}")


def _give_up_if_ended(server: Server, *, what: str) -> None:
    code = server.process.poll()
    if code is not None:
        raise BenchmarkFailed(f"the {what} ended with code {code}: {server.last_lines()}")


@contextmanager
def start_echo_server(folder: Path, *, core: int | None) -> Iterator[Target]:
    """Start an echo server, the baseline of `make bench-send`."""
    command = [sys.executable, str(ECHO_SERVER)]
    with run_server(command, log=folder / "echo.log", core=core) as server:
        port = wait_for_line(server, what="echo server")
        yield Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=True)


@contextmanager
def start_relay(folder: Path, *, core: int | None) -> Iterator[Target]:
    """Start an echo server with a relay in front of it, the baseline of `make bench-ha`."""
    with start_echo_server(folder, core=core) as echo:
        command = [sys.executable, str(ECHO_SERVER), "--relay", echo.address.rpartition(":")[2]]
        with run_server(command, log=folder / "relay.log", core=core) as server:
            port = wait_for_line(server, what="relay")
            yield Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=True)


@contextmanager
def start_name_server(folder: Path) -> Iterator[str]:
    """Start a name server on a free port; yield its address."""
    data = folder / "nameserver"
    command = [sys.executable, "-m", "gantry_nameserver", "--listen", "127.0.0.1:0", "--data", str(data)]
    with run_server([*command, "--log-level", "WARNING"], log=folder / "nameserver.log", core=None) as server:
        line = wait_for_line(server, what="name server")
        yield f"127.0.0.1:{line.rpartition(':')[2]}"


ACCESS_KEY: Final = "bench-key"


def access_control_keys(folder: Path, secret: str) -> dict[str, str]:
    """Return the `broker.conf` lines for access control, and write its account, which may publish to every topic."""
    path = folder / "plain_acl.yml"
    path.write_text(f"accounts:\n  - accessKey: {ACCESS_KEY}\n    secretKey: {secret}\n    defaultTopicPerm: PUB\n")
    return {"aclEnable": "true", "aclFile": str(path), "haListenPort": "-1"}


class Broker(msgspec.Struct, frozen=True):
    """A running broker and its memory before the first message."""

    target: Target
    idle_memory: ResidentMemory
    server: Server


def broker_settings(store: Path, *, listen_port: int, name_server: str, extra: Mapping[str, str] | None = None) -> str:
    """Return a `broker.conf` with RocketMQ's names; settings that are neither here nor in ``extra`` have their
    defaults."""
    settings = {
        "brokerClusterName": "bench",
        "brokerName": BROKER_NAME,
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(listen_port),
        "namesrvAddr": name_server,
        "storePathRootDir": str(store),
        "autoCreateTopicEnable": "true",
        "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
        **(extra or {}),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@contextmanager
def start_broker(
    folder: Path,
    *,
    name_server: str,
    core: int | None,
    extra: Mapping[str, str] | None = None,
    program: Sequence[str] = BROKER_PROGRAM,
    port: int | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Broker]:
    """Start a broker with an empty store below `folder`; yield it once it listens and its memory has settled.

    ``extra`` are more keys of its `broker.conf`, ``program`` is started with the broker's arguments. ``port`` is for
    callers that need it in advance, ``prefix`` for a program that becomes the broker, like ``sh -c '...; exec "$@"'``.
    """
    folder.mkdir()
    store = folder / "store"
    port = free_broker_port() if port is None else port
    settings = folder / "broker.conf"
    settings.write_text(broker_settings(store, listen_port=port, name_server=name_server, extra=extra))
    command = [*prefix, sys.executable, "-m", *program, "-c", str(settings)]
    with run_server(command, log=folder / "broker.log", core=core) as server:
        wait_for_port(server, port, what="broker")
        memory = read_settled_memory(server, store)
        name = (extra or {}).get("brokerName", BROKER_NAME)
        target = Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=False, broker_name=name)
        yield Broker(target=target, idle_memory=memory, server=server)


@contextmanager
def restart_broker(folder: Path, *, port: int, core: int | None) -> Iterator[Broker]:
    """Start a broker again over the store of ``start_broker``, whose process has ended; yield it once it listens."""
    command = [sys.executable, "-m", *BROKER_PROGRAM, "-c", str(folder / "broker.conf")]
    with run_server(command, log=folder / "restarted.log", core=core) as server:
        wait_for_port(server, port, what="broker")
        target = Target(address=f"127.0.0.1:{port}", process_id=server.process_id, is_echo=False)
        memory = read_resident_memory(server.process_id, store=folder / "store")
        yield Broker(target=target, idle_memory=memory, server=server)


def read_settled_memory(server: Server, store: Path) -> ResidentMemory:
    """Return the largest of the last samples of the resident memory, once they are alike or after a timeout."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    samples: list[ResidentMemory] = []
    while time.monotonic() < deadline:
        _give_up_if_ended(server, what="broker")
        samples = [*samples, read_resident_memory(server.process_id, store=store)][-SETTLED_SAMPLES:]
        sizes = [sample.counted_bytes for sample in samples]
        if len(samples) == SETTLED_SAMPLES and max(sizes) - min(sizes) <= SETTLED_SPREAD_BYTES:
            break
        time.sleep(2 * POLL_SECONDS)
    return max(samples, key=lambda sample: sample.counted_bytes)
