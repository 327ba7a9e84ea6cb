"""Pop consumption over real sockets: messages are invisible until acked, and delivered again otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from gantry_broker.server.pop.records import revive_queue_of
from gantry_client.pop import make_batch_ack
from gantry_testing.fake_clock import FakeClock
from gantry_testing.local import GROUP, TOPIC, dialogue, properties_text, running_broker, wait_until
from gantry_testing.popping import FLUSHED_SOON, LONG_MS, Popped, ack, ack_ext, pop, pop_ext, pop_nothing, send
from gantry_wire import RequestCode, ResponseCode, names
from gantry_wire import properties as keys
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.pop import PopResult
from gantry_wire.pop_receipts import parse_offsets
from gantry_wire.properties import FIRST_POP_TIME

FLUSHED_RARELY: Final[dict[str, Any]] = {
    "flushIntervalCommitLog": "600000",
    "flushCommitLogThoroughInterval": "600000",
}
"""Settings with which a test ends before the first flush."""


async def test_popped_messages_are_invisible_to_their_group(tmp_path: Path) -> None:
    """A second pop of the group finds nothing; another group gets the messages."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3")
        popped = await pop(peer)
        assert popped.bodies == [b"1", b"2", b"3"]
        assert popped.header.rest_num == 0
        reply = await pop_nothing(peer)
        assert PopResult.read(reply.ext).rest_num == 0
        assert (await pop(peer, consumerGroup="others")).bodies == [b"1", b"2", b"3"]


async def test_acked_message_is_not_delivered_again(tmp_path: Path) -> None:
    """Of two messages whose time is over, only the one that was not acked is delivered again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"done", b"again")
        popped = await pop(peer, invisibleTime=50)
        assert (await ack(peer, popped.receipts[0])).code == 0
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        again = await pop(peer)
        assert again.bodies == [b"again"]
        [message] = again.messages
        assert (message.topic, message.reconsume_times) == (TOPIC, 1)
        assert message.properties[FIRST_POP_TIME] == str(popped.header.pop_time)
        assert again.receipts[0].retry_flag == "1"
        assert (await ack(peer, again.receipts[0])).code == 0
        assert broker.pops.journal.state.inflight_count == 0


async def test_restart_keeps_checkpoints_and_acks(tmp_path: Path) -> None:
    """After a restart nothing is popped again, an old receipt is valid, and only unacked messages are redelivered."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3")
        popped = await pop(peer, invisibleTime=LONG_MS)
        assert (await ack(peer, popped.receipts[1])).code == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await pop_nothing(peer)
        assert broker.pops.journal.state.inflight_count == 2
        assert (await ack(peer, popped.receipts[0])).code == 0
        [checkpoint] = broker.pops.journal.state.queue(TOPIC, GROUP, 0).open.values()
        assert checkpoint.unacked == [2]
        broker.pops.journal.state.schedule(checkpoint, 0)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        assert (await pop(peer)).bodies == [b"3"]


async def test_held_pop_is_answered_when_message_arrives(tmp_path: Path) -> None:
    """A pop that finds nothing waits for a message of any queue of its topic."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer, dialogue(broker) as producer:
        await send(producer, b"0")
        assert (await pop(peer)).bodies == [b"0"]
        waiting = asyncio.ensure_future(peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000)))
        await wait_until(lambda: broker.pulls.hold.count == 1)
        await send(producer, b"late", queue_id=2)
        assert Popped(await waiting).bodies == [b"late"]
        assert broker.pulls.hold.count == 0


async def test_changed_invisible_time_voids_the_old_receipt(tmp_path: Path) -> None:
    """After a change the new receipt acks the message, and the old one has no effect."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        [old] = (await pop(peer)).receipts
        reply = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ack_ext(old, invisibleTime=LONG_MS))
        assert reply.code == 0, reply.remark
        new = old._replace(
            start_offset=0, pop_time_ms=int(reply.ext["popTime"]), invisible_ms=int(reply.ext["invisibleTime"])
        )
        assert (await ack(peer, old)).code == 0
        assert broker.pops.journal.state.inflight_count == 1
        again = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ack_ext(old, invisibleTime=LONG_MS))
        assert again.code == ResponseCode.NO_MESSAGE
        assert (await ack(peer, new)).code == 0
        assert broker.pops.journal.state.inflight_count == 0


