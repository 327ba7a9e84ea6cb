"""Kinds of settings that only a `broker.conf` has; `gantry_remoting.setting_kinds` has those of every server.

Each parser raises a ValueError that describes valid values; the caller adds the key.
"""

import ipaddress
import re
from typing import Final

from gantry_remoting import bare_host, split_address
from gantry_wire.names import is_sendable, topic_fault

FLUSH_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")


def flush_type(text: str) -> bool:
    """Return whether the text is RocketMQ's SYNC_FLUSH."""
    if text.upper() in FLUSH_TYPES:
        return text.upper() == FLUSH_TYPES[True]
    raise ValueError(f"write {FLUSH_TYPES[False]} or {FLUSH_TYPES[True]}")


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
    if not is_sendable(text):
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
