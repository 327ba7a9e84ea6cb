"""All consume queues of a store, by topic and queue id, and where their files are.

The table is the only place that makes a path from a topic, and it does so through the wire's one door for names, so
no topic can name a file outside ``consumequeue/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

from gantry_broker.ports.disk import Disk
from gantry_broker.store.consume_queue import ConsumeQueue
from gantry_broker.store.file_queue import FileQueue
from gantry_broker.store.settings import StoreSettings
from gantry_wire.names import path_component

QUEUE_ID_MAX: Final = 0x7FFFFFFF


@final
class QueueTable:
    """Changed by the loop's thread; other threads may call ``snapshot``."""

    def __init__(self, disk: Disk, directory: str, settings: StoreSettings) -> None:
        self.directory: Final = directory
        self._disk: Final = disk
        self._file_size: Final = settings.mapped_file_size_consume_queue
        self._stride: Final = settings.consume_queue_reserve_bytes
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    def get_or_create(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; files come with its first message. Raises ``ValueError`` for an impossible topic or id."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            if not 0 <= queue_id <= QUEUE_ID_MAX:
                raise ValueError(f"{queue_id} is not a queue id")
            directory = f"{self.directory}/{path_component(topic)}/{queue_id}"
            files = FileQueue(self._disk, directory, self._file_size)
            queue = self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, files, stride=self._stride)
        return queue

    def close(self) -> None:
        for queue in self:
            queue.close()
