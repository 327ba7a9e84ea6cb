"""Seeded runs of small groups whose brokers are stopped, killed and replaced while messages wait there.

    services   delays, timers, recalls, transactions, tags and dead letters (`service_load`)
    pops       consumers that pop, ack, and forget messages (`pop_load`)
    retention  a consumer that is slower than the deletion of files (`retention_load`)

Each run returns the violations that its judge has found. A run that does not complete raises ``RunIncomplete``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from gantry_histories.events import Journal
from replication import pop_load, retention_load, service_load
from replication.group import QUEUES, Group
from replication.network import Network
from replication.pop_load import PopHistory, PopLoad
from replication.retention_load import RetentionLoad, Rule
from replication.service_load import DEAD, GROUP, TOPIC, Intent, ServiceLoad
from replication.supervisor import NoPromotion, Supervisor

from gantry_client import ConsumerSettings, Producer, ProducerSettings, PushConsumer, StartFrom, TransactionProducer
from gantry_testing.client import wait_until

PATIENCE_S: Final = 120.0
SEND_TIMEOUT_MS: Final = 60_000
ATTEMPTS_MAX: Final = 2
"""How often the failing handler gets a message again before it is a dead letter."""

MESSAGES_PER_KIND: Final = 4
UNDISTURBED_S: Final = (6.5, 7.5)
"""The first pause, in which all delayed messages of the first batch are due. Those of the second wait when it ends."""

JUST_DELIVERED_S: Final = (5.7, 6.3)
"""The pause before a power failure: messages were delivered, and this is saved and not yet flushed."""

FLUSH_MS: Final = 4_000
"""The flush interval before a power failure. What was sent at the beginning of the pause is flushed at its end."""

POP_CONSUMERS: Final = 4
RETENTION_ROUNDS: Final = 4
MESSAGES_PER_ROUND: Final = 200
FILE_BYTES: Final = 256 << 10
DELETION_PAUSE_S: Final = 0.5
"""How long the broker has for some rounds of retention, before the consumer continues."""


class RunIncomplete(Exception):
    """A run did not come to its end, so that nothing was judged."""


class Interruption(StrEnum):
    """What happens to the master of a run of services, each time between two batches of messages."""

    STOP = "clean stop"
    KILL = "kill"
    PROMOTE = "kill, and a promotion"
    POWER = "power failure"


@asynccontextmanager
async def small_group(
    directory: Path, *, members: int, settings: Mapping[str, str], has_buffers: bool = False, has_disks: bool = False
) -> AsyncIterator[tuple[Group, Supervisor]]:
    """Provide a group on 127.0.0.1 with a master and the topic of the loads."""
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(members, is_isolated=False))
        journal = Journal(stack.enter_context((directory / "history.jsonl").open("wb")))
        group = await stack.enter_async_context(
            Group(directory, network, members=members, settings=settings, has_buffers=has_buffers, has_disks=has_disks)
        )
        await group.start()
        supervisor = await stack.enter_async_context(Supervisor(group, journal, acks_needed=members - 1))
        await supervisor.promote_first()
        await group.create_topic(supervisor.master)
        await supervisor.wait_until_caught_up()
        yield group, supervisor


async def _wait_for_nothing() -> None:
    """Let the master start again at once."""


async def replace_master(
    supervisor: Supervisor, group: Group, *, interruption: Interruption = Interruption.KILL,
    during_outage: Callable[[], Awaitable[None]] = _wait_for_nothing,
) -> None:  # fmt: skip
    """Stop the master, kill it, or cut its power. Another member is promoted, or the only one starts again; the old one
    follows it.
    """
    old = supervisor.master
    match interruption:
        case Interruption.STOP:
            await old.process.stop()
        case Interruption.POWER:
            await old.lose_power()
        case _:
            await old.kill()
    await during_outage()
    if len(group.members) == 1:
        await old.process.start()
        await supervisor.promote_most_complete()
        return
    await _promote_another(supervisor, group)
    await old.process.start()
    await supervisor.order_to_follow([old])
    await supervisor.wait_until_caught_up()


async def _promote_another(supervisor: Supervisor, group: Group) -> None:
    reason = ""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    await supervisor.promote_among(group.others(supervisor.master))
                except NoPromotion as error:
                    reason = str(error)
                    await asyncio.sleep(0.05)
                else:
                    return
    except TimeoutError as error:
        raise RunIncomplete(f"no member could be promoted: {reason}") from error


# -- delays, timers, recalls, transactions, tags, dead letters ---------------------------------------------------------


class ServicePlan(NamedTuple):
    """The plan of one run: its seed decides how the master is interrupted, and when."""

    seed: int
    interruption: Interruption
    pauses_s: tuple[float, ...]
    """The pauses after each batch of messages."""

    @property
    def members(self) -> int:
        return 2 if self.interruption is Interruption.PROMOTE else 1

    @property
    def intents(self) -> list[Intent]:
        """The kinds of messages. What a consumer sends back just before a power failure may be lost with it."""
        return [one for one in Intent if self.interruption is not Interruption.POWER or one not in DEAD]


def service_plan(seed: int) -> ServicePlan:
    """Return the plan of a seed. Four seeds in turn have all interruptions."""
    chance = random.Random(f"{seed}/service-plan")
    interruption = list(Interruption)[seed % 4]
    if interruption is Interruption.POWER:
        return ServicePlan(seed, interruption, (chance.uniform(*JUST_DELIVERED_S), chance.uniform(*JUST_DELIVERED_S)))
    return ServicePlan(seed, interruption, (chance.uniform(*UNDISTURBED_S), chance.uniform(0.5, 2.5)))


async def run_services(plan: ServicePlan, directory: Path) -> list[str]:
    """Send messages of all kinds, interrupt the master after each batch, and judge what arrived.

    A consumer ends soon after the interruption, and another one of its group continues.
    """
    role = "SYNC_MASTER" if plan.members > 1 else "ASYNC_MASTER"
    settings = {"brokerRole": role, "transactionTimeOut": "200", "transactionCheckInterval": "200"}
    is_power = plan.interruption is Interruption.POWER
    if is_power:
        settings |= {"flushIntervalCommitLog": str(FLUSH_MS), "flushCommitLogLeastPages": "0"}
    async with small_group(directory, members=plan.members, settings=settings, has_disks=is_power) as (
        group, supervisor,
    ):  # fmt: skip
        address, patient = group.name_server_address, ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS)
        transactions = TransactionProducer(address, "writers", answers_checks=False, settings=patient)
        consuming = ConsumerSettings(
            start_from=StartFrom.FIRST, max_reconsume_times=ATTEMPTS_MAX, rebalance_interval_ms=500
        )
        async with Producer(address, settings=patient) as producer, transactions:
            load = ServiceLoad(producer, transactions, lambda: supervisor.master.address, seed=plan.seed)

            def consumer() -> PushConsumer:
                return PushConsumer(address, GROUP, topics={TOPIC: "*"}, handler=load.handle, settings=consuming)

            for pause_s in plan.pauses_s:
                async with consumer():
                    await load.send(MESSAGES_PER_KIND, plan.intents)
                    await asyncio.sleep(pause_s)
                    load.history.interrupted_ms = load.history.interrupted_ms or service_load.now_ms()
                    load.history.crashes += plan.interruption is not Interruption.STOP
                    await replace_master(
                        supervisor, group, interruption=plan.interruption, during_outage=load.begin_outage
                    )
                    await load.end_outage()
                await load.commit_open(MESSAGES_PER_KIND // 2)
            async with consumer():
                return await load.finish()


# -- pops --------------------------------------------------------------------------------------------------------------


async def run_pops(
    directory: Path, *, members: int, rounds: int, settings: Mapping[str, str], has_buffers: bool = False
) -> PopHistory:
    """Send and pop while the master is killed again and again; return the history when everything was acked."""
    async with small_group(directory, members=members, settings=settings, has_buffers=has_buffers) as (group, watcher):
        load = PopLoad(group.name_server_address, lambda: watcher.master.address, seed=rounds)
        sending = asyncio.ensure_future(load.send(200 * rounds))
        consuming = [asyncio.ensure_future(load.consume()) for _ in range(POP_CONSUMERS)]
        for number in range(rounds):
            await _wait_for_acks(load, 60 * (number + 1))
            await replace_master(watcher, group)
        await sending
        load.is_forgetful = False
        try:
            await wait_until(lambda: load.is_consumed, timeout_s=PATIENCE_S, what="acks of all messages")
        except TimeoutError:
            # Lost messages are findings of the judge. Others are delivered, and their acks fail.
            if not load.history.sent - {one.body for one in load.history.deliveries}:
                again = [one for one in load.history.deliveries if one.body in load.unacked]
                raise RunIncomplete(f"never acked: {sorted(load.unacked)}; their deliveries: {again}") from None
        load.stop()
        await asyncio.gather(*consuming)
        return load.history


async def judge_pops(seed: int, directory: Path) -> list[str]:
    """Run pops as a seed decides, and return the violations."""
    if seed % 3 == 2:
        settings = {"brokerRole": "SYNC_MASTER"}
        return pop_load.judge(await run_pops(directory, members=2, rounds=2, settings=settings))
    has_buffers = seed % 3 == 1
    settings = {"brokerRole": "ASYNC_MASTER", "transientStorePoolEnable": str(has_buffers).lower()}
    history = await run_pops(directory, members=1, rounds=3, settings=settings, has_buffers=has_buffers)
    return pop_load.judge(history)


async def _wait_for_acks(load: PopLoad, count: int) -> None:
    await wait_until(lambda: len(load.history.acks) > count, timeout_s=PATIENCE_S, what="acks")


# -- retention ---------------------------------------------------------------------------------------------------------

RETENTION: Final = {
    Rule.CONSUMED: {"deleteUnconsumed": "false"},
    Rule.UNCONSUMED: {"deleteUnconsumed": "true"},
}
FREE_BYTES: Final = 64 << 20
"""What is left of the disk, which is twice as large."""


async def judge_retention(seed: int, directory: Path) -> list[str]:
    """Delete log files while a slow consumer has consumed a part of them, and return the violations."""
    chance = random.Random(f"{seed}/retention-plan")
    rule = list(Rule)[seed % len(Rule)]
    settings = {
        "brokerRole": "ASYNC_MASTER", "cleanResourceInterval": "100", "mappedFileSizeCommitLog": str(FILE_BYTES),
        "maxMessageSize": str(FILE_BYTES // 4), "diskMaxUsedSpaceRatio": "10", "diskSpaceCleanForciblyRatio": "10",
        **RETENTION[rule],
    }  # fmt: skip
    patient = ProducerSettings(send_timeout_ms=SEND_TIMEOUT_MS)
    async with small_group(directory, members=1, settings=settings, has_disks=True) as (group, supervisor):
        disk, first = group[1].disk, group[1].store / "commitlog" / f"{0:020d}"
        assert disk is not None
        disk.fill(leave_bytes=FREE_BYTES)
        async with Producer(group.name_server_address, settings=patient) as producer:
            load = RetentionLoad(producer, lambda: supervisor.master.address, queues=QUEUES, seed=seed)
            await load.join()
            killed = chance.randrange(RETENTION_ROUNDS)
            for number in range(RETENTION_ROUNDS):
                await load.send(MESSAGES_PER_ROUND)
                await load.consume(chance.random())
                await asyncio.sleep(DELETION_PAUSE_S)
                if number == killed:
                    await replace_master(supervisor, group)
            await load.finish()
        if load.history.unanswered:
            return retention_load.judge(load.history, rule)
        try:
            await wait_until(lambda: not first.exists(), timeout_s=PATIENCE_S, what="the deletion of the oldest file")
        except TimeoutError as error:
            raise RunIncomplete("no file was deleted, so that nothing was judged") from error
        return retention_load.judge(load.history, rule)
