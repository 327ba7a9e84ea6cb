"""A filter as broker and client hold it: its text, its verdict on properties, and what it costs.

Filters that were parsed lately are kept, because every pull may carry its text; so are the faults of texts that are
none. What is kept is bounded by the characters of the texts.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, final

from gantry_wire.properties import PropertyMark, property_marks, some_properties
from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.parser import Parser
from gantry_wire.sql92.tokens import read_tokens

KEPT_CHARACTERS_MAX: Final = 262_144
_ENTRY_CHARACTERS: Final = 64
"""What an entry counts besides its text."""


@final
class SqlFilter:
    """One expression, parsed. Immutable."""

    __slots__ = ("_evaluate", "_marks", "expression", "ignored", "names", "weight")

    def __init__(self, expression: str) -> None:
        """Raises ExpressionFault."""
        tokens = read_tokens(expression)
        parser = Parser(tokens)
        self._evaluate = parser.condition().evaluate
        self.expression = expression
        self.names = tuple(parser.names)
        """The properties that it asks for."""
        self.ignored = expression[parser.next.start :]
        """What follows the expression and is never looked at, as in RocketMQ; empty in a filter that is meant."""
        self.weight = len(tokens) - 2 * parser.listed
        """What an evaluation costs at most, in words without the lists of IN."""
        self._marks: tuple[PropertyMark, ...] = property_marks(self.names)

    def __repr__(self) -> str:
        return f"<SqlFilter {self.expression[:64]!r}>"

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """True, False, or None for unknown. Raises EvaluationFault for a message that cannot be judged."""
        verdict = self._evaluate(properties.get)
        assert verdict is None or isinstance(verdict, bool), "the parser lets only conditions through"
        return verdict

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties is wanted. What is unknown or cannot be judged is not."""
        try:
            return self._evaluate(properties.get) is True
        except EvaluationFault:
            return False

    def accepts_encoded(self, properties: str) -> bool:
        """`accepts` of properties as a record holds them. Empty values are as good as absent, as in Java."""
        return self.accepts(some_properties(properties, self._marks))


def parse_sql_filter(expression: str) -> SqlFilter:
    """The filter of `expression`, perhaps one parsed before. Raises ExpressionFault."""
    known = _kept.find(expression)
    if known is None:
        try:
            known = SqlFilter(expression)
        except ExpressionFault as fault:
            known = str(fault)
        _kept.keep(expression, known)
    if isinstance(known, str):
        raise ExpressionFault(known)
    return known


@final
class _Kept:
    """The filters, or reasons why there is none, of the texts used last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, SqlFilter | str] = OrderedDict()
        self._characters = 0

    def find(self, expression: str) -> SqlFilter | str | None:
        entry = self._entries.get(expression)
        if entry is not None:
            self._entries.move_to_end(expression)
        return entry

    def keep(self, expression: str, entry: SqlFilter | str) -> None:
        size = len(expression) + _ENTRY_CHARACTERS
        if size > KEPT_CHARACTERS_MAX:
            return
        self._entries[expression] = entry
        self._characters += size
        while self._characters > KEPT_CHARACTERS_MAX:
            oldest, _ = self._entries.popitem(last=False)
            self._characters -= len(oldest) + _ENTRY_CHARACTERS


_kept: Final = _Kept()
"""Shared by all of a process, and safe to lose: it decides nothing."""
