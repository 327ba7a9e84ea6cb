"""A scenario for every guard: with the guard nothing is found, without it the checker finds a violation.

A guard is a rule of the broker that keeps a promise of replication (`run_without_guards.GUARDS`). Each scenario is a
function of a scene, that is of a group under load, and ends with all members following the newest master.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gantry_histories.findings import Finding, Kind
from replication.plans import Plan
from replication.rogue import Rogue
from replication.seeded_run import Scene, start_scene
from replication.supervisor import PATIENCE_S

from gantry_status.orders import Follow

CATCH_UP_S: Final = 20.0
"""Seconds in which all members must catch up at the end of a scenario: one that cannot follow never will."""
SITUATION_S: Final = 1.5
"""Seconds that clients stay in a bad situation: long enough for a violation."""
UNCERTAIN_SENDS: Final = 8
"""Sends without a certain result that a scenario waits for."""
UNKNOWN_IDENTITY: Final = "f" * 32
"""The identity of a store that no member has."""
UNKNOWN_BROKER_ID: Final = 9
NO_FLUSH: Final = {"flushIntervalCommitLog": "3600000", "flushCommitLogThoroughInterval": "3600000"}
ASYNC: Final = {"brokerRole": "ASYNC_MASTER", "haGrant": "1000"}


async def slave_stays_with_old_master(scene: Scene) -> None:
    """Both slaves promise, one is promoted, and the other gets no order: it must not keep following the old master."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.faults.send_some()
    winner = await supervisor.promote_among(group.others(old), orders_others=False)
    await asyncio.sleep(SITUATION_S)
    await supervisor.order_to_follow(group.others(winner))
    await scene.faults.send_some()


async def peer_claims_identity_of_slave(scene: Scene) -> None:
    """A peer connects with the identity of one of the slaves."""
    slave = scene.group.others(scene.supervisor.master)[0]
    await peer_acknowledges_and_keeps_nothing(scene, (await slave.status()).identity, slave.number)


async def unknown_peer_joins(scene: Scene) -> None:
    """A peer connects with an identity and a broker id that no member has."""
    await peer_acknowledges_and_keeps_nothing(scene, UNKNOWN_IDENTITY, UNKNOWN_BROKER_ID)


async def peer_acknowledges_and_keeps_nothing(scene: Scene, identity: str, number: int) -> None:
    """Both slaves are cut off, a peer acknowledges messages that it does not keep, and the master dies.

    The slaves are cut off by the network. A slave that is only stopped has received what lies in its socket, and reads
    it when it runs again, so that on a slow machine nothing would be lost.
    """
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    slaves = group.others(old)
    await scene.faults.send_some()
    for slave in slaves:
        group.network.partition(old.number, slave.number)
    async with Rogue(old.host, old.ha_port, identity=identity, number=number) as rogue:
        await scene.load.wait_until(lambda: bool(rogue.acknowledged or rogue.refusals), PATIENCE_S)
        await asyncio.sleep(SITUATION_S)
        await old.kill()
    await scene.faults.fail_over()
    group.network.heal()
    await scene.faults.restart_and_follow(old)
    await scene.faults.send_some()


async def master_outlives_its_grants(scene: Scene) -> None:
    """The master of an asynchronous group is cut off from its slaves, but not from its connected clients."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.faults.send_some()
    for slave in group.others(old):
        group.network.partition(old.number, slave.number)
    old.is_cut_off = True
    await scene.faults.fail_over()
    await scene.faults.send_some()
    await asyncio.sleep(SITUATION_S)
    group.network.heal()
    old.is_cut_off = False
    await supervisor.order_to_follow([old])
    await supervisor.make_all_electable()
    await scene.faults.send_some()


async def one_slave_grants_nothing(scene: Scene) -> None:
    """The master of an asynchronous group is cut off from one slave, which is promoted; the other one still grants."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    promoted, other = group.others(old)
    await scene.faults.send_some()
    group.network.partition(old.number, promoted.number)
    old.is_cut_off = other.is_cut_off = True  # the other one still follows its master, and gets no order
    await scene.faults.fail_over(among=[promoted])
    await scene.faults.send_some()
    await asyncio.sleep(SITUATION_S)
    group.network.heal()
    old.is_cut_off = other.is_cut_off = False
    await supervisor.order_to_follow([old, other])
    await supervisor.make_all_electable()
    await scene.faults.send_some()


async def lagging_slave_is_promoted(scene: Scene) -> None:
    """A master that needs the acks of both slaves is cut off from one and killed, and that slave is promoted."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    lagging, _ = group.others(old)
    await scene.faults.send_some()
    group.network.partition(old.number, lagging.number)
    await asyncio.sleep(SITUATION_S)
    await old.kill()
    await scene.faults.fail_over(among=[lagging])
    group.network.heal()
    await scene.faults.restart_and_follow(old)
    await scene.faults.send_some()


async def consumer_reads_unreplicated_messages(scene: Scene) -> None:
    """A cut-off master accepts messages that no slave gets, while consumers pull from it."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.faults.send_some()
    for slave in group.others(old):
        group.network.partition(old.number, slave.number)
    await wait_for_unknown_sends(scene, UNCERTAIN_SENDS)
    await asyncio.sleep(SITUATION_S)
    old.is_cut_off = True
    await scene.faults.fail_over()
    await scene.faults.send_some()
    group.network.heal()
    old.is_cut_off = False
    await supervisor.order_to_follow([old])
    await scene.faults.send_some()


