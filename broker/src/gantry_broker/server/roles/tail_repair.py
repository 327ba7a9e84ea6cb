"""A new master accepts nothing before damaged messages at the end of its log have their places in their queues.

    promoted -> slaves follow -> the damage is healed from one, or no replica has it -> sends are accepted
             `-> after ``WAIT_S``, or where sends wait for no slave: the damaged messages are given up

The place of such a message is unknown until it is healed: the next message of its queue would get its offset, and the
healed one would stay hidden. As the master this broker can ask all slaves for it, so the wait is short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, final

from gantry_broker.server.core.gate import Gate
from gantry_broker.store.message_store import MessageStore

log = logging.getLogger(__name__)

WAIT_S: Final = 30.0
"""How long a new master waits for slaves that may have a damaged message."""
CHECK_S: Final = 0.05


@final
class TailRepair:
    """Opens the gate of a new master. Owned by the loop."""

    def __init__(self, store: MessageStore, gate: Gate) -> None:
        self._store: Final = store
        self._gate: Final = gate
        self._loop: Final = asyncio.get_running_loop()
        self._wait_until = 0.0

    def __repr__(self) -> str:
        return f"<TailRepair until={self._wait_until}>"

    def begin(self, *, is_waiting: bool) -> None:
        """Set how long the gate of a new master may stay closed; it opens at once if not ``is_waiting``."""
        self._wait_until = self._loop.time() + WAIT_S if is_waiting else 0.0

    def open_gate(self, is_wanted: Callable[[], bool]) -> None:
        """Accept everything, now or when the repair is over, if it is still wanted then."""
        if not is_wanted():
            return
        damaged = self._store.unplaced_damage
        if damaged and self._loop.time() < self._wait_until:
            self._gate.refuse_changes("this broker waits for the repair of damaged messages at the end of its log")
            self._loop.call_later(CHECK_S, self.open_gate, is_wanted)
            return
        if damaged:
            self._store.give_up_unplaced()
            extra = {"offset": damaged[0].start, "ranges": len(damaged)}
            log.error(
                "gave up waiting for the repair of damaged messages; new ones may get their queue offsets", extra=extra
            )
        self._gate.accept_all()