async def test_batch_ack_covers_several_checkpoints(tmp_path: Path) -> None:
    """One request acks messages of two queues; the others stay invisible."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        await send(peer, b"3", queue_id=1)
        receipts = (await pop(peer)).receipts
        body = write_document(make_batch_ack(TOPIC, GROUP, [one.text for one in receipts if one.queue_offset == 0]))
        assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
        assert broker.pops.journal.state.inflight_count == 1
        [checkpoint] = broker.pops.journal.state.queue(TOPIC, GROUP, 0).open.values()
        assert checkpoint.unacked == [1]


async def test_acks_of_one_turn_are_one_record(tmp_path: Path) -> None:
    """Acks that arrive together are appended together: one record for each checkpoint."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, *(b"%d" % n for n in range(8)))
        receipts = (await pop(peer)).receipts
        queue = broker.store.queues.get_or_create(broker.pops.journal.topic, revive_queue_of(TOPIC, GROUP, 0))
        before = queue.end
        replies = await asyncio.gather(*(ack(peer, receipt) for receipt in receipts))
        assert {reply.code for reply in replies} == {0}
        assert queue.end - before < len(receipts)
        assert broker.pops.journal.state.inflight_count == 0


async def test_messages_that_fail_too_often_become_dead_letters(tmp_path: Path) -> None:
    """After `retryMaxTimes` deliveries a message goes to the dead letters, with the topic that it came from."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"bad", properties=properties_text(KEYS="k", TAGS="t"))
        await pop(peer, invisibleTime=1)
        config = broker.core.groups.all[GROUP]
        broker.core.groups.put(msgspec.structs.replace(config, retry_max_times=1))
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        assert (await pop(peer, invisibleTime=1)).messages[0].reconsume_times == 1
        await wait_until(lambda: broker.pops.reviver.given_up_count == 1)
        await pop_nothing(peer)
        [dead] = await peer.read(0, topic=names.dead_letter_topic(GROUP))
        assert (dead.body, dead.properties[keys.RETRY_TOPIC], dead.properties["KEYS"]) == (b"bad", TOPIC, "k")


@pytest.mark.parametrize(("count", "size", "slice_max"), [(160, 100, 95), (6, 600_000, 2)], ids=["many", "large"])
async def test_redelivery_leaves_time_for_requests(tmp_path: Path, count: int, size: int, slice_max: int) -> None:
    """Messages of many pops, or large ones of one pop, are delivered again in several turns, each of them once."""
    clock = FakeClock()
    settings: dict[str, Any] = {"maxTransferBytesOnMessageInMemory": "8000000"}
    async with running_broker(tmp_path, clock=clock, **settings) as broker, dialogue(broker) as peer:
        await send(peer, *(bytes(size) for _ in range(count)))
        while broker.pops.journal.state.inflight_count < count:
            await pop(peer, queueId=0, invisibleTime=1_000)
        reviver, slices = broker.pops.reviver, [0]
        clock.advance(1_001)
        is_more = True
        while is_more:  # without a pause, so that the task of the broker does nothing meanwhile
            is_more = reviver.revive_due()
            slices.append(reviver.revived_count - sum(slices))
        assert max(slices) <= slice_max, f"expected at most {slice_max} messages in one turn, got {slices}"
        assert reviver.revived_count == count
        assert broker.pops.journal.state.inflight_count == 0


async def test_pull_members_continue_after_popped_messages(tmp_path: Path) -> None:
    """The committed offset is the end of what was popped; a pop continues where a member that pulls has committed."""
    async with running_broker(tmp_path, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3", b"4")
        await pop(peer, queueId=0, maxMsgNums=2)
        await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == 2)
        commit = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "commitOffset": "3"}
        assert (await peer.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0
        assert (await pop(peer, queueId=0)).bodies == [b"4"]


@pytest.mark.parametrize("offset", [1, 3], ids=["back", "forward"])
async def test_reset_moves_pops_and_voids_checkpoints(tmp_path: Path, offset: int) -> None:
    """After a reset a pop starts there, also after a restart, and nothing popped before is delivered again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1", b"2", b"3", b"4")
        await pop(peer, queueId=0, maxMsgNums=2)
        ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true", "queueId": "0"}
        reply = await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**ext, "offset": str(offset)})
        assert reply.code == 0, reply.remark
        assert broker.pops.journal.state.inflight_count == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await pop(peer, queueId=0)).bodies == [b"%d" % n for n in range(offset, 5)]
        assert broker.core.offsets.resets.pending() == {}


