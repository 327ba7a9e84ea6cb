"""Masters and slaves in one process, over real sockets: answers, visibility, and changes of roles."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import final

import pytest

from gantry_broker.app import Broker
from gantry_broker.ha.master_session import MasterSession
from gantry_broker.ha.role_files import RoleRecord
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.pull import visibility
from gantry_broker.server.roles import role_host, tail_repair
from gantry_broker.server.roles.role_status import count_slaves_to_compare
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.data_completeness import CompletenessRecord
from gantry_broker.store.sealed_file import write_sealed
from gantry_status.orders import HaRole, OrderRefused
from gantry_store_files import segment_name
from gantry_testing.local import TOPIC, Dialogue, dialogue, expire, local_conf, properties_text, wait_until
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.fastjson import loads
from gantry_wire.message import PHYSICAL_OFFSET

SYNC = {"brokerRole": "SYNC_MASTER"}
UNASSIGNED = {"roleAtStart": "UNASSIGNED"}


@final
class Group:
    """Brokers of one shard; each can be stopped, cleanly or not, and started again on its store."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._confs: dict[str, dict[str, str]] = {}
        self._opened: list[Broker] = []

    async def start(self, name: str, **conf: str) -> Broker:
        known = self._confs.setdefault(name, local_conf(self._root / name, **conf))
        known |= conf
        broker = Broker(broker_settings(known), disk=RealDisk(), clock=SystemClock())
        await broker.start()
        self._opened.append(broker)
        return broker

    async def slave(self, master: Broker, number: int = 1, **conf: str) -> Broker:
        role = {"brokerRole": "SLAVE", "brokerId": str(number), "haMasterAddress": master.settings.ha_address}
        slave = await self.start(f"slave-{number}", **role, **conf)
        await wait_until_following(master, number)
        return slave

    async def close(self) -> None:
        for broker in reversed(self._opened):
            await broker.close()


@asynccontextmanager
async def running_group(tmp_path: Path) -> AsyncIterator[Group]:
    one = Group(tmp_path)
    try:
        yield one
    finally:
        await one.close()


async def wait_until_following(master: Broker, number: int) -> None:
    """Wait until that slave's acks count."""
    await wait_until(lambda: any(one.broker_id == number and one.received >= 0 for one in master.replication.acks))


async def wait_until_copied(master: Broker, slave: Broker) -> None:
    """Wait until a slave has, and shows, everything that its master does."""
    await wait_until(lambda: slave.store.dispatcher.dispatched == master.store.log.wrote == slave.store.log.wrote)


async def bodies(broker: Broker, offset: int = 0) -> list[bytes]:
    async with dialogue(broker) as peer:
        return [message.body for message in await peer.read(offset)]


async def send(broker: Broker, *texts: str) -> list[int]:
    """Send messages, and return the codes of the answers."""
    async with dialogue(broker) as peer:
        return [(await peer.send(text.encode())).code for text in texts]


async def test_synchronous_master_waits_for_a_slave(tmp_path: Path) -> None:
    """Code 0 with a slave; then the slave has the same bytes, and its readers see them."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)

        assert await send(master, "a", "b", "c") == [0, 0, 0]
        assert slave.store.log.wrote == master.store.log.wrote == master.replication.acks.acked_offset()
        await wait_until_copied(master, slave)
        assert await bodies(master) == await bodies(slave) == [b"a", b"b", b"c"]


async def send_unconfirmed(master: Broker) -> int:
    """Send two messages that too few slaves can confirm, and return where the second one begins in the log."""
    assert await send(master, "a") != [0]
    start = master.store.log.wrote
    assert await send(master, "b") != [0]
    return start


def damage_record(directory: Path, start: int) -> None:
    """Damage the length of the record at ``start`` in the first file of a log."""
    with (directory / "commitlog" / segment_name(0)).open("r+b") as file:
        file.seek(start)
        file.write(b"\x7f")


async def test_new_master_gives_no_offset_of_a_damaged_message_away(tmp_path: Path) -> None:
    """It accepts sends only when the damaged end of its log is repaired from a slave."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC, inSyncReplicas="4")
        slave = await members.slave(master, inSyncReplicas="3")
        other = await members.slave(master, 2)
        start = await send_unconfirmed(master)
        await wait_until(lambda: slave.store.log.wrote == other.store.log.wrote == master.store.log.wrote)
        damage_record(tmp_path / "slave-1", start)

        await slave.orders.promote(2_000, [2], force=False)
        assert slave.store.queues.get_or_create(TOPIC, 0).end == 1
        assert not slave.roles._gate.may_append
        await other.orders.follow(2_000, slave.settings.ha_address)
        await wait_until(lambda: slave.roles._gate.may_append)

        assert not slave.store.guard.damage.damaged
        assert slave.store.queues.get_or_create(TOPIC, 0).end == 2


