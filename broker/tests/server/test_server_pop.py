"""Pop consumption over real sockets: messages are invisible until acked, and delivered again otherwise."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gantry_testing.local import GROUP, TOPIC, Dialogue, dialogue, running_broker, wait_until
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.pop import PopResult
from gantry_wire.message import StoredMessage, decode_records
from gantry_wire.pop_receipts import Receipt, parse_offsets, parse_receipt, parse_start_offsets, retry_flag_of
from gantry_wire.properties import FIRST_POP_TIME, POP_CHECKPOINT

LONG_MS = 600_000
"""An invisible time that no test waits for."""


class Popped:
    """The messages of one pop, each with its receipt."""

    def __init__(self, reply: Command, broker_name: str = "test-broker") -> None:
        assert reply.code == ResponseCode.SUCCESS, (reply.code, reply.remark)
        self.header = PopResult.read(reply.ext)
        self.messages = decode_records(reply.body)
        starts, offsets = parse_start_offsets(self.header.start_offset_info), parse_offsets(self.header.msg_offset_info)
        assert sum(map(len, offsets.values())) == len(self.messages)
        self.receipts = [self._receipt(message, starts, broker_name) for message in self.messages]

    def _receipt(self, message: StoredMessage, starts: dict[tuple[str, int], int], broker_name: str) -> Receipt:
        own = message.properties.get(POP_CHECKPOINT)
        if own is not None:
            return parse_receipt(own)
        flag, header = retry_flag_of(message.topic), self.header
        return Receipt(
            starts[flag, message.queue_id], header.pop_time, header.invisible_time, header.revive_qid, flag,
            broker_name, message.queue_id, message.queue_offset,
        )  # fmt: skip

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


def pop_ext(**fields: object) -> dict[str, str]:
    values = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": LONG_MS,
        "pollTime": 0, "bornTime": 0, "initMode": 0, **fields,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


async def pop(peer: Dialogue, **fields: object) -> Popped:
    """Pop messages that must exist."""
    return Popped(await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**fields)))


async def pop_nothing(peer: Dialogue, **fields: object) -> Command:
    reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**fields))
    assert reply.code == ResponseCode.POLLING_TIMEOUT, (reply.code, reply.remark)
    return reply


def ack_ext(receipt: Receipt, **fields: object) -> dict[str, str]:
    values = {
        "consumerGroup": GROUP, "topic": receipt.queue_topic(TOPIC, GROUP), "queueId": receipt.queue_id,
        "extraInfo": receipt.text, "offset": receipt.queue_offset, **fields,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


async def ack(peer: Dialogue, receipt: Receipt, **fields: object) -> Command:
    return await peer.ask(RequestCode.ACK_MESSAGE, ack_ext(receipt, **fields))


async def send(peer: Dialogue, *bodies: bytes, queue_id: int = 0, **fields: str) -> None:
    for body in bodies:
        await peer.send_ok(body, queueId=str(queue_id), **fields)


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
