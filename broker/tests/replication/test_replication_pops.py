"""Pop consumption over kills and promotions: nothing is lost, and what was acked is never delivered again."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from gantry_histories.events import Journal
from replication.group import Group
from replication.network import Network
from replication.pop_load import Ack, Delivery, PopHistory, PopLoad, judge
from replication.supervisor import NoPromotion, Supervisor

from gantry_testing.client import wait_until

CONSUMERS = 4
PATIENCE_S = 120.0

FIRST = Delivery(b"1", ("0", 0, 7), 0, asked_s=1.0)
ACKED = Ack(b"1", ("0", 0, 7), 0, answered_s=2.0, is_binding=True)
COPY = Delivery(b"1", ("1", 0, 3), 1, asked_s=3.0)


@pytest.mark.parametrize(
    ("history", "violation"),
    [
        (PopHistory({b"1"}, [FIRST], [ACKED]), None),
        (PopHistory({b"1", b"2"}, [FIRST], [ACKED]), "lost"),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=2.5)], [ACKED]), "delivered again"),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=1.5)], [ACKED]), None),
        (PopHistory({b"1"}, [FIRST, FIRST._replace(asked_s=2.5)], [ACKED._replace(is_binding=False)]), None),
        (PopHistory({b"1"}, [FIRST, COPY], [ACKED]), "copied"),
        (PopHistory({b"1"}, [FIRST, COPY, COPY._replace(place=("1", 0, 4))], [ACKED]), None),
    ],
    ids=["good", "lost", "again", "asked before the ack", "late ack", "copied", "copied twice by a crash"],
)
def test_judge_finds_violations(history: PopHistory, violation: str | None) -> None:
    """The judge finds lost and repeated messages, and nothing else."""
    found = judge(history)
    assert [text.partition(":")[0] for text in found] == ([] if violation is None else [violation])


async def promote(supervisor: Supervisor, group: Group) -> None:
    """Promote another member, as soon as that is possible."""
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
    except TimeoutError:
        pytest.fail(f"no member could be promoted: {reason}")


async def wait_for_acks(load: PopLoad, count: int) -> None:
    """Wait until consumers have acked so many messages."""
    await wait_until(lambda: len(load.history.acks) > count, timeout_s=PATIENCE_S, what="acks")


async def run(
    directory: Path, *, members: int, rounds: int, settings: dict[str, str], has_buffers: bool = False
) -> PopHistory:
    """Send and pop while the master is killed again and again; return the history when everything was acked."""
    async with AsyncExitStack() as stack:
        network = stack.enter_context(Network(members, is_isolated=False))
        journal = Journal(stack.enter_context((directory / "history.jsonl").open("wb")))
        group = await stack.enter_async_context(
            Group(directory, network, members=members, settings=settings, has_buffers=has_buffers)
        )
        await group.start()
        supervisor = await stack.enter_async_context(Supervisor(group, journal, acks_needed=members - 1))
        await supervisor.promote_first()
        await group.create_topic(supervisor.master)
        await supervisor.wait_until_caught_up()
        load = PopLoad(group.name_server_address, lambda: supervisor.master.address, seed=rounds)
        sending = asyncio.ensure_future(load.send(200 * rounds))
        consuming = [asyncio.ensure_future(load.consume()) for _ in range(CONSUMERS)]
        for number in range(rounds):
            await wait_for_acks(load, 60 * (number + 1))
            old = supervisor.master
            await old.kill()
            if members == 1:
                await old.process.start()
                await supervisor.promote_most_complete()
                continue
            await promote(supervisor, group)
            await old.process.start()
            await supervisor.order_to_follow([old])
            await supervisor.wait_until_caught_up()
        await sending
        load.is_forgetful = False
        try:
            await wait_until(lambda: load.is_consumed, timeout_s=PATIENCE_S, what="acks of all messages")
        except TimeoutError:
            delivered = [one for one in load.history.deliveries if one.body in load.unacked]
            pytest.fail(f"never acked: {sorted(load.unacked)}; their deliveries: {delivered}")
        load.stop()
        await asyncio.gather(*consuming)
        return load.history


@pytest.mark.verify
@pytest.mark.parametrize("has_buffers", [False, True], ids=["no-buffers", "buffers"])
async def test_killed_broker_loses_no_popped_message_and_repeats_no_acked_one(
    has_buffers: bool, tmp_path: Path
) -> None:
    """A broker that is killed and started again, under load, knows every checkpoint and ack that it has answered."""
    settings = {"brokerRole": "ASYNC_MASTER", "transientStorePoolEnable": str(has_buffers).lower()}
    history = await run(tmp_path, members=1, rounds=5, settings=settings, has_buffers=has_buffers)
    assert judge(history) == []
    assert len(history.deliveries) > len(history.sent), "expected messages to be delivered again"


@pytest.mark.verify
async def test_promoted_slave_loses_no_popped_message_and_repeats_no_acked_one(tmp_path: Path) -> None:
    """A slave that becomes the master knows every checkpoint and ack that its master has answered."""
    history = await run(tmp_path, members=2, rounds=3, settings={"brokerRole": "SYNC_MASTER"})
    assert judge(history) == []
    assert len(history.deliveries) > len(history.sent), "expected messages to be delivered again"
