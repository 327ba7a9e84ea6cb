"""Where clients outside of the network reach this broker, as a file says that may change while we run.

    master=203.0.113.7:10911        whoever is the master
    2=203.0.113.8:10911             the broker with that number, while it is a slave

Such addresses are given by somebody else (a load balancer, a port of the machine), often later than the broker starts.
So the file is looked at every few seconds; what cannot be read changes nothing, and without an address this broker is
simply not told of on the outer side.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, final

from gantry_remoting import FileWatch, read_small_file

log = logging.getLogger(__name__)

MASTER_KEY: Final = "master"
_LINE: Final = re.compile(r"(?P<who>master|[1-9][0-9]{0,8})=(?P<address>[A-Za-z0-9.\-\[\]:]{1,260}:[0-9]{1,5})")


@final
class OutsideAddresses:
    """One file. Owned by the event loop."""

    def __init__(self, path: str, changed: Callable[[], None] = lambda: None) -> None:
        """Without a path there are none. ``changed`` is called after each change."""
        self._path: Final = path
        self._changed: Final = changed
        self._known: dict[str, str] = {}
        self._watch: Final = FileWatch("outside addresses", self.look)

    def of(self, broker_id: int) -> str:
        """The address of this broker as what it is registered; empty if there is none."""
        return self._known.get(str(broker_id) if broker_id else MASTER_KEY, "")

    async def start(self) -> None:
        """Read it, and look again every few seconds until closed."""
        if self._path:
            await self.look()
            self._watch.start()

    async def close(self) -> None:
        """Look no more."""
        await self._watch.close()

    async def look(self) -> None:
        """Take what the file says now."""
        try:
            text = (await asyncio.to_thread(read_small_file, self._path)).decode("utf-8", "replace")
        except OSError:
            return
        known = parse_addresses(text)
        if known != self._known:
            self._known = known
            log.info("outside addresses have changed", extra={"path": self._path, "addresses": len(known)})
            self._changed()


def parse_addresses(text: str) -> dict[str, str]:
    """Who is where; a line that is none is left out."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match["who"]: match["address"] for match in found if match is not None}
