"""A consumer that pulls while the producers send, and remembers what it was shown.

Whoever has seen a message goes on behind it. So what was shown must be there after the crash, at the same place, in
every mode: also where acknowledged messages may be lost, only such may be that nobody was shown.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, final

from crash.log_walk import Queue
from crash.producer import QUEUES, TOPICS
from crash.readback import pull

from gantry_remoting import CannotConnect, Channel, RemotingError
from gantry_wire.message import StoredMessage

PAUSE_S: Final = 0.01


@final
class Witness:
    """Sees one load. Owned by one event loop."""

    def __init__(self, stored: Mapping[Queue, Sequence[StoredMessage]]) -> None:
        """`stored`: what is there before; it begins behind it."""
        self.seen: dict[Queue, list[StoredMessage]] = {}
        self._next = {
            (topic, queue_id): len(stored.get((topic, queue_id), ())) for topic in TOPICS for queue_id in range(QUEUES)
        }

    def __repr__(self) -> str:
        return f"<Witness seen={sum(len(messages) for messages in self.seen.values())}>"

    async def run(self, address: str) -> None:
        """Look at one queue after the other until the connection breaks."""
        try:
            channel = await Channel.connect(address)
        except CannotConnect:
            return
        try:
            while channel.is_open:
                for queue in self._next:
                    await self._look(channel, queue)
                await asyncio.sleep(PAUSE_S)
        except RemotingError:
            return
        finally:
            await channel.close()

    async def _look(self, channel: Channel, queue: Queue) -> None:
        found = await pull(channel, queue, self._next[queue])
        if found.messages:
            self.seen.setdefault(queue, []).extend(found.messages)
        self._next[queue] = found.next_offset

    def missing(self, stored: Mapping[Queue, Sequence[StoredMessage]]) -> list[str]:
        """What was shown and is not there now, or is another message."""
        return [
            f"{topic}/{queue_id} offset {message.queue_offset} at {message.physical_offset}"
            for (topic, queue_id), messages in self.seen.items()
            for message in messages
            if message not in stored.get((topic, queue_id), ())[message.queue_offset : message.queue_offset + 1]
        ]
