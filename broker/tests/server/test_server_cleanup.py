"""Cleaning unused queues (316), resuming transactions (323), and listing producers (328)."""

from __future__ import annotations

from pathlib import Path

from test_server_roles import running_group, wait_until_copied
from test_server_transactions import (
    COMMIT,
    answer_ext,
    asking_broker,
    bodies,
    check_requests,
    end_ext,
    end_transaction,
    prepare,
)

from gantry_broker.app import Broker
from gantry_testing.local import (
    GROUP,
    TOPIC,
    Dialogue,
    RawPeer,
    dialogue,
    running_broker,
    send_ext,
    truncate_log,
    wait_until,
)
from gantry_wire import Command, RequestCode, ResponseCode, decode_command, names, oneway

# ------- queues without a topic


async def test_only_queues_without_a_topic_are_deleted(broker: Broker, client: Dialogue) -> None:
    """On the disk, too; the broker's own topics have their queues whether they are in the table or not."""
    await client.send_ok(b"x")
    await client.send_ok(b"x", topic="Left")
    await client.send_ok(b"later", topic="Late", properties="DELAY\x011\x02")
    broker.core.topics.delete("Left")  # and not its queues: as people do with files
    broker.core.topics.delete(names.SCHEDULE_TOPIC)

    assert (await client.ask(316)).code == 0
    assert set(broker.store.queues.topics()) == {TOPIC, names.SCHEDULE_TOPIC}
    queues = Path(broker.settings.store_path) / "consumequeue"
    assert sorted(one.name for one in queues.iterdir()) == [names.SCHEDULE_TOPIC, TOPIC]
    assert [message.body for message in await client.read()] == [b"x"]
    assert (await client.send_ok(b"new", topic="Left"))["queueOffset"] == "0"