async def test_new_master_gives_a_damaged_message_up_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No slave that may have it returns."""
    monkeypatch.setattr(tail_repair, "WAIT_S", 0.2)
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC, inSyncReplicas="3")
        slave = await members.slave(master, inSyncReplicas="3")
        start = await send_unconfirmed(master)
        await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)
        damage_record(tmp_path / "slave-1", start)

        await slave.orders.promote(2_000, [2], force=False)
        await wait_until(lambda: slave.roles._gate.may_append)

        assert not slave.store.unplaced_damage
        assert slave.store.queues.get_or_create(TOPIC, 0).end == 1


async def test_promotion_of_a_master_hides_no_acknowledged_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unconfirmed tail is read again only after what was acknowledged is visible."""
    monkeypatch.setattr(visibility, "VISIBILITY_DELAY_S", 3600.0)
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        assert await send(master, "a") == [0]
        follow = slave.replication.slave.stop()

        await master.orders.promote(2_000, [], force=False)
        await follow

        assert master.store.dispatcher.dispatched == master.store.log.wrote


async def test_late_consumers_are_sent_only_to_slaves_with_a_broker_id(tmp_path: Path) -> None:
    """A slave of RocketMQ's is counted under a negative number, which no name server knows."""
    far_behind = PHYSICAL_OFFSET.pack(-(1 << 60))
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        suggest, acks = master.pulls._suggest_broker, master.replication.acks
        for identity, broker_id, expected in (("classic 192.0.2.1", -2, 0), ("a store", 2, 2)):
            slave = acks.join(identity, broker_id, 0.0)
            assert slave is not None
            slave.advance(0, -1, 0, 0.0)

            assert suggest(far_behind, 1) == expected
            assert suggest(far_behind, -2) == expected


