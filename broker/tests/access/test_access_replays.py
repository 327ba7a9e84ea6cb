"""What a server remembers of strict requests: one number per connection, bounded, and nothing forgotten too early."""

from __future__ import annotations

from gantry_access.replays import Replays
from gantry_wire.signatures import StrictClaim

WINDOW_MS = 1_000
START_MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = START_MS

    def __call__(self) -> int:
        return self.now


def claim(number: int, session: str = "a", time_ms: int = START_MS) -> StrictClaim:
    return StrictClaim(time_ms, session, number)


def replays(clock: Clock, *, sessions_max: int = 100, sessions_per_account_max: int = 100) -> Replays:
    return Replays(clock, WINDOW_MS, sessions_max=sessions_max, sessions_per_account_max=sessions_per_account_max)


def test_numbers_of_a_connection_must_rise() -> None:
    """A number that is not above the last one has been here; gaps are fine, since requests may get lost."""
    seen = replays(Clock())

    assert seen.refusal("me", claim(1)) is None
    assert seen.refusal("me", claim(5)) is None
    for number in (5, 4, 1):
        assert seen.refusal("me", claim(number)) == "it has been here before"
    assert seen.refusal("me", claim(6)) is None


def test_connections_and_accounts_are_counted_apart() -> None:
    """The same number of another connection, or of another account with the same session, is another request."""
    seen = replays(Clock())

    assert seen.refusal("me", claim(1)) is None
    assert seen.refusal("me", claim(1, "b")) is None
    assert seen.refusal("you", claim(1)) is None


def test_the_time_must_be_ours_within_the_window() -> None:
    """Both sides of the window are refused, its borders are in it."""
    clock = Clock()
    seen = replays(clock)
    clock.now += 10 * WINDOW_MS

    for number, (shift, is_in) in enumerate([(-1_001, False), (-1_000, True), (1_000, True), (1_001, False)], start=1):
        refusal = seen.refusal("me", claim(number, time_ms=clock.now + shift))
        assert (refusal is None) == is_in, shift


def test_nothing_from_before_the_start_is_taken() -> None:
    """A server that has just started has forgotten what it saw: what was signed before then may be a repetition."""
    seen = replays(Clock())

    assert "before the server started" in (seen.refusal("me", claim(1, time_ms=START_MS - 1)) or "")
    assert seen.refusal("me", claim(2, time_ms=START_MS)) is None


def test_a_session_is_forgotten_only_when_its_requests_are_out_of_time() -> None:
    """The promise: at no moment is there a request that was taken and would be taken again."""
    clock = Clock()
    seen = replays(clock, sessions_max=1)
    assert seen.refusal("me", claim(1, time_ms=clock.now + WINDOW_MS)) is None  # a clock that is ahead as far as may be

    for step in range(0, 4 * WINDOW_MS, 100):
        clock.now = START_MS + step
        seen.refusal("you", claim(step + 1, "b", time_ms=clock.now))  # somebody who would like to have the room
        assert seen.refusal("me", claim(1, time_ms=START_MS + WINDOW_MS)) is not None, step


def test_memory_is_bounded_in_all_and_for_each_account() -> None:
    """New connections wait while there are too many; those that are known go on, and others are not shut out."""
    clock = Clock()
    seen = replays(clock, sessions_max=4, sessions_per_account_max=2)
    assert [seen.refusal("me", claim(1, session)) for session in "ab"] == [None, None]

    assert "too many" in (seen.refusal("me", claim(1, "c")) or "")
    assert seen.refusal("me", claim(2, "a")) is None
    assert [seen.refusal("you", claim(1, session)) for session in "de"] == [None, None]
    assert "too many" in (seen.refusal("they", claim(1, "f")) or "")
    assert len(seen) == 4

    clock.now += 2 * WINDOW_MS + 1
    assert seen.refusal("they", claim(1, "f", time_ms=clock.now)) is None
    assert len(seen) == 1
