"""Terms of a filter, and which operators accept which terms.

RocketMQ checks an expression while it is built, by the class of each operand, and so does this module: a literal, a
property, a condition, or the negation of a number. A property in place of a condition is accepted as one. The term of
`+x` and of `(x)` is x itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from gantry_wire.sql92 import evaluation
from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.limits import NESTING_MAX
from gantry_wire.sql92.numbers import DOUBLE_MAX, DOUBLE_MIN, LONG_MAX
from gantry_wire.sql92.values import Evaluate, Value, compare_values


class Kind(Enum):
    """The kind of a term, by which operators accept it."""

    LITERAL = "a literal"
    PROPERTY = "a property"
    CONDITION = "a condition"
    NEGATION = "a negated value"


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a filter that can be evaluated."""

    kind: Kind
    evaluate: Evaluate
    depth: int = 0
    """How many operators are applied to each other in it."""

    value: Value = None
    """The value of a literal."""
    name: str = ""
    """The name of a property."""

    @property
    def is_boolean(self) -> bool:
        """Return whether the term is a condition, TRUE, FALSE or NULL."""
        is_literal = self.kind is Kind.LITERAL and (self.value is None or isinstance(self.value, bool))
        return is_literal or self.kind is Kind.CONDITION


def literal(value: Value) -> Term:
    return Term(Kind.LITERAL, evaluation.constant(value), value=value)


def whole_literal(text: str) -> Term:
    number = int(text.rstrip("lL")) if len(text) <= 20 else LONG_MAX + 1
    if number > LONG_MAX:
        raise ExpressionFault(f"the number {text[:64]} is too large: at most {LONG_MAX} is allowed")
    return literal(number)


def fraction_literal(text: str) -> Term:
    """Return the term for a fraction. As in RocketMQ zero is refused: it is below the smallest positive number."""
    number = float(text)
    if not DOUBLE_MIN <= number <= DOUBLE_MAX:
        raise ExpressionFault(f"the fraction {text[:64]} is not between {DOUBLE_MIN} and {DOUBLE_MAX}")
    return literal(number)


def property_term(name: str) -> Term:
    return Term(Kind.PROPERTY, evaluation.property_of(name), name=name)


def as_condition(term: Term) -> Term:
    """Return `term` as a condition. Raises ExpressionFault unless it is one or a property."""
    if term.is_boolean:
        return term
    if term.kind is Kind.PROPERTY:
        return _condition(evaluation.property_as_condition(term.name), term)
    raise ExpressionFault(f"expected a condition or a property, but found {term.kind.value}")


def negation(term: Term) -> Term:
    return Term(Kind.NEGATION, evaluation.negated(term.evaluate), _depth(term))


def inverse(term: Term) -> Term:
    return _condition(evaluation.inverse(as_condition(term).evaluate), term)


def all_of(terms: Sequence[Term]) -> Term:
    """Return the conjunction (AND) of `terms`."""
    return _condition(evaluation.conjunction(tuple(as_condition(term).evaluate for term in terms)), *terms)


def any_of(terms: Sequence[Term]) -> Term:
    """Return the disjunction (OR) of `terms`."""
    return _condition(evaluation.disjunction(tuple(as_condition(term).evaluate for term in terms)), *terms)


def comparison(symbol: str, left: Term, right: Term) -> Term:
    """Return the term for `>`, `>=`, `<` or `<=`, which accept numbers, properties and negations only."""
    for term in (left, right):
        is_number = isinstance(term.value, (int, float)) and not isinstance(term.value, bool)
        if term.kind is Kind.CONDITION or (term.kind is Kind.LITERAL and not is_number):
            raise ExpressionFault(f"{symbol} compares only numbers and properties, but found {_describe(term)}")
    if left.kind is Kind.PROPERTY and right.kind is Kind.LITERAL and isinstance(right.value, int):
        return _condition(evaluation.property_compared_with_whole(symbol, left.name, right.value), left, right)
    return _condition(evaluation.comparison(symbol, left.evaluate, right.evaluate), left, right)


def equality(left: Term, right: Term) -> Term:
    """Return the term for `=`. NULL is refused, and so is TRUE or FALSE on the left of a number or text literal."""
    if any(term.kind is Kind.LITERAL and term.value is None for term in (left, right)):
        raise ExpressionFault("= and <> cannot compare with NULL; use IS NULL or IS NOT NULL")
    if left.kind is right.kind is Kind.LITERAL and left.is_boolean and not right.is_boolean:
        raise ExpressionFault(f"TRUE and FALSE cannot be compared with {_describe(right)}")
    if left.kind is Kind.PROPERTY and right.kind is Kind.LITERAL and not right.is_boolean:
        if isinstance(right.value, str):
            return _condition(evaluation.property_is_text(left.name, right.value), left, right)
        if isinstance(right.value, int):
            return _condition(evaluation.property_compared_with_whole("=", left.name, right.value), left, right)
    return _condition(evaluation.equality(left.evaluate, right.evaluate), left, right)


def is_null(term: Term) -> Term:
    if term.kind is Kind.PROPERTY:
        return _condition(evaluation.property_is_null(term.name), term)
    return _condition(evaluation.equality(term.evaluate, evaluation.constant(None)), term)


def between(term: Term, low: Term, high: Term) -> Term:
    """Return the term for BETWEEN. Two literals must be in order, and neither may be NULL."""
    if low.kind is high.kind is Kind.LITERAL:
        if low.value is None or high.value is None:
            raise ExpressionFault("a bound of BETWEEN is NULL; use two numbers")
        try:
            is_backwards = compare_values(high.value, low.value) < 0
        except EvaluationFault as fault:
            raise ExpressionFault(str(fault)) from fault
        if is_backwards:
            raise ExpressionFault(
                f"the bounds of BETWEEN are in the wrong order: {_describe(low)} is above {_describe(high)}"
            )
    return all_of((comparison(">=", term, low), comparison("<=", term, high)))


def outside(term: Term, low: Term, high: Term) -> Term:
    """Return the term for NOT BETWEEN. Bounds in the wrong order are accepted here."""
    return any_of((comparison("<", term, low), comparison(">", term, high)))


def search(word: str, term: Term, wanted: str, *, is_negated: bool) -> Term:
    return _condition(evaluation.search(word, term.evaluate, wanted, is_negated=is_negated), term)


def membership(term: Term, wanted: Sequence[str], *, is_negated: bool) -> Term:
    if term.kind is not Kind.PROPERTY:
        raise ExpressionFault(f"the left operand of IN must be a property, but is {term.kind.value}")
    return _condition(evaluation.membership(term.name, wanted, is_negated=is_negated), term)


def _condition(evaluate: Evaluate, *inner: Term) -> Term:
    return Term(Kind.CONDITION, evaluate, _depth(*inner))


def _depth(*inner: Term) -> int:
    """Return the depth of a term around `inner`. Raises ExpressionFault if it exceeds the limit on recursion."""
    depth = 1 + max(term.depth for term in inner)
    if depth > NESTING_MAX:
        raise ExpressionFault(f"operators are nested more than {NESTING_MAX} deep; simplify the filter")
    return depth


def _describe(term: Term) -> str:
    """Return a term for the text of a fault: the value of a literal, or else the kind."""
    return f"the literal {str(term.value)[:64]!r}" if term.kind is Kind.LITERAL else term.kind.value
