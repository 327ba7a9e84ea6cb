"""What the broker's totals were when today began, and when yesterday did: local time, since this start.

    0 ------- yesterday's midnight ------- today's midnight ------- now
              msg*TotalYesterdayMorning    msg*TotalTodayMorning    msg*TotalTodayNow

As in RocketMQ, whose tools take the differences for the messages of a day; before the first midnight both are 0.
"""

import time
from typing import Final, NamedTuple, final


class Totals(NamedTuple):
    """Messages stored and read."""

    put: int = 0
    get: int = 0


@final
class DailyTotals:
    """Owned by the event loop."""

    def __init__(self) -> None:
        self.yesterday_morning = Totals()
        self.today_morning = Totals()
        self._day: tuple[int, int] | None = None

    def __repr__(self) -> str:
        return f"<DailyTotals yesterday={self.yesterday_morning} today={self.today_morning}>"

    def begins_day(self, wall_ms: int) -> bool:
        """Whether it is another day than the last time; not the first time. A clock set back begins none."""
        now: Final = time.localtime(wall_ms / 1000)
        day, before = (now.tm_year, now.tm_yday), self._day
        if before is not None and day <= before:
            return False
        self._day = day
        return before is not None

    def note(self, totals: Totals) -> None:
        """A day begins with these."""
        self.yesterday_morning, self.today_morning = self.today_morning, totals
