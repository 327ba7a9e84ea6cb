"""Reads the runtime information of a broker: one request, one answer, on a connection of its own.

The load generator sees only answers; only the broker can report how often the log was synced for them.
"""

from __future__ import annotations

import socket
from typing import Final

import msgspec

from gantry_bench.errors import BenchmarkFailed
from gantry_wire.codes import RequestCode
from gantry_wire.command import Command
from gantry_wire.frame import FrameReader

TIMEOUT_SECONDS: Final = 30.0
READ_BYTES: Final = 65_536


class LogProgress(msgspec.Struct, frozen=True):
    """The broker's counters since its start."""

    messages: int
    syncs: int
    """Calls of fdatasync on files of the log."""

    def since(self, earlier: LogProgress) -> LogProgress:
        """Return the difference from an earlier sample."""
        return LogProgress(messages=self.messages - earlier.messages, syncs=self.syncs - earlier.syncs)


class _Body(msgspec.Struct, frozen=True):
    table: dict[str, str]


def read_progress(address: str) -> LogProgress:
    """Read the counters of the broker at ``host:port``."""
    return progress_of(_read_runtime_table(address))


def read_log_end(address: str) -> int:
    """Return the end of the log of the broker at ``host:port``, Gantry's or Apache's."""
    try:
        return int(msgspec.json.decode(_read_runtime_table(address), type=_Body).table["commitLogMaxOffset"])
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise BenchmarkFailed(f"the broker at {address} did not report the end of its log: {error}") from error


def _read_runtime_table(address: str) -> bytes:
    """Return the runtime table as it was sent."""
    host, _, port = address.rpartition(":")
    reader = FrameReader()
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1).encode())
            while data := connection.recv(READ_BYTES):
                for frame in reader.feed(data):
                    return bytes(frame.body)
    except OSError as error:
        raise BenchmarkFailed(f"the broker at {address} did not return its runtime table: {error}") from error
    raise BenchmarkFailed(f"the broker at {address} closed the connection instead of returning its runtime table")


def progress_of(body: bytes) -> LogProgress:
    """Read the counters from the runtime table."""
    try:
        table = msgspec.json.decode(body, type=_Body).table
        return LogProgress(messages=int(table["msgPutTotalTodayNow"]), syncs=int(table["commitLogSyncs"]))
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise BenchmarkFailed(f"the broker's runtime table has no count of syncs: {error}") from error
