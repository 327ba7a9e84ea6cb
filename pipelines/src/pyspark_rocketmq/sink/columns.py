"""The accepted columns of a write, and their types. Pure; types are Spark's short names (`simpleString`).

Only `body` is required, and `topic` without an option topic. A column that is not listed here is refused by name: its
values would be lost silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from pyspark_rocketmq.errors import InvalidOption

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
"""The types of Spark that are accepted for a whole number."""

ACCEPTED: Final[dict[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "delayLevel": _INTEGERS,
    "broker": ("string",),
    "queue": _INTEGERS,
    "flag": _INTEGERS,
}
"""Accepted types by column. `keys` as text are separated by spaces; `broker` names the broker of the queue."""


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one write, in the order in which its rows have them."""

    names: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Return whether the write has a column."""
        return name in self.names


def check_columns(types: Mapping[str, str], *, has_topic: bool, is_transactional: bool) -> Columns:
    """Return the columns, checked by their types. Raises InvalidOption that names the wrong ones."""
    unknown = [name for name in types if name not in ACCEPTED]
    if unknown:
        known = ", ".join(ACCEPTED)
        raise InvalidOption(f"column {', '.join(unknown)} is not part of a message; select only columns of {known}")
    for name, declared in types.items():
        if declared not in ACCEPTED[name]:
            raise InvalidOption(f"column {name} is of type {declared}; it must be {' or '.join(ACCEPTED[name])}")
    if "body" not in types:
        raise InvalidOption("column body is missing: the content of the message, as bytes or text")
    if "topic" not in types and not has_topic:
        raise InvalidOption("there is neither an option topic nor a column topic: set one of them")
    if "broker" in types and "queue" not in types:
        raise InvalidOption("column broker needs a column queue")
    if "delayLevel" in types and is_transactional:
        raise InvalidOption(
            "column delayLevel: a transactional message cannot be delayed; drop the column, or the option transactional"
        )
    return Columns(tuple(types))
