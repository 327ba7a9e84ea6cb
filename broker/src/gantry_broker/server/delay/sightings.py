"""When each delay level was seen to have how much: a second proof that a message has waited long enough.

    queue of a level  [ ...... seen 9 s ago ...... seen 5 s ago ...... end )
                                           `- all of this has waited 5 s, whatever any clock said meanwhile

The first proof is the record's own time of storing, compared with the wall clock. That clock may be set back, by an
hour or by a year that it was wrong: times of storing never go back, so whatever is stored from then on looks as if it
came from the future, and would wait for its delay and an hour. What was in its queue at one moment of the monotonic
clock, and is still there one delay later, has waited for its delay; so such a message is late by `1 / SIGHTINGS` of its
delay, and never early.

Nothing of this outlives the process: after a restart a level is seen for the first time again.
"""

from collections import deque
from typing import Final, final

SIGHTINGS: Final = 16
"""Of one level within its delay. More of them cost memory and gain little."""


@final
class Sightings:
    """Of all levels. Owned by the event loop."""

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, int]]] = {}
        """Level -> (monotonic time, end of its queue), both growing."""

        self._waited: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Sightings {self._waited}>"

    def forget(self) -> None:
        """The queues may be others when they are seen again."""
        self._seen.clear()
        self._waited.clear()

    def see(self, level: int, end: int, *, now_ms: int, delay_ms: int) -> int:
        """A level's queue ends at ``end`` now. Returns up to where everything has waited for its delay."""
        seen = self._seen.setdefault(level, deque())
        if end < max(self._waited.get(level, 0), seen[-1][1] if seen else 0):  # cut, and not what was seen
            seen.clear()
            self._waited.pop(level, None)
        while seen and seen[0][0] + delay_ms <= now_ms:
            self._waited[level] = seen.popleft()[1]
        waited = self._waited.get(level, 0)
        last_ms, last_end = seen[-1] if seen else (now_ms - delay_ms, waited)
        if end > last_end and (not seen or now_ms - last_ms >= delay_ms / SIGHTINGS):
            seen.append((now_ms, end))
        return waited
