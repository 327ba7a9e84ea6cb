"""Which columns a write has, and what may be in them. Pure; types by Spark's short names (`simpleString`).

`body` is the only one that must be there. Whatever is none of these is refused by name: a column that nobody sends
would be lost without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from pyspark_rocketmq.errors import InvalidOption

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")

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
"""Types by column. `keys` as a text has spaces between them; `broker` says whose queue is meant."""


@final
@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one write, in the order of its rows."""

    names: tuple[str, ...]

    def has(self, name: str) -> bool:
        """Whether it is there."""
        return name in self.names


def check_columns(types: Mapping[str, str], *, has_topic: bool, is_transactional: bool) -> Columns:
    """The columns, by what `types` says of each. Raises InvalidOption that names the wrong ones."""
    unknown = [name for name in types if name not in ACCEPTED]
    if unknown:
        known = ", ".join(ACCEPTED)
        raise InvalidOption(f"column {', '.join(unknown)}: nobody would send it; select those of {known} that you mean")
    for name, said in types.items():
        if said not in ACCEPTED[name]:
            raise InvalidOption(f"column {name} is of type {said}; it has to be {' or '.join(ACCEPTED[name])}")
    if "body" not in types:
        raise InvalidOption("column body is missing: bytes or a text, what a message carries")
    if "topic" not in types and not has_topic:
        raise InvalidOption("there is neither an option topic nor a column topic: say where the messages go")
    if "broker" in types and "queue" not in types:
        raise InvalidOption("column broker says whose queue is meant, and there is no column queue")
    if "delayLevel" in types and is_transactional:
        raise InvalidOption("column delayLevel: a transaction cannot be delayed; drop it, or transactional")
    return Columns(tuple(types))
