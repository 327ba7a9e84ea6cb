"""What a broker can be ordered over its control socket, and what it answers: values and their bytes, no socket.

    whoever orders                              broker
      | {"order":"promise","epoch":7} \\n ------>  |
      | <------ {"answer":"promised",...} \\n       |

One JSON document per line each way, in turn. An order that was refused changed nothing and says why; one that failed
says what happened. Orders that move a role carry an epoch, and are idempotent: whoever gets no answer sends the same
order again, and is answered as if it were the first time. So a lost answer never has to be guessed.

Everybody who gives orders uses these values: the command line, the local supervisor, the sidecar in a pod. What they
mean for a log is the broker's business; who may be promoted is ``gantry_spec.decide``'s. An unknown field in an order
is refused, since a broker must not do half of what was meant; one in an answer is ignored, since it only tells more.
"""

from __future__ import annotations

from typing import Annotated, Final, final

import msgspec

from gantry_status.broker_state import UNKNOWN as UNKNOWN
from gantry_status.broker_state import BrokerState, document_of
from gantry_status.broker_state import HaRole as HaRole
from gantry_status.broker_state import RangeState as RangeState
from gantry_status.broker_state import SlaveState as SlaveState

LINE_BYTES_MAX: Final = 1 << 20
"""Of one order or answer, its newline included. The longest real one, a status with all its slaves, has 10 KiB."""

EPOCH_MAX: Final = (1 << 62) - 1

JSON_INTEGER_MAX: Final = (1 << 53) - 1
"""Bound of epochs and offsets in orders over HTTP: up to it, JSON numbers are exact as floating-point numbers."""

Epoch = Annotated[int, msgspec.Meta(ge=1, le=EPOCH_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=24 * 3_600_000)]
Moment = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62) - 1)]
Address = Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
Name = Annotated[str, msgspec.Meta(max_length=300)]
Numbers = Annotated[list[Number], msgspec.Meta(max_length=64)]


# -- orders ------------------------------------------------------------------------------------------------------------


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="order"):
    """Root of all orders. Never sent itself."""


@final
class AskStatus(Order, frozen=True, tag="status"):
    """Who are you, and how far? Answered with ``HaStatus``, at any time."""


@final
class AskPromise(Order, frozen=True, kw_only=True, tag="promise"):
    """Follow nobody, and grant nobody anything, below ``epoch``: durably, and for ever. Answered with ``Promised``."""

    epoch: Epoch
    to: Name = ""
    """Who asks, for people."""


@final
class Promote(Order, frozen=True, kw_only=True, tag="promote"):
    """Be the master in ``epoch``. Ordered of the master of that very epoch, it ends a drain and does nothing else."""

    epoch: Epoch
    electable: Numbers = []
    """The slaves of the new epoch that may be promoted after it, by their own numbers."""
    force: bool = False
    """Though something may be lost, which whoever orders it knows."""


@final
class Regain(Order, frozen=True, kw_only=True, tag="regain"):
    """Be again the master of ``epoch``, which this broker was until its process ended. Nothing new begins.

    Refused by whoever has promised more, may lack anything, had its role taken, or would wait for other slaves' acks.
    Another order than ``Promote``, since one of those may come late: it never gives back what was taken since.
    """

    epoch: Epoch


@final
class Follow(Order, frozen=True, kw_only=True, tag="follow"):
    """Be a slave of the master in ``epoch``, whose replication port is at ``master``. A master is demoted by it."""

    epoch: Epoch
    master: Address


@final
class Fence(Order, frozen=True, kw_only=True, tag="fence"):
    """Have no role, and none below ``epoch`` any more; clients' connections are closed."""

    epoch: Epoch


@final
class Drain(Order, frozen=True, kw_only=True, tag="drain"):
    """Take no more sends, then commit, flush, and wait for the slaves' acks.

    In time, the broker goes on refusing sends until the next promotion, or until it follows or is fenced. Too late, it
    is ``Refused``, and sends are taken again.
    """

    timeout_ms: Milliseconds
    withdraw: bool = False
    """For as long as it takes, and not for a moment: name servers are told that nothing can be sent here, and too late
    it stays so, though not everything could be handed over."""
    goes_on: bool = False
    """Only withdraw: clients send nothing more, and what was taken goes its way. Delayed messages are delivered,
    transactions end, retries come back; nothing is waited for."""


