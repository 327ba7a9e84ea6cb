"""How far every group has consumed every queue, and how far every delay level was delivered.

Offsets are positions of the next message to consume. They live in memory, are written to disk every few seconds and at
a clean stop, and repeat some messages after a crash rather than skip one: the file never runs ahead of the table.

A new epoch may have lost what its predecessor showed, and consumers keep their positions in memory:

    [...... both masters ......)[...... the old one's tail ......)
                               ^ begin of the epoch              ^ where a consumer is

By the time it comes, the queue may have grown past that position with other messages, which it would skip. So a commit
of a group that has committed before is believed once the group has pulled at or before the begin: no other reader can
be past it. Until then a reader is sent back to the begin, and its commits count up to there.

An administrator's reset wins over both, and is believed at once. A reader keeps its place in memory and commits it
afterwards, so a new offset in the broker's table alone would be overwritten by the next commit. A reset is therefore
pending until a reader has received it (`OffsetResets`):

    reset to r                              the offset in the table is r, and stays r: commits are passed over
    a pull of a reader that has not got it  is sent to r (21, OFFSET_RESET), even from r: what it has in hand is to go
    the next pull of a reader that has      the reset is done, and everything is as always

RocketMQ forgets the reset with the first answer. Here it is kept until that answer has been read: a connection that
breaks before, or a client that takes ten seconds to obey and commits its old place meanwhile, as 4.9's do, does not
undo it. No connection is redirected twice: a reader that was sent to r and asks for another place all the same has a
reason, and gets it, as RocketMQ's would. A pull that was held when the reset came was made without knowledge of it.

Resets are kept with the offsets, in their file and on slaves: a reset that was answered 0 survives as they do.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import msgspec

from gantry_broker.ports import Clock
from gantry_remoting import Connection
from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document
from gantry_wire.names import TRANSACTION_GROUP

SEPARATOR = "@"


class OffsetDocument(Document):
    """consumerOffset.json, and, without what is pending, the reply to code 43."""

    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None
    pending_resets: dict[str, dict[int, int]] | None = None
    """Ours alone, and there only while something is pending; RocketMQ passes over what it does not know."""


class DelayOffsetDocument(Document):
    """delayOffset.json, and the reply to code 45."""

    offset_table: dict[int, int] = msgspec.field(default_factory=dict)
    data_version: DataVersion | None = None


@dataclass(slots=True)
class _Reset:
    offset: int
    redirected: "weakref.WeakSet[Connection]" = field(default_factory=weakref.WeakSet)
    """The readers that were sent there."""


@final
class OffsetResets:
    """The pending resets, by topic@group and queue. Owned by the event loop."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, _Reset]] = {}

    def __repr__(self) -> str:
        return f"<OffsetResets pending={sum(map(len, self._table.values()))}>"

    @property
    def is_empty(self) -> bool:
        return not self._table

    def assign(self, key: str, queue_id: int, offset: int) -> None:
        """Readers of this queue in this group continue at ``offset``."""
        self._table.setdefault(key, {})[queue_id] = _Reset(offset)

    def is_pending(self, key: str, queue_id: int) -> bool:
        queues = self._table.get(key)
        return queues is not None and queue_id in queues

    def place(self, key: str, queue_id: int, reader: Connection, *, was_waiting: bool) -> int | None:
        """Where ``reader`` has to continue; None if it may read where it is. ``was_waiting``: its pull was held."""
        reset = self._table.get(key, {}).get(queue_id)
        if reset is None:
            return None
        if reader in reset.redirected and not was_waiting:
            self._forget(key, queue_id)
            return None
        reset.redirected.add(reader)
        return reset.offset

    def clamp(self, key: str, queue_id: int, end: int) -> None:
        """No reset leads beyond the end of its queue."""
        reset = self._table.get(key, {}).get(queue_id)
        if reset is not None:
            reset.offset = min(reset.offset, end)

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self._table if matches(key)]:
            del self._table[key]

    def pending(self) -> dict[str, dict[int, int]]:
        """As it is kept: topic@group -> queue -> offset."""
        return {key: {queue: reset.offset for queue, reset in queues.items()} for key, queues in self._table.items()}

    def load(self, pending: Mapping[str, Mapping[int, int]]) -> None:
        """Take over what was kept. Which readers were redirected is not known any more."""
        self._table = {}
        for key, queues in pending.items():
            for queue_id, offset in queues.items():
                self.assign(key, queue_id, offset)

    def _forget(self, key: str, queue_id: int) -> None:
        queues = self._table[key]
        del queues[queue_id]
        if not queues:
            del self._table[key]


