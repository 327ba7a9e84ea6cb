"""What a change of settings means: each value of a topic or a group before and after, with its effect on clients.

Pure functions, for the dry runs of the command line and the previews of the sidecar.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_wire.commands.admin import SubscriptionGroupConfig, TopicConfig

PERMISSION_TEXTS: Final = {6: "read, write", 4: "read", 2: "write", 0: "none"}


class ChangeRow(NamedTuple):
    """One value that a plan changes."""

    place: str
    """The broker, or the queue as `broker:queue`."""
    setting: str
    before: str | None
    """The present value; None if there is none."""
    after: str | None
    """The new value; None if the thing is deleted."""
    effect: str
    """What it means for clients; empty if nothing else happens."""


def topic_rows(broker: str, before: TopicConfig | None, after: TopicConfig) -> list[ChangeRow]:
    """Return the settings of a topic that differ; all of them if it is created."""
    old_write, old_read = (0, 0) if before is None else (before.write_queue_nums, before.read_queue_nums)
    rows: list[ChangeRow] = []

    def add(setting: str, old: str, new: str, effect: str) -> None:
        if before is None or old != new:
            rows.append(ChangeRow(broker, setting, None if before is None else old, new, effect))

    add("write queues", str(old_write), str(after.write_queue_nums), _write_effect(old_write, after, before))
    lost = old_read - after.read_queue_nums
    add("read queues", str(old_read), str(after.read_queue_nums),
        f"messages in {lost} queues cannot be consumed any more" if lost > 0 else "")  # fmt: skip
    old_permission = 0 if before is None else before.perm
    stopped = [text for bit, text in ((2, "sends are refused"), (4, "consumption stops")) if not after.perm & bit]
    add("permission", _permission_text(old_permission), _permission_text(after.perm), "; ".join(stopped))
    return rows


def _write_effect(old: int, after: TopicConfig, before: TopicConfig | None) -> str:
    if before is None:
        return "clients find the topic with their next query"
    if after.write_queue_nums < old:
        return f"producers stop sending to {old - after.write_queue_nums} queues, which consumers can drain"
    return "clients use the new queues within 30 s; messages of an ordered key may change their queue"


def _permission_text(permission: int) -> str:
    return PERMISSION_TEXTS[permission & 6]


def group_rows(broker: str, before: SubscriptionGroupConfig, after: SubscriptionGroupConfig) -> list[ChangeRow]:
    """Return the settings of a group that differ."""
    rows: list[ChangeRow] = []
    if before.retry_max_times != after.retry_max_times:
        effect = f"a message becomes a dead letter after {after.retry_max_times} redeliveries"
        rows.append(
            ChangeRow(broker, "redeliveries", str(before.retry_max_times), str(after.retry_max_times), effect)
        )  # fmt: skip
    if before.consume_enable != after.consume_enable:
        effect = "members consume again" if after.consume_enable else "consumption stops; the lag grows"
        words = {True: "enabled", False: "disabled"}
        rows.append(
            ChangeRow(broker, "consumption", words[before.consume_enable], words[after.consume_enable], effect)
        )  # fmt: skip
    return rows
