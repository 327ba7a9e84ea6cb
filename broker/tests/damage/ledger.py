"""What clients know of a store: each message that was acknowledged, where it is, and what else was agreed upon."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "ledger.msgpack"

QueueName = tuple[str, int]


class Known(msgspec.Struct, frozen=True):
    """One message that a client has sent or read, as it must be served for ever."""

    topic: str
    queue_id: int
    queue_offset: int
    physical: int
    size: int
    body: bytes
    properties: dict[str, str]
    """Without those that the broker adds by itself."""

    @property
    def unique(self) -> str:
        return self.properties.get("UNIQ_KEY", "")

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


class Owed(msgspec.Struct, frozen=True):
    """A message that was taken and is to appear in a queue later: a delayed one, or one of an open transaction."""

    topic: str
    queue_id: int
    unique: str
    body: bytes
    half_offset: int = -1
    """Of a half message: its number in its queue; -1 for a delayed one."""
    physical: int = -1
    """Where the half or delayed message itself is."""

    @property
    def is_half(self) -> bool:
        return self.half_offset >= 0


class Ledger(msgspec.Struct):
    """See the module. A trial adds to it what it sends."""

    known: list[Known] = []
    owed: list[Owed] = []
    ended: list[str] = []
    """Unique keys of transactions that were ended."""
    offsets: list[tuple[str, str, int, int]] = []
    """(group, topic, queue, offset) as committed."""
    topics: dict[str, tuple[int, int]] = {}
    """Read and write queues."""
    groups: dict[str, int] = {}
    """How many retries each group has."""
    setting: tuple[str, str] = ("", "")
    """One that was changed at run time."""
    queue_ends: list[tuple[str, int, int]] = []
    """(topic, queue, end): every number below was given to a message."""
    wrote: int = 0
    flushed: int = 0
    epoch: int = 0
    """The newest that was given to a master."""
    epochs: list[tuple[int, int]] = []
    """(epoch, start) of the log's history."""
    master: int = 1

    @property
    def ends(self) -> dict[QueueName, int]:
        return {(topic, queue): end for topic, queue, end in self.queue_ends}

    def save(self, folder: Path) -> None:
        (folder / FILE).write_bytes(msgspec.msgpack.encode(self))


def load_ledger(folder: Path) -> Ledger:
    """The ledger of a world or a trial."""
    return msgspec.msgpack.decode((folder / FILE).read_bytes(), type=Ledger)
