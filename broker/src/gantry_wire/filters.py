"""Subscription filters: tags (`TagA || TagB`, or `*` for all messages), or properties in SQL92.

A missing or empty expression type means tags. A broker filters tags by the hash in its consume queue, and SQL92 by the
properties of each record; see `sql92`.
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
    """The tags that a subscription accepts. Empty sets accept every message."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]
    """The hashes of the tags, as consume queues hold them."""

    @property
    def accepts_all(self) -> bool:
        return not self.tags

    def accepts_code(self, code: int) -> bool:
        """Return whether a message may match, by the hash of its tag, as a broker filters.

        A tag with the same hash may pass; a wanted tag always passes.
        """
        return not self.codes or code in self.codes

    def accepts_tags(self, tags: str | None) -> bool:
        """Return whether a message matches by the text of its tag, as a client filters."""
        return not self.tags or tags in self.tags


MessageFilter = TagFilter | SqlFilter


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether a subscription with this expression type filters by tags."""
    return expression_type in (None, "", EXPRESSION_TAG)


def parse_filter(expression_type: str | None, expression: str | None) -> MessageFilter:
    """Return the filter of a subscription. Raises ValueError for an invalid expression or an unknown type."""
    if is_tag_type(expression_type):
        return parse_tag_filter(expression)
    if not expression:
        raise ValueError(f"Expression can't be null! {expression_type}")
    if expression_type != EXPRESSION_SQL92:
        raise ValueError(f"{(expression_type or '')[:64]!r} is not an expression type")
    return parse_sql_filter(expression)


def parse_tag_filter(expression: str | None) -> TagFilter:
    """Return the tag filter for `expression`. Raises ValueError for an expression without a tag."""
    if expression is None or not expression.strip() or expression.strip() == SUBSCRIBE_ALL:
        return TagFilter(SUBSCRIBE_ALL, frozenset(), frozenset())
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise ValueError(f"{expression[:64]!r} contains no tag")
    return TagFilter(expression, tags, frozenset(tags_code(tag) for tag in tags))
