"""Filters of a query that are pushed down: they narrow what is read, instead of dropping most of it afterwards.

Filters by topic, broker, queue and offset are applied here exactly, and Spark need not apply them again; only a list of
offsets with holes is handed back to Spark. Filters by `tags` and `storeTime` narrow the read too, and are handed back:
a broker's clock may have been set back, so times are widened by a margin, and Spark drops what lies within it. All
other filters are handed back unused, except IS NOT NULL of a column that is never null.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from pyspark_rocketmq.model import QueueId

TIME_MARGIN_MS: Final = 10 * 60 * 1000
"""How far the clocks of a broker's successive masters may differ before a store time filter could miss a message."""

_EXACT: Final = {"topic": str, "broker": str, "queue": int, "offset": int}
"""The columns whose filters are exact. They are never null; `storeTime` is, if Spark cannot show the time."""

_TESTS: Final[dict[type, tuple[str, Callable[[Any, Any], bool]]]] = {
    EqualTo: ("=", lambda value, wanted: value == wanted),
    EqualNullSafe: ("=", lambda value, wanted: value == wanted),
    GreaterThan: (">", lambda value, wanted: value > wanted),
    GreaterThanOrEqual: (">=", lambda value, wanted: value >= wanted),
    LessThan: ("<", lambda value, wanted: value < wanted),
    LessThanOrEqual: ("<=", lambda value, wanted: value <= wanted),
    In: ("in", lambda value, wanted: value in wanted),
    StringStartsWith: ("starts", lambda value, wanted: value.startswith(wanted)),
    StringEndsWith: ("ends", lambda value, wanted: value.endswith(wanted)),
    StringContains: ("contains", lambda value, wanted: wanted in value),
}
"""The operator of each filter, for texts, and its test of a value."""


@final
@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The read as it is narrowed by filters."""

    tests: tuple[Filter, ...] = ()
    """Filters by topic, broker and queue."""
    offset_min: int = 0
    """The first queue offset that can match."""
    offset_end: int | None = None
    """The end of the queue offsets that can match; None for no limit."""
    time_min_ms: int | None = None
    """The earliest store time, with the margin subtracted."""
    time_end_ms: int | None = None
    """The end of the store times, with the margin added; None for no limit."""
    tags: frozenset[str] | None = None
    """Only messages with one of these tags can match; None for all."""
    is_empty: bool = False
    """Whether tags contradict each other, or a list of offsets or tags is empty; contradictory offsets: see `clamp`."""

    def matches(self, queue: QueueId) -> bool:
        """Return whether any message of a queue can match."""
        values = {"topic": queue.topic, "broker": queue.broker, "queue": queue.number}
        return not self.is_empty and all(
            _TESTS[type(one)][1](values[one.attribute[0]], one.value)  # type: ignore[attr-defined]
            for one in self.tests
        )

    def clamp(self, begin: int, end: int) -> tuple[int, int]:
        """Return the part of the offsets `[begin, end)` that can match."""
        low = max(begin, self.offset_min)
        high = end if self.offset_end is None else min(end, self.offset_end)
        return (low, high) if low < high else (begin, begin)


def push_filters(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Return the narrowed read, and those filters that Spark still has to apply."""
    pushed, rest = PushedFilters(), []
    for one in filters:
        narrowed, is_exact = _apply_filter(pushed, one)
        pushed = narrowed
        if not is_exact:
            rest.append(one)
    return pushed, rest


def _apply_filter(pushed: PushedFilters, one: Filter) -> tuple[PushedFilters, bool]:
    """Return the read narrowed by one filter, and whether Spark need not apply it again."""
    attribute: tuple[str, ...] = getattr(one, "attribute", ())
    if len(attribute) != 1:
        return pushed, False
    column = attribute[0]
    if isinstance(one, IsNotNull):
        return pushed, column in _EXACT
    if type(one) not in _TESTS:
        return pushed, False
    value = one.value  # type: ignore[attr-defined]
    if column in _EXACT:
        if not _has_type(value, _EXACT[column], is_list=isinstance(one, In)):
            return pushed, False
        if column == "offset":
            return _narrow_by_offset(pushed, one, value)
        return replace(pushed, tests=(*pushed.tests, one)), True
    if column == "tags":
        return _narrow_by_tags(pushed, one, value), False
    if column == "storeTime":
        return _narrow_by_time(pushed, one, value), False
    return pushed, False


def _has_type(value: object, wanted: type, *, is_list: bool) -> bool:
    if is_list:
        return isinstance(value, (tuple, list)) and all(type(one) is wanted for one in value)
    return type(value) is wanted


def _narrow_by_offset(pushed: PushedFilters, one: Filter, value: Any) -> tuple[PushedFilters, bool]:
    """Return the read narrowed by a filter of offsets, and whether Spark need not apply it again."""
    low, high, is_exact = 0, None, True
    match one:
        case EqualTo() | EqualNullSafe():
            low, high = value, value + 1
        case GreaterThan():
            low = value + 1
        case GreaterThanOrEqual():
            low = value
        case LessThan():
            high = value
        case LessThanOrEqual():
            high = value + 1
        case In():
            if not value:
                return replace(pushed, is_empty=True), True
            low, high = min(value), max(value) + 1
            is_exact = len(set(value)) == high - low
        case _:
            return pushed, False
    ends = [end for end in (pushed.offset_end, high) if end is not None]
    return replace(pushed, offset_min=max(pushed.offset_min, low), offset_end=min(ends, default=None)), is_exact


def _narrow_by_tags(pushed: PushedFilters, one: Filter, value: Any) -> PushedFilters:
    if isinstance(one, (EqualTo, EqualNullSafe)) and isinstance(value, str):
        tags = frozenset({value})
    elif isinstance(one, In) and all(isinstance(tag, str) for tag in value):
        tags = frozenset(value)
    else:
        return pushed
    tags = tags if pushed.tags is None else tags & pushed.tags
    return replace(pushed, tags=tags, is_empty=pushed.is_empty or not tags)


def _narrow_by_time(pushed: PushedFilters, one: Filter, value: Any) -> PushedFilters:
    if not isinstance(value, datetime):
        return pushed
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    at_ms = int(moment.timestamp() * 1000)
    low, end = at_ms - TIME_MARGIN_MS, at_ms + TIME_MARGIN_MS
    is_below = isinstance(one, (EqualTo, EqualNullSafe, LessThan, LessThanOrEqual))
    is_above = isinstance(one, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual))
    narrowed = pushed
    if is_above:
        narrowed = replace(narrowed, time_min_ms=max(low, narrowed.time_min_ms or 0))
    if is_below:
        ends = [one for one in (narrowed.time_end_ms, end) if one is not None]
        narrowed = replace(narrowed, time_end_ms=min(ends))
    return narrowed