@pytest.mark.parametrize("is_asked", [True, False], ids=["asked", "not asked, the twin"])
async def test_acknowledged_message_is_visible_to_the_next_pull(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Visibility is updated when the loop is idle, and at the latest by a request."""
    monkeypatch.setattr(visibility, "VISIBILITY_DELAY_S", 3600.0)
    if not is_asked:
        monkeypatch.setattr(visibility.Visibility, "make_visible", lambda one: None)
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        await members.slave(master)

        assert await send(master, "a") == [0]
        assert await bodies(master) == ([b"a"] if is_asked else [])


async def test_held_pull_is_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held pull does not wait until the loop is idle."""
    monkeypatch.setattr(visibility, "VISIBILITY_DELAY_S", 3600.0)
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        await members.slave(master)
        assert await send(master, "a") == [0]
        async with dialogue(master) as consumer:
            pull = consumer.start_pull(1, wait_ms=60_000)
            await wait_until(lambda: master.pulls.hold.count == 1)

            assert await send(master, "b") == [0]
            assert (await asyncio.wait_for(pull, 30)).code == 0


async def test_synchronous_master_without_slaves_answers_11_at_once(tmp_path: Path) -> None:
    """Consumers do not see the message before a slave has it."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)

        assert await send(master, "a") == [ResponseCode.SLAVE_NOT_AVAILABLE]
        assert await bodies(master) == []
        slave = await members.slave(master)
        await wait_until_copied(master, slave)
        assert await bodies(master) == await bodies(slave) == [b"a"]
        assert await send(master, "b") == [0]


async def test_silent_slave_causes_answer_12(tmp_path: Path) -> None:
    """The message is stored, but not promised; when enough slaves have it, consumers see it."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC, slaveTimeout="200")
        slave = await members.slave(master)
        stream = next(iter(master.replication.master.server.streams))
        stream.pause_writing()

        assert await send(master, "a") == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        assert await bodies(master) == []
        stream.resume_writing()
        await wait_until_copied(master, slave)
        assert await bodies(master) == [b"a"]


async def test_degraded_master_continues_without_slaves(tmp_path: Path) -> None:
    """With haDegrade=ASYNC no slave means code 0, and consumers see all; sends wait again for the next slave."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC, haDegrade="ASYNC")

        assert await send(master, "a") == [0]
        assert is_degraded(master)
        assert not master.send_path.ack_gate.must_wait(), "answers wait for slaves that are not counted"
        assert await bodies(master) == [b"a"]
        await members.slave(master)
        assert await send(master, "b") == [0]
        assert not is_degraded(master)
        assert master.replication.acks.acked_offset() == master.store.log.wrote


async def test_degraded_master_needs_the_lease(tmp_path: Path) -> None:
    """Without acks nothing fences a master: where slaves are electable a degraded one needs the Lease."""
    async with running_group(tmp_path) as members:
        conf = {"haDegrade": "ASYNC", "slaveTimeout": "200"}
        master = await members.start("one", **SYNC, **UNASSIGNED, **conf, brokerId="1")
        await master.orders.promote(3, [2], False)

        assert await send(master, "a") == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        await master.orders.lease(master.replication.policy.clock_ms(), 60_000)
        assert await send(master, "b") == [0]


@pytest.mark.verify
@pytest.mark.parametrize("disconnects", [True, False], ids=["disconnects", "keeps the connection, the twin"])
async def test_clients_of_a_moved_address_are_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disconnects: bool
) -> None:
    """A Service leads to an old master for a moment after its role has moved: such clients would stay with a slave."""
    monkeypatch.setattr(role_host, "ADDRESS_MOVE_S", 5.0 if disconnects else 3600.0)
    async with running_group(tmp_path) as members:
        first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await first.orders.promise(300, "test")
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(
            second, 1
        )  # from here on its log is not cut any more, which disconnects clients as well

        async with dialogue(first) as late:
            assert (await late.send(b"x")).code != 0
            if disconnects:
                await wait_until(lambda: not late.channel.is_open)
            else:
                await asyncio.sleep(1.0)
                assert late.channel.is_open


def is_degraded(broker: Broker) -> bool:
    return broker.replication.policy.is_degraded


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("pool", ["", "anonymous", "tmpfs"])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_every_combination_of_flush_and_buffer_replicates(tmp_path: Path, flush: str, pool: str) -> None:
    """The three switches are independent: a slave is fed from the buffer, without waiting for a commit interval."""
    conf = {"flushDiskType": flush}
    if pool:
        conf |= {"transientStorePoolEnable": "true", "transientStorePoolSize": "2", "commitIntervalCommitLog": "60000"}
        conf |= {"commitCommitLogLeastPages": "1000"}
    with memory_folders(pool == "tmpfs") as (first, second):
        async with running_group(tmp_path) as members:
            master = await members.start("master", **SYNC, **conf, transientStorePoolPath=first)
            slave = await members.slave(master, 1, **conf, transientStorePoolPath=second)

            assert await send(master, "a", "b", "c") == [0, 0, 0]
            await wait_until_copied(master, slave)
            assert await bodies(slave) == [b"a", b"b", b"c"]


@contextmanager
def memory_folders(is_wanted: bool) -> Iterator[tuple[str, str]]:
    """Return two folders on a tmpfs, or none."""
    if not is_wanted:
        yield "", ""
        return
    with TemporaryDirectory(dir="/dev/shm") as first, TemporaryDirectory(dir="/dev/shm") as second:
        yield first, second


async def test_slave_refuses_requests_for_a_master(tmp_path: Path) -> None:
    """Sends, new topics, messages sent back and locks are answered 14, so that clients try another broker."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        await send(master, "a")
        await wait_until_copied(master, slave)

        async with dialogue(slave) as peer:
            answers = [
                await peer.send(b"x"),
                await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}),
                await peer.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "G", "delayLevel": "0"}),
                await peer.ask(RequestCode.LOCK_BATCH_MQ),
            ]
            assert [answer.code for answer in answers] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 4
            assert (await peer.pull(0)).code == ResponseCode.SUCCESS


