"""How much filtering by properties one turn of the loop may do, so that a filter that matches nothing holds up nobody.

Filtering costs a look into every record and an evaluation, some microseconds for each message, on the loop that
everybody shares. What a turn may spend is counted in words of expressions; a message costs those of the filter, and
as much as forty more for its record. A pull gets what is left of its turn, and some messages even when nothing is: the
client pulls on from where it came to, and a pull that is held looks on in the next turn. Owned by the event loop.
"""

import asyncio
from typing import Final, final

from gantry_wire.sql92 import SqlFilter

TURN_WORDS_MAX: Final = 50_000
"""About five milliseconds."""

RECORD_WORDS: Final = 40
UNITS_MIN: Final = 8
UNITS_MAX: Final = 800
"""As many as RocketMQ's pulls look at."""


@final
class FilterBudget:
    """What is left of this turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_WORDS_MAX

    def __repr__(self) -> str:
        return f"<FilterBudget left={self._left}>"

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def units(self, wanted: SqlFilter) -> int:
        """How many messages the next read may look at."""
        return max(UNITS_MIN, min(UNITS_MAX, self._left // _cost(wanted)))

    def spend(self, wanted: SqlFilter, units: int) -> None:
        """So many messages were looked at."""
        if self._left == TURN_WORDS_MAX and units:
            self._loop.call_soon(self._begin_turn)
        self._left -= units * _cost(wanted)

    def _begin_turn(self) -> None:
        self._left = TURN_WORDS_MAX


def _cost(wanted: SqlFilter) -> int:
    return RECORD_WORDS + wanted.weight
