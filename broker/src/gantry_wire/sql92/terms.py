"""Terms of a filter, and what may be applied to what.

RocketMQ checks an expression while it is put together, by the class of each operand, and so does this: a literal, a
property, something boolean, or the negation of a number. A property that stands where something boolean must is taken
as one. The outcome of `+x` and of brackets is x itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gantry_wire.sql92 import evaluation
from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.limits import NESTING_MAX
from gantry_wire.sql92.numbers import DOUBLE_MAX, DOUBLE_MIN, LONG_MAX
from gantry_wire.sql92.values import Evaluate, Value, order


class Kind(Enum):
    """What a term is, as far as rules ask."""

    LITERAL = "a literal"
    PROPERTY = "a property"
    TRUTH = "a condition"
    NEGATION = "a negated value"


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a filter, ready to be evaluated."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 0
    value: Value = None
    """Of a literal."""
    name: str = ""
    """Of a property."""

    @property
    def is_boolean(self) -> bool:
        """NULL counts as TRUE and FALSE do."""
        is_literal = self.kind is Kind.LITERAL and (self.value is None or isinstance(self.value, bool))
        return is_literal or self.kind is Kind.TRUTH


def literal(value: Value) -> Term:
    return Term(Kind.LITERAL, evaluation.constant(value), value=value)


def whole_literal(text: str) -> Term:
    number = int(text.rstrip("lL")) if len(text) <= 20 else LONG_MAX + 1
    if number > LONG_MAX:
        raise ExpressionFault(f"{text[:64]} is beyond {LONG_MAX}")
    return literal(number)


def fraction_literal(text: str) -> Term:
    """RocketMQ refuses zero here, since it is below the smallest positive number."""
    number = float(text)
    if not DOUBLE_MIN <= number <= DOUBLE_MAX:
        raise ExpressionFault(f"{text[:64]} is not between {DOUBLE_MIN} and {DOUBLE_MAX}")
    return literal(number)


def property_term(name: str) -> Term:
    return Term(Kind.PROPERTY, evaluation.property_of(name), name=name)


def boolean(term: Term) -> Term:
    """`term` where a condition must stand."""
    if term.is_boolean:
        return term
    if term.kind is Kind.PROPERTY:
        return _truth(evaluation.truth_of_property(term.name), term)
    raise ExpressionFault(f"{term.kind.value} stands where a condition must")


def negation(term: Term) -> Term:
    return Term(Kind.NEGATION, evaluation.negated(term.evaluate), _depth(term))


def inverse(term: Term) -> Term:
    return _truth(evaluation.inverse(boolean(term).evaluate), term)


def all_of(terms: Sequence[Term]) -> Term:
    """AND."""
    return _truth(evaluation.conjunction(tuple(boolean(term).evaluate for term in terms)), *terms)


def any_of(terms: Sequence[Term]) -> Term:
    """OR."""
    return _truth(evaluation.disjunction(tuple(boolean(term).evaluate for term in terms)), *terms)


def comparison(symbol: str, left: Term, right: Term) -> Term:
    """`>` and its like: numbers, properties and negations only."""
    for term in (left, right):
        is_number = isinstance(term.value, (int, float)) and not isinstance(term.value, bool)
        if term.kind is Kind.TRUTH or (term.kind is Kind.LITERAL and not is_number):
            raise ExpressionFault(f"{symbol} compares numbers and properties only")
    if left.kind is Kind.PROPERTY and right.kind is Kind.LITERAL and isinstance(right.value, int):
        return _truth(evaluation.property_and_whole(symbol, left.name, right.value), left, right)
    return _truth(evaluation.comparison(symbol, left.evaluate, right.evaluate), left, right)


def equality(left: Term, right: Term) -> Term:
    """`=`. TRUE and FALSE may stand right of any literal, and left of their like only."""
    if any(term.kind is Kind.LITERAL and term.value is None for term in (left, right)):
        raise ExpressionFault("nothing equals NULL; IS NULL asks for it")
    if left.kind is right.kind is Kind.LITERAL and left.is_boolean and not right.is_boolean:
        raise ExpressionFault("TRUE or FALSE is compared with another literal")
    if left.kind is Kind.PROPERTY and right.kind is Kind.LITERAL and not right.is_boolean:
        if isinstance(right.value, str):
            return _truth(evaluation.property_is_text(left.name, right.value), left, right)
        if isinstance(right.value, int):
            return _truth(evaluation.property_and_whole("=", left.name, right.value), left, right)
    return _truth(evaluation.equality(left.evaluate, right.evaluate), left, right)


def is_null(term: Term) -> Term:
    if term.kind is Kind.PROPERTY:
        return _truth(evaluation.property_is_null(term.name), term)
    return _truth(evaluation.equality(term.evaluate, evaluation.constant(None)), term)


def between(term: Term, low: Term, high: Term) -> Term:
    """BETWEEN. Two literals must be in order, and NULL is none of them."""
    if low.kind is high.kind is Kind.LITERAL:
        if low.value is None or high.value is None:
            raise ExpressionFault("NULL is no bound")
        try:
            is_backwards = order(high.value, low.value) < 0
        except EvaluationFault as fault:
            raise ExpressionFault(str(fault)) from fault
        if is_backwards:
            raise ExpressionFault("the lower bound is above the upper one")
    return all_of((comparison(">=", term, low), comparison("<=", term, high)))


def outside(term: Term, low: Term, high: Term) -> Term:
    """NOT BETWEEN. Bounds in the wrong order are no fault here."""
    return any_of((comparison("<", term, low), comparison(">", term, high)))


def search(word: str, term: Term, wanted: str, *, is_negated: bool) -> Term:
    return _truth(evaluation.search(word, term.evaluate, wanted, is_negated=is_negated), term)


def membership(term: Term, wanted: Sequence[str], *, is_negated: bool) -> Term:
    if term.kind is not Kind.PROPERTY:
        raise ExpressionFault(f"{term.kind.value} stands left of IN, which asks for a property")
    return _truth(evaluation.membership(term.name, wanted, is_negated=is_negated), term)


def _truth(evaluate: Evaluate, *inner: Term) -> Term:
    return Term(Kind.TRUTH, evaluate, _depth(*inner))


def _depth(*inner: Term) -> int:
    """Of a term around these. Raises ExpressionFault when it is more than evaluation may recurse."""
    depth = 1 + max(term.depth for term in inner)
    if depth > NESTING_MAX:
        raise ExpressionFault(f"more than {NESTING_MAX} operators are applied to each other")
    return depth