@pytest.mark.parametrize("what", ["topic", "group"])
async def test_deleted_topic_and_group_start_from_the_beginning(tmp_path: Path, what: str) -> None:
    """Checkpoints of a deleted topic or group are void, also after a restart: its messages have other offsets."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"old", b"older", b"oldest")
        await pop(peer)
        if what == "topic":
            assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
        else:
            ext = {"groupName": GROUP, "cleanOffset": "true"}
            assert (await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)).code == 0
        assert broker.pops.journal.state.inflight_count == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"new")
        wanted = [b"new"] if what == "topic" else [b"old", b"older", b"oldest", b"new"]
        assert (await pop(peer)).bodies == wanted


async def test_filters_pass_messages_for_good(tmp_path: Path) -> None:
    """A pop with tags gets only those; messages that do not match are passed, and a held pop waits for one."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer, dialogue(broker) as producer:
        await send(producer, b"a1", properties=properties_text(TAGS="a"))
        await send(producer, b"b1", properties=properties_text(TAGS="b"))
        await send(producer, b"a2", properties=properties_text(TAGS="a"))
        popped = await pop(peer, exp="a", expType="TAG")
        assert popped.bodies == [b"a1", b"a2"]
        assert parse_offsets(popped.header.msg_offset_info) == {("0", 0): [0, 2]}
        await pop_nothing(peer)
        waiting = asyncio.ensure_future(peer.ask(RequestCode.POP_MESSAGE, pop_ext(exp="b", pollTime=60_000)))
        await wait_until(lambda: broker.pulls.hold.count == 1)
        await send(producer, b"a3", properties=properties_text(TAGS="a"))
        await send(producer, b"b2", properties=properties_text(TAGS="b"))
        assert Popped(await waiting).bodies == [b"b2"]
        for receipt in popped.receipts:
            assert (await ack(peer, receipt)).code == 0


async def test_too_many_unacked_messages_stop_pops_until_acks(tmp_path: Path) -> None:
    """A group with `popInflightMessageThreshold` messages in flight waits, and is woken by an ack."""
    async with running_broker(tmp_path, popInflightMessageThreshold="3") as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3", b"4")
        popped = await pop(peer, maxMsgNums=3)
        reply = await pop_nothing(peer, maxMsgNums=1)
        assert PopResult.read(reply.ext).rest_num == 1
        waiting = asyncio.ensure_future(peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000, maxMsgNums=1)))
        await wait_until(lambda: broker.pulls.hold.count == 1)
        async with dialogue(broker) as other:
            assert (await ack(other, popped.receipts[0])).code == 0
        assert Popped(await waiting).bodies == [b"4"]


async def test_progress_of_pops_is_shown_before_it_is_committed(tmp_path: Path) -> None:
    """The end of a pop is the progress at once; it is committed when a flush has made its checkpoint durable."""
    async with running_broker(tmp_path, **FLUSHED_RARELY) as broker, dialogue(broker) as peer:

        async def progress() -> int:
            document = await peer.ask_json(RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP, "topic": TOPIC})
            return sum(row["consumerOffset"] for row in document["offsetTable"].values())

        await send(peer, b"1", b"2", b"3")
        await pop(peer, maxMsgNums=2)
        assert await progress() == 2
        assert broker.core.offsets.find(GROUP, TOPIC, 0) == 0
        reset = {"topic": TOPIC, "group": GROUP, "queueId": "0", "offset": "1", "isForce": "true", "timestamp": "-1"}
        await peer.ask_json(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset)
        assert await progress() == 1
        assert (await pop(peer)).bodies == [b"2", b"3"]
        assert await progress() == 3
    async with running_broker(tmp_path) as broker:
        assert broker.core.offsets.find(GROUP, TOPIC, 0) == 3


async def test_figures_of_pop_consumption_are_in_the_runtime_table(tmp_path: Path) -> None:
    """Code 28 has what is open now, how late redelivery is, and what was popped, acked and delivered again."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3", b"4")
        popped = await pop(peer, maxMsgNums=3)
        assert (await ack(peer, popped.receipts[0])).code == 0
        figures = {name: value for name, value in (await peer.ask_json(28))["table"].items() if name.startswith("pop")}
        assert (figures["popInflightMessages"], figures["popOpenCheckpoints"]) == ("2", "1")
        assert (figures["popMessages"], figures["popAckedMessages"]) == ("3", "1")
        assert figures["popReviveLagMillis"] == "0"

        await pop(peer, invisibleTime=1)
        await wait_until(lambda: broker.pops.reviver.revived_count == 1)
        figures = (await peer.ask_json(28))["table"]
        assert (figures["popMessages"], figures["popRedeliveredMessages"], figures["popDeadLetters"]) == ("4", "1", "0")


async def test_suspended_delivery_is_not_counted(tmp_path: Path) -> None:
    """A change with `suspend` brings the message back without a failure, also when it has none left."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        group = {"groupName": GROUP, "retryMaxTimes": 1}
        await peer.ask_json(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
        await send(peer, b"1")
        popped = await pop(peer)
        for suspend, failures in (("true", 0), ("false", 1), ("true", 1)):
            change = ack_ext(popped.receipts[0], invisibleTime=0, suspend=suspend)
            assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == 0
            popped = Popped(await peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000)))
            assert popped.messages[0].reconsume_times == failures
        assert broker.pops.reviver.given_up_count == 0


