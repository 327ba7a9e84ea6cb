"""Damage that a replica heals, connected or not yet: readers wait for it up to ``healWait``, other work for longer."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from test_server_damage import DAMAGED_NUMBER, flip_bit, pull_all, send_all
from test_server_transactions import COMMIT, bodies, check_requests, draft_of_apache, end_transaction, prepare

from gantry_broker.app import Broker
from gantry_broker.server.delay.service import DelayService
from gantry_broker.server.roles.replication import Replication
from gantry_testing.local import TOPIC, dialogue, properties_text, running_broker, truncate_log, wait_until
from gantry_wire import RequestCode, ResponseCode, names

UNIQUE = "A" * 32
EARLY_CHECKS = {"transactionTimeOut": "100", "transactionCheckInterval": "200"}


def running_master(folder: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    return running_broker(folder / "master", disk=None, clock=None, brokerRole="SYNC_MASTER", **conf)


def running_slave(folder: Path, master: Broker) -> AbstractAsyncContextManager[Broker]:
    conf = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.settings.ha_address}
    return running_broker(folder / "slave", disk=None, clock=None, **conf)


async def wait_until_followed(master: Broker) -> None:
    await wait_until(lambda: len(master.replication.acks) == 1)


async def wait_until_copied(master: Broker, slave: Broker) -> None:
    await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote)


async def wait_until_alone(master: Broker) -> None:
    await wait_until(lambda: len(master.replication.acks) == 0)


def damage_at(broker: Broker, place: int, *, at: int = 95) -> None:
    """Flip a bit of the record at ``place``, as another process would."""
    file_size = broker.store.settings.mapped_file_size_commit_log
    path = Path(broker.store.root) / "commitlog" / f"{place - place % file_size:020d}"
    with path.open("r+b") as file:
        file.seek(place % file_size + at)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes((byte ^ 0x10,)))


async def damage_after_the_slave_is_gone(folder: Path, master: Broker) -> list[bytes]:
    """Send messages that a slave has, which is gone now, and damage one of them on the master."""
    async with running_slave(folder, master) as slave:
        await wait_until_followed(master)
        sent = await send_all(master)
        await wait_until_copied(master, slave)
    await wait_until_alone(master)
    flip_bit(master)
    return sent


async def test_consumer_waits_for_a_restarting_slave(tmp_path: Path) -> None:
    """No replica is connected when the damage is found: the message is delivered when one is back."""
    async with running_master(tmp_path) as master:
        sent = await damage_after_the_slave_is_gone(tmp_path, master)
        pulling = asyncio.ensure_future(pull_all(master))
        await wait_until(lambda: master.store.guard.damage.counters.found == 1)

        async with running_slave(tmp_path, master):
            assert await pulling == sent
        assert master.store.guard.damage.integrity.healed_records == 1


async def test_without_waiting_for_a_slave_a_consumer_misses_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: a broker that expects no replica skips the damage at once."""
    monkeypatch.setattr(Replication, "_count_replicas", lambda _: 0)
    async with running_master(tmp_path) as master:
        sent = await damage_after_the_slave_is_gone(tmp_path, master)
        assert await pull_all(master) == sent[:DAMAGED_NUMBER] + sent[DAMAGED_NUMBER + 1 :]


async def test_consumer_waits_for_the_first_slave_after_a_restart(tmp_path: Path) -> None:
    """A master opens before its slaves are connected; a message that was damaged before is not skipped meanwhile."""
    async with running_master(tmp_path) as master:
        sent = await damage_after_the_slave_is_gone(tmp_path, master)
    async with running_master(tmp_path) as master:
        pulling = asyncio.ensure_future(pull_all(master))
        await wait_until(lambda: master.store.guard.damage.counters.found == 1)

        async with running_slave(tmp_path, master):
            assert await pulling == sent


