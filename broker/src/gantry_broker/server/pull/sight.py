"""When senders are answered, and consumers see: positions move in other threads, the loop looks at who waits for them.

    the store's threads, acks of slaves  -->  look: senders are answered
                                               '--> show: consumers see it, at once if one waits, or a moment later

The rule it guards: nothing of the store is touched while it is another thread's, which opens, changes or closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, final

from gantry_broker.server.pull.pull_hold import PullHold
from gantry_broker.server.send.parked import ParkedReplies
from gantry_broker.store.message_store import MessageStore

ADVANCE_RETRY_S: Final = 1.0
"""How soon stored messages that there was no room to show are tried again."""
SHOW_DELAY_S: Final = 0.001
"""How long a message that is confirmed may stay unseen while nobody has asked for it."""


@final
class Sight:
    """Of one broker. All but `progressed` is called by the loop."""

    _store: MessageStore
    _parked: ParkedReplies
    _hold: PullHold
    _moved: Callable[[], None]

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop: Final = loop
        self.is_store_ours = False
        """Whether the store is the loop's: not while another thread opens or closes it."""
        self._is_advance_scheduled = False
        self._is_show_due = False
        self._is_show_scheduled = False

    def __repr__(self) -> str:
        return f"<Sight {'of our store' if self.is_store_ours else 'of a store that is not ours'}>"

    def join(self, store: MessageStore, parked: ParkedReplies, hold: PullHold, moved: Callable[[], None]) -> None:
        """Who waits, before the store is ours. ``moved`` hears when the store's threads have got somewhere."""
        self._store, self._parked, self._hold, self._moved = store, parked, hold, moved

    def progressed(self) -> None:
        """The store's threads have got somewhere. Called by them, more often than the loop can act on it."""
        if not self._is_advance_scheduled:
            self._is_advance_scheduled = True
            self._loop.call_soon_threadsafe(self.advance)

    def advance(self) -> None:
        """Look at everybody who waits, slaves as well."""
        self._is_advance_scheduled = False
        if self.is_store_ours:
            self.look()
            self._moved()

    def look(self) -> None:
        """Positions have moved: senders are answered, and consumers are looked at when there is time for that.

        A producer's next message waits for its answer, and nobody for what is shown if nobody waits for messages: that
        is done while the next ones are made safe, and at the latest before somebody asks for anything but a send.
        """
        if self.is_store_ours:
            self._parked.release()
            self._is_show_due = True
            if self._hold.count:
                self._loop.call_soon(self.show)
            elif not self._is_show_scheduled:
                self._is_show_scheduled = True
                self._loop.call_later(SHOW_DELAY_S, self._show_late)

    def meanwhile(self) -> None:
        """Something was appended, and it takes slaves or the disk a while to have it."""
        if self._is_show_due:
            self._loop.call_soon(self.show)

    def show(self) -> None:
        """Let consumers see what is confirmed."""
        if self._is_show_due and self.is_store_ours:
            self._is_show_due = False
            if not self._store.advance():
                self._loop.call_later(ADVANCE_RETRY_S, self.advance)

    def _show_late(self) -> None:
        self._is_show_scheduled = False
        self.show()
