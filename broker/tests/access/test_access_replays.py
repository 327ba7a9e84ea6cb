"""What a server remembers of strict requests: one number per connection, bounded, and never removed too early."""

from __future__ import annotations

from gantry_access.replay_detector import ReplayDetector
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


def replays(clock: Clock, *, sessions_max: int = 100, sessions_per_account_max: int = 100) -> ReplayDetector:
    return ReplayDetector(
        clock, WINDOW_MS, sessions_max=sessions_max, sessions_per_account_max=sessions_per_account_max
    )


def test_request_numbers_must_increase() -> None:
    """A number that is not above the last one is a replay; gaps are allowed, because requests may be lost."""
    seen = replays(Clock())

    assert seen.rejection_reason("me", claim(1)) is None
    assert seen.rejection_reason("me", claim(5)) is None
    for number in (5, 4, 1):
        assert seen.rejection_reason("me", claim(number)) == "it was received before"
    assert seen.rejection_reason("me", claim(6)) is None


def test_sessions_and_accounts_are_separate() -> None:
    """The same number in another session, or of another account with the same session, is a different request."""
    seen = replays(Clock())

    assert seen.rejection_reason("me", claim(1)) is None
    assert seen.rejection_reason("me", claim(1, "b")) is None
    assert seen.rejection_reason("you", claim(1)) is None


def test_time_must_be_within_the_window() -> None:
    """Times beyond both ends of the window are refused; the ends themselves are accepted."""
    clock = Clock()
    seen = replays(clock)
    clock.now += 10 * WINDOW_MS

    for number, (shift, is_in) in enumerate([(-1_001, False), (-1_000, True), (1_000, True), (1_001, False)], start=1):
        rejection_reason = seen.rejection_reason("me", claim(number, time_ms=clock.now + shift))
        assert (rejection_reason is None) == is_in, shift


def test_request_signed_before_the_start_is_refused() -> None:
    """A restarted server has lost its sessions: a request that was signed before the start may be a replay."""
    seen = replays(Clock())

    assert "before the server started" in (seen.rejection_reason("me", claim(1, time_ms=START_MS - 1)) or "")
    assert seen.rejection_reason("me", claim(2, time_ms=START_MS)) is None


def test_session_is_removed_only_after_its_requests_expire() -> None:
    """At no time would a request that was accepted be accepted again."""
    clock = Clock()
    seen = replays(clock, sessions_max=1)
    assert (
        seen.rejection_reason("me", claim(1, time_ms=clock.now + WINDOW_MS)) is None
    )  # a clock that is ahead by the whole window

    for step in range(0, 4 * WINDOW_MS, 100):
        clock.now = START_MS + step
        seen.rejection_reason("you", claim(step + 1, "b", time_ms=clock.now))  # another account that needs a session
        assert seen.rejection_reason("me", claim(1, time_ms=START_MS + WINDOW_MS)) is not None, step


def test_sessions_are_bounded_in_total_and_per_account() -> None:
    """Beyond the limits new sessions are refused; known ones continue, and other accounts are not blocked."""
    clock = Clock()
    seen = replays(clock, sessions_max=4, sessions_per_account_max=2)
    assert [seen.rejection_reason("me", claim(1, session)) for session in "ab"] == [None, None]

    assert "too many" in (seen.rejection_reason("me", claim(1, "c")) or "")
    assert seen.rejection_reason("me", claim(2, "a")) is None
    assert [seen.rejection_reason("you", claim(1, session)) for session in "de"] == [None, None]
    assert "too many" in (seen.rejection_reason("they", claim(1, "f")) or "")
    assert len(seen) == 4

    clock.now += 2 * WINDOW_MS + 1
    assert seen.rejection_reason("they", claim(1, "f", time_ms=clock.now)) is None
    assert len(seen) == 1
