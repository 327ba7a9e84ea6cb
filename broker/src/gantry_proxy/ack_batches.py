"""Acks of several clients in one request: those that arrive in one turn of the event loop, for one broker.

    one ack in a turn   ACK_MESSAGE
    several             BATCH_ACK_MESSAGE; if the broker refuses it, each ack alone, so that each has its own answer

Under load a turn has tens of acks, and a request costs the broker and the proxy more than the ack in it. Brokers answer
a batch as a whole: an ack of a message that is not invisible any more has no effect and no error, as alone, and one
with an offset that the queue does not have, which only a forged receipt has, no error either.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple, final

from gantry_client.connections import OnOutcome
from gantry_client.errors import RequestFailed, Unavailable
from gantry_client.pop import batch_of_receipts
from gantry_proxy.brokers import REQUEST_MS, BrokerPort
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.pop import AckMessage
from gantry_wire.pop_receipts import Receipt

log = logging.getLogger(__name__)

ACKS_MAX: Final = 512
"""How many acks one request has; brokers handle a request while others wait."""
DISTANCE_MAX: Final = 4_096
"""How far a message of a batch may be from the start of its pop. Only a filter puts one further away."""


class PendingAck(NamedTuple):
    """An ack that is sent at the end of the turn."""

    topic: str
    """The topic to which the message was sent."""

    group: str
    receipt: Receipt
    text: str
    """The receipt as it was written."""

    on_outcome: OnOutcome

    @property
    def can_be_batched(self) -> bool:
        """Whether the answer to a batch says what that to this ack alone would say."""
        receipt = self.receipt
        return 0 <= receipt.queue_offset - receipt.start_offset < DISTANCE_MAX and not receipt.is_ordered


@final
class AckBatches:
    """Collects and sends acks. Owned by the event loop."""

    def __init__(self, brokers: BrokerPort) -> None:
        self._brokers: Final = brokers
        self._pending: dict[tuple[str, str], list[PendingAck]] = {}
        """Acks by the address and the name of their broker, since a batch has one name."""

    def __repr__(self) -> str:
        return f"<AckBatches pending={sum(map(len, self._pending.values()))}>"

    def begin(self, address: str, ack: PendingAck) -> bool:
        """Send an ack at the end of this turn; later, its ``on_outcome`` is called once.

        Return False, and send nothing, if no connection to the broker is open.
        """
        if not self._brokers.can_begin(address):
            return False
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._send_all)
        self._pending.setdefault((address, ack.receipt.broker_name), []).append(ack)
        return True

    def _send_all(self) -> None:
        pending, self._pending = self._pending, {}
        for (address, _), acks in pending.items():
            together = [ack for ack in acks if ack.can_be_batched] if len(acks) > 1 else []
            if len(together) < 2:
                self._send_each(address, acks)
                continue
            self._send_each(address, [ack for ack in acks if not ack.can_be_batched])
            for start in range(0, len(together), ACKS_MAX):
                self._send_batch(address, together[start : start + ACKS_MAX])

    def _send_batch(self, address: str, acks: Sequence[PendingAck]) -> None:
        def on_outcome(outcome: Command | RequestFailed) -> None:
            if isinstance(outcome, Command) and outcome.code != ResponseCode.SUCCESS:
                self._send_each(address, acks)
                return
            for ack in acks:
                try:
                    ack.on_outcome(outcome)
                except Exception:  # the other calls have their outcome, too
                    log.exception("unexpected error while handling reply of peer", extra={"peer": address})

        body = batch_of_receipts((ack.topic, ack.group, ack.receipt) for ack in acks)
        self._send(address, Command(code=RequestCode.BATCH_ACK_MESSAGE, body=write_document(body)), on_outcome)

    def _send_each(self, address: str, acks: Sequence[PendingAck]) -> None:
        for ack in acks:
            receipt = ack.receipt
            header = AckMessage(
                consumer_group=ack.group, topic=receipt.queue_topic(ack.topic, ack.group),
                queue_id=receipt.queue_id, extra_info=ack.text, offset=receipt.queue_offset,
            )  # fmt: skip
            self._send(address, Command(code=RequestCode.ACK_MESSAGE, ext=header.write()), ack.on_outcome)

    def _send(self, address: str, command: Command, on_outcome: OnOutcome) -> None:
        if not self._brokers.begin_request(address, command, REQUEST_MS, on_outcome):
            on_outcome(Unavailable(f"the connection to {address} was lost"))
