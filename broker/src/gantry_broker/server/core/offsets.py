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
from typing import Final, final

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

    def clamp(self, end: int) -> None:
        """No reset leads beyond the end of its queue."""
        self.offset = min(self.offset, end)


@final
class OffsetResets:
    """The pending resets, by topic@group and queue. Owned by the event loop."""

    def __init__(self, on_done: Callable[[], None] = lambda: None) -> None:
        """``on_done`` is called when a reader has received a reset, so that it is not pending any more."""
        self._on_done: Final = on_done
        self._table: dict[str, dict[int, _Reset]] = {}
        self._is_kept = True

    def __repr__(self) -> str:
        return f"<OffsetResets pending={sum(map(len, self._table.values()))}>"

    def keep(self, is_kept: bool) -> None:
        """Set useServerSideResetOffset: whether resets are kept here; pending ones end when they are not any more."""
        self._is_kept = is_kept
        if not is_kept:
            self._table = {}

    def assign(self, key: str, queue_id: int, offset: int) -> None:
        """Readers of this queue in this group continue at ``offset``."""
        if self._is_kept:
            self._table.setdefault(key, {})[queue_id] = _Reset(offset)

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether commits of the group for this queue are passed over, because no reader has obeyed a reset yet."""
        return queue_id in self._table.get(f"{topic}{SEPARATOR}{group}", ())

    def place(self, group: str, topic: str, queue_id: int, reader: Connection, *, was_waiting: bool) -> int | None:
        """Where ``reader`` has to continue, because it has not received a reset of its group; None if it may stay.

        ``was_waiting``: its pull was held.
        """
        if not self._table:
            return None
        key = f"{topic}{SEPARATOR}{group}"
        reset = self._table.get(key, {}).get(queue_id)
        if reset is None:
            return None
        if reader in reset.redirected and not was_waiting:
            self._done(key, queue_id)
            return None
        reset.redirected.add(reader)
        return reset.offset

    def clamp(self, key: str, queue_id: int, end: int) -> None:
        reset = self._table.get(key, {}).get(queue_id)
        if reset is not None:
            reset.clamp(end)

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

    def _done(self, key: str, queue_id: int) -> None:
        queues = self._table[key]
        del queues[queue_id]
        if not queues:
            del self._table[key]
        self._on_done()


@final
class EpochBegins:
    """Where the epoch began in queues whose groups have not been there yet. Owned by the event loop."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, int]] = {}

    def begin(self, begins: dict[str, dict[int, int]]) -> None:
        """This broker is the master from now on; ``begins`` holds the ends of queues by topic@group."""
        self._table = begins

    def limit(self, key: str, queue_id: int, offset: int) -> int:
        """Up to where a commit of ``offset`` counts."""
        return min(offset, self._table[key].get(queue_id, offset)) if key in self._table else offset

    def forget(self, key: str, queue_id: int) -> None:
        """The group was moved, and has no position that could be in a lost part."""
        self._table.get(key, {}).pop(queue_id, None)

    def way_back(self, group: str, topic: str, queue_id: int, offset: int, *, committed: int | None) -> int | None:
        """Where a reader has to continue whose position is in a lost part; None if it may read where it is.

        Never beyond what its group has ``committed``: a client of RocketMQ that is sent to another place drops what it
        holds of the queue, messages that failed and wait for their retry included.
        """
        begins = self._table.get(f"{topic}{SEPARATOR}{group}")
        begin = None if begins is None else begins.get(queue_id)
        if begins is None or begin is None:
            return None
        if offset > begin:
            return begin if committed is None else min(begin, committed)
        del begins[queue_id]
        return None


@final
class PulledOffsets:
    """Up to where readers have come, which need not have consumed it; of this start only, as RocketMQ's."""

    def __init__(self) -> None:
        self._table: dict[str, dict[int, int]] = {}

    def note(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """A reader was given everything before ``next_offset``."""
        self._table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = next_offset

    def find(self, group: str, topic: str, queue_id: int) -> int:
        """Up to where readers have come; 0 if none has pulled."""
        return self._table.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id, 0)

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self._table if matches(key)]:
            del self._table[key]


@final
class ConsumerOffsets:
    """Offsets by topic@group and queue. Owned by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._version = DataVersion(timestamp=clock.wall_ms())
        self.edition = 0
        """Rises with every change."""

        self.resets: Final = OffsetResets(self._changed)
        self.begins: Final = EpochBegins()
        self.pulled: Final = PulledOffsets()

    def __repr__(self) -> str:
        return f"<ConsumerOffsets pairs={len(self._table)}>"

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """The committed offset, or None when the group never committed one."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.setdefault(key, {})
        offset = self.begins.limit(key, queue_id, offset)
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._changed()

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group continues at ``offset``, wherever its readers are: an administrator has moved it."""
        key = f"{topic}{SEPARATOR}{group}"
        self.begins.forget(key, queue_id)
        self._table.setdefault(key, {})[queue_id] = offset
        self.resets.assign(key, queue_id, offset)
        self._changed()

    def clone(self, source: str, target: str, topic: str) -> None:
        """One group continues where another one is; its readers that run now are not redirected."""
        queues = self._table.get(f"{topic}{SEPARATOR}{source}")
        if queues is None:
            return
        key = f"{topic}{SEPARATOR}{target}"
        self._table[key] = dict(queues)
        self.resets.forget(lambda one: one == key)
        self._changed()

    def begin_epoch(self, end_of: Callable[[str, int], int]) -> None:
        """This broker is the master from now on; ``end_of`` gives the end of a queue by topic and number."""
        begins: dict[str, dict[int, int]] = {}
        for key, queues in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            if group != TRANSACTION_GROUP:  # the broker's own, which knows where it begins
                begins[key] = {queue_id: end_of(topic, queue_id) for queue_id in queues}
        self.begins.begin(begins)

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
                self.resets.clamp(key, queue_id, end)
                self._changed()
        return moved

    def known_queues(self) -> list[tuple[str, int]]:
        """Every (topic, queue) that any group has an offset in."""
        return sorted({(key.partition(SEPARATOR)[0], queue) for key, queues in self._table.items() for queue in queues})

    def document(self) -> OffsetDocument:
        self._version = self._version.next(self._clock.wall_ms())
        table = {key: dict(queues) for key, queues in self._table.items()}
        return OffsetDocument(
            offset_table=table, data_version=self._version, pending_resets=self.resets.pending() or None
        )

    def load(self, document: OffsetDocument) -> None:
        self._table = {key: dict(queues) for key, queues in document.offset_table.items() if SEPARATOR in key}
        self._version = document.data_version or self._version
        pending = document.pending_resets or {}
        self.resets.load({key: queues for key, queues in pending.items() if key in self._table})

    def take(self, document: OffsetDocument) -> None:
        """Replace everything by the master's table, to be written to the own file, too."""
        self.load(document)
        self._changed()

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group

    def _forget(self, matches: Callable[[str, str], bool]) -> None:
        def is_meant(key: str) -> bool:
            topic, _, group = key.partition(SEPARATOR)
            return matches(topic, group)

        for key in [key for key in self._table if is_meant(key)]:
            del self._table[key]
        self.pulled.forget(is_meant)
        self.resets.forget(is_meant)
        self._changed()

    def _changed(self) -> None:
        self.edition += 1
