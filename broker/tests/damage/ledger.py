"""The ledger of the clients: each acknowledged message, its offset, and all agreed settings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "ledger.msgpack"

QueueName = tuple[str, int]


class Known(msgspec.Struct, frozen=True):
    """One message that a client has sent or read, which must be served unchanged from then on."""

    topic: str
    queue_id: int
    queue_offset: int
    physical: int
    size: int
    body: bytes
    properties: dict[str, str]
    """The properties, without those that the broker adds by itself."""

    @property
    def unique(self) -> str:
        return self.properties.get("UNIQ_KEY", "")

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


class Owed(msgspec.Struct, frozen=True):
    """An accepted message that must appear in a queue later: a delayed one, or one of an open transaction."""

    topic: str
    queue_id: int
    unique: str
    body: bytes
    half_offset: int = -1
    """Queue offset of a half message; -1 for a delayed message."""
    physical: int = -1
    """Physical offset of the half or delayed message itself."""

    @property
    def is_half(self) -> bool:
        return self.half_offset >= 0


class Ledger(msgspec.Struct):
    """The ledger of one world, or the copy of it in a trial; see the module. What a trial sends is in its phases."""

    known: list[Known] = []
    owed: list[Owed] = []
    ended: list[str] = []
    """Unique keys of transactions that were ended."""
    offsets: list[tuple[str, str, int, int]] = []
    """Committed consumer offsets: (group, topic, queue, offset)."""
    topics: dict[str, tuple[int, int]] = {}
    """Number of read queues and of write queues, by topic."""
    groups: dict[str, int] = {}
    """Maximum of retries of each group."""
    setting: tuple[str, str] = ("", "")
    """A setting that was changed at run time: key and value."""
    queue_ends: list[tuple[str, int, int]] = []
    """Ends of queues, (topic, queue, end): every offset below was assigned to a message."""
    wrote: int = 0
    flushed: int = 0
    epoch: int = 0
    """The newest epoch of a master."""
    epochs: list[tuple[int, int]] = []
    """The epoch history of the log: (epoch, start)."""
    master: int = 1

    @property
    def ends(self) -> dict[QueueName, int]:
        return {(topic, queue): end for topic, queue, end in self.queue_ends}

    def save(self, folder: Path) -> None:
        (folder / FILE).write_bytes(msgspec.msgpack.encode(self))


def load_ledger(folder: Path) -> Ledger:
    """Load the ledger of a world or a trial."""
    return msgspec.msgpack.decode((folder / FILE).read_bytes(), type=Ledger)
