"""TLS handshakes that have begun and not ended, and how many of them a port keeps.

A handshake costs a server memory, and whoever begins one and says nothing more costs it that for as long as it may. An
honest one is over in milliseconds, so when there are too many, the oldest goes: a flood pushes out itself.
"""

from typing import Protocol, final

from gantry_remoting.closings import CloseReason


class Shaking(Protocol):
    """A connection, as far as it matters here."""

    def close(self, text: str, reason: CloseReason) -> None: ...


@final
class Handshakes:
    """Those of one port, oldest first. Owned by the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: dict[Shaking, None] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: Shaking) -> None:
        """One more; the oldest goes when there is no room for it."""
        if len(self._under_way) >= self._most:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.close("made room for a younger TLS handshake", CloseReason.HANDSHAKES)
        self._under_way[connection] = None

    def end(self, connection: Shaking) -> None:
        """It is done, or gone."""
        self._under_way.pop(connection, None)
