"""Moves stored messages from appended to acknowledged and visible, in the event loop.

    positions of the store's threads and acks of slaves move
        --> `release_answers`: sends the held answers that waited for them
             --> `make_visible`: makes the messages visible, at once if a pull is held, or a moment later

Invariant: nothing here accesses the store while another thread opens, changes or closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, final

from gantry_broker.server.pull.pull_hold import PullHold
from gantry_broker.server.send.ack_gate import AckGate
from gantry_broker.store.message_store import MessageStore

ADVANCE_RETRY_S: Final = 1.0
"""The pause before a retry, if the store had no room for the queue units of confirmed messages."""
VISIBILITY_DELAY_S: Final = 0.001
"""How long a confirmed message may stay invisible while no pull is held."""


@final
class Visibility:
    """Releases answers and makes messages of one broker visible. Owned by the event loop, except `schedule_advance`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        ack_gate: AckGate,
        hold: PullHold,
        on_progress: Callable[[], None],
    ) -> None:
        """``on_progress`` is called after progress of the store's threads, once for several steps. Starts suspended."""
        self._loop: Final = loop
        self._store: Final = store
        self._ack_gate: Final = ack_gate
        self._hold: Final = hold
        self._on_progress: Final = on_progress
        self._is_suspended = True
        self._is_advance_scheduled = False
        self._is_visibility_due = False
        self._is_visibility_scheduled = False

    def __repr__(self) -> str:
        return (
            f"<Visibility {'suspended' if self._is_suspended else 'active'} visibility_due={self._is_visibility_due}>"
        )

    def resume(self) -> None:
        """Use the store again, since it belongs to the loop."""
        self._is_suspended = False

    def suspend(self) -> None:
        """Stop using the store, while another thread opens, changes or closes it."""
        self._is_suspended = True

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Do not use the store within the context."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    def schedule_advance(self) -> None:
        """Schedule `advance`. Called by the store's threads, more often than the loop can follow."""
        if not self._is_advance_scheduled:
            self._is_advance_scheduled = True
            self._loop.call_soon_threadsafe(self.advance)

    def advance(self) -> None:
        """Serve all that waits for positions of the store: held answers, consumers and slaves."""
        self._is_advance_scheduled = False
        if not self._is_suspended:
            self.release_answers()
            self._on_progress()

    def release_answers(self) -> None:
        """Send the answers whose positions are reached, and schedule the visibility of their messages.

        A producer's next message waits for its answer, but no client waits for visibility unless a pull is held. So
        messages become visible while the next ones are made durable, and at the latest before any request that is not a
        send.
        """
        if self._is_suspended:
            return
        self._ack_gate.release()
        self._is_visibility_due = True
        if self._hold.count:
            self._loop.call_soon(self.make_visible)
        elif not self._is_visibility_scheduled:
            self._is_visibility_scheduled = True
            self._loop.call_later(VISIBILITY_DELAY_S, self._make_visible_late)

    def make_visible_soon(self) -> None:
        """Make earlier messages visible while slaves or the disk are busy with the last append."""
        if self._is_visibility_due:
            self._loop.call_soon(self.make_visible)

    def make_visible(self) -> None:
        """Make confirmed messages visible to consumers."""
        if self._is_visibility_due and not self._is_suspended:
            self._is_visibility_due = False
            if not self._store.advance():
                self._loop.call_later(ADVANCE_RETRY_S, self.advance)

    def _make_visible_late(self) -> None:
        self._is_visibility_scheduled = False
        self.make_visible()
