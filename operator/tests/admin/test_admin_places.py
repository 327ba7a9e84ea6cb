"""Limits of concurrent callers and event streams: one more is refused with the time to retry."""

from __future__ import annotations

import pytest

from gantry_admin.errors import Problem
from gantry_admin.limits import ConcurrencyLimit


def test_caller_beyond_the_limit_is_refused_until_another_leaves() -> None:
    """429 with Retry-After; a caller that leaves by an exception frees its place too."""
    places = ConcurrencyLimit(2, "callers wait already", retry_after_s=3)
    with places.hold():
        places.check()
        with pytest.raises(RuntimeError), places.hold():
            with pytest.raises(Problem) as refused:
                places.check()
            raise RuntimeError("the connection is gone")
        places.check()

    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "3"})
    assert refused.value.reason == "2 callers wait already" and places.in_use == 0
