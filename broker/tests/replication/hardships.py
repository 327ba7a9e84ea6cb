"""For every guard a hardship that it is there for: with it nothing is found, without it the checker finds something.

Each is a function of a scene under load, and ends with everybody following the newest master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from gantry_histories.findings import Kind
from replication.plans import Plan
from replication.rogue import Rogue
from replication.rounds import Scene
from replication.supervisor import PATIENCE_S

from gantry_status.orders import Follow

MEANWHILE_S: Final = 1.5
"""How long clients stay in a bad situation: long enough for what must not happen."""
UNKNOWN_SOME: Final = 8
STRANGER: Final = "f" * 32
STRANGERS_NUMBER: Final = 9
NO_FLUSH: Final = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
ASYNC: Final = {"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}


async def promise_and_stay(scene: Scene) -> None:
    """Both slaves promise, one is promoted, and the other is told nothing: it must not follow its old master."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.drama.some()
    winner = await supervisor.promote_among(group.others(old), tells_others=False)
    await asyncio.sleep(MEANWHILE_S)
    await supervisor.gather(group.others(winner))
    await scene.drama.some()


async def claim_to_be_two(scene: Scene) -> None:
    """Somebody calls itself one of the slaves."""
    slave = scene.group.others(scene.supervisor.master)[0]
    await take_all_and_keep_nothing(scene, (await slave.status()).identity, slave.number)


async def come_from_nowhere(scene: Scene) -> None:
    """Somebody has a name and a number of its own, which nobody has heard of."""
    await take_all_and_keep_nothing(scene, STRANGER, STRANGERS_NUMBER)


async def take_all_and_keep_nothing(scene: Scene, identity: str, number: int) -> None:
    """Both slaves hang, somebody acknowledges what it does not keep, and the master dies."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    slaves = group.others(old)
    await scene.drama.some()
    for slave in slaves:
        slave.pause()
    async with Rogue(old.host, old.ha_port, identity=identity, number=number) as rogue:
        await scene.load.wait_until(lambda: bool(rogue.acknowledged or rogue.refusals), PATIENCE_S)
        await asyncio.sleep(MEANWHILE_S)
        await old.kill()
    for slave in slaves:
        slave.resume()
    await scene.drama.fail_over()
    await scene.drama.come_back(old)
    await scene.drama.some()


async def outlive_the_grants(scene: Scene) -> None:
    """The master of an asynchronous group is cut off from its slaves, but not from clients that stay with it."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.drama.some()
    for slave in group.others(old):
        group.network.part(old.number, slave.number)
    old.is_cut_off = True
    await scene.drama.fail_over()
    await scene.drama.some()
    await asyncio.sleep(MEANWHILE_S)
    group.network.heal()
    old.is_cut_off = False
    await supervisor.gather([old])
    await supervisor.renew()
    await scene.drama.some()


async def read_what_nobody_else_has(scene: Scene) -> None:
    """A cut-off master takes messages that no slave gets, while consumers ask it for more."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.drama.some()
    for slave in group.others(old):
        group.network.part(old.number, slave.number)
    await wait_unknown(scene, UNKNOWN_SOME)
    await asyncio.sleep(MEANWHILE_S)
    old.is_cut_off = True
    await scene.drama.fail_over()
    await scene.drama.some()
    group.network.heal()
    old.is_cut_off = False
    await supervisor.gather([old])
    await scene.drama.some()


async def rise_again(scene: Scene) -> None:
    """A returning master cuts its tail, is killed right after that, and starts again."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.drama.some()
    for slave in group.others(old):
        group.network.part(old.number, slave.number)
    old.is_cut_off = True
    await wait_unknown(scene, UNKNOWN_SOME)
    await scene.drama.fail_over()
    await scene.drama.some()
    group.network.heal()
    old.is_cut_off = False
    log_start = old.process.log_bytes
    await supervisor.gather([old])
    await old.process.wait_logged("following the master", log_start)
    await old.kill()
    await scene.drama.come_back(old)
    await scene.drama.some()


async def follow_the_wrong_one(scene: Scene) -> None:
    """A slave is told, in the new epoch, to follow the address of the old master, which has missed its end."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.drama.some()
    winner = await supervisor.promote_among(group.others(old), tells_others=False)
    [other] = [slave for slave in group.others(old) if slave is not winner]
    await other.orders.call(Follow(epoch=supervisor.epoch, master=old.ha_address))
    await asyncio.sleep(MEANWHILE_S)
    await supervisor.gather(group.others(winner))
    await scene.drama.some()


async def forget_together(scene: Scene) -> None:
    """The whole group loses its power, with a tail that consumers are behind of; nothing is sent afterwards."""
    await scene.drama.some()
    await asyncio.sleep(MEANWHILE_S)
    await scene.load.stop()
    members = scene.group.members
    await asyncio.gather(*(member.lose_power() for member in members))
    await asyncio.gather(*(member.process.start() for member in members))
    await scene.supervisor.reinstate()


async def wait_unknown(scene: Scene, count: int) -> None:
    """Until so many more sends are under way without an answer, or were told that it is not sure."""
    history = scene.history
    goal = len(history.sent) - scene.load.acknowledged + count
    await scene.load.wait_until(lambda: len(history.sent) - scene.load.acknowledged >= goal, PATIENCE_S)


class Hardship(NamedTuple):
    """One of them, and what must be found without its guard."""

    play: Callable[[Scene], Awaitable[None]]
    plan: Plan
    kinds: frozenset[Kind]
    """One of these, at least."""

    has_disks: bool = False


def _sync(play: Callable[[Scene], Awaitable[None]], *kinds: Kind) -> Hardship:
    return Hardship(play, Plan(1, True, {"brokerRole": "SYNC_MASTER"}, ()), frozenset(kinds))


HARDSHIPS: Final = {
    "promises": _sync(promise_and_stay, Kind.LOST),
    "identity": _sync(claim_to_be_two, Kind.LOST),
    "electable": _sync(come_from_nowhere, Kind.LOST),
    "grants": Hardship(outlive_the_grants, Plan(1, False, ASYNC, ()), frozenset({Kind.STALE})),
    "confirmed": _sync(read_what_nobody_else_has, Kind.VANISHED),
    "offsets": Hardship(forget_together, Plan(1, False, ASYNC | NO_FLUSH, ()), frozenset({Kind.BEYOND}), True),
    "durable-cut": _sync(rise_again, Kind.DIVERGED),
    "stream-epoch": _sync(follow_the_wrong_one, Kind.LOST),
}
"""By the guard's name in ``without``."""
