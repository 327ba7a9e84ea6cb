"""Decides which messages are timers, and gives them the properties under which they wait in the timer topic.

The rules and their order are RocketMQ's. A delay level takes precedence: the timer properties of such a message are
dropped. Of several timer properties TIMER_DELAY_SEC counts first, then TIMER_DELAY_MS, then TIMER_DELIVER_MS. A message
that is due already is stored in its own topic at once. So is one with TIMER_OUT_MS: it was delivered as a timer before,
and a consumer has sent it back, or a tool has copied it.

TIMER_OUT_MS is the last millisecond in which the message still waits. RocketMQ rounds the time down to its precision
(100 ms to 1 s) and delivers when that interval is over. Gantry rounds up to `timerPrecisionMs`, 1 ms by default, and
stores one millisecond less, so a RocketMQ broker that takes over the store delivers in the interval that contains the
time. RocketMQ's values are multiples of 100, and Gantry's never are: so a reader knows who wrote a record, and with
which precision (`server.timers.entries`).
"""

from collections.abc import Mapping
from typing import Final

from gantry_broker.server.core.broker_properties import remove_broker_properties
from gantry_broker.server.core.refusals import Refused
from gantry_broker.settings import BrokerSettings
from gantry_wire import ResponseCode
from gantry_wire import properties as keys

TIMER_PROPERTIES: Final = (keys.TIMER_DELAY_SECONDS, keys.TIMER_DELAY_MS, keys.TIMER_DELIVER_MS)
"""Each of these makes a message a timer, in the order of their precedence."""

JAVA_PRECISION_MS: Final = 100
"""The finest precision of RocketMQ. Its values of TIMER_OUT_MS are multiples of this, Gantry's never are."""

DELAY_DIGITS_MAX: Final = 19
"""The limit of digits of a time: Java reads numbers of 64 bits."""


def is_timer(properties: Mapping[str, str]) -> bool:
    """Whether a message without a delay level has to wait, according to its properties."""
    return keys.TIMER_OUT_MS not in properties and any(name in properties for name in TIMER_PROPERTIES)


def drop_timer(properties: dict[str, str]) -> None:
    """Remove the timer properties of a message that has a delay level."""
    for name in TIMER_PROPERTIES:
        properties.pop(name, None)


def due_time(properties: Mapping[str, str], settings: BrokerSettings, now_ms: int) -> int | None:
    """Return when a message is due, in wall clock milliseconds; None if it does not have to wait. Raises Refused."""
    if not is_timer(properties):
        return None
    if not settings.is_timer_enabled:
        # RocketMQ answers with code 1, which clients retry three times, hiding the text.
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            "accurate timer message is not enabled, timerWheelEnable is false; set it to true, or use a delay level",
        )
    due_ms = _parse_due(properties, settings, now_ms)
    if due_ms <= now_ms:
        return None
    if due_ms - now_ms > settings.timer_delay_max_s * 1000:
        raise _illegal(settings)
    due_ms = -(-due_ms // settings.timer_precision_ms) * settings.timer_precision_ms
    return due_ms + 1 if due_ms % JAVA_PRECISION_MS == 1 else due_ms


def _parse_due(properties: Mapping[str, str], settings: BrokerSettings, now_ms: int) -> int:
    name = next(name for name in TIMER_PROPERTIES if name in properties)
    text = properties[name]
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > DELAY_DIGITS_MAX:
        raise _illegal(settings)
    value = int(text)
    if name == keys.TIMER_DELIVER_MS:
        return value
    return now_ms + value * (1000 if name == keys.TIMER_DELAY_SECONDS else 1)


def _illegal(settings: BrokerSettings) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{settings.timer_delay_max_s * 1000}ms; or if set del msg, the delay time should be bigger than the current "
        "time",
    )


def as_timer(properties: Mapping[str, str], topic: str, queue_id: int, due_ms: int) -> dict[str, str]:
    """Return the properties of a message for this queue while it waits in the timer topic.

    A half message that an older version has stored may have properties that only a broker may set.
    """
    return {
        **remove_broker_properties(dict(properties)),
        keys.TIMER_OUT_MS: str(due_ms - 1),
        keys.REAL_TOPIC: topic,
        keys.REAL_QUEUE_ID: str(queue_id),
    }
