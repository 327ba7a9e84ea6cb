"""The committed offsets of consumer groups, their resets, and the offsets that delay levels are delivered up to.

A committed offset is that of the next message to consume. Offsets are kept in memory, and written to disk every few
seconds and at a clean stop. After a crash some messages are consumed twice and none is skipped: the file is never ahead
of the table.

A new epoch may lack messages that the old master made visible, and consumers keep their next offsets in memory:

    [...... both masters ......)[...... the old one's tail ......)
                               ^ start of the epoch              ^ next offset of a consumer

When the consumer pulls again, the queue may have grown past that offset with other messages, which it would skip. So a
commit of a group that has committed before is accepted in full once the group has pulled at or before the start of
the epoch: from then on no reader can be past it. Until then a reader is redirected to the start of the epoch, or to the
committed offset of its group if that is earlier, and its commits are limited to the start. The new master may not have
any commit of a group that is seconds old: its commits are only limited to the end of the queue
(`BrokerCore.commit_offset`).

An administrator's reset overrides both and takes effect at once. A reader keeps its next offset in memory and commits
it afterwards, so that the next commit would overwrite a new offset in the broker's table. A reset is therefore pending
until a reader has received it (`OffsetResets`):

    reset to r                              the offset in the table is r, and stays r: commits are ignored
    pull of a reader without the reset      is redirected to r (21, OFFSET_RESET), even a pull at r: the answer makes
                                            the reader drop the messages that it has in memory
    next pull of a redirected reader        the reset is complete

RocketMQ forgets the reset with the first answer. Here it is kept until that answer has been read. So it survives a
connection that breaks before, and a client of RocketMQ 4.9, which takes ten seconds to follow and commits its old
offset meanwhile. No connection is redirected twice: if a redirected reader pulls from another offset, it gets the
messages from that offset, as with RocketMQ. A pull that was held when the reset came counts as sent before the reset.

Resets are stored with the offsets, in their file and on slaves: a reset is as durable as the offset that it sets.
"""

import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, final

import msgspec

from gantry_broker.ports import Clock
from gantry_broker.server.core.freed_queues import FreedQueues
from gantry_broker.server.core.unsaved_progress import SEPARATOR, EpochStartOffsets, PoppedEnds, PulledOffsets
from gantry_remoting import Connection
from gantry_wire.commands.admin import DataVersion
from gantry_wire.commands.clients import Document
from gantry_wire.names import REVIVE_GROUP, TRANSACTION_GROUP


class OffsetDocument(Document):
    """The content of consumerOffset.json, and, without the fields of resets, of the reply to code 43."""

    offset_table: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """The committed offset of each queue, by topic@group and queue id."""

    data_version: DataVersion | None = None
    popped: list[str] | None = None
    """A field of ours: the keys of groups that pop, whose offsets are valid only with their checkpoints in the log."""

    pending_resets: dict[str, dict[int, int]] | None = None
    """A field of ours, present only while a reset is pending; RocketMQ ignores unknown fields."""

    freed: dict[str, int] | None = None
    """A field of ours: the times of ``FreedQueues``, present only after resets or deletions."""


class DelayOffsetDocument(Document):
    """The content of delayOffset.json, and of the reply to code 45."""

    offset_table: dict[int, int] = msgspec.field(default_factory=dict)
    """The offset of the first undelivered message, by delay level."""

    data_version: DataVersion | None = None


@dataclass(slots=True)
class _Reset:
    offset: int
    _redirected: "weakref.WeakSet[Connection] | None" = None
    """The readers that were redirected to the offset. It is made for the first one; most resets have none."""

    def clamp(self, end: int) -> None:
        """Limit the reset to the end of its queue."""
        self.offset = min(self.offset, end)

    def is_known_to(self, reader: Connection) -> bool:
        return self._redirected is not None and reader in self._redirected

    def redirect(self, reader: Connection) -> int:
        if self._redirected is None:
            self._redirected = weakref.WeakSet()
        self._redirected.add(reader)
        return self.offset


