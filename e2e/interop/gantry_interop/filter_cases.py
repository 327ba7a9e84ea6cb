"""Random filters and messages from a grammar and a seed, on which two evaluators must agree.

Three quarters of the expressions follow the grammar, most of them with sensible operands, the others with any. A
quarter are corrupted: words inserted, removed, doubled or replaced, or the end cut off. Literals and property values
come from pools of values that number parsers, comparisons and scanners find difficult. The messages of a case have some
of the properties that its expression names, often with a value that occurs in it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, final

NAMES: Final = ("a", "b", "c", "price", "TAGS", "_x", "$y", "A", "not1", "a_1$")
INTEGERS: Final = (
    "0", "1", "2", "5", "10", "100", "007", "5L", "5l", "0L", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "9223372036854775807L", "9007199254740993", "99999999999999999999", "10l",
)  # fmt: skip
FRACTIONS: Final = (
    "0.5", "1.0", "5.", ".5", "5.0", "1e1", "1E+2", "5e-1", "0.0", "1e400", "1e-400", "4.9e-324",
    "1.7976931348623157e308", "9007199254740992.0", "2147483648.0", "00.5", "1e", "1.e1", "2.5e0",
)  # fmt: skip
TEXTS: Final = (
    "", "x", "abc", "b", "ab", "it''s", "''", "5", "5.0", "-1", "true", "TRUE", "false", "gr\xfcn", "a = 1", "%",
    "\t", "--", "/* c */", "1e1", "\U0001f600",
)  # fmt: skip
VALUES: Final = (
    "", " ", "x", "abc", "b", "ab", "it's", "'", "0", "1", "2", "5", "10", "100", "-1", "-5", "+5", "-0", "+", "-",
    "5.0", "5.", ".5", ".", "1e1", "1E+1", "1e", "0x1p3", "0X1.8P1", "-0x.8p0", "0x1", "0x1p9999", "NaN", "-NaN",
    "+Infinity", "-Infinity", "nan", "inf", "Infinityd", "5f", "5D", "5dd", "5L", " 5 ", "5 ", "\t5", "\x005.0",
    "1_000", "007", "-007", "0.0", "-0.0", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "99999999999999999999999", "000000000000000000000000000005", "9007199254740993", "9007199254740992", "1e308",
    "1e309", "-1e309", "1e-400", "4.9e-324", "0.1", "0.30000000000000004", "\u0663", "\u096b", "\uff15", "\U0001d7d3",
    "\xb2", "\xbd", "true", "TRUE", "True", "false", "true", "yes", "gr\xfcn", "\U0001f600", "abcabc", "null", "NULL",
    "1,5", "--1", "+-1", "1 2", "e5", "5e5f", "1e1.0", "\xa05", "5\u3000",
)  # fmt: skip
COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")
BLANKS: Final = (
    " ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\x0c", " /* c */ ", " /* ** */ ", " -- c\n", "--c\r",
)  # fmt: skip
STRAY_WORDS: Final = (
    "!", "#", "*", "/", "%", ";", "\"", "?", "@", "[", "\xe9", "\u212a", "\x00", "'", "/*", "--", "==", "!=", "&&",
    ".", ",", ")", "(", "+", "-", "NOT", "AND", "NULL", "IS", "IN", "LIKE", "BETWEEN", "x", "1", "'x'", "TRUE", "<",
    ">", "=",
)  # fmt: skip
TYPE_CASES: Final = (
    "a > 5", "a = 5", "a <> 2147483648", "a <= 4.5", "a = 5.0", "5 > a", "-9223372036854775807 < a", "0.5 >= a",
    "a < b", "b <= a", "a BETWEEN -1 AND 9.5", "a = TRUE", "TRUE = a", "a = b", "a STARTSWITH '5'", "a ENDSWITH '5'",
    "a IN ('5', '')",
)  # fmt: skip
"""The expressions for every value of the pool, each with a few values for b."""

DEPTH_MAX: Final = 4
MESSAGES: Final = 10


@dataclass(frozen=True)
class Case:
    """One filter, and the messages to evaluate it on."""

    expression: str
    messages: tuple[dict[str, str], ...]


def corner_cases() -> list[Case]:
    """Return every relation with every difficult value."""
    messages = [{"a": value, "b": other} for value in VALUES for other in ("5", "-0.0", "NaN")]
    plain = [{"a": value} for value in VALUES]
    return [Case(one, tuple(messages if "b" in one.split() else plain)) for one in TYPE_CASES]


@final
class Cases:
    """An endless supply of cases. The same seed gives the same cases."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._is_wild = False
        """Whether the present expression may have operands of any kind."""

    def __iter__(self) -> Iterator[Case]:
        while True:
            yield self.next()

    def next(self) -> Case:
        draw = self._random.random()
        self._is_wild = 0.55 <= draw < 0.9
        words = self._disjunction(0)
        if draw >= 0.75:
            words = self._corrupt(words)
        expression = self._join(words)
        return Case(expression, tuple(self._message(expression) for _ in range(MESSAGES)))

    # ------- the grammar, as lists of words

    def _disjunction(self, depth: int) -> list[str]:
        return self._row("OR", self._conjunction, depth)

    def _conjunction(self, depth: int) -> list[str]:
        return self._row("AND", self._condition, depth)

    def _row(self, word: str, part: Callable[[int], list[str]], depth: int) -> list[str]:
        words = part(depth)
        while self._random.random() < 0.3:
            words += [self._vary_case(word), *part(depth)]
        return words

    def _condition(self, depth: int) -> list[str]:
        """Return one of the sensible forms; in wild cases, any relation over any operands."""
        rng = self._random
        if depth < DEPTH_MAX and rng.random() < 0.2:
            inner = ["(", *self._disjunction(depth + 1), ")"]
            return [self._vary_case("NOT"), *inner] if rng.random() < 0.4 else inner
        words = self._operand(depth) if self._is_wild else [self._name()]
        words += self._relation(depth)
        while self._is_wild and rng.random() < 0.25:
            words += self._relation(depth)
        return words

    def _relation(self, depth: int) -> list[str]:
        rng = self._random
        no = [self._vary_case("NOT")] if rng.random() < 0.35 else []
        match rng.randrange(7):
            case 0 | 1:
                symbol = rng.choice(COMPARISONS)
                return [symbol, *self._right_side(symbol, depth)]
            case 2:
                return [
                    *no,
                    self._vary_case("BETWEEN"),
                    *self._bound(depth),
                    self._vary_case("AND"),
                    *self._bound(depth),
                ]
            case 3:
                texts = [self._text() for _ in range(rng.choice((1, 2, 3, 6)))]
                separated = [word for text in texts for word in (",", text)][1:]
                return [*no, self._vary_case("IN"), "(", *separated, ")"]
            case 4:
                return [self._vary_case("IS"), *no, self._vary_case("NULL")]
            case 5:
                return [*no, self._vary_case(rng.choice(SEARCHES)), self._text()]
        return [] if self._is_wild and rng.random() < 0.3 else ["=", self._vary_case(rng.choice(("TRUE", "FALSE")))]

    def _right_side(self, symbol: str, depth: int) -> list[str]:
        if self._is_wild:
            return self._operand(depth)
        return [self._text()] if symbol in ("=", "<>") and self._random.random() < 0.5 else self._bound(depth)

    def _bound(self, depth: int) -> list[str]:
        rng = self._random
        if self._is_wild and rng.random() < 0.3:
            return self._operand(depth)
        if rng.random() < 0.2:
            return [self._name()]
        number = [rng.choice(INTEGERS if rng.random() < 0.6 else FRACTIONS)]
        return ["-", *number] if rng.random() < 0.2 else number

    def _operand(self, depth: int) -> list[str]:
        rng = self._random
        match rng.randrange(10):
            case 0 | 1 | 2:
                return [self._name()]
            case 3:
                return [rng.choice(INTEGERS)]
            case 4:
                return [rng.choice(FRACTIONS)]
            case 5:
                return [self._text()]
            case 6:
                return [self._vary_case(rng.choice(("TRUE", "FALSE", "NULL")))]
            case 7:
                return [rng.choice(("+", "-", "-", self._vary_case("NOT"))), *self._operand(depth)]
        return ["(", *self._disjunction(depth + 1), ")"] if depth < DEPTH_MAX else [self._name()]

    def _name(self) -> str:
        return self._random.choice(NAMES[:3] if self._random.random() < 0.6 else NAMES)

    def _text(self) -> str:
        return f"'{self._random.choice(TEXTS)}'"

    def _vary_case(self, word: str) -> str:
        draw = self._random.random()
        return word if draw < 0.7 else word.lower() if draw < 0.9 else word.title()

    # ------- words to text, and what goes wrong with both

    def _corrupt(self, words: list[str]) -> list[str]:
        rng = self._random
        for _ in range(rng.choice((1, 1, 2, 3))):
            place = rng.randrange(len(words) + 1)
            match rng.randrange(5):
                case 0:
                    words.insert(place, rng.choice(STRAY_WORDS))
                case 1:
                    words[place : place + 1] = []
                case 2:
                    words[place:place] = words[place : place + 2]
                case 3:
                    words[place : place + 1] = [rng.choice(STRAY_WORDS)]
                case _:
                    words = words[:place]
        return words

    def _join(self, words: list[str]) -> str:
        """Join the words, mostly with spaces where they would otherwise merge."""
        rng = self._random
        parts: list[str] = []
        for before, word in zip(["", *words], words, strict=False):
            touches = bool(before and re.match(r"[\w$.']", before[-1]) and re.match(r"[\w$.']", word[:1]))
            if before and (rng.random() < 0.6 or (touches and rng.random() < 0.97)):
                parts.append(rng.choice(BLANKS) if rng.random() < 0.2 else " ")
            parts.append(word)
        return "".join(parts)

    # ------- messages

    def _message(self, expression: str) -> dict[str, str]:
        rng = self._random
        named = [name for name in NAMES if re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", expression)]
        literals = [text.replace("''", "'") for text in re.findall(r"'((?:''|[^'])*)'", expression)]
        literals += re.findall(r"[0-9.]+(?:[eE][+-]?[0-9]+)?", expression)
        message: dict[str, str] = {}
        for name in named:
            if rng.random() < 0.85:
                message[name] = self._value(literals)
        return message

    def _value(self, literals: list[str]) -> str:
        rng = self._random
        draw = rng.random()
        if literals and draw < 0.35:
            value = rng.choice(literals)
            return value if rng.random() < 0.7 else rng.choice(("x", "-", "1")) + value
        if draw < 0.6:
            return str(rng.randrange(-12, 120))
        return rng.choice(VALUES)
