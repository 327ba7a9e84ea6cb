"""Detects replays of strictly signed requests, with one number per connection.

    time       within the window around the server's time, and not before the start of the server
    number     above the last number of its session: a connection sends its requests in order

A session without requests for two windows is removed, because its requests are outside the window by then. When there
are too many sessions, new ones are refused until old ones expire: removing one early would permit replays of its
requests. Only requests with a valid signature are counted, and each account has a separate limit.

A request that was recorded on its way to one server and is replayed to another server within the window is not
detected. TLS prevents recording.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_wire.signatures import StrictClaim

SESSIONS_MAX: Final = 200_000
"""Limit of the sessions of all accounts together."""
SESSIONS_PER_ACCOUNT_MAX: Final = 20_000
"""Limit of the sessions of one account."""


@final
@dataclass(slots=True)
class _Session:
    number: int
    """The highest number that a request of the session had."""

    last_seen_ms: int


@final
class ReplayDetector:
    """The sessions of recent strict signatures. Owned by the event loop."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        window_ms: int,
        *,
        sessions_max: int = SESSIONS_MAX,
        sessions_per_account_max: int = SESSIONS_PER_ACCOUNT_MAX,
    ) -> None:
        self._now_ms = now_ms
        self._window_ms = window_ms
        self._sessions_max = sessions_max
        self._sessions_per_account_max = sessions_per_account_max
        self._started_ms = now_ms()
        self._sessions: dict[tuple[str, str], _Session] = {}
        """The sessions by account and session id, in the order of their last request."""
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def rejection_reason(self, access_key: str, claim: StrictClaim) -> str | None:
        """Return why a validly signed request is refused, or record it and return None."""
        now = self._now_ms()
        if abs(now - claim.time_ms) > self._window_ms:
            return "its time differs too much from the server's; synchronize the clocks"
        if claim.time_ms < self._started_ms:
            return "it was signed before the server started; sign it again"
        key = (access_key, claim.session)
        session = self._sessions.pop(key, None)
        if session is None:
            if not self._has_room(access_key, now):
                return "too many connections signed requests recently; retry later"
            self._counts[access_key] += 1
            self._sessions[key] = _Session(claim.number, now)
            return None
        self._sessions[key] = session
        if claim.number <= session.number:
            return "it was received before"
        session.number, session.last_seen_ms = claim.number, now
        return None

    def _has_room(self, access_key: str, now: int) -> bool:
        while self._sessions:
            key = next(iter(self._sessions))
            if now - self._sessions[key].last_seen_ms <= 2 * self._window_ms:
                break
            del self._sessions[key]
            self._counts[key[0]] -= 1
            if not self._counts[key[0]]:
                del self._counts[key[0]]
        is_account_full = self._counts[access_key] >= self._sessions_per_account_max
        return len(self._sessions) < self._sessions_max and not is_account_full
