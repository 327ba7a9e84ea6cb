"""The archive server: answers requests of brokers over a Unix socket, which only its own user can open, or over TCP.

The manifest is read again every few seconds. A file that was compacted or has expired since then is not found; then the
manifest is read at once, and the request is tried again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.errors import ArchiveError, ManifestBroken, OtherArchive
from gantry_pipelines.archive.format import read_format
from gantry_pipelines.archive.manifest import ArchivedFile, Manifest
from gantry_pipelines.archive.manifest_reader import ManifestReader
from gantry_pipelines.archive.serving.archived_queues import US_PER_MS, ArchivedQueues
from gantry_pipelines.archive.serving.broker_port import BrokerPort, PortParameters
from gantry_pipelines.archive.serving.chunks import ChunkReader
from gantry_pipelines.archive.serving.records import NEEDED_COLUMNS, Chunk, Selection
from gantry_pipelines.archive.storage import Storage
from gantry_remoting.client import Channel
from gantry_status.socket_path import socket_address
from gantry_wire.codes import ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.archive import (
    ArchiveCode,
    ArchivePull,
    ArchivePulled,
    ArchiveRangesQuery,
    ArchiveSearch,
)
from gantry_wire.commands.offsets import OffsetResult
from gantry_wire.filters import MessageFilter, TagFilter, parse_filter

log = logging.getLogger(__name__)

CHUNKS_PER_PULL_MAX: Final = 4
"""How many chunks one request may examine whose filter refuses most messages."""

TRIES: Final = 3
"""How often a file is looked for in the newest manifest."""

REQUESTS_MAX: Final = 1024
"""How many requests of all brokers may wait at a time."""

BACKLOG: Final = 16


@final
@dataclass(frozen=True, slots=True)
class ServerParameters:
    """The parameters of an archive server."""

    socket_path: str
    """The Unix socket to listen at; empty: none."""

    topics_pattern: str
    """The topics that are to be archived, as one regular expression."""

    cache_bytes: int = 128 << 20
    refresh_s: float = 5.0
    """The interval at which the manifest is read."""

    port: PortParameters | None = None
    """The TCP port for brokers of other machines; None: none."""


@final
class ArchiveServer:
    """Serves one archive. Owned by the event loop."""

    def __init__(
        self, storage: Storage, parameters: ServerParameters, on_warning: Callable[[str, str], None] | None = None
    ) -> None:
        """``on_warning`` is called with the reason and the text of a failure, once for each new text."""
        self._storage: Final = storage
        self._parameters: Final = parameters
        self._on_warning: Final = on_warning or (lambda _reason, _text: None)
        self.chunks: Final = ChunkReader(storage, parameters.cache_bytes)
        self._manifests: Final = ManifestReader(storage)
        self._queues = ArchivedQueues()
        self._manifest = Manifest()
        self._generation = 0
        self._refreshing: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Command]] = set()
        self._channels: set[Channel] = set()
        self._server: asyncio.Server | None = None
        self.port: Final = (
            None if parameters.port is None else BrokerPort(parameters.port, self._serve, self._on_warning)
        )
        """The TCP port; None without one."""

        self._warned = ""
        self.is_current = False
        """Whether the manifest could be read at the last attempt."""

        self._run_id: Final = os.urandom(6).hex()
        self.message_count = 0
        """The number of messages that were returned."""

        self.pull_count = 0
        self._handlers: Final[dict[int, Callable[[Command], Awaitable[Command]]]] = {
            ArchiveCode.PULL: self._pull,
            ArchiveCode.SEARCH_OFFSET: self._search,
            ArchiveCode.LIST_RANGES: self._list_ranges,
        }

    def __repr__(self) -> str:
        return f"<ArchiveServer {self._parameters.socket_path or self.port} {self._queues!r}>"

    @property
    def is_available(self) -> bool:
        """Whether the archive could be read once, so that requests are not refused."""
        return self._generation > 0

    async def start(self) -> None:
        """Read the manifest and listen. Raises OSError if it cannot listen.

        If the archive cannot be read, it is tried again, and requests are refused until it can.
        """
        await self._refresh()
        if self._parameters.socket_path:
            await self._listen()
        if self.port is not None:
            await self.port.start()

    async def run(self) -> None:
        """Read the manifest again and again, until cancelled."""
        while True:
            await asyncio.sleep(self._parameters.refresh_s)
            await self._refresh()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            with suppress(FileNotFoundError):
                os.unlink(self._parameters.socket_path)
        for channel in tuple(self._channels):
            channel.abort()  # a broker that does not read must not delay the end
        for task in tuple(self._tasks):
            task.cancel()
        if self.port is not None:
            await self.port.close()
        await asyncio.to_thread(self.chunks.close)

    # ------- the socket and the port

    async def _listen(self) -> None:
        path = self._parameters.socket_path
        temporary = f"{path}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket_address(temporary) as address:  # the path may be longer than an address
                listening.bind(address)
            os.chmod(temporary, 0o600)
            self._server = await asyncio.get_running_loop().create_unix_server(
                self._new_channel, sock=listening, backlog=BACKLOG
            )
            os.replace(temporary, path)
        except BaseException:
            listening.close()
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _new_channel(self) -> Channel:
        channel = Channel("broker", on_request=self._on_request, on_close=self._channels.discard)
        self._channels.add(channel)
        return channel

    def _on_request(self, command: Command, channel: Channel) -> Command | None:
        answer = self._serve(command)
        if isinstance(answer, Command):
            return answer
        answer.add_done_callback(lambda done: None if done.cancelled() else channel.answer(done.result()))
        return None

    def _serve(self, command: Command) -> Command | asyncio.Task[Command]:
        """Return the reply to a request, or the task that makes it."""
        handler = self._handlers.get(command.code)
        if handler is None:
            return command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request type {command.code} not supported")
        if not self.is_available:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, self._warned)
        if len(self._tasks) >= REQUESTS_MAX:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, "too many requests wait for the archive")
        task = asyncio.ensure_future(self._answer(handler, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, handler: Callable[[Command], Awaitable[Command]], command: Command) -> Command:
        try:
            return await handler(command)
        except OtherArchive as error:
            return command.reply(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        except (OSError, ArchiveError, pa.ArrowException) as error:
            self._warn("CannotRead", f"cannot read the archive: {error}")
            return command.reply(ResponseCode.SYSTEM_ERROR, f"cannot read the archive: {error}")
        except ValueError as error:
            return command.reply(ResponseCode.INVALID_PARAMETER, str(error))

    # ------- requests

    async def _pull(self, command: Command) -> Command:
        request = ArchivePull.read(command.ext)
        self._check_identity(request.identity)
        message_filter = parse_filter(request.expression_type, request.subscription)
        self.pull_count += 1
        offset = request.queue_offset
        for _ in range(CHUNKS_PER_PULL_MAX):
            queue = self._queues.find(request.broker, request.topic, request.queue_id)
            file = None if queue is None else queue.find(offset)
            end = 0 if queue is None else queue.end
            begin = max(offset, end if file is None else file.range.begin)
            if file is None or begin > max(offset, request.log_begin):
                # Nothing is archived up to there. What the log has is not skipped.
                offset = max(offset, min(begin, request.log_begin))
                break
            try:
                chunk = await self.chunks.read(file, begin)
            except FileNotFoundError:
                await self._find_again(request, offset, file.place.path)
                continue
            selection = await self._select(chunk, begin, message_filter, request)
            assert selection.next_offset > offset or selection.is_late, "a reader must make progress"
            offset = selection.next_offset
            if selection.records:
                self.message_count += len(selection.records)
                ext = ArchivePulled(next_offset=offset, count=len(selection.records)).write()
                return command.reply(ext=ext, body=b"".join(selection.records))
            if selection.is_late:
                break
        is_moved = offset > request.queue_offset
        code = ResponseCode.PULL_RETRY_IMMEDIATELY if is_moved else ResponseCode.PULL_NOT_FOUND
        return command.reply(code, ext=ArchivePulled(next_offset=offset).write())

    async def _select(
        self, chunk: Chunk, offset: int, message_filter: MessageFilter, request: ArchivePull
    ) -> Selection:
        """Select messages of a chunk: by tags at once, by an expression in a thread, since it may take long."""
        limits = request.count_max, request.bytes_max
        if isinstance(message_filter, TagFilter):
            return chunk.select(offset, message_filter, *limits)
        return await self.chunks.run(lambda: chunk.select(offset, message_filter, *limits))

    async def _find_again(self, request: ArchivePull | ArchiveSearch, offset: int, path: str) -> None:
        """Read the manifest until it does not have a file that was not found. Raises FileNotFoundError."""
        for _ in range(TRIES):
            await self._refresh()
            queue = self._queues.find(request.broker, request.topic, request.queue_id)
            file = None if queue is None else queue.find(offset)
            if file is None or file.place.path != path:
                return
            if await asyncio.to_thread(_exists, self._storage, file.paths):
                return  # it was renamed meanwhile
        raise FileNotFoundError(f"{path} is in the manifest, but not in the archive: run gantry pipeline verify")

    async def _search(self, command: Command) -> Command:
        search = ArchiveSearch.read(command.ext)
        self._check_identity(search.identity)
        is_upper = (search.boundary_type or "").upper() == "UPPER"
        # The last message at or before a time is the one before the first message after it.
        time_us = (search.timestamp + is_upper) * US_PER_MS
        for _ in range(TRIES):
            queue = self._queues.find(search.broker, search.topic, search.queue_id)
            if queue is None:
                break
            file = queue.find_by_time(time_us)
            try:
                offset = queue.end if file is None else await self._find_offset(file, time_us)
            except FileNotFoundError:
                assert file is not None, "only a file can be missing"
                await self._find_again(search, file.range.begin, file.place.path)
                continue
            return command.reply(ext=OffsetResult(offset=max(0, offset - 1) if is_upper else offset).write())
        return command.reply(ResponseCode.QUERY_NOT_FOUND)

    async def _find_offset(self, file: ArchivedFile, time_us: int) -> int:
        """Return the offset of the first message of a file that was stored at or after a time, which it has."""
        return file.range.begin + await self.chunks.run(lambda: _find_row(self._storage, file.paths, time_us))

    async def _list_ranges(self, command: Command) -> Command:
        query = ArchiveRangesQuery.read(command.ext)
        if query.version == self._queues.version:
            return command.reply()
        ranges = self._queues.ranges_of(query.broker, self._parameters.topics_pattern)
        return command.reply(body=msgspec.json.encode(ranges))

    def _check_identity(self, identity: str) -> None:
        """Raise ArchiveError if a broker means another archive: it must first learn what this one has."""
        if identity != self._queues.identity:
            raise OtherArchive(f"this server has the archive {self._queues.identity}, not {identity}")

    # ------- the manifest

    async def _refresh(self) -> None:
        """Read the manifest, or wait for another task that does. A failure keeps the one that was read last."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._read_manifest_or_warn())
            self._refreshing.add_done_callback(lambda _done: setattr(self, "_refreshing", None))
        await asyncio.shield(self._refreshing)

    async def _read_manifest_or_warn(self) -> None:
        try:
            await self._read_manifest()
        except (OSError, ArchiveError, pa.ArrowException) as error:
            self.is_current = False
            self._warn("CannotRead", f"cannot read the manifest: {error}")
        else:
            self._warned, self.is_current = "", True

    async def _read_manifest(self) -> None:
        identity, manifest = await asyncio.to_thread(self._load_manifest)
        is_same = identity == self._queues.identity and manifest.records.keys() == self._manifest.records.keys()
        if self._generation and is_same:
            return
        queues = await asyncio.to_thread(
            ArchivedQueues, f"{self._run_id}-{self._generation + 1}", identity, manifest.files()
        )
        self._generation += 1
        self._manifest, self._queues = manifest, queues

    def _load_manifest(self) -> tuple[str, Manifest]:
        """Return the archive's identity and its manifest. Raises OSError, ArchiveError.

        No archive is an error, too: it may be on a volume that is not mounted, and brokers skip what is not archived.
        """
        archive_format = read_format(self._storage)
        missing = [name for name in NEEDED_COLUMNS if name not in archive_format.columns]
        if missing:
            raise ArchiveError(f"the archive in {self._storage} has no column {missing[0]}, which brokers need")
        manifest = self._manifests.read()
        faults = manifest.faults()
        if faults:  # records may be missing, also since a listing was not atomic
            raise ManifestBroken(f"{faults[0]}; {len(faults)} faults in all")
        return archive_format.identity, manifest

    def _warn(self, reason: str, text: str) -> None:
        if text != self._warned:
            self._warned = text
            self._on_warning(reason, text)


def _exists(storage: Storage, paths: tuple[str, ...]) -> bool:
    return any(storage.size(path) is not None for path in paths)


def _find_row(storage: Storage, paths: tuple[str, ...], time_us: int) -> int:
    """Return the first row of a file that was stored at or after a time, which it has."""
    for path in paths:
        try:
            source = storage.open(path)
        except FileNotFoundError:
            continue
        with source:
            times = pq.read_table(source, columns=["storeTime"]).column("storeTime").cast(pa.int64())
            return int(np.searchsorted(times.to_numpy(), time_us))
    raise FileNotFoundError(paths[0])
