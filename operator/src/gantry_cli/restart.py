"""When a server that died is started again: at once, then ever later, and not for ever.

    died for the 1st time within a minute   -> at once
             2nd, 3rd, 4th, 5th             -> after 1, 2, 4, 8 s
             6th                            -> never: something is wrong that a restart does not mend

Pure: times in, a decision out.
"""

from dataclasses import dataclass, field
from typing import Final, final

WINDOW_S: Final = 60.0
RESTARTS_MAX: Final = 5


@final
@dataclass(slots=True)
class RestartPolicy:
    """The recent deaths of one server."""

    _deaths: list[float] = field(default_factory=list)

    @property
    def recent(self) -> int:
        """Deaths that still count."""
        return len(self._deaths)

    def delay_after_death(self, now: float) -> float | None:
        """It died at `now`: how many seconds to wait before the next start, or None to give up."""
        self._deaths = [death for death in self._deaths if now - death < WINDOW_S]
        self._deaths.append(now)
        if len(self._deaths) > RESTARTS_MAX:
            return None
        return 0.0 if len(self._deaths) == 1 else float(2 ** (len(self._deaths) - 2))