async def test_slave_deletes_no_queue_without_a_topic(tmp_path: Path) -> None:
    """A topic's name may come after its first message: there is nothing to clean on a slave."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        async with dialogue(master) as client:
            await client.send_ok(b"x")
        await wait_until_copied(master, slave)
        await wait_until(lambda: slave.core.topics.find(TOPIC) is not None)
        slave.core.topics.delete(TOPIC)
        async with dialogue(slave) as client:
            assert (await client.ask(316)).code == 0
        assert TOPIC in slave.store.queues.topics()


# ------- transactions that were given up


async def give_up_transaction(broker: Broker, peer: Dialogue) -> str:
    """Let the broker give up a transaction; return the offset id of its message."""
    await prepare(peer, b"who knows")
    await wait_until(lambda: broker.transactions.checker.given_up_count == 1)
    await wait_until(lambda: broker.store.positions.confirmed == broker.store.log.wrote)
    [message] = await peer.read(0, topic=names.CHECK_MAX_TIME_TOPIC)
    return message.offset_message_id


async def test_resumed_transaction_is_checked_again(tmp_path: Path) -> None:
    """From the beginning, and can be committed then; once, however often that is asked for."""
    async with asking_broker(tmp_path, transactionCheckMax="1") as broker, dialogue(broker) as peer:
        await peer.heartbeat("p")
        message_id = await give_up_transaction(broker, peer)
        asked = len(check_requests(peer))

        reply = await peer.ask(323, {"topic": names.CHECK_MAX_TIME_TOPIC, "msgId": message_id})
        assert (reply.code, reply.remark) == (0, None)
        twice = await peer.ask(323, {"msgId": message_id})
        assert (twice.code, "before" in (twice.remark or "")) == (1, True)

        await wait_until(lambda: len(check_requests(peer)) > asked)
        question = check_requests(peer)[-1]
        assert (await peer.ask(RequestCode.END_TRANSACTION, answer_ext(question, COMMIT))).code == 0
        assert await bodies(peer) == [b"who knows"]
        await wait_until(lambda: len(broker.transactions.journal.halves) == 0)

    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        late = await peer.ask(323, {"msgId": message_id})
        assert (late.code, "before" in (late.remark or "")) == (1, True)
        assert await bodies(peer) == [b"who knows"]


async def test_oneway_request_that_waits_for_the_disk_is_never_answered(tmp_path: Path) -> None:
    """Resuming and ending a transaction, and sending a message back: the answer of a later send is the first one."""
    async with asking_broker(tmp_path, transactionCheckMax="1", flushDiskType="SYNC_FLUSH") as broker:
        async with dialogue(broker) as peer:
            await peer.heartbeat("p")
            message_id = await give_up_transaction(broker, peer)
            await peer.send_ok(b"sent back")
            [message] = await peer.read()
            await peer.make_group(GROUP)
            half = await prepare(peer, b"ended", CHECK_IMMUNITY_TIME_IN_SECONDS="600")
        back = {"offset": str(message.physical_offset), "group": GROUP, "delayLevel": "0", "originTopic": TOPIC}
        requests = [
            oneway(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id}),
            oneway(RequestCode.END_TRANSACTION, end_ext(half, COMMIT)),
            oneway(RequestCode.CONSUMER_SEND_MSG_BACK, back),
            Command(code=310, ext=send_ext(310), body=b"last"),
        ]
        raw = await RawPeer.open(broker.port)
        await raw.send(b"".join(request.encode() for request in requests))

        assert decode_command(await raw.frame()).opaque == requests[-1].opaque
        await raw.close()
        assert broker.transactions.endings.committed_count == 1
        async with dialogue(broker) as peer:
            assert (await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})).code == 1
            assert await bodies(peer) == [b"sent back", b"ended", b"last"]


async def test_transaction_can_be_resumed_again_after_its_half_message_was_cut(tmp_path: Path) -> None:
    """The new master lacks the half message, and so there is none any more."""
    async with asking_broker(tmp_path, transactionCheckMax="1") as broker:
        async with dialogue(broker) as peer:
            await peer.heartbeat("p")
            message_id = await give_up_transaction(broker, peer)
            end = broker.store.log.wrote
            assert (await peer.ask(323, {"msgId": message_id})).code == 0
            assert (await peer.ask(323, {"msgId": message_id})).code == 1
        await truncate_log(broker, end)
        async with dialogue(broker) as peer:
            assert (await peer.ask(323, {"msgId": message_id})).code == 0


async def test_only_given_up_transactions_can_be_resumed(tmp_path: Path) -> None:
    """An open half message, a message of a topic and an invented id are refused with 1; nothing is stored."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        half = await prepare(peer, b"open")
        plain = await peer.send_ok(b"plain")
        wrote = broker.store.log.wrote
        inside = plain["msgId"][:16] + f"{int(plain['msgId'][16:], 16) + 1:016X}"
        for message_id in (half["msgId"], plain["msgId"], inside, "7F00000100002A9F7FFFFFFFFFFFFFFF", "no id", ""):
            reply = await peer.ask(323, {"msgId": message_id})
            assert (reply.code, bool(reply.remark)) == (1, True)
        assert (await peer.ask(323)).code == 1
        assert broker.store.log.wrote == wrote
        assert (await end_transaction(peer, half, COMMIT)).code == 0


async def test_slave_resumes_no_transaction(tmp_path: Path) -> None:
    """The answer is 14: only a master stores messages."""
    async with running_group(tmp_path) as members:
        master = await members.start("master")
        slave = await members.slave(master)
        async with dialogue(slave) as client:
            assert (await client.ask(323, {"msgId": "x"})).code == ResponseCode.SERVICE_NOT_AVAILABLE


# ------- producers


async def test_all_producers_are_listed(broker: Broker, client: Dialogue) -> None:
    """Each group is listed with its clients in Java's ProducerInfo format, from the heartbeat to the unregistration."""
    assert await client.ask_json(328) == {"data": {}}
    await client.heartbeat("c1")
    [producer] = (await client.ask_json(328))["data"]["producers"]
    assert (producer["clientId"], producer["language"]) == ("c1", "PYTHON")
    assert producer["remoteIP"].startswith("/127.0.0.1:")
    assert abs(producer["lastUpdateTimestamp"] - broker.core.clock.wall_ms()) < 120_000
    await client.ask(35, {"clientID": "c1", "producerGroup": "producers"})
    assert (await client.ask_json(328))["data"] == {}
