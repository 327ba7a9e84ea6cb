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
from gantry_wire import RequestCode

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
        await ours.demand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    return len(late)


def behind(theirs: Offsets, ours: Offsets) -> Offsets:
    """What is further there than here."""
    return {key: offset for key, offset in theirs.items() if offset > ours.get(key, -1)}