async def test_tables_are_copied_from_the_master(tmp_path: Path) -> None:
    """Topics, groups and consumer offsets are on the slave as on the master, deletions included."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        async with dialogue(master) as peer:
            await make_topic(peer, "Before")
            slave = await members.slave(master)
            await wait_until(lambda: slave.core.topics.find("Before") is not None)
            await make_topic(peer, "After")
            await peer.make_group("GroupA")
            for number in range(7):
                await peer.send_ok(b"%d" % number, topic="Before")
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset_ext("Before", 7))
            await wait_until(lambda: slave.core.topics.find("After") is not None)
            await wait_until(lambda: slave.core.offsets.find("GroupA", "Before", 0) == 7)
            assert "GroupA" in slave.core.groups.all
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Before"})
            await wait_until(lambda: slave.core.topics.find("Before") is None)

    assert loads((tmp_path / "slave-1/config/topics.json").read_text())["topicConfigTable"]["After"]


async def test_topic_that_is_created_again_survives_a_failover(tmp_path: Path) -> None:
    """Its new messages are in its new queues on the slave, too, which has dispatched the old ones."""
    async with running_group(tmp_path) as members:
        master = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        slave = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await master.orders.promote(10, [2], False)
        await slave.orders.follow(10, master.settings.ha_address)
        await wait_until_following(master, 2)
        await send(master, "old", "older")
        await wait_until(lambda: len(slave.store.queues.topics().get(TOPIC, ())) > 0)
        async with dialogue(master) as peer:
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
        await wait_until(lambda: TOPIC not in slave.store.queues.topics())
        await send(master, "new", "newer")
        await wait_until_copied(master, slave)

        await slave.orders.promise(11, "test")
        await slave.orders.promote(11, [], False)

        assert await bodies(slave) == [b"new", b"newer"]


async def test_slave_drops_queues_of_topics_that_were_deleted_while_it_was_away(tmp_path: Path) -> None:
    """It gets their messages, and never their configuration; the queues would use files for ever."""
    async with running_group(tmp_path) as members:
        master = await members.start("one", **UNASSIGNED, brokerId="1")
        await master.orders.promote(10, [], False)
        async with dialogue(master) as peer:
            await make_topic(peer, "Gone")
            await peer.send_ok(b"gone", topic="Gone")
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
        await send(master, "kept")
        slave = await members.start("two", **UNASSIGNED, brokerId="2")
        await slave.orders.follow(10, master.settings.ha_address)
        await wait_until_copied(master, slave)

        await wait_until(lambda: "Gone" not in slave.store.queues.topics())

        assert TOPIC in slave.store.queues.topics()
        assert await bodies(slave) == [b"kept"]


async def make_topic(peer: Dialogue, topic: str) -> None:
    ext = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "defaultTopic": "TBW102"}
    ext |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    assert (await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext)).code == 0


async def test_pending_deletion_of_a_dead_master_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was pending until the log reached its stamp; another master's log has reached it, with the topic in use."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **UNASSIGNED, brokerId="1")
        second = await members.start("two", **UNASSIGNED, brokerId="2")
        await first.orders.promote(1 << 8, [], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        async with dialogue(first) as peer:
            await make_topic(peer, "Kept")
            await wait_until(lambda: second.core.topics.find("Kept") is not None)
            next(iter(first.replication.master.server.streams)).pause_writing()
            await peer.send_ok(b"not copied")
            await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Kept"})
        await wait_until(lambda: "Kept" in second.replication.tables._deleted_on_master)

        await second.orders.promote(300, [], False)
        async with dialogue(second) as peer:
            for number in range(5):
                await peer.send_ok(b"%d" % number, topic="Kept")
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)
        await wait_until_copied(second, first)
        await second.orders.promise(400, "test")
        await first.orders.promote(400, [], False)
        monkeypatch.setattr(first.replication.master.server, "on_join", list)  # as if large tables were still under way
        await second.orders.follow(400, first.settings.ha_address)
        await wait_until_following(first, 2)
        follower = second.replication.slave.follower
        await wait_until(lambda: follower is not None and follower.confirmed >= 0)
        await asyncio.sleep(0.1)
        async with dialogue(second) as peer:
            assert [one.body for one in await peer.read(0, topic="Kept")] == [b"%d" % number for number in range(5)]


def offset_ext(topic: str, offset: int) -> dict[str, str]:
    return {"consumerGroup": "GroupA", "topic": topic, "queueId": "0", "commitOffset": str(offset)}


async def test_drained_switchover_loses_nothing(tmp_path: Path) -> None:
    """Nothing is lost, offsets stay, the old master follows, and its old epoch is over."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        assert (await first.orders.promote(1 << 8, [2], False)).role is HaRole.MASTER
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, "a", "b") == [0, 0]
        async with dialogue(first) as peer:
            await peer.make_group("GroupA")
            await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset_ext(TOPIC, 1))
            await wait_until(lambda: second.core.offsets.find("GroupA", TOPIC, 0) == 1)

            assert (await first.orders.drain(5_000)).is_draining
            assert (await peer.send(b"late")).code == ResponseCode.SERVICE_NOT_AVAILABLE
            promised = await second.orders.promise(300, "test")
            assert (promised.end, promised.granted_ms) == (first.store.log.wrote, 0)
            status = await second.orders.promote(300, [1], False)
            assert (status.role, status.epoch, status.electable) == (HaRole.MASTER, 300, (1,))
            await first.orders.follow(300, second.settings.ha_address)
            await wait_until(lambda: not peer.channel.is_open)
        await wait_until_following(second, 1)
        assert await send(second, "c") == [0]
        await wait_until_copied(second, first)
        assert await bodies(first) == await bodies(second) == [b"a", b"b", b"c"]
        assert first.store.identity.epochs == second.store.identity.epochs
        with pytest.raises(OrderRefused, match="epoch"):
            await first.orders.promote(300, [2], False)


