"""What consumers committed at the old broker after the switch, brought to ours.

Until its next look at the routes, half a minute by default, a consumer reads on at the old broker and commits there.
Most commit again at ours as soon as they have found it. One that stops in between would begin too early: nothing lost,
but read twice. So for a while whatever is further there is set here; nothing is ever set back.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Final

from gantry_cli.migrate_source import CannotMigrate, Offsets, OldBroker, RemotingPeer, offsets_of
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.documents import write_document

ROUND_S: Final = 5.0


async def follow_up(old: OldBroker, our_address: str, linger_s: float) -> int:
    """Bring commits over for so long. How many offsets were moved; an old broker that has gone ends it."""
    ours = RemotingPeer(our_address)
    moved, deadline = 0, time.monotonic() + linger_s
    try:
        with suppress(CannotMigrate):
            while True:
                moved += await bring(await old.offsets(), ours)
                if time.monotonic() + ROUND_S > deadline:
                    break
                await asyncio.sleep(ROUND_S)
    finally:
        await ours.close()
    return moved


async def bring(theirs: Offsets, ours: RemotingPeer) -> int:
    """Set here what is further there."""
    late = behind(theirs, await offsets_of(ours))
    for (group, topic, queue), offset in late.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        said = await ours.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        if said.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:  # it has begun over there since the switch
            config = write_document(SubscriptionGroupConfig(group_name=group))
            await ours.demand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config)
        if said.code != ResponseCode.SUCCESS:
            await ours.demand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    return len(late)


def behind(theirs: Offsets, ours: Offsets) -> Offsets:
    """What is further there than here."""
    return {key: offset for key, offset in theirs.items() if offset > ours.get(key, -1)}
