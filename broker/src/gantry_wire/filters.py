"""Tag subscriptions: `TagA || TagB`, or `*` for everything."""

from dataclasses import dataclass
from typing import Final

from gantry_wire.hashing import tags_code

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


def parse_tag_filter(expression: str | None) -> TagFilter:
    """The filter that `expression` asks for. Raises ValueError for one that names no tag at all."""
    if expression is None or not expression.strip() or expression.strip() == SUBSCRIBE_ALL:
        return TagFilter(SUBSCRIBE_ALL, frozenset(), frozenset())
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags:
        raise ValueError(f"{expression[:64]!r} names no tag")
    return TagFilter(expression, tags, frozenset(tags_code(tag) for tag in tags))
