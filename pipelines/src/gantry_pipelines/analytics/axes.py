"""Axes of charts: round numbers, round times, and formatted amounts. Pure.

9,347 messages/s   ->   10k        ticks 0, 2.5k, 5k, 7.5k, 10k
10:03:20 to 14:41  ->   ticks at 11:00, 12:00, 13:00, 14:00
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import Final

TIME_STEPS_S: Final = (
    1, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000,
)  # fmt: skip
"""The round intervals between two ticks of a time axis."""

_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
"""The factors of a power of ten that are round numbers."""


class Unit(Enum):
    """The unit of an axis: the symbol after a number, and the label of the axis."""

    MESSAGES = ("", "messages")
    MESSAGES_PER_SECOND = ("/s", "messages per second")
    BYTES = ("B", "bytes")
    BYTES_PER_SECOND = ("B/s", "bytes per second")
    MILLISECONDS = ("ms", "milliseconds")
    SECONDS = ("s", "seconds")
    SHARE = ("%", "per cent")
    EVEN_SHARES = ("\N{MULTIPLICATION SIGN}", "multiples of the even share")

    @property
    def symbol(self) -> str:
        """The symbol after a number, for example `B/s`."""
        return self.value[0]

    @property
    def label(self) -> str:
        """The label of an axis, for example `bytes per second`."""
        return self.value[1]

    @property
    def is_binary(self) -> bool:
        """Whether the unit uses binary prefixes (1 KiB = 1024 B)."""
        return self in (Unit.BYTES, Unit.BYTES_PER_SECOND)


def round_ticks(largest: float, count: int = 5, *, is_binary: bool = False) -> list[float]:
    """Return about `count` ticks at round numbers from 0 on; the last is not below `largest`."""
    if not largest > 0:
        return [0.0, 1.0]
    # Steps are round in the unit of the labels: half a KiB is 512 bytes.
    scale = 1024.0 ** int(math.log(largest, 1024)) if is_binary and largest >= 1 else 1.0
    rough = largest / scale / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor for factor in _ROUND if rough <= factor * power * 1.0000001) * power
    return [round(at * step, 12) * scale for at in range(math.ceil(largest / scale / step - 1e-9) + 1)]


def log_ticks(smallest: float, largest: float) -> list[float]:
    """Return the powers of ten around a range, the ticks of a logarithmic axis."""
    low, high = math.floor(math.log10(smallest)), math.ceil(math.log10(largest) - 1e-9)
    return [10.0**power for power in range(low, max(high, low + 1) + 1)]


def time_ticks(begin_ms: int, end_ms: int, count: int = 9) -> list[int]:
    """Return about `count` round times in a range."""
    length_s = max((end_ms - begin_ms) / 1000, 1)
    step_ms = 1000 * next((step for step in TIME_STEPS_S if length_s / step <= count), TIME_STEPS_S[-1])
    first = -(-begin_ms // step_ms) * step_ms
    return list(range(first, end_ms + 1, step_ms))


def time_text(time_ms: int, ticks: Sequence[int]) -> str:
    """Return a tick's label, with as much of date and time (UTC) as distinguishes it from its neighbours."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    step_ms = ticks[1] - ticks[0] if len(ticks) > 1 else 60_000
    if step_ms >= 86_400_000:
        return moment.strftime("%d %b")
    if step_ms < 60_000:
        return moment.strftime("%H:%M:%S")
    midnight = moment.hour == 0 and moment.minute == 0
    return moment.strftime("%d %b") if midnight and len(ticks) > 1 else moment.strftime("%H:%M")


def moment_text(time_ms: int) -> str:
    """Format a time with date and seconds (UTC)."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def format_amount(value: float, unit: Unit) -> str:
    """Format an amount with three significant digits: `12.3k/s`, `4.5 MiB/s`, `0.42 ms`, `1.5 s`, `37 %`."""
    if unit is Unit.SHARE:
        return f"{_number_text(value * 100)} %"
    if unit.is_binary:
        for name in ("", "Ki", "Mi", "Gi", "Ti"):
            if abs(value) < 1024 or name == "Ti":
                return f"{_number_text(value)} {name}{unit.symbol}"
            value /= 1024
    if unit is Unit.MILLISECONDS and abs(value) >= 1000:
        value, unit = value / 1000, Unit.SECONDS
    if unit is Unit.SECONDS:
        return _duration_text(value)
    if unit is Unit.MILLISECONDS:
        return f"{_number_text(value)} ms"
    for name in ("", "k", "M", "G"):
        if abs(value) < 1000 or name == "G":
            return f"{_number_text(value)}{name}{unit.symbol}"
        value /= 1000
    raise AssertionError("the last prefix takes all values")


def _duration_text(seconds: float) -> str:
    if seconds < 120:
        return f"{_number_text(seconds)} s"
    if seconds < 7_200:
        return f"{_number_text(seconds / 60)} min"
    return f"{_number_text(seconds / 3_600)} h" if seconds < 172_800 else f"{_number_text(seconds / 86_400)} d"


def _number_text(value: float) -> str:
    size = abs(value)
    if value == int(value) and size < 10_000:
        return f"{int(value)}"
    places = 0 if size >= 100 else 1 if size >= 10 else 2
    text = f"{value:.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
