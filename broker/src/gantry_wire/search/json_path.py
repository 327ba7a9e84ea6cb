"""Conditions on bodies in JSON: a path, an operator and a value.

    $.order.id = 17        $.items[0].sku != "x"        $["a key"].name contains 'gold'        $.coupon exists

A path begins with `$`. Its steps are members (`.name`, `["name"]`) and indexes of arrays (`[0]`, and `[-1]` from the
end). The operators are `=`, `!=`, `contains` and `exists`. A value is a JSON scalar, or a text in single quotes.

- `=` and `!=` compare values with their types: `17` equals `17.0`, but neither `"17"` nor `true` equals `17` or `1`.
- `contains` tests a part of a text, an element of an array, or the name of a member of an object.
- A path that does not exist in a body matches nothing, also with `!=`; a body that is not JSON in UTF-8, too.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, NamedTuple, final

import msgspec

from gantry_wire.search.errors import SearchFault
from gantry_wire.search.needles import Needle, select_needle

CONDITION_CHARACTERS_MAX: Final = 1_024
"""The longest text of a condition: far beyond any that a person writes, and cheap to parse."""

STEPS_MAX: Final = 32
"""The most steps of a path; JSON of applications is seldom nested ten deep."""

Step = str | int
"""The name of a member, or the index of an element."""

_MEMBER: Final = re.compile(r"\.([^\W\d][\w-]*)")
_INDEX: Final = re.compile(r"\[\s*(-?\d{1,9})\s*\]")
_QUOTED: Final = re.compile(r"""\[\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\]""")
_OPERATOR: Final = re.compile(r"\s*(=|!=|contains\b|exists\b)\s*")
_TEXT: Final = re.compile(r"'((?:[^'\\]|\\.)*)'")


class Operator(StrEnum):
    """The operators of conditions, as they are written."""

    EQUAL = "="
    NOT_EQUAL = "!="
    CONTAINS = "contains"
    EXISTS = "exists"


class _Missing:
    """The value of a path that a document does not have."""


MISSING: Final = _Missing()


def value_at(document: Any, steps: tuple[Step, ...]) -> Any:
    """Return the value at a path of a decoded JSON document; ``MISSING`` if there is none."""
    for step in steps:
        if isinstance(step, str):
            if not isinstance(document, dict) or step not in document:
                return MISSING
        elif not isinstance(document, list) or not -len(document) <= step < len(document):
            return MISSING
        document = document[step]
    return document


def decode_json(body: bytes) -> Any:
    """Return the document of a body in JSON; ``MISSING`` if it is not JSON in UTF-8."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return MISSING


@final
class JsonCondition(NamedTuple):
    """One condition. It is immutable."""

    text: str
    steps: tuple[Step, ...]
    operator: Operator
    operand: str | int | float | bool | None
    """The value to compare with; None for `null`, and for `exists`."""

    def accepts(self, document: Any) -> bool:
        """Return whether a decoded document meets the condition."""
        value = value_at(document, self.steps)
        if value is MISSING:
            return False
        match self.operator:
            case Operator.EXISTS:
                return True
            case Operator.CONTAINS:
                return self._is_contained(value)
            case Operator.EQUAL:
                return is_equal(value, self.operand)
            case Operator.NOT_EQUAL:
                return not is_equal(value, self.operand)

    def _is_contained(self, value: Any) -> bool:
        if isinstance(value, str):
            return isinstance(self.operand, str) and self.operand in value
        if isinstance(value, list):
            return any(is_equal(one, self.operand) for one in value)
        return isinstance(value, dict) and self.operand in value

    def needle(self) -> Needle | None:
        """Return bytes that each matching body contains, unless it has an escape; None for a path without a name."""
        texts = [f'"{step}"' for step in self.steps if isinstance(step, str)]
        if self.operator is Operator.EQUAL and self.steps and isinstance(self.steps[-1], str):
            pattern = _member_pattern(self.steps[-1], self.operand)
            return Needle(pattern.pattern, may_be_escaped=True, pattern=pattern)
        if isinstance(self.operand, str) and self.operator is Operator.EQUAL:
            texts.append(f'"{self.operand}"')
        elif isinstance(self.operand, str) and self.operator is Operator.CONTAINS and self.operand:
            texts.append(self.operand)
        return select_needle([Needle(text.encode(), may_be_escaped=True) for text in texts])


