"""What the deletion of a consumer group loses, for the dry run of the command line and the preview of the sidecar."""

from __future__ import annotations

from typing import NamedTuple

from gantry_client.admin import Admin
from gantry_client.errors import BrokerRefused
from gantry_client.setting_changes import ChangeRow
from gantry_wire.names import is_retry_or_dead_letter


class GroupDeletion(NamedTuple):
    """A group as the masters know it."""

    group: str
    brokers: list[str]
    """The masters that have the group; empty if none has."""

    members: int
    """The consumers that are connected now. They would commit their offsets again, and so create the group again."""

    rows: list[ChangeRow]
    """What is deleted on each broker."""


async def plan_group_deletion(admin: Admin, group: str) -> GroupDeletion:
    """Return what the deletion of a group would delete. Raises ClientError."""
    masters = await admin.brokers.masters()
    brokers = [one.name for one in masters if group in await admin.brokers.group_table(one.address)]
    try:
        progress = await admin.groups.progress(group) if brokers else {}
    except BrokerRefused:  # a group that has never consumed
        progress = {}
    rows: list[ChangeRow] = []
    for broker in sorted(brokers):
        own = {queue: one for queue, one in progress.items() if queue.broker_name == broker}
        retries = sum(one.lag for queue, one in own.items() if is_retry_or_dead_letter(queue.topic))
        offsets = [one for queue, one in own.items() if not is_retry_or_dead_letter(queue.topic)]
        rows.append(ChangeRow(broker, "offsets", f"{len(offsets)} queues, lag {sum(one.lag for one in offsets)}", None,
                              "a new consumer begins where it is configured to"))  # fmt: skip
        rows.append(ChangeRow(broker, "waiting retries", f"{retries} messages", None,
                              "they are not delivered any more" if retries else ""))  # fmt: skip
    members = await admin.consumers.connections(group) if brokers else {}
    return GroupDeletion(group, sorted(brokers), len(members), rows)
