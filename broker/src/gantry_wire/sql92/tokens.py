"""The tokens of a filter.

The longest match is taken. Keywords may have any case; names are ASCII letters, digits, `_` and `$`. A line comment
must end with its line, otherwise its two hyphens are two signs. An invalid character is a fault only when the parser
reaches it: RocketMQ's parser stops after the first complete expression and reads one more token, but not the rest.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_wire.sql92.errors import ExpressionFault
from gantry_wire.sql92.limits import EXPRESSION_CHARACTERS_MAX, EXPRESSION_TOKENS_MAX


class TokenKind(StrEnum):
    """The kinds of tokens other than keywords and signs; the kind of those is their text, in capitals."""

    NAME = "name"
    TEXT = "text"
    WHOLE = "whole number"
    FRACTION = "fraction"
    END = "the end"
    INVALID = "an invalid character"


class Token(NamedTuple):
    """One token, and its position in the text."""

    kind: str
    text: str
    start: int
    """Where the token begins in the expression."""


KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_TOKEN: Final = re.compile(
    r"""
      (?P<blank> [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*[^*]*\*(?:\*|[^*/][^*]*\*)*/ )
    | (?P<name> [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<fraction> [0-9]+\.[0-9]*(?:[Ee][+-]?[0-9]+)? | \.[0-9]+(?:[Ee][+-]?[0-9]+)? | [0-9]+[Ee][+-]?[0-9]+ )
    | (?P<whole> 0 | [1-9][0-9]*[Ll]? )
    | (?P<text> '(?:''|[^'])*' )
    | (?P<sign> <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_KINDS: Final = {"fraction": TokenKind.FRACTION, "whole": TokenKind.WHOLE, "text": TokenKind.TEXT}


def read_tokens(expression: str) -> list[Token]:
    """Return the tokens of `expression` up to its end or its first invalid character.

    Raises ExpressionFault if the expression is too large.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise ExpressionFault(
            f"the filter has {len(expression)} characters, but at most {EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    tokens: list[Token] = []
    position, end = 0, len(expression)
    while position < end:
        match = _TOKEN.match(expression, position)
        if match is None:
            tokens.append(Token(TokenKind.INVALID, expression[position], position))
            return tokens
        if match.lastgroup != "blank":
            if len(tokens) == EXPRESSION_TOKENS_MAX:
                raise ExpressionFault(f"the filter has more than {EXPRESSION_TOKENS_MAX} words, numbers and signs")
            tokens.append(_token(match))
        position = match.end()
    tokens.append(Token(TokenKind.END, "", end))
    return tokens


def _token(match: re.Match[str]) -> Token:
    group, text = match.lastgroup or "", match.group()
    if group == "name":
        capitals = text.upper()
        return Token(capitals if capitals in KEYWORDS else TokenKind.NAME, text, match.start())
    return Token(_KINDS.get(group, text), text, match.start())


def unquote_text(literal: str) -> str:
    """Return the text of a literal: without its quotes, and with doubled quotes as one."""
    return literal[1:-1].replace("''", "'")
