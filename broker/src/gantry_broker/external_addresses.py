"""The addresses by which clients outside of the network reach this broker, from a file that is watched."""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Final, final

from gantry_remoting import FileWatch, read_small_file

log = logging.getLogger(__name__)

MASTER_KEY: Final = "master"
"""The name of the master's address in the file of external addresses."""
_LINE: Final = re.compile(r"(?P<member>master|[1-9][0-9]{0,8})=(?P<address>[A-Za-z0-9.\-\[\]:]{1,260}:[0-9]{1,5})")
"""A line of the file of external addresses: member and address."""


@final
class ExternalAddresses:
    """The addresses by which clients outside of the network reach this broker, from a file.

        master=203.0.113.7:10911        the current master, whichever member that is
        2=203.0.113.8:10911             the broker with that id, while it is a slave

    Such addresses are assigned by others (a load balancer, a port of the machine), often after the broker has started,
    so the file is read again every few seconds. A change is used when two checks have found the same, because a file
    that is being written may end in the middle of an address. An unreadable file changes nothing, and without an
    address clients outside do not learn of this broker. Owned by the event loop.
    """

    def __init__(self, path: str, on_change: Callable[[], None] = lambda: None) -> None:
        """An empty path means that there are no addresses. ``on_change`` is called after each change."""
        self._path: Final = path
        self._on_change: Final = on_change
        self._known: dict[str, str] = {}
        self._found: dict[str, str] | None = None
        """The addresses that the last check has found; None for an unreadable file."""

        self._watch: Final = FileWatch("external addresses", self.check)

    def find(self, broker_id: int) -> str:
        """Return the address under this broker id; empty if there is none."""
        return self._known.get(str(broker_id) if broker_id else MASTER_KEY, "")

    async def start(self) -> None:
        """Read the file, and check it every few seconds until closed."""
        if self._path:
            found = await self._read()
            if found is not None:
                self._adopt(found)
            self._watch.start()

    async def close(self) -> None:
        """Stop checking the file for changes."""
        await self._watch.close()

    async def check(self) -> None:
        """Use the addresses of the file, if they were the same at the last check."""
        found = await self._read()
        before, self._found = self._found, found
        if found is not None and found == before:
            self._adopt(found)

    async def _read(self) -> dict[str, str] | None:
        try:
            text = (await asyncio.to_thread(read_small_file, self._path)).decode("utf-8", "replace")
        except OSError:
            return None
        return parse_external_addresses(text)

    def _adopt(self, found: dict[str, str]) -> None:
        if found != self._known:
            self._known = found
            log.info("external addresses changed", extra={"path": self._path, "addresses": len(found)})
            self._on_change()


def parse_external_addresses(text: str) -> dict[str, str]:
    """Return the addresses by "master" or broker id; invalid lines are ignored."""
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {match["member"]: match["address"] for match in found if match is not None}
