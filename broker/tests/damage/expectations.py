"""What clients may expect from a store: each acknowledged message, its offset, and all agreed settings.

A template (see ``template``) has one such document, and each trial copies it together with the files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = "expectations.msgpack"

QueueName = tuple[str, int]


class Message(msgspec.Struct, frozen=True):
    """One message as clients know it: acknowledged, or served to them."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    """The offset of its record in the log."""
    size: int
    """The size of its record."""
    body: bytes
    properties: dict[str, str]
    """The properties, without those that the broker adds by itself."""

    @property
    def unique(self) -> str:
        """The unique key that its producer has given it."""
        return self.properties.get("UNIQ_KEY", "")

    @property
    def place(self) -> tuple[str, int, int]:
        """Its topic, queue and queue offset."""
        return self.topic, self.queue_id, self.queue_offset


class PendingMessage(msgspec.Struct, frozen=True):
    """An accepted message that must appear in a queue later: a delayed one, or one of an open transaction."""

    topic: str
    queue_id: int
    unique: str
    body: bytes
    half_offset: int = -1
    """Queue offset of a half message; -1 for a delayed message."""
    physical_offset: int = -1
    """Physical offset of the half or delayed message itself."""

    @property
    def is_half(self) -> bool:
        return self.half_offset >= 0


class Expectations(msgspec.Struct):
    """What clients expect from one template, or from the copy of it in a trial.

    What a trial sends itself is in `ObservedRun.sends`.
    """

    messages: list[Message] = []
    """All messages that must be served, unchanged."""
    pending: list[PendingMessage] = []
    ended: list[str] = []
    """Unique keys of transactions that were committed or rolled back."""
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
    """The end of the log, write buffers included."""
    flushed: int = 0
    """The end of what an fdatasync has covered."""
    epoch: int = 0
    """The newest epoch of a master."""
    epochs: list[tuple[int, int]] = []
    """The epoch history of the log: (epoch, start)."""
    master: int = 1
    """The number of the member that is the master."""

    @property
    def ends(self) -> dict[QueueName, int]:
        return {(topic, queue): end for topic, queue, end in self.queue_ends}

    def save(self, folder: Path) -> None:
        (folder / FILE).write_bytes(msgspec.msgpack.encode(self))


def load_expectations(folder: Path) -> Expectations:
    """Load the expectations of a template or a trial."""
    return msgspec.msgpack.decode((folder / FILE).read_bytes(), type=Expectations)