async def test_consumer_waits_for_a_message_missing_in_its_queue(tmp_path: Path) -> None:
    """A start that builds the queues leaves a gap for a damaged message, which is not skipped either."""
    async with running_master(tmp_path) as master:
        sent = await damage_after_the_slave_is_gone(tmp_path, master)
    root = Path(master.store.root)
    shutil.rmtree(root / "consumequeue")
    for name in ("recovery-point.json", "checkpoint"):
        (root / name).unlink()
    async with running_master(tmp_path) as master:
        assert master.store.guard.damage.counters.found == 1
        async with running_slave(tmp_path, master):
            assert await pull_all(master) == sent


async def test_consumer_waits_at_most_heal_wait(tmp_path: Path) -> None:
    """A slave that does not return holds up pulls once, for ``healWait``; then the message is skipped."""
    async with running_master(tmp_path, healWait="1500") as master:
        sent = await damage_after_the_slave_is_gone(tmp_path, master)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await pull_all(master) == sent[:DAMAGED_NUMBER] + sent[DAMAGED_NUMBER + 1 :]
        assert loop.time() - began >= 1.5

        # The second reader does not wait: the record still has the end of its one wait.
        assert not master.store.guard.damage.is_awaited
        assert await pull_all(master, wait_ms=0) == sent[:DAMAGED_NUMBER] + sent[DAMAGED_NUMBER + 1 :]

        async with running_slave(tmp_path, master):
            await wait_until(lambda: master.store.guard.damage.integrity.healed_records == 1)
        assert await pull_all(master) == sent


async def test_message_viewed_by_offset_is_healed(tmp_path: Path) -> None:
    """A query by offset reports the damage as a pull does, and finds the message once it is healed."""
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        await wait_until_followed(master)
        await send_all(master)
        await wait_until_copied(master, slave)
        place = flip_bit(master)
        async with dialogue(master) as client:
            viewed = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
            assert viewed.code == ResponseCode.SYSTEM_ERROR
            await wait_until(lambda: master.store.guard.damage.integrity.healed_records == 1)
            viewed = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(place)})
            assert viewed.code == ResponseCode.SUCCESS


async def test_offset_inside_a_message_is_not_damage(tmp_path: Path) -> None:
    """A client may request any offset: where no record begins nothing is reported as damaged."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        await send_all(broker)
        begin, end_of_log = broker.store.log.min_physical, broker.store.log.wrote
        for place in range(begin, end_of_log):
            broker.store.guard.message_at(place)
        assert broker.store.guard.damage.counters.found == 0


# -- delayed messages --------------------------------------------------------------------------------------------------


async def send_delayed_and_lose_the_slave(folder: Path, master: Broker, *, level: int = 1) -> int:
    """Return the offset of a delayed message that a slave has, which is gone now."""
    async with running_slave(folder, master) as slave:
        await wait_until_followed(master)
        async with dialogue(master) as client:
            text = properties_text(UNIQ_KEY=UNIQUE, DELAY=str(level))
            reply = await client.send_ok(b"delayed body " * 10, properties=text)
        await wait_until_copied(master, slave)
    await wait_until_alone(master)
    return int(reply["msgId"][16:], 16)


def delivered_up_to(broker: Broker, level: int) -> int:
    return broker.delay.progress.next_offset(level)


@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted meanwhile"])
async def test_skipped_delayed_message_is_delivered_when_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """It is damaged when it is due, and no replica connects in time: it is late, delivered once, and not lost."""
    conf = {"healWait": "200", "messageDelayLevel": "1s 5s"}
    async with running_master(tmp_path, **conf) as master:
        with monkeypatch.context() as patch:  # nothing is due before the damage is there, however slow the machine is
            patch.setattr(DelayService, "_deliver_slice", lambda service, level: False)
            damage_at(master, await send_delayed_and_lose_the_slave(tmp_path, master))
        await wait_until(lambda: delivered_up_to(master, 1) == 1)
        assert master.store.guard.damage.counters.found == 1, "expected the damage when the message was due"
        async with dialogue(master) as client:
            assert await bodies(client) == []
        if not is_restarted:
            async with running_slave(tmp_path, master), dialogue(master) as client:
                await wait_until(lambda: master.store.queues.get_or_create(TOPIC, 0).readable_end == 1)
                assert await bodies(client) == [b"delayed body " * 10]
            return
    async with running_master(tmp_path, **conf) as master, running_slave(tmp_path, master):
        master.store.read(names.SCHEDULE_TOPIC, 0, 0, count_max=1, bytes_max=1024, accept=None)  # as the scrubber would
        await wait_until(lambda: master.store.queues.get_or_create(TOPIC, 0).readable_end == 1)


async def test_delivered_delayed_message_is_not_delivered_again_when_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was damaged after its delivery, and healed: its copy is found by the unique key."""
    skip_results = list[bool]()
    was_skipped = DelayService._was_skipped

    def noted(service: DelayService, level: int, message: object) -> bool:
        skip_results.append(was_skipped(service, level, message))  # type: ignore[arg-type]
        return skip_results[-1]

    monkeypatch.setattr(DelayService, "_was_skipped", noted)
    async with (
        running_master(tmp_path, messageDelayLevel="1s 5s") as master,
        running_slave(tmp_path, master) as slave,
        dialogue(master) as client,
    ):
        await wait_until_followed(master)
        text = properties_text(UNIQ_KEY=UNIQUE, DELAY="1")
        place = int((await client.send_ok(b"delayed body " * 10, properties=text))["msgId"][16:], 16)
        await wait_until(lambda: master.store.queues.get_or_create(TOPIC, 0).readable_end == 1)
        await wait_until_copied(master, slave)
        damage_at(master, place)
        assert master.store.guard.message_at(place) is None
        await wait_until(lambda: skip_results == [False])
        assert master.store.guard.damage.integrity.healed_records == 1
        assert await bodies(client) == [b"delayed body " * 10]