async def test_promoted_slave_applies_pending_resets_once(tmp_path: Path) -> None:
    """A reset that no reader has applied yet is copied, and so is a finished one: no reader is moved twice."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, "a", "b", "c") == [0, 0, 0]
        async with dialogue(first) as peer:
            for name in ("Redirected", "Waiting"):
                await peer.pull(0, consumerGroup=name)
                await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset_ext(name, 1))
            assert (await peer.pull(3, consumerGroup="Redirected")).remark == "OFFSET_RESET"
            assert (await peer.pull(1, consumerGroup="Redirected")).code == ResponseCode.SUCCESS
            await wait_until(lambda: second.core.offsets.resets.is_pending("Waiting", TOPIC, 0))
            await wait_until(lambda: not second.core.offsets.resets.is_pending("Redirected", TOPIC, 0))
        await wait_until_copied(first, second)

        await second.orders.promote(300, [1], False)
        async with dialogue(second) as peer:
            assert second.core.offsets.find("Waiting", TOPIC, 0) == 1
            moved = await peer.pull(3, consumerGroup="Waiting")
            assert (moved.remark, moved.ext["nextBeginOffset"]) == ("OFFSET_RESET", "1")
            assert [one.body for one in await peer.read(1, consumerGroup="Redirected")] == [b"b", b"c"]


def reset_ext(group: str, offset: int) -> dict[str, str]:
    place = {"queueId": "0", "offset": str(offset)}
    return {"topic": TOPIC, "group": group, "timestamp": "-1", "isForce": "true", **place}


async def test_promoted_slave_continues_transactions(tmp_path: Path) -> None:
    """Open transactions can be ended there, once; ended ones are not ended again."""
    async with running_group(tmp_path) as members:
        first = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        second = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await first.orders.promote(1 << 8, [2], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        async with dialogue(first) as peer:
            halves = [await prepare(peer, text.encode()) for text in "abc"]
            assert (
                await end_transaction(peer, halves[0], COMMIT) == await end_transaction(peer, halves[1], ROLL_BACK) == 0
            )
        promised = await second.orders.promise(300, "test")
        assert promised.end == first.store.log.wrote
        await second.orders.promote(300, [1], False)
        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)
        async with dialogue(second) as peer:
            assert await end_transaction(peer, halves[2], COMMIT) == await end_transaction(peer, halves[0], COMMIT) == 0
            assert await end_transaction(peer, halves[1], COMMIT) == ResponseCode.ILLEGAL_OPERATION
        assert len(second.transactions.journal.halves) == 0
        await wait_until_copied(second, first)
        assert await bodies(first) == await bodies(second) == [b"a", b"c"]


COMMIT, ROLL_BACK = "8", "12"


async def prepare(peer: Dialogue, body: bytes) -> dict[str, str]:
    """Send a half message, and return the answer."""
    text = properties_text(UNIQ_KEY=body.hex().zfill(32), TRAN_MSG="true", PGROUP="producers")
    return await peer.send_ok(body, properties=text)


async def end_transaction(peer: Dialogue, half: dict[str, str], how: str) -> int:
    ext = {"producerGroup": "producers", "tranStateTableOffset": half["queueOffset"], "commitOrRollback": how}
    ext["commitLogOffset"] = str(int(half["msgId"][16:], 16))
    return (await peer.ask(RequestCode.END_TRANSACTION, ext)).code


async def test_unassigned_broker_answers_14_and_keeps_its_promise(tmp_path: Path) -> None:
    """Before an order nothing is served; a promise survives a restart, and older orders are refused."""
    async with running_group(tmp_path) as members:
        broker = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        assert await send(broker, "a") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        await broker.orders.promise(7, "test")
        await broker.close()
        broker = await members.start("one")

        with pytest.raises(OrderRefused, match="7"):
            await broker.orders.promise(6, "another master")
        with pytest.raises(OrderRefused, match="7"):
            await broker.orders.promote(6, [], False)
        with pytest.raises(OrderRefused, match="7"):
            await broker.orders.follow(6, "127.0.0.1:1")
        assert (await broker.orders.status()).promised_epoch == 7


async def test_configured_master_with_a_newer_promise_serves_nothing(tmp_path: Path) -> None:
    """Its problem names both epochs, and no other master: a fence order promises an epoch, too."""
    async with running_group(tmp_path) as members:
        broker = await members.start("one")
        await broker.orders.fence(7)
        await broker.close()
        broker = await members.start("one")

        status = await broker.orders.status()
        assert await send(broker, "a") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        assert status.role is HaRole.UNASSIGNED
        assert status.problem == "epoch 7 was promised, and the log of this broker is of epoch 1"


async def test_fenced_master_disconnects_its_clients_and_refuses_sends(tmp_path: Path) -> None:
    """A broker that has promised a newer epoch is not the master from that moment on."""
    async with running_group(tmp_path) as members:
        broker = await members.start("one", **UNASSIGNED, brokerId="1")
        await broker.orders.promote(5, [], False)
        async with dialogue(broker) as peer:
            assert (await peer.send(b"a")).code == 0
            await broker.orders.promise(6, "test")
            await wait_until(lambda: not peer.channel.is_open)
        assert await send(broker, "b") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        assert (await broker.orders.status()).role is HaRole.UNASSIGNED


async def test_unconfirmed_tail_is_cut_when_the_old_master_follows(tmp_path: Path) -> None:
    """The old master's extra messages are deleted, and no consumer had seen them."""
    async with running_group(tmp_path) as members:
        old = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        new = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        await old.orders.promote(10, [2], False)
        await new.orders.follow(10, old.settings.ha_address)
        await wait_until_following(old, 2)
        assert await send(old, "a") == [0]
        await new.orders.promise(11, "test")
        assert set(await send(old, "lost-1", "lost-2")) <= {ResponseCode.SLAVE_NOT_AVAILABLE}
        assert await bodies(old) == [b"a"]

        await new.orders.promote(11, [1], False)
        await old.orders.follow(11, new.settings.ha_address)
        await wait_until_following(new, 1)
        assert await send(new, "b") == [0]
        await wait_until_copied(new, old)
        assert await bodies(old) == await bodies(new) == [b"a", b"b"]


