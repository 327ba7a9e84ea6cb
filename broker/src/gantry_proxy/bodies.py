"""Decompresses the bodies of messages for consumers, a bounded amount in each turn of the event loop.

A stored body of 4 KiB may have a content of 4 MiB, which takes 30 ms: 32 of them in one step would stop all clients for
a second. So a body is decompressed when its message is about to be sent, after the client's window has taken the one
before. That also bounds the memory of a receive: one content, not 32.

A body is never passed on compressed to save time: the SDKs read fewer codecs than the clients of remoting write.
"""

import asyncio
from typing import Final, final

from gantry_client.messages import ReceivedMessage, inflate_message

TURN_BYTES: Final = 512 * 1024
"""After how many bytes the next body waits for another turn of the loop: 4 ms. One body may have more."""


@final
class BodyInflater:
    """Decompresses bodies for all calls of a proxy. Owned by the event loop."""

    def __init__(self, body_bytes_max: int) -> None:
        """A body whose content is larger than ``body_bytes_max`` stays as it is stored."""
        self._body_bytes_max: Final = body_bytes_max
        self._spent_bytes = 0
        """How many bytes were decompressed in this turn of the loop."""
        self._waiting: list[asyncio.Future[None]] = []
        """Those that wait for the next turn, first come, first served."""

    def __repr__(self) -> str:
        return f"<BodyInflater spent={self._spent_bytes}>"

    async def inflate(self, message: ReceivedMessage) -> ReceivedMessage:
        """Return a message whose body was left compressed with the body decompressed, or with the fault in it."""
        loop = asyncio.get_running_loop()
        while self._spent_bytes >= TURN_BYTES:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        found = inflate_message(message, self._body_bytes_max)
        if not self._spent_bytes:
            loop.call_soon(self._begin_turn)
        self._spent_bytes += len(found.stored_body) + 1
        return found

    def _begin_turn(self) -> None:
        self._spent_bytes = 0
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
