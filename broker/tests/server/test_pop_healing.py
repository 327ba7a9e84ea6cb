"""A checkpoint that was damaged when the broker read it is applied when a replica has healed it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from test_server_healing import damage_at, running_slave, wait_until_alone, wait_until_copied
from test_server_healing import wait_until_followed as wait_for_slave

from gantry_broker.app import Broker
from gantry_broker.server.pop.checkpoints import Checkpoint, PopState
from gantry_broker.server.pop.healing import HealedCheckpoint, HealedPops
from gantry_broker.server.pop.records import AckRecord, CheckpointRecord, PopRecord, PositionRecord, revive_queue_of
from gantry_testing.local import GROUP, TOPIC, dialogue, running_broker, wait_until
from gantry_testing.popping import ack, pop, send

STEPS = 50
"""More steps of the task than it needs for the few records of a test."""


def running_master(folder: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    """Run a master that does not wait for its slave, so that it continues without it after a start."""
    return running_broker(folder / "master", disk=None, clock=None, brokerRole="ASYNC_MASTER", **conf)


def place_of_record(broker: Broker, number: int, offset: int) -> int:
    """Return the offset in the log of a record of a revive queue."""
    queue = broker.store.queues.get(broker.pops.journal.topic, number)
    assert queue is not None
    unit = queue.unit(offset)
    assert unit is not None
    return unit[0]


@pytest.mark.parametrize("is_guarded", [True, False], ids=["applied", "not applied, the twin"])
async def test_healed_checkpoint_is_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """The start skips it as damaged; when a slave has healed it, its messages are open, except for the acked one."""
    number = revive_queue_of(TOPIC, GROUP, 0)
    async with running_master(tmp_path) as master, dialogue(master) as peer:
        async with running_slave(tmp_path, master) as slave:
            await wait_for_slave(master)
            await send(peer, b"1", b"2", b"3", b"4")
            first = await pop(peer, queueId=0, maxMsgNums=3)
            await pop(peer, queueId=0, maxMsgNums=1)
            assert (await ack(peer, first.receipts[1])).code == 0
            await wait_until_copied(master, slave)
        await wait_until_alone(master)
        damage_at(master, place_of_record(master, number, 0))
    if not is_guarded:
        monkeypatch.setattr(HealedPops, "step", lambda self: False)
    async with running_master(tmp_path, healWait="100") as master:
        journal = master.pops.journal
        await wait_until(lambda: journal.is_ready)
        assert journal.state.open_count == 1, "only the second pop is known"
        async with running_slave(tmp_path, master):
            await wait_until(lambda: master.store.guard.damage.integrity.healed_records == 1)
            for _ in range(STEPS):
                master.pops._step()
            [*found] = sorted(tuple(one.unacked) for one in journal.state.queue(TOPIC, GROUP, 0).open.values())
            assert found == ([(0, 2), (3,)] if is_guarded else [(3,)])
            assert journal.state.start_of(number) == (0 if is_guarded else 1), "a restart must find the checkpoint"


def record(start: int, offsets: Sequence[int], pop_time: int) -> CheckpointRecord:
    return CheckpointRecord(
        start_offset=start, pop_time=pop_time, invisible_time=60_000, queue_id=0, topic=TOPIC, group=GROUP,
        count=len(offsets), distances=[offset - start for offset in offsets],
    )  # fmt: skip


def acks(start: int, offsets: list[int], pop_time: int) -> AckRecord:
    return AckRecord(start_offset=start, pop_time=pop_time, queue_id=0, topic=TOPIC, group=GROUP, several=offsets)


def reset(*, group: str = GROUP, is_void: bool = True) -> PositionRecord:
    return PositionRecord(offset=0, queue_id=0, topic=TOPIC, group=group, is_void=is_void)


@pytest.mark.parametrize(
    ("later", "left"),
    [
        ([], [10, 11, 12]),
        ([acks(10, [11], 1)], [10, 12]),
        ([acks(10, [11], 2)], [10, 11, 12]),
        ([acks(11, [11], 1)], [10, 11, 12]),
        ([record(11, [11, 13], 5)], [10, 12]),
        ([record(12, [12], 5), acks(12, [12], 5), acks(10, [12], 1)], [10, 11]),
        ([reset()], []),
        ([reset(group="other")], [10, 11, 12]),
        ([reset(is_void=False)], [10, 11, 12]),
    ],
)
def test_later_records_decide_what_is_open(later: list[PopRecord], left: list[int]) -> None:
    """An ack of this pop, a later pop of a message, and a reset of this group end messages; other records do not."""
    state = PopState()
    queue = state.queue(TOPIC, GROUP, 0)
    queue.next_offset = 20
    healed = HealedCheckpoint(Checkpoint(queue, 10, 1, 60_000, range(10, 13)), 0, 1, queue.generation)
    for one in later:
        healed.examine(one)
    healed.done = healed.finish()

    assert healed.checkpoint.offsets_of(~healed.done) == left
    assert healed.is_obsolete is not bool(left)


def test_messages_that_the_group_has_or_will_pop_are_left_out() -> None:
    """They are invisible by another pop, or after the next offset; a reset since the healing ends all."""
    state = PopState()
    queue = state.queue(TOPIC, GROUP, 0)
    queue.next_offset = 12
    state.open(Checkpoint(queue, 11, 5, 60_000, (11,)), 7)
    healed = HealedCheckpoint(Checkpoint(queue, 10, 1, 60_000, range(10, 13)), 0, 1, queue.generation)

    assert healed.checkpoint.offsets_of(~healed.finish()) == [10]
    state.void(queue)
    assert healed.is_obsolete


def test_healed_checkpoint_is_the_first_that_a_restart_reads() -> None:
    """Checkpoints are in the order of the log, also one that was added late: the oldest open one limits the start."""
    state = PopState()
    queue = state.queue(TOPIC, GROUP, 0)
    for number in (4, 6, 5):
        state.open(Checkpoint(queue, number, number, 60_000, (number,)), number)
    starts = []
    for number in (4, 5, 6):
        starts.append(state.start_of(queue.revive_queue))
        state.ack(queue.open[number, number], 1)

    assert starts == [4, 5, 6]
