"""Has this strictly signed request been here before? One number per connection answers it.

    time       within the window around ours, and not before this server began to remember
    number     above the last one of its session: a connection writes its requests in their order

A session that has said nothing for two windows is forgotten, since whatever it said is out of the window by then. When
there are too many sessions new ones are refused until old ones are over: forgetting one early would let its requests be
said again. Only holders of a secret come as far as this, and each account has a bound of its own.

What this does not see: a request that was recorded on its way to one server and is said to another one within the
window. Whoever can record requests needs to be kept out by TLS.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from gantry_wire.signatures import StrictClaim

SESSIONS_MAX: Final = 200_000
SESSIONS_PER_ACCOUNT_MAX: Final = 20_000


@final
@dataclass(slots=True)
class _Session:
    number: int
    seen_ms: int


@final
class Replays:
    """What was seen lately. Owned by the event loop."""

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
        self._began_ms = now_ms()
        self._sessions: dict[tuple[str, str], _Session] = {}
        """By account and session, the one that was seen longest ago first."""
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._sessions)

    def refusal(self, access_key: str, claim: StrictClaim) -> str | None:
        """Why a request whose signature is right is not answered all the same; None takes note of it."""
        now = self._now_ms()
        if abs(now - claim.time_ms) > self._window_ms:
            return "its time is too far from the server's; set the clocks"
        if claim.time_ms < self._began_ms:
            return "it was signed before the server started; sign it anew"
        key = (access_key, claim.session)
        session = self._sessions.pop(key, None)
        if session is None:
            if not self._has_room(access_key, now):
                return "too many connections have signed lately; try again later"
            self._counts[access_key] += 1
            self._sessions[key] = _Session(claim.number, now)
            return None
        self._sessions[key] = session
        if claim.number <= session.number:
            return "it has been here before"
        session.number, session.seen_ms = claim.number, now
        return None

    def _has_room(self, access_key: str, now: int) -> bool:
        while self._sessions:
            key = next(iter(self._sessions))
            if now - self._sessions[key].seen_ms <= 2 * self._window_ms:
                break
            del self._sessions[key]
            self._counts[key[0]] -= 1
            if not self._counts[key[0]]:
                del self._counts[key[0]]
        is_account_full = self._counts[access_key] >= self._sessions_per_account_max
        return len(self._sessions) < self._sessions_max and not is_account_full