@pytest.mark.parametrize("role", [{}, SYNC], ids=["async", "sync"])
async def test_new_messages_are_visible_after_the_log_was_copied_again(tmp_path: Path, role: dict[str, str]) -> None:
    """It was the master before, and had cached the queues, which changed when the whole log was copied."""
    conf = {**UNASSIGNED, "mappedFileSizeCommitLog": str(128 << 10), "maxMessageSize": str(64 << 10)}
    async with running_group(tmp_path) as members:
        first = await members.start("one", **conf, **role, brokerId="1")
        second = await members.start("two", **conf, brokerId="2")
        await first.orders.promote(1 << 8, [], False)
        await second.orders.follow(1 << 8, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, "a", "b") == [0, 0]
        await wait_until_copied(first, second)
        await first.orders.promise(300, "test")
        await second.orders.promote(300, [], False)
        assert await send(second, *["small"] * 130, *["large" * 4_000] * 14) == [0] * 144
        await expire(second)
        assert second.store.log.min_physical > first.store.log.wrote, "nothing that the first one lacks was deleted"

        await first.orders.follow(300, second.settings.ha_address)
        await wait_until_following(second, 1)
        await wait_until_copied(second, first)
        assert first.store.is_log_discarded
        await second.orders.promise(400, "test")
        await first.orders.promote(400, [], False)
        await second.orders.follow(400, first.settings.ha_address)
        await wait_until_following(first, 2)
        assert await send(first, "c", "d") == [0, 0]
        assert await bodies(first, 146) == [b"c", b"d"]


