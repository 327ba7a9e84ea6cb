"""The requests of one connection that wait for replies, matched by request id; for either side of a connection."""

import asyncio
from collections.abc import Callable
from typing import final

from gantry_remoting.errors import ConnectionClosed, RemotingTimeout
from gantry_wire.command import Command


@final
class PendingRequests:
    """The pending requests of one connection. Owned by the event loop."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[int, asyncio.Future[Command]] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    async def send(self, command: Command, write: Callable[[Command], None], peer: str, timeout_ms: int) -> Command:
        """Write a request to ``peer`` and wait for its reply. Raises ConnectionClosed or RemotingTimeout."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Command] = loop.create_future()
        self._waiters[command.opaque] = waiter
        # A timer of the loop costs a fifth of `asyncio.timeout`, of which a proxy would make one for each message.
        timer = loop.call_later(timeout_ms / 1000, _expire, waiter, peer, command.code, timeout_ms)
        try:
            write(command)
            return await waiter
        finally:
            timer.cancel()
            self._waiters.pop(command.opaque, None)

    def resolve(self, reply: Command) -> None:
        """Pass a reply to the request that waits for it. A reply without a pending request is dropped."""
        waiter = self._waiters.get(reply.opaque)
        if waiter is not None and not waiter.done():
            waiter.set_result(reply)

    def fail(self, reason: str) -> None:
        """Raise ConnectionClosed in every pending request, because the connection was closed."""
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(ConnectionClosed(reason))


def _expire(waiter: "asyncio.Future[Command]", peer: str, code: int, timeout_ms: int) -> None:
    if not waiter.done():
        waiter.set_exception(RemotingTimeout(f"no reply from {peer} to code {code} within {timeout_ms} ms"))