async def test_suspended_delivery_is_not_counted_after_a_restart(tmp_path: Path) -> None:
    """The record of the checkpoint says so."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1")
        change = ack_ext((await pop(peer)).receipts[0], invisibleTime=1_000, suspend="true")
        assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        popped = Popped(await peer.ask(RequestCode.POP_MESSAGE, pop_ext(pollTime=60_000)))
        assert popped.messages[0].reconsume_times == 0


async def test_ordered_pop_blocks_its_queue(tmp_path: Path) -> None:
    """An ordered group gets no message of a queue while one is invisible, and the same ones when the time is over."""
    order = {"order": "true", "queueId": 0, "maxMsgNums": 2}
    async with running_broker(tmp_path, **FLUSHED_SOON) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3")
        first = await pop(peer, **order, invisibleTime=100)
        assert (first.bodies, first.header.revive_qid, first.header.order_count_info) == ([b"1", b"2"], 999, "0 0 0")
        assert (await ack(peer, first.receipts[0])).code == 0
        waiting = asyncio.ensure_future(peer.ask(RequestCode.POP_MESSAGE, pop_ext(**order, pollTime=60_000)))
        again = Popped(await waiting)
        assert (again.bodies, again.header.order_count_info) == ([b"2", b"3"], "0 qo0%1 1;0 0 0")
        for receipt in again.receipts:
            assert (await ack(peer, receipt)).code == 0
        await wait_until(lambda: broker.core.offsets.find(GROUP, TOPIC, 0) == 3)
        await pop_nothing(peer, **order)
        illegal = again.receipts[1]._replace(queue_offset=3)
        assert (await ack(peer, illegal)).code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("offset", "code"), [(3, ResponseCode.MESSAGE_ILLEGAL), (40, 0)], ids=["not popped", "none"])
async def test_illegal_offset_in_an_ordered_batch_leaves_the_others(tmp_path: Path, offset: int, code: int) -> None:
    """What a batch acks besides a message that was not popped, or that the queue lacks, is not popped again."""
    order = {"order": "true", "queueId": 0, "maxMsgNums": 2}
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1", b"2", b"3")
        popped = await pop(peer, **order)
        texts = [one.text for one in (*popped.receipts, popped.receipts[0]._replace(queue_offset=offset))]
        body = write_document(make_batch_ack(TOPIC, GROUP, texts))

        assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == code

        assert (await pop(peer, **order)).bodies == [b"2", b"3"]


async def test_late_ack_after_a_crash_skips_no_ordered_message(tmp_path: Path) -> None:
    """The table of ordered pops is lost: an ack of the second message has no effect, one of the first counts."""
    order = {"order": "true", "queueId": 0}
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2", b"3")
        popped = await pop(peer, **order)
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await ack(peer, popped.receipts[1])).code == 0
        assert (await pop(peer, **order, invisibleTime=1)).bodies == [b"1", b"2", b"3"]
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        assert (await ack(peer, popped.receipts[0])).code == 0
        assert (await pop(peer, **order)).bodies == [b"2", b"3"]


async def test_ordered_offset_survives_a_restart(tmp_path: Path) -> None:
    """An ordered ack that was answered counts after a restart, and the queue stays blocked for the others."""
    order = {"order": "true", "queueId": 0}
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"1", b"2")
        popped = await pop(peer, **order)
        assert (await ack(peer, popped.receipts[0])).code == 0
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await pop_nothing(peer, **order)
        repeated = popped.receipts[1]
        reply = await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ack_ext(repeated, invisibleTime=0))
        assert (reply.code, reply.ext["reviveQid"]) == (0, "999")
        assert (await pop(peer, **order)).bodies == [b"2"]
