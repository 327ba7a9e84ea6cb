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

    def has_content_of(self, right: Message) -> bool:
        """Whether it has the body and the properties of the other one."""
        return self.body == right.body and all(self.properties.get(k) == v for k, v in right.properties.items())

    def is_same(self, right: Message) -> bool:
        """Whether it is the other one, at its place."""
        is_there = self.physical_offset == right.physical_offset and self.place == right.place
        return is_there and self.has_content_of(right)

    def difference_from(self, right: Message) -> str:
        """Return how it differs from the expected one."""
        if self.physical_offset != right.physical_offset:
            return f"lies at {self.physical_offset}, not at {right.physical_offset}"
        if self.body != right.body:
            return f"another body: {self.body[:32]!r} in place of {right.body[:32]!r}"
        return f"{self.properties} in place of {right.properties}"


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
    is_timer: bool = False
    """Whether it is a timer message, which is delivered once unless a crash or a failover comes."""

    @property
    def is_half(self) -> bool:
        return self.half_offset >= 0


class Login(msgspec.Struct, frozen=True):
    """An account that pulls from a topic, with the answer that it must get."""

    user: str
    password: str
    topic: str
    group: str
    denied: str = ""
    """Why it must be refused; empty if it has access."""

    def __repr__(self) -> str:
        return f"{self.user} with {self.password} to {self.topic}"


class Expectations(msgspec.Struct):
    """What clients expect from one template, or from the copy of it in a trial.

    What a trial sends itself is in `ObservedRun.sends`.
    """

    messages: list[Message] = []
    """All messages that must be served, unchanged."""
    pending: list[PendingMessage] = []
    ended: list[str] = []
    """Unique keys of transactions that were committed or rolled back."""
    delivered_timers: list[str] = []
    """Unique keys of timer messages that were delivered before the copies, and must not be delivered again."""
    logins: list[Login] = []
    """The accounts that must have access, and those that must not; none if the broker stores no users."""
    users: dict[str, str] = {}
    """The users, each with type, status and policies."""
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