def _member_pattern(name: str, operand: str | int | float | bool | None) -> re.Pattern[bytes]:
    """Return the pattern of a member in JSON text whose value may equal the operand, if neither has an escape.

    A number may be written in many ways. Up to fifteen digits and without an exponent, two decimals that differ are
    different numbers, also as floating point; all longer ones and those with an exponent may be equal.
    """
    value = re.escape(msgspec.json.encode(operand))
    if isinstance(operand, str):
        value = re.escape(f'"{operand}"'.encode())
    elif isinstance(operand, int | float) and not isinstance(operand, bool):
        exact = rb"-?" + re.escape(str(abs(operand)).encode()) if abs(operand) < _DIGITS_LIMIT else rb"-?[0-9]"
        if isinstance(operand, float) and not operand.is_integer():
            exact = rb"-?[0-9]"
        value = rb"(?:" + exact.removesuffix(rb"\.0") + rb"|-?[0-9.]{15}|-?[0-9.]+[eE])"
    return re.compile(re.escape(f'"{name}"'.encode()) + rb"[ \t\n\r]*:[ \t\n\r]*" + value)


_DIGITS_LIMIT: Final = 10**14
"""Below it, integers have few enough digits to be compared as text."""


def is_equal(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal; a truth value equals no number."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def parse_json_condition(text: str) -> JsonCondition:
    """Return the condition of a text. Raises ``SearchFault`` that names the position of the fault, from 1 on."""
    if len(text) > CONDITION_CHARACTERS_MAX:
        raise SearchFault(
            f"the JSON path has {len(text)} characters, but at most {CONDITION_CHARACTERS_MAX} are allowed"
        )
    stripped = text.rstrip()
    start = len(text) - len(text.lstrip())
    steps, at = _read_steps(stripped, start)
    found = _OPERATOR.match(stripped, at)
    if found is None:
        raise _fault(stripped, at, "a step, =, !=, contains or exists")
    operator, at = Operator(found.group(1)), found.end()
    if operator is Operator.EXISTS:
        if at < len(stripped):
            raise _fault(stripped, at, "the end after exists")
        return JsonCondition(text, steps, operator, None)
    return JsonCondition(text, steps, operator, _read_value(stripped, at))


def parse_steps(text: str) -> tuple[Step, ...]:
    """Return the steps of a path without a condition. Raises ``SearchFault``."""
    steps, at = _read_steps(text, 0)
    if at < len(text):
        raise _fault(text, at, "a step or the end")
    return steps


def _read_steps(text: str, at: int) -> tuple[tuple[Step, ...], int]:
    """Return the steps of the path that begins at a position, and its end."""
    if not text.startswith("$", at):
        raise _fault(text, at, "$, with which a path begins")
    at += 1
    steps: list[Step] = []
    while at < len(text) and text[at] in ".[":
        step, at = _read_step(text, at)
        steps.append(step)
        if len(steps) > STEPS_MAX:
            raise SearchFault(f"the JSON path has more than {STEPS_MAX} steps")
    return tuple(steps), at


def _read_step(text: str, at: int) -> tuple[Step, int]:
    if found := _MEMBER.match(text, at):
        return found.group(1), found.end()
    if found := _INDEX.match(text, at):
        return int(found.group(1)), found.end()
    if found := _QUOTED.match(text, at):
        return _unquote(text, at, found.group(1)), found.end()
    expected = "a name after the dot" if text[at] == "." else """an index such as [0], or a name such as ["name"]"""
    raise _fault(text, at + 1, expected)


def _read_value(text: str, at: int) -> str | int | float | bool | None:
    """Return the scalar that begins at a position and ends with the text."""
    if at >= len(text):
        raise _fault(text, at, "a value")
    if _TEXT.fullmatch(text, at):
        return _unquote(text, at, text[at:])
    try:
        value: object = msgspec.json.decode(text[at:])
    except (msgspec.DecodeError, RecursionError, ValueError):
        value = MISSING
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise _fault(text, at, 'a number, true, false, null, or a text in quotes, such as "paid"')


def _unquote(text: str, at: int, quoted: str) -> str:
    """Return the text in quotes; in single quotes, escapes are those of JSON, and ``\\'``."""
    inner = quoted[1:-1]
    if quoted[0] == "'":
        inner = re.sub(r"""\\.|\"""", lambda found: {"\\'": "'", '"': '\\"'}.get(found.group(), found.group()), inner)
    try:
        return msgspec.json.decode(f'"{inner}"', type=str)
    except (msgspec.DecodeError, ValueError) as error:
        raise _fault(text, at, "a text with valid escapes") from error


def _fault(text: str, at: int, expected: str) -> SearchFault:
    found = f"found {text[at : at + 16]!r}" if at < len(text) else "the text ends"
    return SearchFault(f"JSON path {text[:64]!r}, position {at + 1}: expected {expected}; {found}")
