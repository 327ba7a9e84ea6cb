"""Sends of several calls in one request: those that arrive in one turn of the event loop, for one topic.

    one send in a turn   SEND_MESSAGE_V2
    several              SEND_BATCH_MESSAGE to one queue; if the broker refuses its form, each message alone

Under load a turn has tens of sends, and a request costs the broker and the proxy more than a message in it. A broker
stores all messages of a batch or none, each as a message of its own. The record of each has the sender's time and flags
of the request, so only messages with the same ones are joined, and nothing of a message depends on the others.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, final

from gantry_client.errors import RequestTimeout, Unavailable
from gantry_proxy.brokers import BrokerPort
from gantry_proxy.translation.outgoing import OutgoingMessage
from gantry_wire.batch import BatchEntry, encode_batch
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.commands.send import SendMessageV2
from gantry_wire.names import AUTO_CREATE_TOPIC

log = logging.getLogger(__name__)

JOINED_BODY_BYTES_MAX: Final = 16 * 1024
"""The largest body that is joined with others: what a request costs does not matter for a larger one."""
JOINED_PROPERTIES_MAX: Final = 4 * 1024
"""The most characters of properties that are joined. RocketMQ's broker adds its own to those of each message of a
batch, and does not check that the sum fits a record."""
BATCH_BYTES_MAX: Final = 64 * 1024
"""How many bytes of bodies and properties one request has; brokers handle a request while others wait."""
BATCH_MESSAGES_MAX: Final = 128
REFUSES_FORM: Final = frozenset({ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL})
"""The codes of a broker that has stored nothing, for a reason that need not concern each message of a batch."""

Place = tuple[MessageQueue, str]
"""A queue, and the address of its broker."""


class PendingSend(NamedTuple):
    """A message that is sent at the end of the turn."""

    message: OutgoingMessage
    timeout_ms: int
    on_outcome: Callable[[Command | Exception, Place, int], None]
    """Gets the reply or what the request failed with, its queue, and the place of the message in the request."""

    @property
    def size(self) -> int:
        return len(self.message.body) + len(self.message.properties)


class _Group(NamedTuple):
    """Messages that may be in one request."""

    place: Place
    begun_s: float
    """The time of the loop."""
    sends: list[PendingSend]


@final
class SendBatches:
    """Collects and sends messages. Owned by the event loop."""

    def __init__(self, brokers: BrokerPort) -> None:
        self._brokers: Final = brokers
        self._pending: dict[tuple[str, int, int], _Group] = {}
        """By topic, flags and the sender's time."""

    def __repr__(self) -> str:
        return f"<SendBatches pending={sum(len(group.sends) for group in self._pending.values())}>"

    def begin(self, send: PendingSend, choose: Callable[[], Place | None]) -> bool:
        """Send a message at the end of this turn; later, its ``on_outcome`` is called once.

        ``choose`` returns the next queue of the topic. Return False, and send nothing, if it returns None, or if no
        connection to the broker is open.
        """
        message = send.message
        key = message.topic, message.sys_flag, message.born_timestamp_ms
        group = self._pending.get(key)
        if group is None:
            place = choose()
            if place is None or not self._brokers.can_begin(place[1]):
                return False
            loop = asyncio.get_running_loop()
            if not self._pending:
                loop.call_soon(self._send_all)
            group = self._pending[key] = _Group(place, loop.time(), [])
        group.sends.append(send)
        return True

    def _send_all(self) -> None:
        pending, self._pending = self._pending, {}
        for group in pending.values():
            batch, size = list[PendingSend](), 0
            for send in group.sends:
                if batch and (size + send.size > BATCH_BYTES_MAX or len(batch) == BATCH_MESSAGES_MAX):
                    self._send(group, batch)
                    batch, size = [], 0
                batch.append(send)
                size += send.size
            self._send(group, batch)

    def _send_each(self, group: _Group, sends: Sequence[PendingSend]) -> None:
        """Send each message alone, if its call still waits."""
        elapsed_ms = int((asyncio.get_running_loop().time() - group.begun_s) * 1_000)
        for send in sends:
            rest_ms = send.timeout_ms - elapsed_ms
            if rest_ms > 0:
                self._send(group, [send._replace(timeout_ms=rest_ms)])
            else:
                send.on_outcome(RequestTimeout("the time of the call is over"), group.place, 0)

    def _send(self, group: _Group, sends: Sequence[PendingSend]) -> None:
        """Send messages in one request."""
        place = queue, address = group.place

        def on_outcome(outcome: Command | Exception) -> None:
            if len(sends) > 1 and isinstance(outcome, Command) and outcome.code in REFUSES_FORM:
                self._send_each(group, sends)
                return
            for position, send in enumerate(sends):
                try:
                    send.on_outcome(outcome, place, position)
                except Exception:  # the other calls have their outcome, too
                    log.exception("unexpected error while handling reply of peer", extra={"peer": address})

        timeout_ms = max(send.timeout_ms for send in sends)  # a call whose client does not wait so long ends by itself
        try:
            code, header, body = send_request([send.message for send in sends], queue)
            command = Command(code=code, ext=header.write(), body=body)
            is_begun = self._brokers.begin_request(address, command, timeout_ms, on_outcome)
        except Exception as error:  # noqa: BLE001  every call has a reply
            on_outcome(error)
            return
        if not is_begun:
            on_outcome(Unavailable(f"the connection to {address} was lost"))


def send_request(messages: Sequence[OutgoingMessage], queue: MessageQueue) -> tuple[RequestCode, SendMessageV2, bytes]:
    """Return code, header and body of the request that sends messages of one topic, flags and sender's time to a queue.

    A message that is a batch itself is the only one.
    """
    first, is_joined = messages[0], len(messages) > 1
    body = (
        encode_batch(BatchEntry(0, one.body, one.properties.encode()) for one in messages) if is_joined else first.body
    )
    header = SendMessageV2(
        producer_group=first.topic,
        topic=first.topic,
        default_topic=AUTO_CREATE_TOPIC,
        default_topic_queue_nums=4,
        queue_id=queue.queue_id,
        sys_flag=first.sys_flag,
        born_timestamp=first.born_timestamp_ms,
        flag=0,
        properties="" if is_joined else first.properties,
        reconsume_times=0,
        unit_mode=False,
        batch=is_joined or first.is_batch,
        broker_name=queue.broker_name,
    )
    return RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2, header, body
