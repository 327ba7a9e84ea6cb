"""Sizes and durations in manifests: ``64Mi``, ``500ms``. Their values are integers, in bytes and milliseconds.

Sizes have the suffixes of Kubernetes quantities, and durations have the format of Go. Both are parsed exactly: a size
that is not a whole number of bytes, or a duration that is not a whole number of milliseconds, is refused, because the
intended value of ``1.5`` cannot be guessed.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Final, final

SIZE_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
SIZE_BYTES_MAX: Final = 1 << 56
"""64Pi, the largest size."""
DURATION_MS_MAX: Final = 10 * 366 * 24 * 3_600_000

SIZE_FORM: Final = r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(k|M|G|T|Ki|Mi|Gi|Ti)?"
"""The pattern of a size with limits on its digits, which ``parse_size`` applies."""

_SIZE: Final = re.compile(SIZE_FORM)
_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGT", 1)
}
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))"
    r"(?:([eE][+-]?[0-9]{1,2})|(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))?"
)
_QUANTITY_FACTORS: Final = (
    {name: Decimal(number) for name, number in _FACTORS.items()}
    | {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "P": Decimal(10**15), "E": Decimal(10**18)}
    | {"Pi": Decimal(1 << 50), "Ei": Decimal(1 << 60)}
)
_DURATION: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|s|m|h)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@final
class Size(int):
    """A size as an integer number of bytes."""

    def __str__(self) -> str:
        return size_text(self)

    def __repr__(self) -> str:
        return f"Size({size_text(self)})"


@final
class Duration(int):
    """A duration as an integer number of milliseconds."""

    @property
    def seconds(self) -> float:
        """The duration as a number of seconds."""
        return self / 1000

    def __str__(self) -> str:
        return duration_text(self)

    def __repr__(self) -> str:
        return f"Duration({duration_text(self)})"


def parse_size(value: object) -> Size:
    """Parse a size: ``64Mi``, ``100G`` or a plain number of bytes. Raises ValueError, which describes the format."""
    if isinstance(value, int) and not isinstance(value, bool):
        number: Decimal = Decimal(value)
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        number = Decimal(match[1]) * _FACTORS[match[2] or ""]
    else:
        raise ValueError(f"{value!r} is not a size: write it like 64Mi, 10Gi or 4096")
    if number != number.to_integral_value() or not 0 <= number <= SIZE_BYTES_MAX:
        raise ValueError(f"{value!r} is not a whole number of bytes from 0 to 64Pi")
    return Size(number)


def quantity_bytes(text: str) -> int | None:
    """Return a quantity that others have written, in any form of Kubernetes, as whole bytes, rounded up.

    Manifests of Gantry accept fewer forms (``parse_size``). None stands for a text that is not a quantity.
    """
    exact = _quantity(text)
    return None if exact is None else math.ceil(exact)


def quantity_millis(text: str) -> int | None:
    """Return such a quantity in thousandths, rounded up: the unit in which Kubernetes counts CPU. None as above."""
    exact = _quantity(text)
    return None if exact is None else math.ceil(exact * 1000)


def _quantity(text: str) -> Decimal | None:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        return None
    factor = Decimal(f"1{match[2]}") if match[2] else _QUANTITY_FACTORS[match[3] or ""]
    return Decimal(match[1]) * factor


def parse_duration(value: object) -> Duration:
    """Parse a duration: ``500ms``, ``3s``, ``1h30m``. A bare number is allowed only if it is 0. Raises ValueError."""
    if value == 0 and not isinstance(value, bool):
        return Duration(0)
    text = value.strip() if isinstance(value, str) else ""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{value!r} is not a duration: write it like 500ms, 3s or 72h")
    try:
        number = sum((Decimal(amount) * _UNITS_MS[unit] for amount, unit in parts), Decimal(0))
    except InvalidOperation as error:  # pragma: no cover - the pattern bounds the digits
        raise ValueError(f"{value!r} is not a duration") from error
    if number != number.to_integral_value() or number > DURATION_MS_MAX:
        raise ValueError(f"{value!r} is not a whole number of milliseconds up to ten years")
    return Duration(number)


def size_text(size: int) -> str:
    """Return the exact text of a size, with the largest binary suffix (``Ki`` to ``Ti``) that divides it, if any."""
    for power, letter in reversed(list(enumerate("KMGT", 1))):
        if size and size % (1 << (10 * power)) == 0:
            return f"{size >> (10 * power)}{letter}i"
    return f"{int(size)}"


def duration_text(duration_ms: int) -> str:
    """Return the shortest exact text of a duration in one unit."""
    for unit in ("h", "m", "s"):
        if duration_ms and duration_ms % _UNITS_MS[unit] == 0:
            return f"{duration_ms // _UNITS_MS[unit]}{unit}"
    return f"{int(duration_ms)}ms" if duration_ms else "0s"