@final
class OffsetResets:
    """The pending resets by topic@group and queue. Owned by the event loop."""

    def __init__(self, on_done: Callable[[], None] = lambda: None) -> None:
        """``on_done`` is called when a reader has received a reset, which then is complete."""
        self._on_done: Final = on_done
        self.by_key: dict[str, dict[int, _Reset]] = {}
        self._is_enabled = True

    def __repr__(self) -> str:
        return f"<OffsetResets pending={sum(map(len, self.by_key.values()))}>"

    def set_enabled(self, is_enabled: bool) -> None:
        """Set useServerSideResetOffset: whether resets are kept here. Switching it off drops the pending ones."""
        self._is_enabled = is_enabled
        if not is_enabled:
            self.by_key = {}

    def assign(self, key: str, queue_id: int, offset: int) -> None:
        """Redirect the readers of this queue in this group to ``offset``."""
        if self._is_enabled:
            self.by_key.setdefault(key, {})[queue_id] = _Reset(offset)

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether commits of the group for this queue are ignored, because no reader has received its reset yet."""
        return queue_id in self.by_key.get(f"{topic}{SEPARATOR}{group}", ())

    def redirect_offset(
        self, group: str, topic: str, queue_id: int, reader: Connection, *, was_held: bool
    ) -> int | None:
        """Return the offset that ``reader`` is redirected to by a reset; None if none is pending for it.

        ``was_held``: the pull was held, and may be older than the reset.
        """
        if not self.by_key:
            return None
        key = f"{topic}{SEPARATOR}{group}"
        reset = self.by_key.get(key, {}).get(queue_id)
        if reset is None:
            return None
        if reset.is_known_to(reader) and not was_held:
            self._complete(key, queue_id)
            return None
        return reset.redirect(reader)

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the offset of a pending reset; None if none is pending."""
        reset = self.by_key.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id)
        return None if reset is None else reset.offset

    def complete(self, group: str, topic: str, queue_id: int) -> None:
        """Complete a pending reset: the broker itself has moved the group there."""
        self._complete(f"{topic}{SEPARATOR}{group}", queue_id)

    def clamp(self, key: str, queue_id: int, end: int) -> None:
        reset = self.by_key.get(key, {}).get(queue_id)
        if reset is not None:
            reset.clamp(end)

    def forget(self, matches: Callable[[str], bool]) -> None:
        for key in [key for key in self.by_key if matches(key)]:
            del self.by_key[key]

    def pending(self) -> dict[str, dict[int, int]]:
        """Return the pending resets as they are stored: topic@group -> queue -> offset."""
        return {key: {queue: reset.offset for queue, reset in queues.items()} for key, queues in self.by_key.items()}

    def load(self, pending: Mapping[str, Mapping[int, int]]) -> None:
        """Load stored resets. The readers that were redirected are forgotten."""
        self.by_key = {}
        for key, queues in pending.items():
            for queue_id, offset in queues.items():
                self.assign(key, queue_id, offset)

    def _complete(self, key: str, queue_id: int) -> None:
        queues = self.by_key[key]
        del queues[queue_id]
        if not queues:
            del self.by_key[key]
        self._on_done()


