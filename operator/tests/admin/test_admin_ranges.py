"""What a range request means, without any server: positions of HTTP are offsets of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_admin.errors import Problem
from gantry_admin.limits import TokenBucket
from gantry_admin.ranges import Span, entity_tag, log_span, plan_range

ETAG = entity_tag("00ff", 7)
SPAN = Span(100, 1000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes=100-199", (100, 200)), ("bytes=100-", (100, 600)), ("bytes=990-2000", (990, 1000)),
        ("bytes=-10", (990, 1000)), ("bytes=-5000", (100, 600)), ("bytes=999-999", (999, 1000)),
        ("bytes=1000-", 416), ("bytes=1000-1000", 416), ("bytes=99-", 410), ("bytes=0-2000", 410), ("bytes=-0", 416),
        ("bytes=200-199", 400), ("bytes=1-2,3-4", 400), ("", 400), ("bytes=", 400), ("bytes=a-b", 400),
    ],
)  # fmt: skip
def test_range_is_answered_with_its_readable_beginning(text: str, expected: tuple[int, int] | int) -> None:
    """Half-open, cut at the end and at the longest answer; deleted, future and invalid ones have own statuses."""
    try:
        found = plan_range({"range": text}, SPAN, ETAG, 500)
        outcome: tuple[int, int] | int = (found.start, found.end)
    except Problem as problem:
        outcome = problem.status

    assert outcome == expected


@pytest.mark.verify
@given(st.text(max_size=40), st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 3000))
def test_no_range_header_reads_outside_of_the_readable_part(text: str, begin: int, size: int, longest: int) -> None:
    """Any header yields a subset of [begin, end), not longer than allowed, or an error below 500."""
    span = Span(begin, begin + size)
    for header in (text, f"bytes={text}", f"bytes={begin}-{text}"):
        try:
            found = plan_range({"range": header}, span, ETAG, longest)
        except Problem as problem:
            assert 400 <= problem.status < 500
        else:
            assert span.begin <= found.start < found.end <= span.end
            assert found.length <= longest


@pytest.mark.parametrize("name", ["if-match", "if-range"])
@pytest.mark.parametrize(
    ("value", "is_let_through"), [(ETAG, True), ("*", True), (f'"x", {ETAG}', True), ('"x"', False)]
)
def test_conditional_header_compares_store_and_epoch(name: str, value: str, is_let_through: bool) -> None:
    """Another tag is 412, with the current one."""
    headers = {"range": "bytes=100-", name: value}
    if is_let_through:
        assert plan_range(headers, SPAN, ETAG, 500).etag == ETAG
        return
    with pytest.raises(Problem) as raised:
        plan_range(headers, SPAN, ETAG, 500)
    assert (raised.value.status, raised.value.facts["etag"]) == (412, ETAG)


def test_log_is_unavailable_without_a_page() -> None:
    """Without a status page the answer is 503."""
    with pytest.raises(Problem) as raised:
        log_span(None)
    assert raised.value.status == 503


def test_token_bucket_limits_the_rate() -> None:
    """A burst at once, then the rate, for any sizes; a rate of 0 is no limit."""
    now = [0.0]
    bucket = TokenBucket(1000, 500, clock=lambda: now[0])

    assert bucket.take(500) == 0.0
    assert bucket.take(1000) == 1.0
    now[0] = 1.0
    assert bucket.take(100) == 0.1
    now[0] = 100.0
    assert bucket.take(500) == 0.0, "a pause earns a burst and no more"
    assert bucket.take(1) > 0
    assert TokenBucket(0, 0).take(1 << 40) == 0.0
