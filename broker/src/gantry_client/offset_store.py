"""Where a group's progress is kept: at the brokers, or for broadcasting in a file of each member."""

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
    """Keeps one offset per queue: everything below it is consumed."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset, or None when consumption has not begun."""

    async def write(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        """Keep these; what could not be kept comes back with the reason."""


@final
class BrokerOffsets:
    """A group's shared offsets, kept by the broker of each queue."""

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
    """One member's own offsets, in a file that is replaced whole: a crash leaves the old one or the new one."""

    def __init__(self, folder: Path, group: str, instance: str | None) -> None:
        try:
            self._path = folder / path_component(instance or "default") / f"{path_component(group)}.json"
        except ValueError as error:
            raise InvalidMessage(str(error)) from error
        self._offsets: dict[MessageQueue, int] | None = None
        self._turn = asyncio.Lock()

    @property
    def path(self) -> Path:
        """The file; members of one group on one machine need different `instance` settings to have different ones."""
        return self._path

    async def read(self, queue: MessageQueue) -> int | None:
        return (await self._load()).get(queue)

    async def write(self, offsets: dict[MessageQueue, int]) -> dict[MessageQueue, Exception]:
        known = await self._load()
        known |= offsets
        # Whoever asked may be cancelled; a thread is not, and must not be overtaken by the next one.
        error = await asyncio.shield(asyncio.ensure_future(self._replace(known)))
        return {} if error is None else dict.fromkeys(offsets, error)

    async def _replace(self, known: dict[MessageQueue, int]) -> Exception | None:
        async with self._turn:
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
    """Where a group keeps its offsets: at brokers, or in a file of this `instance` where all get every message."""
    if settings.model is MessageModel.CLUSTERING:
        return BrokerOffsets(group, queue_calls)
    return FileOffsets(settings.broadcast_offsets_folder or Path.home() / ".gantry" / "offsets", group, instance)


async def start_offset(
    queue: MessageQueue, store: OffsetStore, queue_calls: QueueCalls, settings: ConsumerSettings
) -> tuple[int, int | None]:
    """(where to begin, what is committed): at the committed offset, or by rule when there is none.

    Retry topics begin at their first message, whatever the rule: what lies there failed in this very group. Raises a
    ClientError when it cannot be found out.
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
    """Have `store` take how far each reader is done, where that has moved."""
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
            log.warning("an offset is not committed", extra={"queue": repr(queue), "reason": str(failed[queue])})
        else:
            reader.record_commit(backlog, offset)
