"""Moves stored messages from appended to acknowledged and visible, in the event loop.

    positions of the store's threads and acks of slaves move
        --> `release_answers`: the answers that waited for them leave
             --> `show`: consumers see the messages, at once if a pull is held, or a moment later

Invariant: the loop never touches the store while another thread opens, changes or closes it.
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
"""How soon the store tries again to show messages for which it had no room."""
SHOW_DELAY_S: Final = 0.001
"""How long a confirmed message may stay invisible while no pull is held."""


@final
class Visibility:
    """Releases answers and shows messages of one broker. Owned by the event loop, except `progressed`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        store: MessageStore,
        ack_gate: AckGate,
        hold: PullHold,
        on_progress: Callable[[], None],
    ) -> None:
        """``on_progress`` is called after each step of the store's threads. Starts suspended."""
        self._loop: Final = loop
        self._store: Final = store
        self._ack_gate: Final = ack_gate
        self._hold: Final = hold
        self._on_progress: Final = on_progress
        self._is_suspended = True
        self._is_advance_scheduled = False
        self._is_show_due = False
        self._is_show_scheduled = False

    def __repr__(self) -> str:
        return f"<Visibility {'suspended' if self._is_suspended else 'active'} show_due={self._is_show_due}>"

    def resume(self) -> None:
        """The store belongs to the loop from now on."""
        self._is_suspended = False

    def suspend(self) -> None:
        """Another thread opens, changes or closes the store: leave it alone."""
        self._is_suspended = True

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Leave the store alone for a while."""
        self.suspend()
        try:
            yield
        finally:
            self.resume()

    def progressed(self) -> None:
        """Schedule `advance`. Called by the store's threads, more often than the loop can follow."""
        if not self._is_advance_scheduled:
            self._is_advance_scheduled = True
            self._loop.call_soon_threadsafe(self.advance)

    def advance(self) -> None:
        """Serve everything that waits for positions of the store: answers, consumers and slaves."""
        self._is_advance_scheduled = False
        if not self._is_suspended:
            self.release_answers()
            self._on_progress()

    def release_answers(self) -> None:
        """Send the answers whose positions are reached, and show their messages when there is time for that.

        A producer's next message waits for its answer, but no client waits for visibility unless a pull is held. So
        messages are shown while the next ones are made safe, and at the latest before any request but a send.
        """
        if self._is_suspended:
            return
        self._ack_gate.release()
        self._is_show_due = True
        if self._hold.count:
            self._loop.call_soon(self.show)
        elif not self._is_show_scheduled:
            self._is_show_scheduled = True
            self._loop.call_later(SHOW_DELAY_S, self._show_late)

    def appended(self) -> None:
        """Use the time that slaves or the disk need for what was appended just now."""
        if self._is_show_due:
            self._loop.call_soon(self.show)

    def show(self) -> None:
        """Make confirmed messages visible to consumers."""
        if self._is_show_due and not self._is_suspended:
            self._is_show_due = False
            if not self._store.advance():
                self._loop.call_later(ADVANCE_RETRY_S, self.advance)

    def _show_late(self) -> None:
        self._is_show_scheduled = False
        self.show()
