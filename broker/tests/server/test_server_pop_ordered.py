"""Acks of ordered messages count only for messages that the pop of their receipt has returned."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gantry_broker.server.core.freed_queues import FreedQueues
from gantry_broker.server.pop.acks import PopAcks
from gantry_client.pop import make_batch_ack
from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker
from gantry_testing.popping import Popped, ack, ack_ext, pop, pop_ext, send
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.pop import BatchAck, BatchAckMessages
from gantry_wire.pop_receipts import Receipt

ORDER: Final = {"order": "true", "queueId": 0}


async def ack_all(peer: Dialogue, receipts: list[Receipt], *, is_batch: bool) -> None:
    """Ack messages in one request, or in one for each. Acks without an effect succeed, too."""
    if is_batch:
        body = write_document(make_batch_ack(TOPIC, GROUP, [one.text for one in receipts]))
        assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
        return
    for receipt in receipts:
        assert (await ack(peer, receipt)).code == 0


async def reset(peer: Dialogue, offset: int) -> None:
    ext = {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true", "queueId": "0", "offset": str(offset)}
    assert (await peer.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)).code == 0


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "not guarded, the twin"])
@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_receipts_of_a_deleted_topic_ack_no_new_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_batch: bool, is_guarded: bool
) -> None:
    """The topic is deleted and created again: late acks of old messages do not skip new ones, also after a crash."""
    if not is_guarded:
        monkeypatch.setattr(PopAcks, "_may_be_popped", lambda *_: True)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"old0", b"old1", b"old2")
        old = await pop(peer, **ORDER, maxMsgNums=2)
        await ack_all(peer, old.receipts[:1], is_batch=is_batch)
        assert (await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
        await send(peer, b"new0", b"new1")
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    monkeypatch.setattr(FreedQueues, "join", lambda *_: None)  # as if the tables with the deletion were lost
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await ack_all(peer, old.receipts, is_batch=is_batch)
        expected = [b"new0", b"new1"] if is_guarded else None
        reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**ORDER))
        assert (Popped(reply).bodies if reply.code == 0 else None) == expected


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_receipts_from_before_a_reset_have_no_effect(tmp_path: Path, is_batch: bool) -> None:
    """The group is reset to messages that it has popped: late acks of that pop do not skip them, also after a stop."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1")
        first = await pop(peer, **ORDER)
        await ack_all(peer, first.receipts[:1], is_batch=is_batch)
        await reset(peer, 0)
        await ack_all(peer, first.receipts, is_batch=is_batch)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await ack_all(peer, first.receipts, is_batch=is_batch)
        again = await pop(peer, **ORDER)
        assert again.bodies == [b"0", b"1"]
        await ack_all(peer, again.receipts, is_batch=is_batch)
        assert broker.pops.journal.state.queue(TOPIC, GROUP, 0).next_offset == 2


async def test_receipts_from_before_a_reset_have_no_effect_if_nothing_was_acked(tmp_path: Path) -> None:
    """An ordered pop leaves no record before its first ack, and a restart has only its file."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1")
        first = await pop(peer, **ORDER)
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await reset(peer, 0)
        await ack_all(peer, first.receipts, is_batch=True)
        assert (await pop(peer, **ORDER)).bodies == [b"0", b"1"]


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
async def test_ordered_acks_end_with_the_queue(tmp_path: Path, is_batch: bool) -> None:
    """An ack at or beyond the end of a queue has no effect: the messages that come there are popped."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0")
        [receipt] = (await pop(peer, **ORDER)).receipts
        await ack_all(peer, [receipt], is_batch=is_batch)
    for file in (tmp_path / "config").glob("consumerOrderInfo.json*"):
        file.unlink()
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        late = receipt._replace(pop_time_ms=receipt.pop_time_ms + 60_000)
        beyond = [late._replace(queue_offset=offset) for offset in (1, 2, 3)]
        await ack_all(peer, beyond if is_batch else beyond[:1], is_batch=is_batch)
        await send(peer, b"1", b"2")
        assert (await pop(peer, **ORDER)).bodies == [b"1", b"2"]


async def test_ordered_acks_create_no_state_for_unknown_groups_and_queues(tmp_path: Path) -> None:
    """Acks of groups, topics and queues that do not exist succeed without an effect, and leave nothing behind."""
    async with running_broker(tmp_path) as broker, dialogue(broker) as peer:
        await send(peer, b"0", b"1")
        [receipt, _] = (await pop(peer, **ORDER)).receipts
        known = set(broker.pops.journal.state.queues)
        offsets = broker.core.offsets.document().offset_table
        acks = [
            BatchAck(
                consumer_group=group, topic=topic, retry="0", start_offset=0, queue_id=queue_id, revive_queue_id=999,
                pop_time=receipt.pop_time_ms, invisible_time=1, bit_set=b"\x01",
            )
            for group, topic, queue_id in [
                *((f"no-group-{number}", TOPIC, 0) for number in range(100)),
                *((GROUP, f"no-topic-{number}", 0) for number in range(100)),
                *((GROUP, TOPIC, number) for number in (-1, 77, 4096)),
            ]
        ]  # fmt: skip
        body = write_document(BatchAckMessages(broker_name=receipt.broker_name, acks=acks))
        assert (await peer.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code == 0
        assert (await ack(peer, receipt, consumerGroup="no-group")).code == 0
        change = ack_ext(receipt, consumerGroup="no-group", invisibleTime=1)
        assert (await peer.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, change)).code == ResponseCode.NO_MESSAGE
        assert set(broker.pops.journal.state.queues) == known
        assert broker.core.offsets.document().offset_table == offsets
        assert (await ack(peer, receipt)).code == 0
        assert broker.pops.journal.state.queue(TOPIC, GROUP, 0).next_offset == 1
