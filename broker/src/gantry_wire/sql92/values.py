"""What a term can be worth, and how two values compare.

    str     a property's text, or a text literal
    int     Java's Integer or Long (`numbers` says which)
    float   Java's Double
    bool    Java's Boolean
    None    unknown: a property that is not there, or the outcome of something unknown

Properties are always texts. A text that is compared with a number is read as one of that kind, and where it is none
the message cannot be judged; compared with TRUE or FALSE it is TRUE when it says so, and FALSE otherwise.
"""

from collections.abc import Callable

from gantry_wire.sql92.errors import EvaluationFault
from gantry_wire.sql92.numbers import double_of, double_order, whole_like

Value = str | int | float | bool | None
Get = Callable[[str], str | None]
"""Looks up a property by name."""

Evaluate = Callable[[Get], Value]


def order(left: str | int | float | bool, right: str | int | float | bool) -> int:
    """Below zero, zero or above, as Java's evaluator compares. Raises EvaluationFault.

    What cannot be compared is "below". A boolean on the left of a text is a fault of RocketMQ's own (a failed cast),
    and stays one.
    """
    if isinstance(left, bool):
        if isinstance(right, bool):
            return left - right
        if isinstance(right, str):
            raise EvaluationFault("TRUE or FALSE stands left of a text")
        return -1
    if isinstance(left, str):
        return _order_text(left, right)
    if isinstance(right, bool):
        return -1
    if isinstance(right, str):
        right = double_of(right) if isinstance(left, float) else whole_like(right, left)
    if isinstance(left, float) or isinstance(right, float):
        return double_order(float(left), float(right))
    return (left > right) - (left < right)


def _order_text(left: str, right: str | int | float | bool) -> int:
    if isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(right, bool):
        return (left.lower() == "true") - right
    if isinstance(right, float):
        return double_order(double_of(left), right)
    number = whole_like(left, right)
    return (number > right) - (number < right)