async def returning_master_is_killed_after_cut(scene: Scene) -> None:
    """A returning master cuts its tail, is killed right after that, and starts again."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.faults.send_some()
    for slave in group.others(old):
        group.network.partition(old.number, slave.number)
    old.is_cut_off = True
    await wait_for_unknown_sends(scene, UNCERTAIN_SENDS)
    await scene.faults.fail_over()
    await scene.faults.send_some()
    group.network.heal()
    old.is_cut_off = False
    log_start = old.process.log_bytes
    await supervisor.order_to_follow([old])
    await old.process.wait_logged("following the master", log_start)
    await old.kill()
    await scene.faults.restart_and_follow(old)
    await scene.faults.send_some()


async def slave_follows_the_old_master(scene: Scene) -> None:
    """A slave is ordered, in the new epoch, to follow the old master, which does not know that its term is over."""
    supervisor, group = scene.supervisor, scene.group
    old = supervisor.master
    await scene.faults.send_some()
    winner = await supervisor.promote_among(group.others(old), orders_others=False)
    [other] = [slave for slave in group.others(old) if slave is not winner]
    await other.orders.call(Follow(epoch=supervisor.epoch, master=old.ha_address))
    await asyncio.sleep(SITUATION_S)
    await supervisor.order_to_follow(group.others(winner))
    await scene.faults.send_some()


async def group_loses_power(scene: Scene) -> None:
    """The whole group loses its power while consumers are behind; no message is sent afterwards."""
    await scene.faults.send_some()
    await asyncio.sleep(SITUATION_S)
    await scene.load.stop()
    members = scene.group.members
    await asyncio.gather(*(member.lose_power() for member in members))
    await asyncio.gather(*(member.process.start() for member in members))
    await scene.supervisor.promote_most_complete()


async def wait_for_unknown_sends(scene: Scene, count: int) -> None:
    """Wait until ``count`` more sends have no answer yet, or an answer that leaves open whether they are stored."""
    history = scene.history
    goal = len(history.sent) - scene.load.acknowledged + count
    await scene.load.wait_until(lambda: len(history.sent) - scene.load.acknowledged >= goal, PATIENCE_S)


class GuardScenario(NamedTuple):
    """A scenario, and the finding that is expected without its guard."""

    run: Callable[[Scene], Awaitable[None]]
    """Creates the situation in a scene of ``plan``."""

    plan: Plan
    kinds: frozenset[Kind]
    """Kinds of findings, of which at least one is expected."""

    has_disks: bool = False
    """Whether each store is on a disk whose power can be cut."""


def _sync(run: Callable[[Scene], Awaitable[None]], *kinds: Kind, **settings: str) -> GuardScenario:
    """Return the scenario of a synchronous group, in which findings of ``kinds`` are expected without the guard."""
    plan = Plan(seed=1, is_sync=True, settings={"brokerRole": "SYNC_MASTER", **settings}, faults=())
    return GuardScenario(run, plan, frozenset(kinds))


GUARD_SCENARIOS: Final = {
    "promises": _sync(slave_stays_with_old_master, Kind.LOST),
    "identity": _sync(peer_claims_identity_of_slave, Kind.LOST),
    "electable": _sync(unknown_peer_joins, Kind.LOST),
    "grants": GuardScenario(
        master_outlives_its_grants, Plan(seed=1, is_sync=False, settings=ASYNC, faults=()), frozenset({Kind.STALE})
    ),
    "every-grant": GuardScenario(
        one_slave_grants_nothing, Plan(seed=1, is_sync=False, settings=ASYNC, faults=()), frozenset({Kind.STALE})
    ),
    "every-ack": _sync(lagging_slave_is_promoted, Kind.LOST, inSyncReplicas="3"),
    "confirmed": _sync(consumer_reads_unreplicated_messages, Kind.VANISHED),
    "offsets": GuardScenario(
        group_loses_power,
        Plan(seed=1, is_sync=False, settings=ASYNC | NO_FLUSH, faults=()),
        frozenset({Kind.BEYOND}),
        True,
    ),
    "durable-cut": _sync(returning_master_is_killed_after_cut, Kind.DIVERGED),
    "stream-epoch": _sync(slave_follows_the_old_master, Kind.LOST),
}
"""Scenarios by the guard's name in ``run_without_guards``."""


async def run_scenario(guard: str, directory: Path, *, without: Sequence[str] = ()) -> list[Finding]:
    """Run the scenario of a guard in network namespaces, and return the judges' findings."""
    scenario = GUARD_SCENARIOS[guard]
    async with start_scene(
        scenario.plan, directory, is_root=True, without=without, has_disks=scenario.has_disks
    ) as scene:
        await scenario.run(scene)
        return await scene.stop_and_check(CATCH_UP_S)