@final
class ConsumerOffsets:
    """Offsets by topic@group and queue. Owned by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._version = DataVersion(timestamp=clock.wall_ms())
        self.is_dirty = False
        self._begins: dict[str, dict[int, int]] = {}
        """Where the epoch began in queues whose groups have not been there yet."""

        self.edition = 0
        """Rises with every change."""

        self.are_resets_kept = True
        """useServerSideResetOffset: whether readers are sent to where an administrator has moved their group."""

        self._resets = OffsetResets()
        self._pulled: dict[str, dict[int, int]] = {}
        """Up to where readers have come, which need not have consumed it; of this start only, as RocketMQ's."""

    def __repr__(self) -> str:
        return f"<ConsumerOffsets pairs={len(self._table)}>"

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when the group never committed one."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.setdefault(key, {})
        if key in self._begins:
            offset = min(offset, self._begins[key].get(queue_id, offset))
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._changed()

    # ------- resets by an administrator

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group continues at ``offset``, wherever its readers are."""
        key = f"{topic}{SEPARATOR}{group}"
        self._begins.get(key, {}).pop(queue_id, None)
        self._table.setdefault(key, {})[queue_id] = offset
        if self.are_resets_kept:
            self._resets.assign(key, queue_id, offset)
        self._changed()

    def is_resetting(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether commits of the group for this queue are passed over, because no reader has obeyed a reset yet."""
        return self._resets.is_pending(f"{topic}{SEPARATOR}{group}", queue_id)

    def reset_place(
        self, group: str, topic: str, queue_id: int, reader: Connection, *, was_waiting: bool
    ) -> int | None:
        """Where a reader has to continue, because it has not received a reset of its group; None if it may stay."""
        if self._resets.is_empty or not self.is_resetting(group, topic, queue_id):
            return None
        place = self._resets.place(f"{topic}{SEPARATOR}{group}", queue_id, reader, was_waiting=was_waiting)
        if place is None:
            self._changed()
        return place

    def take_changes(self) -> bool:
        """Whether anything has changed since the last call."""
        was_dirty, self.is_dirty = self.is_dirty, False
        return was_dirty

    def keep_resets(self, are_kept: bool) -> None:
        """Set whether resets are kept here; pending ones end when they are not any more."""
        self.are_resets_kept = are_kept
        if not are_kept:
            self._resets.load({})

    def clone(self, source: str, target: str, topic: str) -> None:
        """One group continues where another one is; its readers that run now are not redirected."""
        queues = self._table.get(f"{topic}{SEPARATOR}{source}")
        if queues is None:
            return
        key = f"{topic}{SEPARATOR}{target}"
        self._table[key] = dict(queues)
        self._resets.forget(lambda one: one == key)
        self._changed()

    # ------- how far readers have come

    def pulled(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """A reader was given everything before ``next_offset``."""
        self._pulled.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = next_offset

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Up to where readers have come since this start; 0 if none has pulled."""
        return self._pulled.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, 0)

    # ------- epochs

    def begin_epoch(self, end_of: Callable[[str, int], int]) -> None:
        """This broker is the master from now on; ``end_of`` gives the end of a queue by topic and number."""
        self._begins = {}
        for key, queues in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            if group == TRANSACTION_GROUP:  # the broker's own, which knows where it begins
                continue
            self._begins[key] = {queue_id: end_of(topic, queue_id) for queue_id in queues}

    def way_back(self, group: str, topic: str, queue_id: int, offset: int) -> int | None:
        """Where a reader has to continue whose position is in a lost part; None if it may read where it is."""
        begins = self._begins.get(f"{topic}{SEPARATOR}{group}")
        begin = None if begins is None else begins.get(queue_id)
        if begins is None or begin is None:
            return None
        if offset > begin:
            return begin
        del begins[queue_id]
        return None

    def queues(self, group: str, topic: str) -> dict[int, int]:
        """All committed offsets of a group in a topic."""
        return dict(self._table.get(f"{topic}{SEPARATOR}{group}", {}))

    def topics_of(self, group: str) -> list[str]:
        return sorted(topic for topic, name in self._pairs() if name == group)

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for name, group in self._pairs() if name == topic)

    def groups_by_topic(self) -> dict[str, list[str]]:
        """``groups_of`` for all topics at once."""
        found: dict[str, list[str]] = {}
        for topic, group in self._pairs():
            found.setdefault(topic, []).append(group)
        return found

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda name, group: name == topic)

    def forget_group(self, group: str) -> None:
        self._forget(lambda name, owner: owner == group)

    def clamp(self, topic: str, queue_id: int, end: int) -> list[tuple[str, int]]:
        """Set offsets beyond a queue's end back to it; returns (group, old offset) of each."""
        moved: list[tuple[str, int]] = []
        for key, queues in self._table.items():
            name, _, group = key.partition(SEPARATOR)
            if name == topic and queues.get(queue_id, 0) > end:
                moved.append((group, queues[queue_id]))
                queues[queue_id] = end
                self._resets.clamp(key, queue_id, end)
                self._changed()
        return moved

    def known_queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue) that any group has an offset in."""
        return sorted({(key.partition(SEPARATOR)[0], queue) for key, queues in self._table.items() for queue in queues})

    def document(self) -> OffsetDocument:
        self._version = msgspec.structs.replace(
            self._version, counter=self._version.counter + 1, timestamp=self._clock.wall_ms()
        )
        table = {key: dict(queues) for key, queues in self._table.items()}
        return OffsetDocument(
            offset_table=table, data_version=self._version, pending_resets=self._resets.pending() or None
        )

    def load(self, document: OffsetDocument) -> None:
        self._table = {key: dict(queues) for key, queues in document.offset_table.items() if SEPARATOR in key}
        self._version = document.data_version or self._version
        pending = document.pending_resets or {} if self.are_resets_kept else {}
        self._resets.load({key: queues for key, queues in pending.items() if key in self._table})

    def take(self, document: OffsetDocument) -> None:
        """Replace everything by the master's table, to be written to the own file, too."""
        self.load(document)
        self.is_dirty = True

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group

    def _forget(self, matches: Any) -> None:
        doomed = [key for key in self._table if matches(*key.split(SEPARATOR, 1))]
        for key in doomed:
            del self._table[key]
        for key in [key for key in self._pulled if matches(*key.split(SEPARATOR, 1))]:
            del self._pulled[key]
        self._resets.forget(lambda key: matches(*key.split(SEPARATOR, 1)))
        self.is_dirty = self.is_dirty or bool(doomed)
        self.edition += 1

    def _changed(self) -> None:
        self.is_dirty = True
        self.edition += 1
