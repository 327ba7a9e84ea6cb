"""Plans and executes resets of a group's offsets: from where to where in each queue, and what that means.

A plan has the exact new offset of every queue, so that what was confirmed is what is set, also if messages arrive
meanwhile. `plan_reset` changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from gantry_client.admin import Admin
from gantry_client.documents import QueueOffsets
from gantry_client.errors import ClientError
from gantry_client.pull_consumer import PullConsumer
from gantry_client.resend_plan import TOPIC_READER
from gantry_wire.commands.clients import MessageQueue

CONCURRENT_READS_MAX: Final = 8
"""The number of queues whose messages are read concurrently for the times of a plan."""

OFFSETS_READER: Final = TOPIC_READER
"""The group that reads the store times of messages; it commits no offsets."""


@final
class ResetRefused(ClientError):
    """A reset cannot be planned. With `is_not_found` a group or queue does not exist; otherwise correct the target."""

    def __init__(self, text: str, *, is_not_found: bool = False) -> None:
        super().__init__(text)
        self.is_not_found = is_not_found


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ResetTarget:
    """Where to: to the first message at or after a time, to an offset, or by a number of messages. Exactly one."""

    timestamp_ms: int | None = None
    """A time; -1 is the end of each queue, 0 the beginning."""
    offset: int | None = None
    """An offset in one queue."""
    shift: int | None = None
    """By this many messages in each queue with a committed offset: back, if it is negative."""


@final
@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The change of a group's offset in one queue: the committed offset, and the new one."""

    queue: MessageQueue
    before: int | None
    """The committed offset; None if there is none."""
    after: int
    """The new offset to commit."""
    span_ms: int | None = None
    """The time between the store times of the messages at both offsets; None if unknown."""

    @property
    def redelivered(self) -> int:
        """The number of messages that are consumed again."""
        return 0 if self.before is None else max(self.before - self.after, 0)

    @property
    def skipped(self) -> int:
        """The number of messages that are not consumed."""
        return 0 if self.before is None else max(self.after - self.before, 0)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetPlan:
    """The planned changes of offsets, and the number of the group's members at the time of the plan."""

    changes: tuple[OffsetChange, ...]
    members: int
    is_new_group: bool = False
    """Whether the target group does not exist yet; it is then created with the settings of the source."""


async def plan_reset(
    admin: Admin, group: str, topic: str, target: ResetTarget, queues: Sequence[MessageQueue] = ()
) -> OffsetPlan:
    """Return the new offsets of a group in these queues of a topic, by default in all. Raises ResetRefused."""
    if group not in await admin.groups.all():
        raise ResetRefused(f"group {group} not found", is_not_found=True)
    before = await admin.groups.committed(group, topic)
    members = await admin.consumers.connections(group)
    ends = await admin.topics.stats(topic)
    for queue in queues:
        if queue not in before:
            raise ResetRefused(f"{topic} has no queue {queue.broker_name}:{queue.queue_id}", is_not_found=True)
    wanted = list(queues) or list(before)
    if target.timestamp_ms is not None:
        reached = await admin.groups.reset_targets(topic, target.timestamp_ms)
        after = {queue: reached[queue] for queue in wanted if queue in reached}
    elif target.offset is not None:
        after = {queue: _checked_offset(target.offset, ends[queue]) for queue in wanted}
    else:
        shift = target.shift or 0
        committed = {queue: offset for queue in wanted if (offset := before[queue]) is not None}
        after = {queue: _clamped(offset + shift, ends[queue]) for queue, offset in committed.items()}
        if not after:
            raise ResetRefused(f"{group} has no committed offset in {topic} to shift")
    ordered = sorted(after, key=lambda queue: (queue.broker_name, queue.queue_id))
    changes = tuple(OffsetChange(queue, before.get(queue), after[queue]) for queue in ordered)
    return OffsetPlan(changes=changes, members=len(members))


def _checked_offset(offset: int, ends: QueueOffsets) -> int:
    if not ends.min_offset <= offset <= ends.max_offset:
        raise ResetRefused(f"{offset} is outside the queue; expected {ends.min_offset} to {ends.max_offset}")
    return offset


def _clamped(offset: int, ends: QueueOffsets) -> int:
    return min(max(offset, ends.min_offset), ends.max_offset)


async def with_spans(plan: OffsetPlan, reader: PullConsumer) -> OffsetPlan:
    """Return the plan with the time between both offsets of each change, from the messages there."""
    limit = asyncio.Semaphore(CONCURRENT_READS_MAX)

    async def with_span(change: OffsetChange) -> OffsetChange:
        if change.before is None or change.before == change.after:
            return change
        async with limit:
            try:
                one = await _stored_ms(reader, change.queue, min(change.before, change.after))
                other = await _stored_ms(reader, change.queue, max(change.before, change.after) - 1)
            except ClientError:
                return change  # the times only explain the plan; its offsets are known
        span_ms = None if one is None or other is None else max(other - one, 0)
        return OffsetChange(change.queue, change.before, change.after, span_ms)

    changes = await asyncio.gather(*(with_span(change) for change in plan.changes))
    return OffsetPlan(changes=tuple(changes), members=plan.members, is_new_group=plan.is_new_group)


async def _stored_ms(reader: PullConsumer, queue: MessageQueue, offset: int) -> int | None:
    found = await reader.fetch(queue, offset, messages_max=1)
    return found.messages[0].store_timestamp_ms if found.messages else None