@final
class ConsumerOffsets:
    """The committed offsets by topic@group and queue. Owned by the event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._table: dict[str, dict[int, int]] = {}
        self._version = DataVersion(timestamp=clock.wall_ms())
        self.change_count = 0
        """The number of changes of the table since this start."""

        self.popped: Final[set[str]] = set()
        """The keys, topic@group, of offsets that pops have moved."""

        self.unproven: Final[set[str]] = set()
        """Those of them whose checkpoints the own log may have lost, when it was truncated to follow a master."""

        self.on_set: Final[list[Callable[[str, str, int, int], None]]] = []
        """Called with group, topic, queue and offset when an administrator sets an offset."""
        self.on_forgotten: Final[list[Callable[[str | None, str | None], None]]] = []
        """Called with the topic, or with the group, whose offsets are deleted; the other one is None."""

        self.waits_for_changes: Final[list[Callable[[], Awaitable[None]]]] = []
        """Each waits until what ``on_set`` and ``on_forgotten`` have caused survives a crash. Raises Refused."""

        self.freed: Final = FreedQueues(self._record_change)
        """When administrators freed queues of ordered pops."""
        self.resets: Final = OffsetResets(self._record_change)
        """Resets of groups that their consumers have not received yet."""
        self.epoch_starts: Final = EpochStartOffsets()
        """Where the present epoch began in each queue, for groups that have not pulled there yet."""
        self.popped_ends: Final = PoppedEnds()
        """The ends of pops that are not committed yet."""
        self.pulled: Final = PulledOffsets()
        """The offsets up to which readers have pulled since this start."""

    def __repr__(self) -> str:
        return f"<ConsumerOffsets pairs={len(self._table)}>"

    def find(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the committed offset; None if the group has none there."""
        queues = self._table.get(f"{topic}{SEPARATOR}{group}")
        return None if queues is None else queues.get(queue_id)

    def is_consumed(self, group: str, topic: str) -> bool:
        """Whether the group has a committed offset in the topic, or has pulled from it since this start."""
        key = f"{topic}{SEPARATOR}{group}"
        return key in self._table or key in self.pulled

    def progress(self, group: str, topic: str, queue_id: int) -> int:
        """Return how far the group has come for a person: what is committed, or popped and not committed yet."""
        committed = self.find(group, topic, queue_id) or 0
        return max(0, committed, self.popped_ends.find(f"{topic}{SEPARATOR}{group}", queue_id))

    def may_redirect(self, key: str) -> bool:
        """Whether a reader of this topic@group may have to be redirected; usually there is no reason to."""
        return bool(self.resets.by_key) or key in self.epoch_starts.by_key

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}{SEPARATOR}{group}"
        queues = self._table.setdefault(key, {})
        offset = self.epoch_starts.limit_commit(key, queue_id, offset)
        if queues.get(queue_id) != offset:
            queues[queue_id] = offset
            self._record_change()

    def commit_popped(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit the end of what a group has popped, unless its offset is greater."""
        key = f"{topic}{SEPARATOR}{group}"
        self.popped.add(key)
        self.popped_ends.discard(key, queue_id, offset)
        committed = self.find(group, topic, queue_id)
        if committed is None or committed < offset:
            self.commit(group, topic, queue_id, offset)

    def replace(self, key: str, queues: Mapping[int, int]) -> None:
        """Replace the offsets of one key, topic@group."""
        if self._table.get(key, {}) != queues:
            self._table[key] = dict(queues)
            self._record_change()

    def offsets_of(self, key: str) -> dict[int, int]:
        """Return the offsets of one key, topic@group, by queue."""
        return dict(self._table.get(key, {}))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Reset the group to ``offset`` at an administrator's request; its readers are redirected."""
        key = f"{topic}{SEPARATOR}{group}"
        self.epoch_starts.forget(key, queue_id)
        self.popped_ends.discard(key, queue_id)
        self._table.setdefault(key, {})[queue_id] = offset
        self.resets.assign(key, queue_id, offset)
        self._record_change()
        for notify in self.on_set:
            notify(group, topic, queue_id, offset)

    def clone(self, source: str, target: str, topic: str) -> None:
        """Copy the offsets of one group in a topic to another group; running readers are not redirected."""
        queues = self._table.get(f"{topic}{SEPARATOR}{source}")
        if queues is None:
            return
        key = f"{topic}{SEPARATOR}{target}"
        self._table[key] = dict(queues)
        for queue_id in queues:
            self.epoch_starts.forget(key, queue_id)
        self.resets.forget(lambda one: one == key)
        self._record_change()
        for queue_id, offset in queues.items():
            for notify in self.on_set:
                notify(target, topic, queue_id, offset)

    def begin_epoch(self, end_of: Callable[[str, int], int]) -> None:
        """Start an epoch with this broker as the master; ``end_of`` returns the end of a queue by topic and number."""
        starts: dict[str, dict[int, int]] = {}
        for key, queues in self._table.items():
            topic, _, group = key.partition(SEPARATOR)
            if group not in (TRANSACTION_GROUP, REVIVE_GROUP):  # the broker's own groups, which set their offsets
                starts[key] = {queue_id: end_of(topic, queue_id) for queue_id in queues}
        self.epoch_starts.start_epoch(starts)

    def topics_of(self, group: str) -> list[str]:
        return sorted(topic for topic, name in self._pairs() if name == group)

    def groups_of(self, topic: str) -> list[str]:
        return sorted(group for name, group in self._pairs() if name == topic)

    def groups_by_topic(self) -> dict[str, list[str]]:
        """Return the groups with offsets for every topic; like ``groups_of`` for all topics."""
        found: dict[str, list[str]] = {}
        for topic, group in self._pairs():
            found.setdefault(topic, []).append(group)
        return found

    def topics_by_group(self) -> dict[str, list[str]]:
        """Return the topics with offsets of every group; like ``topics_of`` for all groups."""
        found: dict[str, list[str]] = {}
        for topic, group in sorted(self._pairs()):
            found.setdefault(group, []).append(topic)
        return found

    def forget_topic(self, topic: str) -> None:
        self._forget(lambda name, group: name == topic)
        for notify in self.on_forgotten:
            notify(topic, None)

    def forget_group(self, group: str) -> None:
        self._forget(lambda name, owner: owner == group)
        for notify in self.on_forgotten:
            notify(None, group)

    async def wait_for_changes(self) -> None:
        """Wait until the effects of administrators' changes on popped messages survive a crash. Raises Refused."""
        for wait in self.waits_for_changes:
            await wait()

    def clamp(self, topic: str, queue_id: int, end: int) -> list[tuple[str, int]]:
        """Limit offsets to the end of a queue; return (group, old offset) of each that was beyond it."""
        moved: list[tuple[str, int]] = []
        for key, queues in self._table.items():
            name, _, group = key.partition(SEPARATOR)
            if name == topic and queues.get(queue_id, 0) > end:
                moved.append((group, queues[queue_id]))
                queues[queue_id] = end
                self.resets.clamp(key, queue_id, end)
                self._record_change()
        return moved

    def known_queues(self) -> list[tuple[str, int]]:
        """Return every (topic, queue) in which a group has an offset."""
        return sorted({(key.partition(SEPARATOR)[0], queue) for key, queues in self._table.items() for queue in queues})

    def document(self) -> OffsetDocument:
        self._version = self._version.next(self._clock.wall_ms())
        table = {key: dict(queues) for key, queues in self._table.items()}
        return OffsetDocument(
            offset_table=table,
            data_version=self._version,
            pending_resets=self.resets.pending() or None,
            popped=sorted(self.popped & table.keys()) or None,
            freed=self.freed.document(self._clock.wall_ms()) or None,
        )

    def load(self, document: OffsetDocument) -> None:
        self._table = {key: dict(queues) for key, queues in document.offset_table.items() if SEPARATOR in key}
        self._version = document.data_version or self._version
        self.popped.clear()
        self.popped.update(document.popped or ())
        self.freed.join(document.freed or {})
        pending = document.pending_resets or {}
        self.resets.load({key: queues for key, queues in pending.items() if key in self._table})

    def replace_from_master(self, document: OffsetDocument) -> None:
        """Replace the table by that of the master, and mark it for writing to the own file."""
        self.load(document)
        self._record_change()

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for key in self._table:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group

    def _forget(self, matches: Callable[[str, str], bool]) -> None:
        def is_affected(key: str) -> bool:
            topic, _, group = key.partition(SEPARATOR)
            return matches(topic, group)

        for key in [key for key in self._table if is_affected(key)]:
            for queue_id in self._table.pop(key):
                self.epoch_starts.forget(key, queue_id)
        self.pulled.forget(is_affected)
        self.popped_ends.forget(is_affected)
        self.resets.forget(is_affected)
        self._record_change()

    def _record_change(self) -> None:
        self.change_count += 1
