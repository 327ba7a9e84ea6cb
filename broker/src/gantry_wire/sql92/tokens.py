"""The words of a filter.

The longest word that fits is taken; keywords in any case; names are ASCII letters, digits, `_` and `$`. A line comment
must end with its line, else its two hyphens are two signs. Characters that begin no word are a fault only when the
parser comes to them: RocketMQ's parser stops behind the first whole expression and looks at one word more, never at
the rest.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from gantry_wire.sql92.errors import ExpressionFault
from gantry_wire.sql92.limits import EXPRESSION_CHARACTERS_MAX, EXPRESSION_WORDS_MAX


class Word(StrEnum):
    """Kinds of words that are no operator; an operator's kind is its own text, in capitals."""

    NAME = "name"
    TEXT = "text"
    WHOLE = "whole number"
    FRACTION = "fraction"
    END = "the end"
    BAD = "no word"


class Token(NamedTuple):
    """One word, and where it begins."""

    kind: str
    text: str
    start: int


KEYWORDS: Final = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH")
)

_WORDS: Final = re.compile(
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
_KINDS: Final = {"fraction": Word.FRACTION, "whole": Word.WHOLE, "text": Word.TEXT}


def read_tokens(expression: str) -> list[Token]:
    """The words of `expression` up to its end or its first bad character. Raises ExpressionFault if it is too large."""
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise ExpressionFault(f"{len(expression)} characters; a filter has at most {EXPRESSION_CHARACTERS_MAX}")
    tokens: list[Token] = []
    position, end = 0, len(expression)
    while position < end:
        match = _WORDS.match(expression, position)
        if match is None:
            tokens.append(Token(Word.BAD, expression[position], position))
            return tokens
        if match.lastgroup != "blank":
            if len(tokens) == EXPRESSION_WORDS_MAX:
                raise ExpressionFault(f"more than {EXPRESSION_WORDS_MAX} words in one filter")
            tokens.append(_token(match))
        position = match.end()
    tokens.append(Token(Word.END, "", end))
    return tokens


def _token(match: re.Match[str]) -> Token:
    group, text = match.lastgroup or "", match.group()
    if group == "name":
        capitals = text.upper()
        return Token(capitals if capitals in KEYWORDS else Word.NAME, text, match.start())
    return Token(_KINDS.get(group, text), text, match.start())


def text_of(literal: str) -> str:
    """What a text literal says: without its quotes, doubled ones as one."""
    return literal[1:-1].replace("''", "'")
