"""Asking a broker how it is: one request, one answer, on a connection of its own.

The load generator sees answers only; how often the log was synced for them the broker alone can tell.
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
    """What a broker has done since its start."""

    messages: int
    syncs: int
    """Calls of fdatasync on files of the log."""

    def since(self, earlier: LogProgress) -> LogProgress:
        """What came between two looks."""
        return LogProgress(messages=self.messages - earlier.messages, syncs=self.syncs - earlier.syncs)


class _Body(msgspec.Struct, frozen=True):
    table: dict[str, str]


def read_progress(address: str) -> LogProgress:
    """Ask the broker at ``host:port``."""
    return progress_of(_ask(address))


def read_log_end(address: str) -> int:
    """Where the log of the broker at ``host:port`` ends, be it ours or Apache's."""
    try:
        return int(msgspec.json.decode(_ask(address), type=_Body).table["commitLogMaxOffset"])
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise BenchmarkFailed(f"the broker at {address} does not say where its log ends: {error}") from error


def _ask(address: str) -> bytes:
    """The runtime table as it was sent."""
    host, _, port = address.rpartition(":")
    reader = FrameReader()
    try:
        with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
            connection.sendall(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1).encode())
            while data := connection.recv(READ_BYTES):
                for frame in reader.feed(data):
                    return bytes(frame.body)
    except OSError as error:
        raise BenchmarkFailed(f"the broker at {address} does not say how it is: {error}") from error
    raise BenchmarkFailed(f"the broker at {address} closed the connection instead of saying how it is")


def progress_of(body: bytes) -> LogProgress:
    """Of the runtime table."""
    try:
        table = msgspec.json.decode(body, type=_Body).table
        return LogProgress(messages=int(table["msgPutTotalTodayNow"]), syncs=int(table["commitLogSyncs"]))
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        raise BenchmarkFailed(f"the broker's runtime table says nothing of its syncs: {error}") from error
