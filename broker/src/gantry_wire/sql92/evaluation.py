"""The closures that terms are made of. Each takes a look-up of properties and gives a value.

Unknown is contagious but for AND with something false and OR with something true; in a test for equality an unknown
left side is unknown, an unknown right side is false, and two unknown sides are equal. Order of evaluation is part of
the verdict, because a fault on the right is never met when the left has decided.

The forms that filters mostly have, a property compared with a literal, have closures of their own that do the same in
one call. What is here runs for every message: primitives, no objects.
"""

from collections.abc import Callable, Collection
from typing import Final

from gantry_wire.sql92.numbers import double_of, double_order, whole_like
from gantry_wire.sql92.values import Evaluate, Get, Value, order

Judge = Callable[[int], bool]
Search = Callable[[str, str], bool]

JUDGES: Final[dict[str, Judge]] = {
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
    return lambda get: value


def property_of(name: str) -> Evaluate:
    return lambda get: get(name)


def negated(inner: Evaluate) -> Evaluate:
    """The arithmetic minus. Of anything but a number it is unknown; texts are never read as numbers here."""

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None or isinstance(value, (bool, str)) else -value

    return evaluate


def inverse(inner: Evaluate) -> Evaluate:
    """NOT."""

    def evaluate(get: Get) -> Value:
        value = inner(get)
        return None if value is None else not value

    return evaluate


def truth_of_property(name: str) -> Evaluate:
    """A property that stands alone is false, whatever it says, or unknown."""
    return lambda get: None if get(name) is None else False


def conjunction(operands: tuple[Evaluate, ...]) -> Evaluate:
    """AND, left to right, until one is false."""
    return _connective(operands, deciding=False)


def disjunction(operands: tuple[Evaluate, ...]) -> Evaluate:
    """OR, left to right, until one is true."""
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
    """`=`, and IS NULL, which is equality with NULL."""

    def evaluate(get: Get) -> Value:
        left_value, right_value = left(get), right(get)
        if left_value is None:
            return True if right_value is None else None
        if right_value is None:
            return False
        return order(left_value, right_value) == 0

    return evaluate


def property_is_null(name: str) -> Evaluate:
    return lambda get: get(name) is None


def property_is_text(name: str, wanted: str) -> Evaluate:
    """`name = 'wanted'`."""

    def evaluate(get: Get) -> Value:
        text = get(name)
        return None if text is None else text == wanted

    return evaluate


def comparison(symbol: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """`>`, `>=`, `<`, `<=`. Two texts are compared as Doubles."""
    judge = JUDGES[symbol]

    def evaluate(get: Get) -> Value:
        left_value = left(get)
        if left_value is None:
            return None
        right_value = right(get)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return judge(double_order(double_of(left_value), double_of(right_value)))
        return judge(order(left_value, right_value))

    return evaluate


def property_and_whole(symbol: str, name: str, number: int) -> Evaluate:
    """A property on the left of a whole number; `=` as well."""
    if symbol == ">":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else whole_like(text, number) > number

    elif symbol == ">=":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else whole_like(text, number) >= number

    elif symbol == "<":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else whole_like(text, number) < number

    elif symbol == "<=":

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else whole_like(text, number) <= number

    else:

        def evaluate(get: Get) -> Value:
            text = get(name)
            return None if text is None else whole_like(text, number) == number

    return evaluate


def search(word: str, operand: Evaluate, wanted: str, *, is_negated: bool) -> Evaluate:
    """CONTAINS and its like, also with NOT. An empty search is false without a look at the operand, with NOT too."""
    if not wanted:
        return constant(False)
    find = SEARCHES[word]

    def evaluate(get: Get) -> Value:
        value = operand(get)
        return find(value, wanted) is not is_negated if isinstance(value, str) else False

    return evaluate


def membership(name: str, wanted: Collection[str], *, is_negated: bool) -> Evaluate:
    """IN, also with NOT."""
    texts = frozenset(wanted)

    def evaluate(get: Get) -> Value:
        text = get(name)
        return None if text is None else (text in texts) is not is_negated

    return evaluate
