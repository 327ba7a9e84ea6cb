"""Requests of pop consumption over a test's connection, and the receipts of their replies."""

from __future__ import annotations

from typing import Any, Final, final

from gantry_testing.local import GROUP, TOPIC, Dialogue
from gantry_wire import Command, RequestCode, ResponseCode
from gantry_wire.commands.pop import PopResult
from gantry_wire.message import StoredMessage, decode_records
from gantry_wire.pop_receipts import Receipt, parse_offsets, parse_receipt, parse_start_offsets, retry_flag_of
from gantry_wire.properties import POP_CHECKPOINT

LONG_MS = 600_000
"""An invisible time that no test waits for."""
FLUSHED_SOON: Final[dict[str, Any]] = {"flushCommitLogLeastPages": "0", "flushIntervalCommitLog": "20"}
"""Settings with which the committed offset of popped messages moves at once: it waits for a flush."""


@final
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
    """Return the fields of a pop from any queue, with ``fields`` in place of the usual ones."""
    values = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "maxMsgNums": 32, "invisibleTime": LONG_MS,
        "pollTime": 0, "bornTime": 0, "initMode": 0, **fields,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


async def pop(peer: Dialogue, **fields: object) -> Popped:
    """Pop messages that must exist."""
    return Popped(await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**fields)))


async def pop_nothing(peer: Dialogue, **fields: object) -> Command:
    """Return the reply to a pop that must find nothing."""
    reply = await peer.ask(RequestCode.POP_MESSAGE, pop_ext(**fields))
    assert reply.code == ResponseCode.POLLING_TIMEOUT, (reply.code, reply.remark)
    return reply


def ack_ext(receipt: Receipt, **fields: object) -> dict[str, str]:
    """Return the fields of an ack, or of a change of the invisible time."""
    values = {
        "consumerGroup": GROUP, "topic": receipt.queue_topic(TOPIC, GROUP), "queueId": receipt.queue_id,
        "extraInfo": receipt.text, "offset": receipt.queue_offset, **fields,
    }  # fmt: skip
    return {name: str(value) for name, value in values.items()}


async def ack(peer: Dialogue, receipt: Receipt, **fields: object) -> Command:
    """Return the reply to an ack."""
    return await peer.ask(RequestCode.ACK_MESSAGE, ack_ext(receipt, **fields))


async def send(peer: Dialogue, *bodies: bytes, queue_id: int = 0, **fields: str) -> None:
    """Send messages to one queue."""
    for body in bodies:
        await peer.send_ok(body, queueId=str(queue_id), **fields)