# -- transactions ------------------------------------------------------------------------------------------------------


def log_offset_of(half: dict[str, str]) -> int:
    return int(half["msgId"][16:], 16)


async def test_damaged_half_message_is_committed_when_healed(tmp_path: Path) -> None:
    """A commit that finds its half message damaged is answered with 14, and succeeds once the message is healed."""
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        await wait_until_followed(master)
        async with dialogue(master) as peer:
            half = await prepare(peer, b"precious body " * 10)
            await wait_until(lambda: len(master.transactions.journal.halves) == 1)
            await wait_until_copied(master, slave)
            damage_at(master, log_offset_of(half), at=150)

            first = await end_transaction(peer, half, COMMIT)
            assert (first.code, master.store.guard.damage.counters.found) == (ResponseCode.SERVICE_NOT_AVAILABLE, 1)
            await wait_until(lambda: master.store.guard.damage.integrity.healed_records == 1)
            assert (await end_transaction(peer, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await bodies(peer) == [b"precious body " * 10]


async def test_transaction_is_kept_while_its_half_message_may_be_healed(tmp_path: Path) -> None:
    """Its producer is checked when a slave has returned and sent the message, however long that takes."""
    async with running_master(tmp_path, healWait="100", **EARLY_CHECKS) as master, dialogue(master) as peer:
        async with running_slave(tmp_path, master) as slave:
            await wait_until_followed(master)
            half = await prepare(peer, b"precious body " * 10)
            await wait_until(lambda: len(master.transactions.journal.halves) == 1)
            await wait_until_copied(master, slave)
        await wait_until_alone(master)
        damage_at(master, log_offset_of(half), at=150)
        await wait_until(lambda: master.store.guard.damage.counters.found == 1)
        await wait_until(lambda: not master.store.guard.damage.is_awaited)
        assert (len(master.transactions.journal.halves), master.transactions.checker.given_up_count) == (1, 0)

        await peer.heartbeat("p")
        async with running_slave(tmp_path, master):
            await wait_until(lambda: bool(check_requests(peer)))
            assert (await end_transaction(peer, half, COMMIT)).code == ResponseCode.SUCCESS
            assert await bodies(peer) == [b"precious body " * 10]


async def test_half_message_skipped_by_a_start_is_open_when_healed(tmp_path: Path) -> None:
    """It is damaged before the start, and no replica connects in time: its commit is refused until one does."""
    async with running_master(tmp_path) as master, dialogue(master) as peer:
        async with running_slave(tmp_path, master) as slave:
            await wait_until_followed(master)
            gone, ended = await prepare(peer, b"precious body " * 10), await prepare(peer, b"ended before " * 10)
            assert (await end_transaction(peer, ended, COMMIT)).code == ResponseCode.SUCCESS
            await wait_until_copied(master, slave)
        await wait_until_alone(master)
        for half in (gone, ended):
            damage_at(master, log_offset_of(half), at=150)
    async with running_master(tmp_path, healWait="100") as master, dialogue(master) as peer:
        await wait_until(lambda: master.transactions.journal.is_ready)
        assert len(master.transactions.journal.halves) == 0
        assert (await end_transaction(peer, gone, COMMIT)).code == ResponseCode.SERVICE_NOT_AVAILABLE

        async with running_slave(tmp_path, master):
            await wait_until(lambda: master.store.guard.damage.integrity.healed_records == 2)
            await wait_until(lambda: len(master.transactions.journal.halves) == 1)
            assert (await end_transaction(peer, gone, COMMIT)).code == ResponseCode.SUCCESS
            assert sorted(await bodies(peer)) == sorted([b"precious body " * 10, b"ended before " * 10])


async def test_cut_message_is_not_healed(tmp_path: Path) -> None:
    """If another message is at its offset, nothing is damaged, and none is reported as lost."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        async with dialogue(broker) as peer:
            start = log_offset_of(await peer.send_ok(b"kept"))
            place = log_offset_of(await peer.send_ok(b"healed"))
        for topic in (names.HALF_TOPIC, names.OP_HALF_TOPIC, names.SCHEDULE_TOPIC):
            for listener in broker.store.repair.on_healed_record:
                listener(topic, place)
        await truncate_log(broker, start)
        broker.store.append([draft_of_apache(broker, TOPIC, bytes(1000), {})])
        broker.transactions.journal.process_healed()
        broker.delay.healed.process(lambda record: None)

        assert broker.store.log.wrote > place
        assert broker.store.guard.damage.counters.found == 0


async def test_skipped_delayed_messages_after_a_cut_are_forgotten(tmp_path: Path) -> None:
    """Otherwise a message that is healed at the offset of a cut one would be delivered twice."""
    async with running_broker(tmp_path, disk=None, clock=None) as broker:
        async with dialogue(broker) as peer:
            await peer.send_ok(b"kept", properties=properties_text(UNIQ_KEY=UNIQUE, DELAY="5"))
            cut = log_offset_of(await peer.send_ok(b"cut", properties=properties_text(UNIQ_KEY=UNIQUE, DELAY="5")))
        broker.delay._skipped.update({(5, 0), (5, 1)})
        await truncate_log(broker, cut)

        assert broker.delay._skipped == {(5, 0)}


async def test_transactions_after_a_damaged_one_wait(tmp_path: Path) -> None:
    """Messages after it are not read yet: ending one of them waits, and is not refused as unknown."""
    async with running_master(tmp_path) as master, dialogue(master) as peer:
        async with running_slave(tmp_path, master) as slave:
            await wait_until_followed(master)
            first, second = await prepare(peer, b"precious body " * 10), await prepare(peer, b"behind " * 10)
            await wait_until_copied(master, slave)
        await wait_until_alone(master)
        damage_at(master, log_offset_of(first), at=150)
    async with running_master(tmp_path, healWait="60000") as master, dialogue(master) as peer:
        ending = asyncio.ensure_future(end_transaction(peer, second, COMMIT))
        await wait_until(lambda: master.transactions.journal.is_waiting)
        async with running_slave(tmp_path, master):
            assert (await ending).code == ResponseCode.SUCCESS