@final
class Lease(Order, frozen=True, kw_only=True, tag="lease"):
    """The shard's Lease is ours, by a request that was sent at ``renewed_ms`` of this machine's boot-time clock."""

    renewed_ms: Moment
    duration_ms: Milliseconds
    """From then on; 0 gives the Lease back."""


@final
class Flush(Order, frozen=True, tag="flush"):
    """Have on disk what is written now. Answered when it is."""


@final
class AcceptLoss(Order, frozen=True, kw_only=True, tag="accept-loss"):
    """Go on without the log data that is missing, for good. Answered with ``HaStatus``; nothing missing, nothing done.

    Refused by a slave, which gets what it lacks from its master, and by a master that still compares with its slaves.
    """

    by: Name = ""
    """Who has decided it, for people."""


# -- answers -----------------------------------------------------------------------------------------------------------


class Answer(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer"):
    """Root of all answers. Never sent itself."""


@final
class HaStatus(BrokerState, frozen=True, kw_only=True, tag_field="answer", tag="status"):
    """A broker at this moment. Offsets are the log's, numbers of brokers their own; -1 is unknown."""


@final
class Promised(Answer, frozen=True, kw_only=True, tag="promised"):
    """The promise is on disk, nobody below it is followed any more, and so the log stands still as it is here."""

    epoch: int
    identity: str = ""
    broker_id: int = UNKNOWN
    last_epoch: int = 0
    """Of the last record."""
    end: int = UNKNOWN
    """Of the log."""
    granted_ms: int = 0
    """For how much longer a grant that it has given before may still count."""


@final
class Refused(Answer, frozen=True, kw_only=True, tag="refused"):
    """Understood, and not done. Nothing has changed."""

    reason: str


@final
class Failed(Answer, frozen=True, kw_only=True, tag="failed"):
    """Not understood, or tried in vain."""

    reason: str


StatusOrder = AskStatus | Promote | Regain | Follow | Fence | Drain | Lease | Flush | AcceptLoss
"""All that are answered with a status."""
AnyOrder = AskPromise | StatusOrder
AnyAnswer = HaStatus | Promised | Refused | Failed


class OrderError(Exception):
    """Root of what can go wrong with an order. Never raised itself."""


@final
class OrderRefused(OrderError):
    """The broker will not, and says why; nothing has changed. Another order is needed, not the same one again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: Final = reason


@final
class OrderFailed(OrderError):
    """The broker did not understand, or tried in vain. Look at its log; a disk that fails ends it."""


@final
class BrokerUnreachable(OrderError):
    """Nobody listens at the path, or it may not be opened. Nothing was ordered. Start the broker, or mend the path."""


@final
class OrderUnanswered(OrderError):
    """The connection or the time ended before the answer. It may have been done: ask, or send the same order again."""


@final
class BadLine(OrderError):
    """Not one whole order or answer. Says what is wrong; close the connection."""


_ENCODER: Final = msgspec.json.Encoder()
_ORDERS: Final[msgspec.json.Decoder[AnyOrder]] = msgspec.json.Decoder(AnyOrder)
_ANSWERS: Final[msgspec.json.Decoder[AnyAnswer]] = msgspec.json.Decoder(AnyAnswer)


def encode(value: AnyOrder | AnyAnswer) -> bytes:
    """A line. JSON has no newline inside."""
    line = _ENCODER.encode(document_of(value) if isinstance(value, HaStatus) else value) + b"\n"
    assert len(line) <= LINE_BYTES_MAX, "whoever makes an order or answer keeps it short"
    return line


def decode_order(line: bytes) -> AnyOrder:
    """What was ordered. Raises ``BadLine`` for anything that is no order."""
    try:
        return _ORDERS.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"no order: {error}") from error


def decode_answer(line: bytes) -> AnyAnswer:
    """What was answered. Raises ``BadLine``."""
    try:
        return _ANSWERS.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadLine(f"no answer: {error}") from error
