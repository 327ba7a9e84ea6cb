"""So many callers wait and so many event streams are open at a time; one more is told when to come again."""

from __future__ import annotations

import pytest

from gantry_admin.errors import Problem
from gantry_admin.limits import Places


def test_one_caller_too_many_is_refused_until_another_has_left() -> None:
    """429 with Retry-After; a caller that leaves by an error leaves, too."""
    places = Places(2, "callers wait already", retry_after_s=3)
    with places.hold():
        places.check()
        with pytest.raises(RuntimeError), places.hold():
            with pytest.raises(Problem) as refused:
                places.check()
            raise RuntimeError("the connection is gone")
        places.check()

    assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "3"})
    assert refused.value.reason == "2 callers wait already" and places.taken == 0
