"""The stores of committed offsets: the brokers, or for broadcasting a file of each consumer."""

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol, final

import msgspec

from gantry_client.errors import InvalidMessage, OffsetsUnreadable
from gantry_client.queue_calls import QueueCalls
from gantry_client.queue_reader import QueueReader
from gantry_client.settings import ConsumerSettings, MessageModel, StartFrom
from gantry_remoting.durable_files import replace_file
from gantry_wire.commands.clients import MessageQueue
from gantry_wire.names import RETRY_PREFIX, path_component

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Keeps one committed offset per queue, below which everything is consumed."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the committed offset, or None if there is none."""

    async def write(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Store `offsets`; return the queues that failed, each with its error."""


@final
class BrokerOffsets:
    """The shared offsets of a group, stored by the broker of each queue."""

    def __init__(self, group: str, queue_calls: QueueCalls) -> None:
        self._group = group
        self._queue_calls = queue_calls

    async def read(self, queue: MessageQueue) -> int | None:
        return await self._queue_calls.committed(self._group, queue)

    async def write(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        results = await asyncio.gather(
            *(self._queue_calls.commit(self._group, queue, offset) for queue, offset in offsets.items()),
            return_exceptions=True,
        )
        failed: dict[MessageQueue, Exception] = {}
        for queue, result in zip(offsets, results, strict=True):
            if isinstance(result, Exception):
                failed[queue] = result
            elif isinstance(result, BaseException):
                raise result
        return failed


class _OffsetEntry(msgspec.Struct):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


class _OffsetFile(msgspec.Struct):
    offsets: list[_OffsetEntry]


@final
class FileOffsets:
    """The offsets of one consumer, in a file that is replaced as a whole: a crash leaves the old or the new file."""

    def __init__(self, folder: Path, group: str, instance: str | None) -> None:
        try:
            self._path = folder / path_component(instance or "default") / f"{path_component(group)}.json"
        except ValueError as error:
            raise InvalidMessage(str(error)) from error
        self._offsets: dict[MessageQueue, int] | None = None
        self._write_lock = asyncio.Lock()

    @property
    def path(self) -> Path:
        """The path of the file; consumers of a group on one machine need different `instance` settings."""
        return self._path

    async def read(self, queue: MessageQueue) -> int | None:
        return (await self._load()).get(queue)

    async def write(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        known = await self._load()
        known |= offsets
        # The caller may be cancelled; the thread continues, and the next write must not overtake it.
        error = await asyncio.shield(asyncio.ensure_future(self._replace(known)))
        return {} if error is None else dict.fromkeys(offsets, error)

    async def _replace(self, known: dict[MessageQueue, int]) -> Exception | None:
        async with self._write_lock:
            try:
                await asyncio.to_thread(self._replace_file, dict(known))
            except OSError as error:
                return error
        return None

    async def _load(self) -> dict[MessageQueue, int]:
        if self._offsets is None:
            self._offsets = await asyncio.to_thread(self._read_file)
        return self._offsets

    def _read_file(self) -> dict[MessageQueue, int]:
        try:
            document = msgspec.json.decode(self._path.read_bytes(), type=_OffsetFile)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            raise OffsetsUnreadable(f"{self._path}: {error}") from error
        return {
            MessageQueue(topic=entry.topic, broker_name=entry.broker_name, queue_id=entry.queue_id): entry.offset
            for entry in document.offsets
        }

    def _replace_file(self, offsets: dict[MessageQueue, int]) -> None:
        document = _OffsetFile(
            offsets=[
                _OffsetEntry(queue.topic, queue.broker_name, queue.queue_id, offset)
                for queue, offset in offsets.items()
            ]
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, msgspec.json.format(msgspec.json.encode(document)))


def make_offset_store(
    group: str, settings: ConsumerSettings, queue_calls: QueueCalls, instance: str | None
) -> OffsetStore:
    """Create the offset store of a group: the brokers, or for broadcasting a file of this `instance`."""
    if settings.model is MessageModel.CLUSTERING:
        return BrokerOffsets(group, queue_calls)
    return FileOffsets(settings.broadcast_offsets_folder or Path.home() / ".gantry" / "offsets", group, instance)


async def find_start_offset(
    queue: MessageQueue, store: OffsetStore, queue_calls: QueueCalls, settings: ConsumerSettings
) -> tuple[int, int | None]:
    """Return (start offset, committed offset or None): the committed offset, else the one that `start_from` selects.

    Without a committed offset, retry topics start at their first message, because their messages failed in this group.
    Raises a ClientError when the offset cannot be determined.
    """
    committed = await store.read(queue)
    if committed is not None and committed >= 0:
        return committed, committed
    if queue.topic.startswith(RETRY_PREFIX) or settings.start_from is StartFrom.FIRST:
        return await queue_calls.min_offset(queue), None
    if settings.start_from is StartFrom.TIMESTAMP:
        return await queue_calls.offset_at(queue, settings.start_timestamp_ms), None
    return await queue_calls.max_offset(queue), None


async def commit_readers(store: OffsetStore, readers: Iterable[QueueReader]) -> None:
    """Write the offset of each reader to `store` if it differs from the committed one."""
    moved = {
        reader.queue: (reader, reader.backlog, reader.backlog.commit_offset)
        for reader in readers
        if reader.backlog.commit_offset != reader.committed
    }
    if not moved:
        return
    failed = await store.write({queue: offset for queue, (_, _, offset) in moved.items()})
    for queue, (reader, backlog, offset) in moved.items():
        if queue in failed:
            log.warning("failed to commit offset", extra={"queue": repr(queue), "reason": str(failed[queue])})
        else:
            reader.record_commit(backlog, offset)
