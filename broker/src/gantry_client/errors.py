"""What can go wrong for a client, by who must act.

One small tree. The leaves say whether to mend the call, to ask again, or to look at the cluster. An error that leaves
it open whether a message was stored says so in `is_outcome_unknown`: sending such a message again may store it twice,
not sending it again may lose it, and only the application can choose.
"""

from dataclasses import dataclass
from typing import Final, final

from gantry_wire.codes import ResponseCode


class ClientError(Exception):
    """The root of this package's errors. Catch it; it is never raised itself."""


@final
class ClientClosed(ClientError):
    """The object was not started yet, or is closed. The caller should use it inside `async with` (or `with`)."""


@final
class InvalidMessage(ClientError):
    """A message, name or argument breaks a rule that every broker has. The caller should mend it; nothing was sent."""


@final
class UnreadableBody(ClientError):
    """A received body is damaged, packed in a way that is not supported, or too large when unpacked. The consumer
    should put the message aside; reading it again will not help."""


@final
class OffsetsUnreadable(ClientError):
    """A broadcast consumer's file of offsets is damaged. The caller should mend it, or delete it and begin anew."""


@final
class RetryLater(Exception):
    """Raised by a handler to have its message delivered again. Not an error of this package, so not in its tree.

    `delay_level` is 1 (1 s) to 18 (2 h); 0 leaves it to the broker, which waits longer each time; -1 gives the message
    up and moves it to the group's dead letter topic.
    """

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(f"again, with delay level {delay_level}")
        self.delay_level = delay_level


class NoRoute(ClientError):
    """No broker serves the topic as asked. The caller should create the topic, or look at the brokers."""

    def __init__(self, topic: str, reason: str) -> None:
        super().__init__(f"no route to topic {topic!r}: {reason}")
        self.topic = topic


@final
class NoMaster(NoRoute):
    """The brokers that serve the topic, or may serve it, have no master now. The caller should wait and send again."""

    def __init__(self, topic: str, broker_names: tuple[str, ...]) -> None:
        """Without names no broker is registered at all."""
        named = ", ".join(repr(name) for name in broker_names)
        super().__init__(topic, f"no master is registered for {named}" if named else "no broker is registered")
        self.broker_names = broker_names


class RequestFailed(ClientError):
    """One request to one peer did not succeed."""

    is_outcome_unknown = False
    """Whether the peer may have carried it out all the same."""


@final
class Unavailable(RequestFailed):
    """Nobody answers at the address. The caller should try later; another broker is tried where that is possible."""

    def __init__(self, text: str, *, is_outcome_unknown: bool = False) -> None:
        super().__init__(text)
        self.is_outcome_unknown = is_outcome_unknown


@final
class RequestTimeout(RequestFailed):
    """A peer took the request and gave no answer in time. The caller decides whether asking again is safe."""

    is_outcome_unknown = True


@final
class BrokerRefused(RequestFailed):
    """A peer answered with an error. The caller should read the code and the remark; they are RocketMQ's."""

    def __init__(self, code: int, remark: str | None, address: str) -> None:
        super().__init__(f"{address} answered {code} {code_name(code)}: {remark or 'no remark'}")
        self.code = code
        self.remark = remark
        self.address = address


@final
class BadReply(RequestFailed):
    """A peer answered with something that is not RocketMQ's protocol. The caller should look at what listens there."""

    is_outcome_unknown = True


@final
class DamagedMessage(RequestFailed):
    """No replica that was asked has the body that was stored: its checksum does not match. The caller should look at
    the brokers' disks, and read on at `queue_offset + 1` to step over the message."""

    def __init__(self, place: str, queue_offset: int, message_id: str, addresses: tuple[str, ...]) -> None:
        super().__init__(
            f"message {message_id} at offset {queue_offset} of {place} is damaged: the checksum of its body does not"
            f" match, as sent by {', '.join(addresses)}"
        )
        self.queue_offset = queue_offset
        self.message_id = message_id
        self.addresses = addresses


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a send."""

    broker_name: str
    error: RequestFailed


class SendFailed(ClientError):
    """All tries of a send failed. The caller should look at `attempts`, and send again if that is safe."""

    def __init__(self, topic: str, attempts: tuple[Attempt, ...], why: str) -> None:
        tries = "; ".join(f"{attempt.broker_name}: {attempt.error}" for attempt in attempts) or "no broker was tried"
        super().__init__(f"could not send to topic {topic!r}, {why} ({tries})")
        self.topic = topic
        self.attempts = attempts

    @property
    def is_outcome_unknown(self) -> bool:
        """Whether a broker may have stored the message all the same."""
        return any(attempt.error.is_outcome_unknown for attempt in self.attempts)


@final
class SendTimeout(SendFailed):
    """The deadline of a send passed. The caller should treat the message as unknown if `is_outcome_unknown` says so."""


@final
class NoReply(ClientError):
    """Nobody answered a request in time. The caller should treat it as unknown: it may have been consumed, it may be
    consumed yet, and a reply that comes now is dropped."""

    def __init__(self, topic: str, why: str = "the deadline passed") -> None:
        super().__init__(f"no reply to a request in topic {topic!r}: {why}")
        self.topic = topic


@final
class ResendStopped(ClientError):
    """Sending dead letters again came to a message that it cannot pass. The caller should look at the brokers, and call
    again: what was acknowledged until then is not sent twice."""


def code_name(code: int) -> str:
    """RocketMQ's name of a response code."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return "(unknown code)"


PASSING_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY,
        ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)  # fmt: skip
"""Answers that pass: the broker is busy, is no master now, or its disk or its slaves are late."""


def is_passing(error: ClientError) -> bool:
    """Return whether the same request may succeed a little later."""
    if isinstance(error, SendFailed):
        return not error.attempts or is_passing(error.attempts[-1].error)
    if isinstance(error, BrokerRefused):
        return error.code in PASSING_CODES
    return isinstance(error, NoRoute | RequestFailed) and not isinstance(error, BadReply)
