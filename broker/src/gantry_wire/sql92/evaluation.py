"""The closures of which terms are made. Each takes a look-up of properties and returns a value.

An unknown operand makes the result unknown, except for AND with a false operand and OR with a true one, and for
CONTAINS, STARTSWITH and ENDSWITH, which then give false, with NOT as well. In a test for equality an unknown left side
gives unknown, an unknown right side gives false, and two unknown sides are equal. The order of evaluation is part of
the result, because a fault on the right does not occur when the left has decided.

The most common form, a property compared with a literal, has closures of its own that do the same in one call. This
code runs for every message, so it uses primitives and no objects.
"""

from collections.abc import Callable, Collection
from typing import Final

from gantry_wire.sql92.numbers import compare_doubles, parse_double, parse_whole
from gantry_wire.sql92.values import Evaluate, Get, Value, compare_values

Comparison = Callable[[int], bool]
"""Whether an operator holds, given a number below zero, zero or above."""
Search = Callable[[str, str], bool]

COMPARISONS: Final[dict[str, Comparison]] = {
    ">": lambda answer: answer > 0,
    ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0,
    "<=": lambda answer: answer <= 0,
}
SEARCHES: Final[dict[str, Search]] = {
    "CONTAINS": lambda text, search: search in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def constant(value: Value) -> Evaluate:
    """Return a closure for a constant."""
    return lambda get: value


def property_of(name: str) -> Evaluate:
    """Return a closure for the value of a property."""
    return lambda get: get(name)


def negated(inner: Evaluate) -> Evaluate:
    """Return the arithmetic negation.

    The result for anything but a number is unknown; texts are not read as numbers here.
    """

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None or isinstance(value, (bool, str)) else -value

    return evaluate


def inverse(inner: Evaluate) -> Evaluate:
    """Return the logical NOT of a closure."""

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None else not value

    return evaluate


def property_as_condition(name: str) -> Evaluate:
    """Return a closure for a property that is used as a condition: always false, or unknown without the property."""
    return lambda get: None if get(name) is None else False


def conjunction(operands: tuple[Evaluate, ...]) -> Evaluate:
    """Return AND, evaluated from left to right until an operand is false."""
    return _connective(operands, deciding=False)


def disjunction(operands: tuple[Evaluate, ...]) -> Evaluate:
    """Return OR, evaluated from left to right until an operand is true."""
    return _connective(operands, deciding=True)


def _connective(operands: tuple[Evaluate, ...], *, deciding: bool) -> Evaluate:
    otherwise = not deciding

    def evaluate(get: Get) -> Value:
        is_unknown = False
        for operand in operands:
            value = operand(get)
            if value is deciding:
                return deciding
            if value is None:
                is_unknown = True
        return None if is_unknown else otherwise

    return evaluate


def equality(left: Evaluate, right: Evaluate) -> Evaluate:
    """Return `=`, and IS NULL, which is equality with NULL."""

    def evaluate(get: Get) -> Value:
        left_value, right_value = left(get), right(get)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None:
            return False
        return compare_values(left_value, right_value) == 0

    return evaluate


def property_is_null(name: str) -> Evaluate:
    return lambda get: get(name) is None


def property_is_text(name: str, wanted: str) -> Evaluate:
    """Return a closure for `name = 'wanted'`."""

    def evaluate(get: Get) -> Value:
        text = get(name)
        return None if text is None else text == wanted

    return evaluate


def comparison(symbol: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """Return `>`, `>=`, `<` or `<=`. Two texts are compared as Doubles."""
    compare = COMPARISONS[symbol]

    def evaluate(get: Get) -> Value:
        left_value = left(get)
        if left_value is None:
            return None
        right_value = right(get)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return compare(compare_doubles(parse_double(left_value), parse_double(right_value)))
        return compare(compare_values(left_value, right_value))

    return evaluate


def property_compared_with_whole(symbol: str, name: str, number: int) -> Evaluate:
    """Return `name symbol number` for a whole number, where the symbol is `=`, `>`, `>=`, `<` or `<=`."""
    if symbol == ">":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else parse_whole(text, number) > number

    elif symbol == ">=":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else parse_whole(text, number) >= number

    elif symbol == "<":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else parse_whole(text, number) < number

    elif symbol == "<=":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else parse_whole(text, number) <= number

    else:

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else parse_whole(text, number) == number

    return evaluate


def search(word: str, operand: Evaluate, wanted: str, *, is_negated: bool) -> Evaluate:
    """Return CONTAINS, STARTSWITH or ENDSWITH, also with NOT.

    The result is false, with NOT as well, for an operand that is unknown or no text, and for an empty search text, with
    which the operand is not evaluated.
    """
    if not wanted:
        return constant(False)
    find = SEARCHES[word]

    def evaluate(get: Get) -> Value:
        value = operand(get)
        return find(value, wanted) is not is_negated if isinstance(value, str) else False

    return evaluate


def membership(name: str, wanted: Collection[str], *, is_negated: bool) -> Evaluate:
    """Return IN, also with NOT."""
    texts = frozenset(wanted)

    def evaluate(get: Get) -> Value:
        text = get(name)
        return None if text is None else (text in texts) is not is_negated

    return evaluate
