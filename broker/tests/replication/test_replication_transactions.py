"""Transactions over promotions and restarts: each is ended once, however often and at whichever master it is ended.

An application that has recorded its half messages, as the Spark sink does, ends them again after any crash, without
knowing how far it had come.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from gantry_histories.events import Journal
from replication.group import Group, Member
from replication.network import Network
from replication.supervisor import NoPromotion, Supervisor

from gantry_client import (
    BrokerRefused,
    ClientError,
    HalfMessage,
    Message,
    ProducerSettings,
    PullConsumer,
    TransactionProducer,
)
from gantry_testing.client import wait_until

TOPIC = "Histories"
PATIENCE_MS = 60_000
SETTINGS = {"brokerRole": "SYNC_MASTER", "transactionTimeOut": "200", "transactionCheckInterval": "200"}
FEW = pytest.param(60, id="few")
MORE_THAN_IN_MEMORY = pytest.param(4500, id="more-than-in-memory", marks=pytest.mark.slow)
"""More transactions than the 4096 whose outcomes a broker keeps in memory; it finds the others by its key index."""


async def end_all(ends: Sequence[Callable[[HalfMessage], object]], halves: Sequence[HalfMessage]) -> list[object]:
    """End each transaction by each of the functions ``ends``, some at a time, and return the results."""
    results: list[object] = []
    for start in range(0, len(halves), 500):
        work = [end(half) for half in halves[start : start + 500] for end in ends]
        results += await asyncio.gather(*work, return_exceptions=True)  # type: ignore[call-overload]
    return results


async def bodies(address: str) -> list[bytes]:
    """Return all message bodies that a consumer gets from the current master."""
    found: list[bytes] = []
    async with PullConsumer(address, "readers") as consumer:
        for queue in await consumer.queues(TOPIC):
            offset, end = await consumer.min_offset(queue), await consumer.max_offset(queue)
            while offset < end:
                result = await consumer.fetch(queue, offset)
                found += [message.body for message in result.messages]
                offset = result.next_offset
    return found


async def promote(supervisor: Supervisor, group: Group) -> Member:
    """Promote the other member, as soon as that is possible."""
    async with asyncio.timeout(PATIENCE_MS / 1000):
        while True:
            try:
                return await supervisor.promote_among(group.others(supervisor.master))
            except NoPromotion:
                await asyncio.sleep(0.05)


async def restart_and_follow(supervisor: Supervisor, member: Member) -> None:
    """Start a member that has ended, and wait until it follows the master and has its whole log."""
    await member.process.start()
    await supervisor.order_to_follow([member])
    await supervisor.wait_until_caught_up()


@pytest.mark.verify
@pytest.mark.parametrize("count", [FEW, MORE_THAN_IN_MEMORY])
async def test_transaction_is_ended_once_over_promotions_and_restarts(count: int, tmp_path: Path) -> None:
    """A transaction is ended once, also if the master was killed meanwhile; ending it the other way stays refused."""
    third = count // 3
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(2, is_isolated=False))
        journal = Journal(stack.enter_context((tmp_path / "history.jsonl").open("wb")))
        group = await stack.enter_async_context(Group(tmp_path, network, members=2, settings=SETTINGS))
        await group.start()
        supervisor = await stack.enter_async_context(Supervisor(group, journal, acks_needed=1))
        await supervisor.promote_first()
        await group.create_topic(supervisor.master)
        await supervisor.wait_until_caught_up()
        settings = ProducerSettings(send_timeout_ms=PATIENCE_MS)
        address = group.name_server_address
        producer = TransactionProducer(address, "writers", answers_checks=False, settings=settings)
        await stack.enter_async_context(producer)

        async def are_commits_idempotent() -> bool:
            with suppress(ClientError):
                return all((await producer.idempotent_commits(TOPIC)).values())
            return False

        await wait_until(are_commits_idempotent, timeout_s=60, what="a master that ends transactions once")
        halves = [
            half
            for start in range(0, count, 500)
            for half in await asyncio.gather(
                *(producer.begin(Message(TOPIC, b"%d" % n)) for n in range(start, min(count, start + 500)))
            )
        ]
        first, second, third_part = halves[:third], halves[third : 2 * third], halves[2 * third :]
        assert set(await end_all([producer.commit], first)) == {None}
        assert set(await end_all([producer.roll_back], second)) == {None}
        under_way = [asyncio.ensure_future(producer.commit(half)) for half in third_part[:20]]
        old = supervisor.master
        await old.kill()
        await promote(supervisor, group)
        await restart_and_follow(supervisor, old)  # without a slave's ack the end of a transaction gets no answer
        await asyncio.gather(*under_way)

        assert set(await end_all([producer.commit], [*first, *third_part])) == {None}
        assert set(await end_all([producer.roll_back], second)) == {None}
        for wrong in (await end_all([producer.roll_back], first[:5]), await end_all([producer.commit], second[:5])):
            assert {type(error) for error in wrong} == {BrokerRefused}
        newer = supervisor.master
        await newer.kill()
        await promote(supervisor, group)
        await restart_and_follow(supervisor, newer)
        assert set(await end_all([producer.commit], [*first, *third_part])) == {None}
        await supervisor.master.kill()
        await supervisor.master.process.start()
        await supervisor.promote_most_complete()
        assert set(await end_all([producer.commit, producer.commit], [*first, *third_part])) == {None}
        assert set(await end_all([producer.roll_back], second)) == {None}

        counts = Counter(await bodies(address))
        wanted = {b"%d" % n for n in (*range(third), *range(2 * third, count))}
        assert set(counts) == wanted
        assert max(counts.values()) == 1
