"""How far consumer groups are, as their masters know it: read and said, all queues of a broker side by side.

Whoever commits for a group wants ordinary tools to see it; nothing here is consumed. Apache's brokers take no offset
of a group that they do not know, and make a group known when it pulls, if their settings allow that: so a stranger
pulls once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from gantry_client import BrokerRefused
from gantry_client.sync import Admin
from gantry_wire.codes import ResponseCode
from pyspark_rocketmq.model import QueueId


async def group_offsets(admin: Admin, address: str, group: str, queues: Sequence[QueueId]) -> dict[QueueId, int | None]:
    """How far a group is in queues of one master; None where it has not begun."""
    replicas = admin.replicas
    found = await asyncio.gather(*(replicas.committed(address, group, queue.topic, queue.number) for queue in queues))
    return dict(zip(queues, found, strict=True))


async def commit_offsets(admin: Admin, address: str, group: str, offsets: Mapping[QueueId, int]) -> None:
    """A group has consumed everything below these offsets of one master's queues."""
    left = dict(offsets)
    queue, offset = left.popitem()
    try:
        await admin.replicas.commit(address, group, queue.topic, queue.number, offset)
    except BrokerRefused as error:
        if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
            raise
        await admin.replicas.pull(address, queue.topic, queue.number, offset, group=group, messages_max=1)
        await admin.replicas.commit(address, group, queue.topic, queue.number, offset)
    await asyncio.gather(
        *(admin.replicas.commit(address, group, one.topic, one.number, value) for one, value in left.items())
    )
