"""What is said of a group's looks that failed: each reason once, however often it fails, and then not for a while.

A namespace that is being deleted is no trouble. Its pods go, then Services, Leases and the rest, and last the group;
until then all that would be made again is refused, and nobody can take that back. So the first such answer is told, and
is the last thing that is done for this group: another one of its name, in a namespace made anew, has a task of its own.
Nor is it one that something is not there: what we change without looking is the group itself, and the watch will tell.
"""

from __future__ import annotations

import logging
from typing import Final, final

from gantry_operator.cache import GroupKey
from gantry_operator.clock import Clock
from gantry_operator.errors import ApiError, Gone, Terminating

log = logging.getLogger(__name__)

AGAIN_MS: Final = 60_000
LEAVING_S: Final = 10.0
"""Between two looks whether a group is gone, beside the watch that tells of it."""


@final
class Troubles:
    """Of one group; owned by its task."""

    def __init__(self, key: GroupKey, clock: Clock) -> None:
        self.is_leaving = False
        """Whether nothing is to be done any more."""

        self._key: Final = key
        self._clock: Final = clock
        self._reason = ""
        self._told_ms = 0

    def __repr__(self) -> str:
        return f"<Troubles {'/'.join(self._key)} is_leaving={self.is_leaving}>"

    def failed(self, error: ApiError, again_s: float) -> float:
        """A look has ended with this; in how many seconds the next."""
        facts = {"group": "/".join(self._key), "reason": str(error)}
        if isinstance(error, Terminating):
            self.is_leaving = True
            log.info("the namespace of a group is going: nothing is done for it any more", extra=facts)
            return LEAVING_S
        now_ms = self._clock.now_ms()
        is_old = str(error) == self._reason and now_ms - self._told_ms < AGAIN_MS
        if not is_old:
            self._reason, self._told_ms = str(error), now_ms
        is_quiet = is_old or isinstance(error, Gone)
        log.log(logging.DEBUG if is_quiet else logging.WARNING, "a look has failed", extra=facts)
        return again_s
