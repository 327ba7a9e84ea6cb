"""Orders to a broker over its control socket and the answers to them: values and their encoding, without a socket.

    client                                      broker
      | {"order":"promise","epoch":7} \\n ------>  |
      | <------ {"answer":"promised",...} \\n       |

Each order and each answer is one JSON document on a line, alternately. A refused order was not executed, and its answer
gives the reason (``Refused``); that of a failed one gives the error. Orders that change a role carry an epoch, except
``AcceptLoss``, and all orders are idempotent: a client without an answer sends the same order again and gets the answer
to the first one. So a lost answer never has to be guessed.

All clients use these values: the command line, the local supervisor, the sidecar in a pod. Their effect on a log is
defined by the broker; ``gantry_spec.decide`` decides which member may be promoted. An order with an unknown field has
``Failed``, since a broker must not execute an order in part; an unknown field in an answer is ignored, since it only
adds information.
"""

from __future__ import annotations

from typing import Annotated, Final, final

import msgspec

from gantry_status.broker_state import UNKNOWN as UNKNOWN
from gantry_status.broker_state import BrokerState, document_of
from gantry_status.broker_state import HaRole as HaRole
from gantry_status.broker_state import RangeState as RangeState
from gantry_status.broker_state import SlaveState as SlaveState
from gantry_status.former_names import DRAIN_NAMES, STATE_NAMES, with_present_names

LINE_BYTES_MAX: Final = 1 << 20
"""The maximum size of one order or answer with its newline. The longest, a status with all its slaves, has 10 KiB."""

EPOCH_MAX: Final = (1 << 62) - 1
"""The highest epoch that an order may name."""

JSON_INTEGER_MAX: Final = (1 << 53) - 1
"""Bound of epochs and offsets in orders over HTTP: up to it, JSON numbers are exact as floating-point numbers."""

Epoch = Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""A broker id, the number of a member."""
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=24 * 3_600_000)]
BoottimeMs = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
"""A time on the machine's boot-time clock, in milliseconds."""
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Name = Annotated[str, msgspec.Meta(max_length=300)]
Numbers = Annotated[list[Number], msgspec.Meta(max_length=64)]
"""The broker ids of some members."""


# -- orders ------------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="order"):
    """The base class of all orders. It is not sent itself."""


@final
class StatusRequest(Order, frozen=True, tag="status"):
    """Return the broker's role and positions. Answered with ``HaStatus``, at any time."""


@final
class PromiseRequest(Order, frozen=True, kw_only=True, tag="promise"):
    """Promise durably and for ever: be no master, follow none, and grant nothing below ``epoch``.

    So a master of an earlier epoch loses its role. Answered with ``Promised``.
    """

    epoch: Epoch
    to: Name = ""
    """The name of the requester, for display."""


@final
class Promote(Order, frozen=True, kw_only=True, tag="promote"):
    """Become the master of ``epoch``. Sent to the master of the same epoch, it only ends a drain.

    Refused without ``force`` by a broker that lacks log data. If it has no role, and ``electable`` is empty, so that it
    is the only member, it serves reads from then on, and waits for ``AcceptLoss``.
    """

    epoch: Epoch
    electable: Numbers = []
    """The numbers of the slaves of the new epoch that may be promoted after it."""
    force: bool = False
    """Promote even if data may be lost, which the sender has accepted."""


@final
class Regain(Order, frozen=True, kw_only=True, tag="regain"):
    """Become master of ``epoch`` again, as this broker was until its process ended. No new epoch begins.

    Refused by a broker that has promised a higher epoch, may lack data, had its role taken, or would wait for the acks
    of more or fewer slaves than before. It is a separate order, since a ``Promote`` may arrive late, and must not give
    back a role that was taken since.
    """

    epoch: Epoch


@final
class Follow(Order, frozen=True, kw_only=True, tag="follow"):
    """Become a slave of the master of ``epoch``, whose replication port is at ``master``. It demotes a master."""

    epoch: Epoch
    master: Address
    """The address of the master's replication port."""


@final
class Fence(Order, frozen=True, kw_only=True, tag="fence"):
    """Lose the role, refuse any role below ``epoch``, and close the connections of clients."""

    epoch: Epoch


@final
class Drain(Order, frozen=True, kw_only=True, tag="drain", omit_defaults=True):
    """Refuse sends, then commit, flush, and wait for the slaves' acks.

    After a success the broker refuses sends until the next promotion, or until it follows or is fenced. After a timeout
    the order is ``Refused``, and the broker accepts what it accepted before: sends, unless it was drained or withdrawn
    already. If the flush fails, the order has ``Failed``, and the broker ends.

    Fields with their defaults are not sent, so that a broker of an earlier version, which knows ``clients_only`` by
    another name, answers ``Failed`` only to an order that has it.
    """

    timeout_ms: Milliseconds
    """How long the order waits for the flush and the acks."""

    withdraw: bool = False
    """Drain for an unlimited time and withdraw the routes: name servers get routes without write permission.
    After a timeout the drain continues, and the answer is a status although not everything is flushed and acknowledged
    by slaves."""
    clients_only: bool = False
    """Only withdraw the routes: clients stop sending, and the broker completes accepted work. Delayed messages are
    delivered, transactions end, retries return; the order waits for nothing."""


