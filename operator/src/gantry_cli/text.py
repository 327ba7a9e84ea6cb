"""How values are written for people, and how people write moments: few digits, units last, times in local time."""

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gantry_status import LogRange

_BYTE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: int) -> str:
    """`1536` -> `1.5 KiB`."""
    size, unit = float(count), _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if abs(size) < 1024 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"


def count_text(count: int) -> str:
    """`1234567` -> `1,234,567`."""
    return f"{count:,}"


def rate_text(per_s: float) -> str:
    """`12345.6` -> `12,346`, `0.25` -> `0.2`."""
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def duration_text(seconds: float) -> str:
    """`3725` -> `1h 2m`."""
    whole = int(max(0, seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    return " ".join(f"{number}{unit}" for number, unit in parts[:2])


def missing_text(size: int, known: Sequence[LogRange]) -> str:
    """How many bytes of the log a number of ranges have, and the ranges that are known: `4.0 KiB: [0, 4096)`."""
    text = bytes_text(size)
    if known:
        text += ": " + ", ".join(map(str, known))
    rest = size - sum(one.end - one.start for one in known)
    return f"{text} and {bytes_text(rest)} more" if known and rest > 0 else text


def time_text(timestamp_ms: int) -> str:
    """A store time in local time, to the millisecond. One that no calendar has is shown as the number it is."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{timestamp_ms % 1000:03d}"


def certificate_text(ends_at_ms: int, now_ms: int) -> str:
    """When a certificate ends, and how long it has until then."""
    left_s = (ends_at_ms - now_ms) / 1000
    if left_s <= 0:
        return f"expired {time_text(ends_at_ms)}, {duration_text(-left_s)} ago"
    return f"ends {time_text(ends_at_ms)}, in {duration_text(left_s)}"


# -- where to begin reading --------------------------------------------------------------------------------------------
# Where to begin reading, as people say it: `earliest`, `latest`, `10m` ago, or a moment.


_AGO: Final = re.compile(r"(\d+)\s*(s|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
HELP: Final = "earliest, latest, an age (10m, 2h, 1d) or a local time (2025-01-31T12:00)"


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin: at one end (`timestamp_ms` is None), or at a store time."""

    is_latest: bool = False
    timestamp_ms: int | None = None


def parse_start(text: str, now_ms: int) -> Start:
    """What `text` means at `now_ms`. Raises ValueError that says what can be written."""
    wanted = text.strip().lower()
    if wanted in ("earliest", "latest"):
        return Start(is_latest=wanted == "latest")
    ago = _AGO.fullmatch(wanted)
    if ago is not None:
        return Start(timestamp_ms=max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000))
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no place to begin: write {HELP}") from None
    return Start(timestamp_ms=max(0, int(moment.astimezone().timestamp() * 1000)))
