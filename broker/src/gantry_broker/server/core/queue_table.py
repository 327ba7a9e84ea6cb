"""Tables of queues in answers: JSON maps with a queue as the key, encoded row by row.

A topic may have 65,536 queues, and an answer may list many topics. A row has about 150 bytes as JSON and needs far
more as Python objects. Therefore every row is encoded as soon as it is known. Other requests are served meanwhile.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, final

import msgspec

from gantry_broker.server.core.broker_core import BrokerCore
from gantry_broker.server.core.refusals import Refused
from gantry_wire import ResponseCode

QUEUES_LISTED_MAX: Final = 100_000
"""The queues of one answer: more do not fit into a frame."""

_QUEUES_PER_STEP: Final = 1_000
"""How many queues are added before other requests are served."""


@final
class QueueTable:
    """A map from queues to rows. Its keys are bare objects (``{{"queueId":0}:5}``), as RocketMQ's clients expect."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name: Final = msgspec.json.encode(broker_name)
        self._json: Final = bytearray()

    def add(self, topic: str, rows: Iterable[tuple[int, object]]) -> None:
        """Add rows by queue id."""
        name = msgspec.json.encode(topic)
        for queue_id, row in rows:
            key = b'{"brokerName":%b,"queueId":%d,"topic":%b}' % (self._broker_name, queue_id, name)
            self._json.extend(b"%b%b:%b" % (b"," if self._json else b"", key, msgspec.json.encode(row)))

    def render(self) -> msgspec.Raw:
        return msgspec.Raw(b"{%b}" % bytes(self._json))


def check_queue_count(count: int) -> None:
    """Raise Refused if an answer would list too many queues."""
    if count > QUEUES_LISTED_MAX:
        text = (
            f"{count} queues would be listed, at most {QUEUES_LISTED_MAX} are allowed: request fewer topics or groups"
        )
        raise Refused(ResponseCode.SYSTEM_ERROR, text)


async def iterate_queue_ids(core: BrokerCore, count: int) -> AsyncIterator[range]:
    """Yield the queue ids below `count` in ranges, and serve other requests before each of them. Raises Refused."""
    for start in range(0, count, _QUEUES_PER_STEP):
        await serve_others(core)
        yield range(start, min(count, start + _QUEUES_PER_STEP))


async def serve_others(core: BrokerCore) -> None:
    """Serve other requests before the next part of an answer. Raises Refused if another thread has the store then."""
    await asyncio.sleep(0)
    if core.gate.is_store_lent:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "service not available now, its log is being changed")