@final
class Lease(Order, frozen=True, kw_only=True, tag="lease"):
    """The sender holds the shard's Lease, by a request sent at ``renewed_ms`` of this machine's boot-time clock."""

    renewed_ms: BoottimeMs
    duration_ms: Milliseconds
    """The validity from then on; 0 returns the Lease."""


@final
class Flush(Order, frozen=True, kw_only=True, tag="flush", omit_defaults=True):
    """Flush everything that is written to the disk, and answer when that is done.

    With ``backup`` the tables are written, too, and ``backup-point.json`` records the position: a copy of the volume
    that is made after the answer has everything before ``flushed``. Refused by a broker without a role, and by one that
    lacks log data. An earlier version of the broker answers ``Failed`` to an order with that field.
    """

    backup: Name = ""
    """The name of the backup; empty for none."""


@final
class AcceptLoss(Order, frozen=True, kw_only=True, tag="accept-loss"):
    """Accept the missing log data as lost, for good. Answered with ``HaStatus``; without missing data nothing is done.

    Refused by a slave, which gets missing data from its master, and by a master that still compares its log with its
    slaves.
    """

    by: Name = ""
    """The name of the person who decided it, for display."""


# -- answers -----------------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer"):
    """The base class of all answers. It is not sent itself."""


@final
class HaStatus(BrokerState, frozen=True, kw_only=True, tag_field="answer", tag="status"):
    """The state of a broker now. Offsets are those of the log, broker numbers those of the members; -1 is unknown."""


@final
class Promised(Answer, frozen=True, kw_only=True, tag="promised"):
    """The promise is on disk. Only a role in this epoch or a later one changes the broker's log from now on."""

    epoch: int
    identity: str = ""
    """The uuid of the broker's store."""

    broker_id: int = UNKNOWN
    last_epoch: int = 0
    """The epoch of the last record."""
    end: int = UNKNOWN
    """The end of the log."""
    granted_ms: int = 0
    """The remaining time for which a grant that it gave before may be valid."""


@final
class Refused(Answer, frozen=True, kw_only=True, tag="refused"):
    """The order was understood and refused. The log and what the broker accepts from clients are as before.

    Two effects may remain. A promise of the order's epoch, which is on the disk before anything else is done, is never
    revoked: the broker gives no grant and follows no master below it. And a broker that is the only member and lacks
    log data serves reads after a refused ``Promote``.
    """

    reason: str


@final
class Failed(Answer, frozen=True, kw_only=True, tag="failed"):
    """The order was not understood, or its execution failed."""

    reason: str


StatusOrder = StatusRequest | Promote | Regain | Follow | Fence | Drain | Lease | Flush | AcceptLoss
"""All orders that are answered with a status."""
AnyOrder = PromiseRequest | StatusOrder
AnyAnswer = HaStatus | Promised | Refused | Failed


class OrderError(Exception):
    """The base class of errors of orders. It is not raised itself."""


@final
class OrderRefused(OrderError):
    """The broker refused the order and gave the reason. ``Refused`` has what may remain.

    Repeating it helps only if the reason is temporary, such as the timeout of a drain or a comparison in progress.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


@final
class OrderFailed(OrderError):
    """The broker did not understand the order, or failed to execute it. Its log has the error."""


@final
class BrokerUnreachable(OrderError):
    """No broker listens at the path, or access is denied. Nothing was ordered.

    Start the broker, or correct the path.
    """


@final
class OrderUnanswered(OrderError):
    """The connection or the timeout ended before the answer, so the order may have been executed.

    Query the status, or send the same order again.
    """


@final
class BadLine(OrderError):
    """A line is not one whole order or answer. The message has the reason; close the connection."""


_ENCODER: Final = msgspec.json.Encoder()


def encode(value: AnyOrder | AnyAnswer) -> bytes:
    """Return a value as a line. JSON contains no newline."""
    line = _ENCODER.encode(document_of(value) if isinstance(value, HaStatus) else value) + b"\n"
    assert len(line) <= LINE_BYTES_MAX, "an order or answer must fit in a line"
    return line


def decode_order(line: bytes) -> AnyOrder:
    """Return the order in a line. Raises ``BadLine``."""
    try:
        document = msgspec.json.decode(line)
        if isinstance(document, dict) and document.get("order") == "drain":
            document = with_present_names(document, DRAIN_NAMES)
        order: AnyOrder = msgspec.convert(document, AnyOrder)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"invalid order: {error}") from error
    return order


def status_of(document: object) -> HaStatus:
    """Return the status in a decoded JSON document. Raises ``msgspec.ValidationError``."""
    return msgspec.convert(with_present_names(document, STATE_NAMES), HaStatus)


def decode_answer(line: bytes) -> AnyAnswer:
    """Return the answer in a line. Raises ``BadLine``."""
    try:
        document = with_present_names(msgspec.json.decode(line), STATE_NAMES)
        answer: AnyAnswer = msgspec.convert(document, AnyAnswer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"invalid answer: {error}") from error
    return answer
