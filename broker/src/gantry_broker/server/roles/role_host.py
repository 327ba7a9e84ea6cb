"""The interface of the broker that changes of role use."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from gantry_broker.registration import Registration

ADDRESS_MOVE_S: Final = 2.0
"""How long clients may still reach this broker by an address of the master, such as a Service: nodes update it late."""


class Host(Protocol):
    """The broker, as changes of role use it."""

    registration: Registration

    def close_clients(self, reason: str) -> None:
        """Close every client's connection, for this reason."""

    def register(self, broker_id: int | None) -> None:
        """Register at name servers with this broker id, or unregister."""

    async def run_exclusively(self, change: Callable[[], None]) -> None:
        """Run a change that waits for the disk while nothing else uses the store."""


def close_clients_later(host: Host, is_wanted: Callable[[], bool]) -> None:
    """Close every client's connection after ``ADDRESS_MOVE_S``, if that is still wanted then."""

    def close() -> None:
        if is_wanted():
            host.close_clients("another broker is the master now")

    asyncio.get_running_loop().call_later(ADDRESS_MOVE_S, close)
