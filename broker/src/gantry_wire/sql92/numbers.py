"""Numbers in filters: which texts are numbers, and how numbers are ordered, as Java's `Integer`, `Long` and `Double`.

A whole number is an Integer when it is a literal below 2**31, or such a literal negated, and a Long otherwise, so the
type follows from the value. A text compared with it must be a number of that type: `'2147483648'` is no Integer, and
`'5.0'` is neither. Whole numbers may have the decimal digits of any script of the Basic Multilingual Plane.
"""

import re
import unicodedata
from typing import Final

from gantry_wire.sql92.errors import EvaluationFault

INTEGER_MAX: Final = 2**31 - 1
"""The largest Integer of Java."""
LONG_MAX: Final = 2**63 - 1
"""The largest Long of Java."""
_LONG_DIGITS_MAX: Final = 19
"""No Long has more digits than this."""
_PLAIN_DIGITS_MAX: Final = 9
"""Every number of so many digits is an Integer."""
_PLANE_END: Final = "\uffff"
"""The last character of the Basic Multilingual Plane."""

DOUBLE_MAX: Final = 1.7976931348623157e308
DOUBLE_MIN: Final = 5e-324
"""The smallest number above zero."""

_TRIMMED: Final = "".join(map(chr, range(33)))
"""The characters that Java's ``trim`` removes."""
_DECIMAL: Final = re.compile(r"[+-]?(?:NaN|Infinity|((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?)")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")


def is_integer(number: int) -> bool:
    """Return whether a whole number of a filter is an Integer. -2**31 is a Long: it is the negation of one."""
    return -INTEGER_MAX <= number <= INTEGER_MAX


def parse_whole(text: str, number: int) -> int:
    """Return `text` as a number of the type of `number`. Raises EvaluationFault."""
    if len(text) <= _PLAIN_DIGITS_MAX and text.isdigit() and text.isascii():
        return int(text)
    highest = INTEGER_MAX if is_integer(number) else LONG_MAX
    sign, digits = (text[0], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits or not all(digit.isdecimal() and digit <= _PLANE_END for digit in digits):
        raise EvaluationFault(f"{text[:64]!r} is no whole number")
    plain = "".join(str(unicodedata.decimal(digit)) for digit in digits).lstrip("0") or "0"
    value = int(plain) if len(plain) <= _LONG_DIGITS_MAX else LONG_MAX + 2
    value = -value if sign == "-" else value
    if not -highest - 1 <= value <= highest:
        raise EvaluationFault(
            f"{text[:64]!r} is beyond the {highest.bit_length() + 1} bits of what it is compared with"
        )
    return value


def parse_double(text: str) -> float:
    """Return `text` as Java's Double. Raises EvaluationFault."""
    trimmed = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(trimmed) is not None:
        return float(trimmed.rstrip("fFdD") if trimmed[-1:] in "fFdD" else trimmed)
    match = _HEXADECIMAL.fullmatch(trimmed)
    if match is None:
        raise EvaluationFault(f"{text[:64]!r} is no number")
    try:
        return float.fromhex(match[1])
    except OverflowError:
        return float("-inf") if trimmed[0] == "-" else float("inf")


def compare_doubles(left: float, right: float) -> int:
    """Return a number below zero, zero or above. NaN is the greatest and equal to itself, -0.0 is below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right and left != 0.0:
        return 0
    return _rank(left) - _rank(right)


def _rank(number: float) -> int:
    """Return the rank among numbers that are neither below nor above each other: the zeroes, and NaN."""
    if number != number:
        return 2
    if number == 0.0:
        return 0 if str(number).startswith("-") else 1
    return 1