async def test_start_after_a_possible_loss_compares_with_slaves_first(tmp_path: Path) -> None:
    """Nothing is appended before the comparison with slaves that may have the lost messages, which are fetched."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        assert await send(master, "a") == [0]
        before = master.store.log.wrote
        assert await send(master, "b", "c") == [0, 0]
        whole = master.store.log.wrote
        await wait_until_copied(master, slave)
        await slave.close()
        await master.close()
        lose_tail(tmp_path / "master", before)

        master = await members.start("master")
        assert (await master.orders.status()).role is HaRole.COMPARING
        assert await send(master, "x") == [ResponseCode.SERVICE_NOT_AVAILABLE]
        slave = await members.start("slave-1")
        await wait_until(lambda: master.roles.role is HaRole.MASTER)
        await wait_until_following(master, 1)
        assert master.store.identity.epochs[-1].start == whole
        assert await send(master, "d") == [0]
        await wait_until_copied(master, slave)
        assert await bodies(master) == await bodies(slave) == [b"a", b"b", b"c", b"d"]


async def test_compared_master_that_fails_to_take_its_role_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, for example, refuses the record of the new role; with space the broker becomes master by itself."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        assert await send(master, "a") == [0]
        before = master.store.log.wrote
        assert await send(master, "b") == [0]
        await wait_until_copied(master, slave)
        await slave.close()
        await master.close()
        lose_tail(tmp_path / "master", before)
        master = await members.start("master")
        write, failures = master.roles.role_file.write, list[RoleRecord]()

        def fail_once(record: RoleRecord) -> None:
            if not failures:
                failures.append(record)
                raise OSError(errno.ENOSPC, "No space left on device")
            write(record)

        monkeypatch.setattr(master.roles.role_file, "write", fail_once)
        await members.start("slave-1")

        await wait_until(lambda: master.roles.role is HaRole.MASTER)
        assert len(failures) == 1
        await wait_until_following(master, 1)
        assert await send(master, "c") == [0]
        assert await bodies(master) == [b"a", b"b", b"c"]


async def test_stopping_broker_begins_no_term(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replication port is open until its log is flushed: a slave is compared, but the role does not change."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        assert await send(master, "a") == [0]
        before = master.store.log.wrote
        assert await send(master, "b") == [0]
        await slave.close()
        await master.close()
        lose_tail(tmp_path / "master", before)
        master = await members.start("master")
        epoch = master.store.identity.epoch

        await master.roles.close()
        handle, handled = master.roles._on_slave_refused, asyncio.Event()

        def record(session: MasterSession) -> None:
            handle(session)
            handled.set()

        monkeypatch.setattr(master.replication.master, "_on_refused", record)
        await members.start("slave-1")
        await asyncio.wait_for(handled.wait(), 120)
        await master.roles.close()

        assert (master.roles.role, master.store.identity.epoch) == (HaRole.COMPARING, epoch)


async def test_silent_slave_does_not_use_up_the_time_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is closed cleanly within a short `shutdownTimeout`, of which at most half is spent on slaves."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC, shutdownTimeout="1000")
        await members.slave(master)
        monkeypatch.setattr(type(master.replication.master), "have_slaves_caught_up", False)

        assert await master.close()


async def test_stopping_slave_follows_no_found_master(tmp_path: Path) -> None:
    """A name server may report another master until the registration is closed, which is later."""
    async with running_group(tmp_path) as members:
        slave = await members.start("slave", brokerRole="SLAVE", brokerId="1")
        await slave.roles.close()

        slave.roles.follow_found_master("127.0.0.1:1")
        await slave.roles.close()

        assert slave.roles.role_file.record.master == ""


@pytest.mark.parametrize("is_compared", [True, False], ids=["after a comparison", "without slaves"])
async def test_doubt_ends_with_a_new_term_of_a_configured_master(tmp_path: Path, is_compared: bool) -> None:
    """Its log is the valid one then. A term that continues after a clean stop proves nothing."""
    doubt = CompletenessRecord(is_complete=False, machine="another run", is_crash_safe=True)
    async with running_group(tmp_path) as members:
        master = await members.start("master", **(SYNC if is_compared else {}))
        slave = await members.slave(master) if is_compared else None
        assert await send(master, "a") == [0]
        for _ in range(2):
            await master.close()
            write_sealed(RealDisk(), str(tmp_path / "master/completeness.json"), doubt)
            master = await members.start("master")
            assert (master.store.identity.epoch, master.roles.completeness.is_complete) == (1, False)
        await master.close()
        if slave is not None:
            await slave.close()
        (tmp_path / "master/abort").touch()

        master = await members.start("master")
        assert (master.roles.role is HaRole.COMPARING) is is_compared
        if is_compared:
            assert master.roles.completeness.is_complete is False
            await members.start("slave-1")
        await wait_until(lambda: master.roles.completeness.is_complete is True)
        assert (master.roles.role, master.store.identity.epoch) == (HaRole.MASTER, 2)
        await master.close()
        assert (await members.start("master")).roles.completeness.is_complete is True


def lose_tail(store: Path, end: int) -> None:
    """Zero the log from an offset on, and mark the stop as unclean, as after a power loss."""
    log = store / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(end)
        file.write(bytes(size - end))
    (store / "recovery-point.json").unlink()
    (store / "abort").touch()


async def test_asynchronous_master_without_grants_stops_acknowledging(tmp_path: Path) -> None:
    """While a slave may have been promoted nothing is acknowledged; with its grant, or a Lease, it is."""
    async with running_group(tmp_path) as members:
        master = await members.start("one", **UNASSIGNED, brokerId="1", slaveTimeout="200", haGrant="1000")
        slave = await members.start("two", **UNASSIGNED, brokerId="2", haGrant="1000")
        await master.orders.promote(3, [2], False)

        assert await send(master, "a") == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        assert "2" in (await master.orders.status()).problem
        await slave.orders.follow(3, master.settings.ha_address)
        await wait_until(master.replication.policy.may_acknowledge)
        async with asyncio.timeout(120):
            while await send(master, "b") != [0]:  # a grant may end before a send on a busy machine
                pass

        promised = await slave.orders.promise(4, "test")
        assert promised.granted_ms <= 1000
        await wait_until(lambda: not master.replication.policy.may_acknowledge())
        assert await send(master, "c") == [ResponseCode.FLUSH_SLAVE_TIMEOUT]
        await master.orders.lease(master.replication.policy.clock_ms(), 60_000)
        assert await send(master, "d") == [0]


@pytest.mark.parametrize(
    ("electable", "acks", "needed"),
    [([], 1, 1), ([1, 2], 1, 2), ([1, 2], 2, 1), ([1], 0, 1), ([], 0, 0), ([1, 2, 3], 2, 2)],
)
def test_enough_slaves_are_compared(electable: list[int], acks: int, needed: int) -> None:
    """Any set of that many slaves includes one that has every acknowledged message."""
    assert count_slaves_to_compare(electable, acks) == needed


async def test_unconfirmed_messages_are_hidden_after_a_restart(tmp_path: Path) -> None:
    """Recovery shows no more than was confirmed: a tail that only this disk has may be cut by the next master."""
    async with running_group(tmp_path) as members:
        master = await members.start("master", **SYNC)
        slave = await members.slave(master)
        assert await send(master, "a") == [0]
        await wait_until_copied(master, slave)
        await slave.close()
        await wait_until(lambda: len(master.replication.acks) == 0)
        assert await send(master, "hidden") == [ResponseCode.SLAVE_NOT_AVAILABLE]
        await master.close()

        master = await members.start("master")
        assert await bodies(master) == [b"a"]
        slave = await members.start("slave-1")
        await wait_until_following(master, 1)
        await wait_until_copied(master, slave)
        assert await bodies(master) == [b"a", b"hidden"]


def refuse_write(record: RoleRecord) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_orders_are_idempotent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repeated order is accepted, and has no further effect."""
    async with running_group(tmp_path) as members:
        master = await members.start("one", **SYNC, **UNASSIGNED, brokerId="1")
        slave = await members.start("two", **SYNC, **UNASSIGNED, brokerId="2")
        for _ in range(2):
            await master.orders.promote(3, [2], False)
            await slave.orders.follow(3, master.settings.ha_address)
        await wait_until_following(master, 2)
        follower = slave.replication.slave.follower
        await slave.orders.follow(3, master.settings.ha_address)
        assert slave.replication.slave.follower is follower
        epochs = list(master.store.identity.epochs)
        await master.orders.drain(5_000)
        await master.orders.promote(3, [2], False)
        assert await send(master, "a") == [0]
        assert list(master.store.identity.epochs) == epochs
        write = master.roles.role_file.write
        for _ in range(2):
            assert (await master.orders.fence(4)).role is HaRole.UNASSIGNED
            monkeypatch.setattr(master.roles.role_file, "write", refuse_write)  # a later promise needs no record
        monkeypatch.setattr(master.roles.role_file, "write", write)
    await asyncio.sleep(0)
