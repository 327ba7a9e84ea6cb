"""Plans of changes to topics, groups and offsets: from what to what in each place, and what that means for clients.

A plan is made from what brokers report now, and changes nothing. It is executed as a list of steps, one for each
broker or queue, each with its own outcome. The guard of a plan is what must still be so when it is executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import msgspec

from gantry_admin.change_bodies import DeleteGroupBody, DeleteTopicBody, GroupBody, ResetBody, TopicBody
from gantry_admin.errors import Problem
from gantry_admin.topics_file import TopicsFile
from gantry_client import Admin, MessageQueue, NoRoute, PullConsumer
from gantry_client.group_deletion import plan_group_deletion
from gantry_client.offset_reset import OffsetChange, ResetRefused, ResetTarget, plan_reset, with_spans
from gantry_client.setting_changes import ChangeRow, group_rows, topic_rows
from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig
from gantry_wire.names import is_internal_topic, is_system_group

PERMISSIONS: Final = {"rw": 6, "r": 4, "w": 2, "none": 0}
QUEUES_DEFAULT: Final = 8
"""The queues of a new topic on each broker, as `gantry topic create` creates them."""


class ChangeStep(NamedTuple):
    """One request of the execution."""

    place: str
    execute: Callable[[Admin], Awaitable[None]]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePlan:
    """The values that a change would set, and the requests that set them."""

    kind: str
    name: str
    """The name of the topic or group."""
    rows: tuple[ChangeRow, ...]
    steps: tuple[ChangeStep, ...]
    guard: object
    """What must be equal in a plan that is made when this one is executed."""
    warnings: tuple[str, ...] = ()
    needs_name: bool = False
    """Whether the name must be repeated, because messages are lost for ever."""


ChangeBody = ResetBody | TopicBody | DeleteTopicBody | GroupBody | DeleteGroupBody


async def plan_change(admin: Admin, reader: PullConsumer, body: ChangeBody, declared: TopicsFile) -> ChangePlan:
    """Return the plan of a change. Raises ``Problem`` 404 and 409, and ``ClientError``."""
    if isinstance(body, ResetBody):
        return await _plan_reset(admin, reader, body)
    if isinstance(body, TopicBody):
        return await _plan_topic(admin, body, declared)
    if isinstance(body, DeleteTopicBody):
        return await _plan_deletion(admin, body, declared)
    if isinstance(body, DeleteGroupBody):
        return await _plan_group_deletion(admin, body, declared)
    return await _plan_group(admin, body, declared)


# -- offsets -----------------------------------------------------------------------------------------------------------


async def _plan_reset(admin: Admin, reader: PullConsumer, body: ResetBody) -> ChangePlan:
    queues = [
        MessageQueue(topic=body.topic, broker_name=one.broker_name, queue_id=one.queue_id) for one in body.queues
    ]  # fmt: skip
    times = {"earliest": 0, "latest": -1}
    target = ResetTarget(
        timestamp_ms=times[body.to] if body.to is not None else body.timestamp_ms, offset=body.offset, shift=body.shift
    )  # fmt: skip
    try:
        plan = await plan_reset(admin, body.group, body.topic, target, queues)
    except ResetRefused as error:
        raise Problem(404 if error.is_not_found else 409, str(error)) from error
    plan = await with_spans(plan, reader)
    # Members may be ahead of the offset that they have committed, so with members no queue counts as unchanged.
    changes = [one for one in plan.changes if plan.members or one.before != one.after]
    warnings: list[str] = []
    if plan.members:
        warnings.append(
            f"{plan.members} running members continue at the new offsets, discard messages in flight, and "
            "may commit between this preview and the change"
        )
    again, skipped = (sum(one.redelivered for one in plan.changes), sum(one.skipped for one in plan.changes))
    warnings.append(f"{again} messages are delivered again, {skipped} are skipped, counted from committed offsets")
    return ChangePlan(
        kind=body.kind, name=body.group, warnings=tuple(warnings),
        rows=tuple(_offset_row(one) for one in changes),
        steps=tuple(_offset_step(body.group, one) for one in changes),
        guard=(plan.members > 0, None if plan.members else [(one.queue, one.before) for one in plan.changes]),
    )  # fmt: skip


def _offset_row(change: OffsetChange) -> ChangeRow:
    span = "" if change.span_ms is None else f", stored over {change.span_ms / 1000:.1f} s"
    if change.before is None:
        effect = "consumption starts here"
    elif change.before == change.after:
        effect = "members continue here again"
    elif change.redelivered:
        effect = f"{change.redelivered} again{span}"
    else:
        effect = f"{change.skipped} skipped{span}"
    before = None if change.before is None else str(change.before)
    return ChangeRow(_place(change.queue), "offset", before, str(change.after), effect)


def _offset_step(group: str, change: OffsetChange) -> ChangeStep:
    async def execute(admin: Admin) -> None:
        await admin.groups.reset_queue(group, change.queue, change.after)

    return ChangeStep(_place(change.queue), execute)


def _place(queue: MessageQueue) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"


# -- topics ------------------------------------------------------------------------------------------------------------


async def _plan_topic(admin: Admin, body: TopicBody, declared: TopicsFile) -> ChangePlan:
    _check_application_topic(body.topic)
    if body.write_queues is not None and body.topic in {one.name for one in declared.topics}:
        raise _declared(f"the queues of topic {body.topic}")
    found = await _topic_settings(admin, body.topic)
    rows: list[ChangeRow] = []
    steps: list[ChangeStep] = []
    for name, address, before in found:
        base = before or TopicConfig(
            topic_name=body.topic, read_queue_nums=QUEUES_DEFAULT, write_queue_nums=QUEUES_DEFAULT
        )
        after = _changed_topic(base, body)
        if before is None or after != before:
            rows += topic_rows(name, before, after)
            steps.append(_topic_step(name, address, after))
    return ChangePlan(
        kind=body.kind, name=body.topic, rows=tuple(rows), steps=tuple(steps), guard=[one[1:] for one in found]
    )  # fmt: skip


async def _topic_settings(admin: Admin, topic: str) -> list[tuple[str, str, TopicConfig | None]]:
    """Return name, address and settings of each master with the topic; of all masters if none has it."""
    masters = [(one.name, one.address) for one in await admin.brokers.masters()]
    tables = [(name, address, (await admin.brokers.topic_table(address)).get(topic)) for name, address in masters]
    return [one for one in tables if one[2] is not None] or tables


def _changed_topic(base: TopicConfig, body: TopicBody) -> TopicConfig:
    write = base.write_queue_nums if body.write_queues is None else body.write_queues
    read = max(write, base.read_queue_nums) if body.read_queues is None else body.read_queues
    if read < write:
        raise Problem(409, f"read queues {read}, but messages are sent to {write}: consumers would miss some")
    permission = base.perm if body.permission is None else PERMISSIONS[body.permission] | base.perm & 1
    return msgspec.structs.replace(base, write_queue_nums=write, read_queue_nums=read, perm=permission)


def _topic_step(broker: str, address: str, config: TopicConfig) -> ChangeStep:
    async def execute(admin: Admin) -> None:
        await admin.brokers.put_topic(address, config)

    return ChangeStep(broker, execute)


async def _plan_deletion(admin: Admin, body: DeleteTopicBody, declared: TopicsFile) -> ChangePlan:
    _check_application_topic(body.topic)
    if body.topic in {one.name for one in declared.topics}:
        raise _declared(f"topic {body.topic}")
    try:
        stats, groups = await admin.topics.stats(body.topic), await admin.topics.groups(body.topic)
    except NoRoute as error:
        raise Problem(404, f"topic {body.topic} not found") from error
    counts: dict[str, int] = {}
    for queue, ends in stats.items():
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + ends.max_offset - ends.min_offset
    rows = tuple(
        ChangeRow(broker, "topic", f"{count} messages", None, "all messages are deleted for ever")
        for broker, count in sorted(counts.items())
    )  # fmt: skip
    warnings = (f"consumer groups of this topic: {', '.join(groups[:20])}",) if groups else ()

    async def execute(admin: Admin) -> None:
        await admin.topics.delete(body.topic)

    return ChangePlan(
        kind=body.kind, name=body.topic, rows=rows, steps=(ChangeStep(", ".join(sorted(counts)), execute),),
        guard=sorted(counts), warnings=warnings, needs_name=True,
    )  # fmt: skip


def _check_application_topic(topic: str) -> None:
    if is_internal_topic(topic):
        raise Problem(409, f"{topic} is a topic of the system; brokers manage it")


def _declared(what: str) -> Problem:
    return Problem(409, f"{what} is declared in the group's manifest, which would revert this; change the manifest")


# -- groups ------------------------------------------------------------------------------------------------------------


async def _plan_group(admin: Admin, body: GroupBody, declared: TopicsFile) -> ChangePlan:
    _check_application_group(body.group)
    if body.retry_max is not None and body.group in {one.name for one in declared.groups}:
        raise _declared(f"the number of redeliveries of group {body.group}")
    found: list[tuple[str, str, SubscriptionGroupConfig]] = []
    for master in await admin.brokers.masters():
        config = (await admin.brokers.group_table(master.address)).get(body.group)
        if config is not None:
            found.append((master.name, master.address, config))
    if not found:
        raise Problem(404, f"group {body.group} not found")
    rows: list[ChangeRow] = []
    steps: list[ChangeStep] = []
    for name, address, before in found:
        after = msgspec.structs.replace(
            before,
            retry_max_times=before.retry_max_times if body.retry_max is None else body.retry_max,
            consume_enable=before.consume_enable if body.consume_enabled is None else body.consume_enabled,
        )
        if after != before:
            rows += group_rows(name, before, after)
            steps.append(_group_step(name, address, after))
    return ChangePlan(
        kind=body.kind, name=body.group, rows=tuple(rows), steps=tuple(steps), guard=[one[1:] for one in found]
    )  # fmt: skip


def _check_application_group(group: str) -> None:
    if is_system_group(group):
        raise Problem(409, f"{group} is a group of the system; brokers manage it")


async def _plan_group_deletion(admin: Admin, body: DeleteGroupBody, declared: TopicsFile) -> ChangePlan:
    _check_application_group(body.group)
    if body.group in {one.name for one in declared.groups}:
        raise _declared(f"group {body.group}")
    found = await plan_group_deletion(admin, body.group)
    if not found.brokers:
        raise Problem(404, f"group {body.group} not found")
    if found.members:
        raise Problem(409, f"consumers of {body.group} are connected ({found.members}); stop them before you delete it")

    async def execute(admin: Admin) -> None:
        await admin.groups.delete(body.group)

    return ChangePlan(
        kind=body.kind, name=body.group, rows=tuple(found.rows), needs_name=True, guard=found.brokers,
        steps=(ChangeStep(", ".join(found.brokers), execute),), warnings=("its dead letters are kept",),
    )  # fmt: skip


def _group_step(broker: str, address: str, config: SubscriptionGroupConfig) -> ChangeStep:
    async def execute(admin: Admin) -> None:
        await admin.brokers.put_group(address, config)

    return ChangeStep(broker, execute)
