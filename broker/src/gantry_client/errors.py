"""The errors of the client.

Each error states whether to correct the call, to retry, or to check the cluster. A failed request or send after which a
message may or may not be stored sets `is_outcome_unknown`: sending the message again may store it twice, not sending it
again may lose it, and only the application can choose. `NoReply` has no such attribute: its text states it.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, final

from gantry_wire.codes import ResponseCode


class ClientError(Exception):
    """The root of this package's errors. Catch it; it is never raised itself."""


@final
class ClientClosed(ClientError):
    """The object was not started yet, or is closed. The caller should use it inside `async with` (or `with`)."""


@final
class InvalidMessage(ClientError):
    """A message, name or argument is not valid, or not now. The caller should correct it; no message was sent."""


@final
class UnreadableBody(ClientError):
    """A received body is damaged, compressed in an unsupported way, or too large when decompressed.

    The consumer should set the message aside; reading it again does not help.
    """


@final
class OffsetsUnreadable(ClientError):
    """The offsets file of a broadcast consumer is damaged or cannot be read.

    The caller should repair it, or delete it to start over.
    """


@final
class RetryLater(Exception):
    """Raised by a handler to request redelivery of its message. It is not a ClientError.

    `delay_level` is 1 (1 s) to 18 (2 h); 0 leaves the delay to the broker, which increases it each time; -1 moves the
    message to the dead letter topic of the group. An ordered consumer uses only -1: for any other level it repeats the
    message after `ordered_retry_delay_ms`. A broadcast consumer that is not ordered drops it.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"redelivery requested with delay level {delay_level}")
        self.delay_level = delay_level


class RouteProblem(Enum):
    """Why there is no route, as far as the client can know it."""

    UNKNOWN_TOPIC = "unknown topic"
    """No broker has the topic. The caller should create it."""

    UNDECIDED = "unknown topic or no master"
    """No broker with a master has registered the topic, and the account may not list brokers: either of both."""

    NO_MASTER = "no master"
    """The brokers that have the topic, or may have it, have no master now."""

    NO_PERMISSION = "no permission"
    """The topic exists, and is not readable or not writable on any broker with a master."""

    NOT_REGISTERED = "broker not registered"
    """The broker of the queue is not registered now."""


class NoRoute(ClientError):
    """No broker serves the topic for this operation. The caller should correct what `problem` names."""

    def __init__(self, topic: str, reason: str, problem: RouteProblem = RouteProblem.UNKNOWN_TOPIC) -> None:
        super().__init__(f"no route to topic {topic!r}: {reason}")
        self.topic = topic
        self.problem = problem


@final
class NoMaster(NoRoute):
    """The brokers that serve the topic, or may serve it, have no master now. The caller should wait and retry."""

    def __init__(self, topic: str, broker_names: tuple[str, ...]) -> None:
        """Name the brokers without a master; an empty tuple means that no broker is registered."""
        named = ", ".join(repr(name) for name in broker_names)
        reason = f"no master is registered for {named}" if named else "no broker is registered"
        super().__init__(topic, reason, RouteProblem.NO_MASTER)
        self.broker_names = broker_names


class RequestFailed(ClientError):
    """One request to one peer did not succeed."""

    is_outcome_unknown = False
    """Whether the peer may have executed the request nevertheless."""


@final
class Unavailable(RequestFailed):
    """No server replies at the address. The caller should retry later; the client tries another broker if possible."""

    def __init__(self, text: str, *, is_outcome_unknown: bool = False) -> None:
        super().__init__(text)
        self.is_outcome_unknown = is_outcome_unknown


@final
class RequestTimeout(RequestFailed):
    """A connected peer did not reply, or did not read the request, in time. The caller decides on a retry."""

    is_outcome_unknown = True


@final
class BrokerRefused(RequestFailed):
    """A peer replied with an error. The caller should check the response code and remark, which are RocketMQ's."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"{address} answered {code} {code_name(code)}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


@final
class BadReply(RequestFailed):
    """A peer sent a reply that violates RocketMQ's protocol. The caller should check which server has the address."""

    is_outcome_unknown = True


@final
class DamagedMessage(RequestFailed):
    """The body of a message does not match its checksum on any replica that returned the message.

    The caller should check the disks of the brokers, and continue at `queue_offset + 1` to skip the message.
    """

    def __init__(self, queue_name: str, queue_offset: int, message_id: str, addresses: tuple[str, ...]) -> None:
        super().__init__(
            f"message {message_id} at offset {queue_offset} of {queue_name} is damaged: the checksum of its body does "
            f"not match, as sent by {', '.join(addresses)}"
        )
        self.queue_offset = queue_offset
        self.message_id = message_id
        self.addresses = addresses


@dataclass(frozen=True, slots=True)
class Attempt:
    """One failed attempt of a send."""

    broker_name: str
    """The broker that the attempt was made on."""

    error: RequestFailed


class SendFailed(ClientError):
    """All attempts of a send failed. The caller should check `attempts`, and send again if that is safe.

    `__cause__` is the error that ended the send. It need not be that of an attempt: a retry may have found no master.
    """

    def __init__(self, topic: str, attempts: tuple[Attempt, ...], why: str) -> None:
        failures = "; ".join(f"{attempt.broker_name}: {attempt.error}" for attempt in attempts) or "no broker was tried"
        super().__init__(f"could not send to topic {topic!r}, {why} ({failures})")
        self.topic = topic
        self.attempts = attempts

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether a broker may have stored the message nevertheless."""
        return any(attempt.error.is_outcome_unknown for attempt in self.attempts)


@final
class SendTimeout(SendFailed):
    """The deadline of a send passed. With `is_outcome_unknown` the message may be stored."""


@final
class NoReply(ClientError):
    """No reply to a request arrived in time. Unless the text states that nothing was sent, its outcome is unknown: it
    may be consumed already or later, and a late reply is discarded."""

    def __init__(self, topic: str, why: str = "the deadline passed") -> None:
        super().__init__(f"no reply to a request in topic {topic!r}: {why}")
        self.topic = topic


@final
class ResendStopped(ClientError):
    """A run over dead letters stopped at a message that it cannot skip. The caller should check the brokers and run it
    again: messages that were acknowledged are not sent twice."""


def code_name(code: int) -> str:
    """Return RocketMQ's name of a response code."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return "(unknown code)"


TRANSIENT_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY,
        ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)  # fmt: skip
"""Codes of temporary failures: the broker is busy, is not a master now, or waits for its disk or its slaves."""


def is_transient(error: ClientError) -> bool:
    """Return whether the same request may succeed a little later."""
    if isinstance(error, SendFailed):
        return not error.attempts or is_transient(error.attempts[-1].error)
    if isinstance(error, BrokerRefused):
        return error.code in TRANSIENT_CODES
    return isinstance(error, NoRoute | RequestFailed) and not isinstance(error, BadReply)
