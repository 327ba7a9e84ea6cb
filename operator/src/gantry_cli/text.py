"""Formatting of counts, rates, durations and times for people, and parsing of start positions."""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantry_status import LogRange
from gantry_status.text import bytes_text


def count_text(count: int) -> str:
    """Return a number with separators: `1234567` -> `1,234,567`."""
    return f"{count:,}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `2 records`, `2 entries`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count_text(count)} {noun[:-1]}ies" if noun.endswith("y") else f"{count_text(count)} {noun}s"


def rate_text(per_s: float) -> str:
    """Return a rate with few digits: `12345.6` -> `12,346`, `0.25` -> `0.2`."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def duration_text(seconds: float) -> str:
    """Return a duration in its two largest units: `3725` -> `1h 2m`."""
    whole = int(max(0, seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts[:2])


def wait_text(seconds: float | None) -> str:
    """Return for how long the oldest message waits: `0s` without one, `unknown` if the brokers do not know."""
    return "unknown" if seconds is None else "< 1s" if 0 < seconds < 1 else duration_text(seconds)


def ranges_text(size: int, known: Sequence[LogRange]) -> str:
    """Return the size of some ranges of the log and those of the ranges that are known: `4.0 KiB: [0, 4096)`."""
    text = bytes_text(size)
    if known:
        text += ": " + ", ".join(map(str, known))
    rest = size - sum(one.end - one.start for one in known)
    return f"{text} and {bytes_text(rest)} more" if known and rest > 0 else text


def time_text(timestamp_ms: int) -> str:
    """Return a timestamp in local time, to the millisecond; one outside of the calendar is shown as a number."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def certificate_text(ends_at_ms: int, now_ms: int) -> str:
    """Return when a certificate expires, and the time until then."""
    left_s = (ends_at_ms - now_ms) / 1000
    if left_s <= 0:
        return f"expired {time_text(ends_at_ms)}, {duration_text(-left_s)} ago"
    return f"expires {time_text(ends_at_ms)}, in {duration_text(left_s)}"


# -- start positions ---------------------------------------------------------------------------------------------------


_AGE: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
START_POSITION_HELP: Final = "earliest, latest, an age (10m, 2h, 1d) or a local time (2025-01-31T12:00)"


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where reading starts: at the earliest or latest offset (`timestamp_ms` is None), or at a store time."""

    is_latest: bool = False
    timestamp_ms: int | None = None


def parse_start_position(text: str, now_ms: int) -> StartPosition:
    """Parse a start position; ages are relative to `now_ms`. Raises ValueError that names the valid forms."""
    wanted = text.strip().lower()
    if wanted in ("earliest", "latest"):
        return StartPosition(is_latest=wanted == "latest")
    age = _AGE.fullmatch(wanted)
    if age is not None:
        return StartPosition(timestamp_ms=max(0, now_ms - int(age[1]) * _SECONDS[age[2]] * 1000))
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"invalid start position {text!r}: expected {START_POSITION_HELP}") from None
    return StartPosition(timestamp_ms=max(0, int(moment.astimezone().timestamp() * 1000)))
