"""What subscriptions ask for: tags (`TagA || TagB`, or `*` for everything), or properties in SQL92.

An expression type that is missing or empty means tags. A broker filters tags by the hash in its consume queue, and a
filter in SQL92 by the properties of each record; see `sql92`.
"""

from dataclasses import dataclass
from typing import Final

from gantry_wire.hashing import tags_code
from gantry_wire.sql92 import SqlFilter, parse_sql_filter

SUBSCRIBE_ALL: Final = "*"
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Which tags a subscription takes. Empty sets take everything."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    @property
    def takes_all(self) -> bool:
        return not self.tags

    def accepts_code(self, code: int) -> bool:
        """By hash, as a broker filters: may let a colliding tag through, never holds back a wanted one."""
        return not self.codes or code in self.codes

    def accepts_tags(self, tags: str | None) -> bool:
        """By text, as a client filters."""
        return not self.tags or tags in self.tags


MessageFilter = TagFilter | SqlFilter


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription of this type is about tags."""
    return expression_type in (None, "", EXPRESSION_TAG)


def parse_filter(expression_type: str | None, expression: str | None) -> MessageFilter:
    """The filter that a subscription asks for. Raises ValueError for one that is none, or of an unknown type."""
    if is_tag_type(expression_type):
        return parse_tag_filter(expression)
    if not expression:
        raise ValueError(f"Expression can't be null! {expression_type}")
    if expression_type != EXPRESSION_SQL92:
        raise ValueError(f"{(expression_type or '')[:64]!r} is no type of expression")
    return parse_sql_filter(expression)


def parse_tag_filter(expression: str | None) -> TagFilter:
    """The filter that `expression` asks for. Raises ValueError for one that names no tag at all."""
    if expression is None or not expression.strip() or expression.strip() == SUBSCRIBE_ALL:
        return TagFilter(SUBSCRIBE_ALL, frozenset(), frozenset())
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise ValueError(f"{expression[:64]!r} names no tag")
    return TagFilter(expression, tags, frozenset(tags_code(tag) for tag in tags))
