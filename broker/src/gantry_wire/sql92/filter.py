"""A filter as broker and client use it: its text, its evaluation on properties, and its cost.

Filters that were parsed recently are cached, because every pull may carry its expression; the faults of invalid
expressions are cached, too. The cache is bounded by the total length of the expressions.
"""

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, final

from gantry_wire.properties import PropertyMark, property_marks, select_properties
from gantry_wire.sql92.errors import EvaluationFault, ExpressionFault
from gantry_wire.sql92.parser import Parser
from gantry_wire.sql92.tokens import TokenKind, read_tokens, unquote_text

CACHED_CHARACTERS_MAX: Final = 262_144
"""Limit of the characters of all cached expressions."""
_ENTRY_CHARACTERS: Final = 64
"""The size of an entry beside its expression."""


@final
class SqlFilter:
    """One parsed expression. It is immutable."""

    __slots__ = ("_evaluate", "_marks", "expression", "ignored", "names", "weight")

    def __init__(self, expression: str) -> None:
        """Parse `expression`. Raises ExpressionFault for an invalid one."""
        tokens = read_tokens(expression)
        parser = Parser(tokens)
        self._evaluate = parser.condition().evaluate
        self.expression = expression
        self.names = tuple(parser.names)
        """The properties that the expression uses."""
        self.ignored = expression[parser.next.start :]
        """The text after the expression, which is not evaluated, as in RocketMQ; normally empty."""
        self.weight = len(tokens) - 2 * parser.list_texts_count
        """The maximum cost of an evaluation, in tokens without the lists of IN."""
        self._marks: tuple[PropertyMark, ...] = property_marks(self.names)

    def __repr__(self) -> str:
        return f"<SqlFilter {self.expression[:64]!r}>"

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return True, False, or None for unknown. Raises EvaluationFault for a message that cannot be evaluated."""
        verdict = self._evaluate(properties.get)
        assert verdict is None or isinstance(verdict, bool), "the parser lets only conditions through"
        return verdict

    def accepts(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches. Unknown results and faults do not match."""
        try:
            return self._evaluate(properties.get) is True
        except EvaluationFault:
            return False

    def accepts_encoded(self, properties: str) -> bool:
        """Return `accepts` for properties as a record holds them. Empty values count as absent, as in Java."""
        return self.accepts(select_properties(properties, self._marks))


def required_texts(condition: SqlFilter) -> list[tuple[str, str]]:
    """Return names and texts of properties that every accepted message has, as far as the expression shows them.

    Only a conjunction of simple conditions shows them: without brackets, OR and NOT, each `name = 'text'` must hold.
    """
    tokens = read_tokens(condition.expression)
    if any(token.kind in ("OR", "NOT", "(") for token in tokens):
        return []
    kinds = ["AND", *(token.kind for token in tokens)]
    found = []
    for at, (left, sign, right) in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False)):
        if sign.kind != "=" or kinds[at] != "AND" or kinds[at + 4 :][:1] not in (["AND"], [TokenKind.END]):
            continue
        name, text = (left, right) if left.kind == TokenKind.NAME else (right, left)
        if name.kind == TokenKind.NAME and text.kind == TokenKind.TEXT and len(text.text) > 2:
            found.append((name.text, unquote_text(text.text)))
    return found


def parse_sql_filter(expression: str) -> SqlFilter:
    """Return the filter for `expression`, from the cache if possible. Raises ExpressionFault."""
    cached = _cache.lookup(expression)
    if cached is None:
        try:
            cached = SqlFilter(expression)
        except ExpressionFault as fault:
            cached = str(fault)
        _cache.store(expression, cached)
    if isinstance(cached, str):
        raise ExpressionFault(cached)
    return cached


@final
class _FilterCache:
    """The filters, or the faults, of the expressions used most recently.

    Several threads may use it, since each operation on the table is atomic; then the count of characters may be a
    little off.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[str, SqlFilter | str] = OrderedDict()
        self._characters = 0

    def lookup(self, expression: str) -> SqlFilter | str | None:
        entry = self._entries.get(expression)
        if entry is not None:
            with suppress(KeyError):  # another thread may have evicted it meanwhile
                self._entries.move_to_end(expression)
        return entry

    def store(self, expression: str, entry: SqlFilter | str) -> None:
        size = len(expression) + _ENTRY_CHARACTERS
        if size > CACHED_CHARACTERS_MAX:
            return
        if self._entries.setdefault(expression, entry) is not entry:
            return  # another thread has parsed it at the same time
        self._characters += size
        while self._characters > CACHED_CHARACTERS_MAX and self._entries:
            oldest, _ = self._entries.popitem(last=False)
            self._characters -= len(oldest) + _ENTRY_CHARACTERS


_cache: Final = _FilterCache()
"""The cache of this process. Losing an entry only costs time."""
