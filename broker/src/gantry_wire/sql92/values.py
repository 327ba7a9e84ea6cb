"""Values of terms, and their comparison.

    str     a property's text, or a text literal
    int     Java's Integer or Long (`numbers` decides which)
    float   Java's Double
    bool    Java's Boolean
    None    unknown: a missing property, or the result of an unknown operand

Properties are always texts. A text that is compared with a number is parsed as a number of that type; if it is none,
the message cannot be evaluated. Compared with TRUE or FALSE, a text is TRUE when it is "true" in any case, and FALSE
otherwise.
"""

from collections.abc import Callable

from gantry_wire.sql92.errors import EvaluationFault
from gantry_wire.sql92.numbers import compare_doubles, parse_double, parse_whole

Value = str | int | float | bool | None
Get = Callable[[str], str | None]
"""The look-up of a property by its name."""

Evaluate = Callable[[Get], Value]
"""A term: returns its value for one message, given the look-up of its properties."""


def compare_values(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Return a number below zero, zero or above, as Java's evaluator compares. Raises EvaluationFault.

    Values that cannot be compared give "below". A boolean on the left of a text is a fault of RocketMQ's own (a failed
    cast), which is kept.
    """
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            raise EvaluationFault("TRUE or FALSE on the left cannot be compared with a text")
        return -1
    if isinstance(left, str):
        return _compare_text(left, right)
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        right = parse_double(right) if isinstance(left, float) else parse_whole(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)


def _compare_text(left: str, right: str | int | float | bool) -> int:
    if isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(right, bool):
        return (left.lower() == "true") - right
    if isinstance(right, float):
        return compare_doubles(parse_double(left), right)
    number = parse_whole(left, right)
    return (number > right) - (number < right)
