"""Types of settings: conversions between the text in `broker.conf` and a value.

Each reader raises a ValueError that describes valid values; the caller adds the key.
"""

import ipaddress
import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final

from gantry_remoting import TlsMode, bare_host, split_address
from gantry_wire.names import NOT_SENDABLE_TOPICS, topic_fault

FLUSH_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")


def format_value(value: Any) -> str:
    """Return the value as text, as in a `broker.conf`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (TlsMode, StrEnum)):
        return value.value
    if isinstance(value, tuple):
        return ";".join(str(part) for part in value)
    return str("" if value is None else value)


def boolean(text: str) -> bool:
    """Parse `true` or `false`, in any case."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise ValueError("write true or false")


def whole_number(minimum: int, maximum: int = 1 << 62) -> Callable[[str], int]:
    """Return a parser of whole numbers within these bounds."""

    def read(text: str) -> int:
        value = int(text)
        if not minimum <= value <= maximum:
            raise ValueError(f"{minimum} to {maximum} is allowed")
        return value

    return read


def flush_type(text: str) -> bool:
    """Return whether the text is RocketMQ's SYNC_FLUSH."""
    if text.upper() in FLUSH_TYPES:
        return text.upper() == FLUSH_TYPES[True]
    raise ValueError(f"write {FLUSH_TYPES[False]} or {FLUSH_TYPES[True]}")


def one_of(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    """Return a parser of the names of an enumeration, in any case."""

    def read(text: str) -> StrEnum:
        try:
            return kind(text.upper())
        except ValueError as error:
            raise ValueError(f"write one of {', '.join(kind)}") from error

    return read


def slave_ids(text: str) -> tuple[int, ...]:
    """Parse brokerIds of slaves; return each once, in order."""
    found = tuple(sorted({int(part) for part in text.split(";") if part.strip()}))
    if any(number < 1 for number in found):
        raise ValueError("write brokerIds of slaves, 1 and above, separated by semicolons")
    return found


def address(text: str) -> str:
    """Check a `host:port`, or an empty text."""
    if text:
        split_address(text)
    return text


def hours(text: str) -> tuple[int, ...]:
    """Parse hours of the day, separated by semicolons."""
    found = tuple(int(part) for part in text.split(";"))
    if not all(0 <= hour <= 23 for hour in found):
        raise ValueError("write hours of the day, 0 to 23, separated by semicolons")
    return found


def name(text: str) -> str:
    """Check the name of a broker, a cluster or a region."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,127}", text):
        raise ValueError("a name has 1 to 127 of the characters A-Z a-z 0-9 _ . -")
    return text


def topic(text: str) -> str:
    """Check the name of a topic that clients may send to."""
    fault = topic_fault(text)
    if fault is not None:
        raise ValueError(fault.value)
    if text in NOT_SENDABLE_TOPICS:
        raise ValueError("only the broker itself writes to this topic")
    return text


def addresses(text: str) -> tuple[str, ...]:
    """Parse addresses of name servers, separated by semicolons or commas."""
    found = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
    for one in found:
        split_address(one)
    return found


def ip_address(text: str) -> str:
    """Return an IP address in its shortest form."""
    try:
        return str(ipaddress.ip_address(bare_host(text)))
    except ValueError as error:
        raise ValueError("write an IP address: it goes into message ids, and clients connect to it") from error


def tls_mode(text: str) -> TlsMode:
    """Parse one of RocketMQ's TLS modes."""
    try:
        return TlsMode(text.lower())
    except ValueError as error:
        raise ValueError(f"write one of {', '.join(mode.value for mode in TlsMode)}") from error


PORT: Final = whole_number(1, 65535)
POSITIVE: Final = whole_number(1)
