"""A broker of a curve: started on a new or an existing store, with the time until it served, and its memory."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gantry_bench import speedups
from gantry_bench.curve_clients import request_all
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.loadgen import Target
from gantry_bench.memory import ResidentMemory
from gantry_bench.processes import BROKER_PROGRAM, Server, broker_settings, read_settled_memory, run_server
from gantry_bench.send_figures import GantryPath
from gantry_bench.speedups import Setting
from gantry_testing.ports import free_broker_port
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.names import SELF_TEST_TOPIC

SETTINGS: Final[dict[GantryPath, Setting]] = {"python": "off", "compiled": "auto"}
BROKER_NAME: Final = "broker-a"
START_SECONDS_MAX: Final = 600.0
SHUTDOWN_SECONDS: Final = 170.0
"""The broker's own limit of a clean stop, which syncs each file of each queue."""
STOP_SECONDS_MAX: Final = 180.0
POLL_SECONDS: Final = 0.004
MEBIBYTE: Final = 1 << 20
STORE_OPENED: Final = "store opened"
SPARE_BYTES: Final = 10_000_000_000
"""No step may leave less free space on the disk."""


class CurveBroker(msgspec.Struct, frozen=True):
    """A running broker, its store, and the seconds from the start of its process to its first answer."""

    target: Target
    server: Server
    store: Path
    start_seconds: float

    @property
    def process_id(self) -> int:
        return self.target.process_id

    @property
    def address(self) -> str:
        return self.target.address

    def read_memory(self) -> ResidentMemory:
        """Return the resident memory once it has settled."""
        return read_settled_memory(self.server, self.store)

    def read_opening(self) -> Opening:
        """Return what the start found, as the broker has logged it."""
        for line in self.server.log.read_text(errors="replace").splitlines():
            if STORE_OPENED in line:
                return parse_opening(line)
        raise BenchmarkFailed(f"the broker has not logged {STORE_OPENED!r}: {self.server.last_lines()}")

    def clean_start_seconds(self) -> float:
        """Return the seconds of the start. Raises BenchmarkFailed if the stop before it was not clean."""
        if not self.read_opening().is_clean:
            raise BenchmarkFailed(f"a broker did not stop cleanly within {STOP_SECONDS_MAX:.0f} s")
        return self.start_seconds


class Opening(msgspec.Struct, frozen=True):
    """What a start found in its store."""

    is_clean: bool
    read_bytes: int
    """How much of the log it has read."""


def parse_opening(line: str) -> Opening:
    """Return the fields of the log line of a start."""
    fields = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
    try:
        read_bytes = int(fields["end"]) - int(fields["read_from"])
        return Opening(is_clean=fields["is_clean"] == "True", read_bytes=read_bytes)
    except (KeyError, ValueError) as error:
        raise BenchmarkFailed(f"the log line of a start has no range: {line[:300]}") from error


@contextmanager
def serve(
    folder: Path,
    *,
    path: GantryPath,
    name_server: str,
    core: int | None,
    extra: Mapping[str, str] | None = None,
    seconds_max: float = START_SECONDS_MAX,
) -> Iterator[CurveBroker]:
    """Start a broker on the store below ``folder``, new or not; yield it once it has answered a request."""
    folder.mkdir(exist_ok=True)
    store, port = folder / "store", free_broker_port()
    settings = folder / "broker.conf"
    keys = {"shutdownTimeout": str(int(SHUTDOWN_SECONDS * 1000)), **(extra or {})}
    settings.write_text(broker_settings(store, listen_port=port, name_server=name_server, extra=keys))
    command = [*speedups.prefix_for(SETTINGS[path]), sys.executable, "-m", *BROKER_PROGRAM, "-c", str(settings)]
    began = time.monotonic()
    with run_server(command, log=folder / "broker.log", core=core, stop_seconds=STOP_SECONDS_MAX) as server:
        address = f"127.0.0.1:{port}"
        wait_until_serving(server, address, seconds_max=seconds_max)
        elapsed = time.monotonic() - began
        name = (extra or {}).get("brokerName", BROKER_NAME)
        target = Target(address=address, process_id=server.process_id, is_echo=False, broker_name=name)
        yield CurveBroker(target=target, server=server, store=store, start_seconds=elapsed)


def wait_until_serving(server: Server, address: str, *, seconds_max: float) -> None:
    """Wait until a broker answers a request about a queue, which it refuses until all is loaded.

    Raises BenchmarkFailed if the broker ends first, or after the time.
    """
    deadline = time.monotonic() + seconds_max
    ext = {"topic": SELF_TEST_TOPIC, "queueId": "0"}
    while True:
        try:
            request_all(address, [Command(code=RequestCode.GET_MAX_OFFSET, ext=ext)])
            return
        except BenchmarkFailed as error:
            code = server.process.poll()
            if code is not None:
                raise BenchmarkFailed(f"the broker ended with code {code}: {server.last_lines()}") from error
            if time.monotonic() > deadline:
                raise BenchmarkFailed(
                    f"the broker did not serve within {seconds_max:.0f} s: {server.last_lines()}"
                ) from error
        time.sleep(POLL_SECONDS)


def kill(broker: CurveBroker) -> None:
    """End a broker as a crash of its process would."""
    broker.server.process.kill()
    broker.server.process.wait()


def missing_space(folder: Path, needed: int) -> str:
    """Return why so many bytes must not be written, or an empty text."""
    free = shutil.disk_usage(folder).free
    if free - needed >= SPARE_BYTES:
        return ""
    return (
        f"{needed / 1e9:.3g} GB of disk are needed beside the {SPARE_BYTES / 1e9:.0f} GB that stay free, and "
        f"{free / 1e9:.3g} GB are free"
    )


def mebibytes(memory: ResidentMemory) -> dict[str, float]:
    """Return the anonymous memory, the store's mapped files, and the rest (programs and libraries), in MiB."""
    other = memory.counted_bytes - memory.anonymous_bytes
    return {
        "anonymous_mib": memory.anonymous_bytes / MEBIBYTE,
        "mapped_mib": memory.store_files_bytes / MEBIBYTE,
        "libraries_mib": max(other, 0) / MEBIBYTE,
    }
