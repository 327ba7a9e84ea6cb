"""Reads chunks of archived queues: some thousand rows at a time, encoded as records, in a cache with a limit.

A consumer reads a queue from one offset to the next, so a file that was read stays open where the reading stopped, and
the chunk after the one that is being consumed is read ahead. Files are read, and rows encoded, in worker threads; a
chunk that several consumers want from the same offset on is read once.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, final

import pyarrow as pa
import pyarrow.parquet as pq

from gantry_pipelines.archive.errors import ManifestBroken
from gantry_pipelines.archive.manifest import ArchivedFile
from gantry_pipelines.archive.serving.records import COLUMNS, Chunk, encode_chunk
from gantry_pipelines.archive.storage import Storage

CHUNK_ROWS: Final = 2048
"""The most rows of a chunk. Their encoding takes some tens of milliseconds."""

CHUNK_BYTES: Final = 4 << 20
"""The size of the rows after which a chunk ends."""

OPEN_FILES_MAX: Final = 64
"""The most files that stay open; the one that was not read for longest is closed."""

READ_BUFFER_BYTES: Final = 1 << 20
"""How much of a column is read at a time. Without a buffer all of its row group is in memory while a file is open."""

THREADS: Final = 2

Key = tuple[str, int]
"""A chunk: the path of its file, and its first offset."""
T = TypeVar("T")


@final
class ChunkReader:
    """The chunks of one archive. Owned by the event loop."""

    def __init__(self, storage: Storage, cache_bytes: int) -> None:
        self._cache_bytes: Final = cache_bytes
        self._threads: Final = ThreadPoolExecutor(THREADS, "archive-chunks")
        self._files: Final = _OpenFiles(storage)
        self._cached: OrderedDict[Key, Chunk] = OrderedDict()
        self._begins: dict[str, list[int]] = {}
        """The first offsets of the cached chunks of each file, in order."""

        self._reads: dict[Key, asyncio.Task[Chunk]] = {}
        self.size_bytes = 0
        """The size of the cached chunks."""

        self.read_count = 0
        """The number of chunks that were read from files."""

    def __repr__(self) -> str:
        return f"<ChunkReader cached={len(self._cached)} size={self.size_bytes}>"

    async def read(self, file: ArchivedFile, offset: int) -> Chunk:
        """Return a chunk with an offset of a file.

        Raises FileNotFoundError if the file was compacted or has expired meanwhile, OSError, ArrowException.
        """
        chunk = self._find(file.place.path, offset)
        if chunk is None:
            chunk = await asyncio.shield(self._begin_read(file, offset))
        if offset - chunk.begin >= len(chunk.records) // 4 and 2 * chunk.size_bytes <= self._cache_bytes:
            self._read_ahead(file, chunk.end)
        return chunk

    async def run(self, function: Callable[[], T]) -> T:
        """Run a function in a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def close(self) -> None:
        """Close the files. No chunk is read afterwards. It waits for the read that runs."""
        self._threads.shutdown(cancel_futures=True)
        self._files.close()

    def _find(self, path: str, offset: int) -> Chunk | None:
        begins = self._begins.get(path, [])
        index = bisect_right(begins, offset)
        if not index:
            return None
        key = path, begins[index - 1]
        chunk = self._cached[key]
        if offset >= chunk.end:
            return None
        self._cached.move_to_end(key)
        return chunk

    def _begin_read(self, file: ArchivedFile, begin: int) -> asyncio.Task[Chunk]:
        key = file.place.path, begin
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.ensure_future(self._read_in_thread(file, key))
            task.add_done_callback(lambda done: self._end_read(key, done))
        return task

    def _read_ahead(self, file: ArchivedFile, begin: int) -> None:
        if begin < file.range.end and len(self._reads) < THREADS and self._find(file.place.path, begin) is None:
            self._begin_read(file, begin)

    async def _read_in_thread(self, file: ArchivedFile, key: Key) -> Chunk:
        chunk = await self.run(lambda: self._files.read(file, key[1]))
        self.read_count += 1
        self._drop(key)
        self._cached[key] = chunk
        insort(self._begins.setdefault(key[0], []), key[1])
        self.size_bytes += chunk.size_bytes
        while self.size_bytes > self._cache_bytes and len(self._cached) > 1:
            self._drop(next(iter(self._cached)))
        return chunk

    def _drop(self, key: Key) -> None:
        dropped = self._cached.pop(key, None)
        if dropped is not None:
            self.size_bytes -= dropped.size_bytes
            begins = self._begins[key[0]]
            begins.remove(key[1])
            if not begins:
                del self._begins[key[0]]

    def _end_read(self, key: Key, task: asyncio.Task[Chunk]) -> None:
        del self._reads[key]
        if not task.cancelled():
            task.exception()  # asyncio reports an exception that is never retrieved, as that of a chunk read ahead


@final
class _OpenFiles:
    """The open files of an archive. Used by the worker threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Final = storage
        self._lock: Final = threading.Lock()
        self._idle: OrderedDict[str, _RowReader] = OrderedDict()

    def read(self, file: ArchivedFile, begin: int) -> Chunk:
        """Return the rows from offset ``begin`` on, as many as a chunk has."""
        path = file.place.path
        first = begin - file.range.begin
        with self._lock:
            reader = self._idle.pop(path, None)
        if reader is None or reader.next_row > first:
            if reader is not None:
                reader.close()
            reader = _RowReader(self._open(file), file)
        try:
            rows = reader.take(first, min(CHUNK_ROWS, file.range.end - begin))
        except BaseException:
            reader.close()
            raise
        with self._lock:
            replaced = self._idle.pop(path, None)
            self._idle[path] = reader
            dropped = [replaced] if replaced is not None else []
            while len(self._idle) > OPEN_FILES_MAX:
                dropped.append(self._idle.popitem(last=False)[1])
        for one in dropped:
            one.close()
        return encode_chunk(file.range.queue.topic, rows)

    def close(self) -> None:
        with self._lock:
            for reader in self._idle.values():
                reader.close()
            self._idle.clear()

    def _open(self, file: ArchivedFile) -> Any:
        for path in file.paths[:-1]:
            try:
                return self._storage.open(path)
            except FileNotFoundError:
                continue
        return self._storage.open(file.paths[-1])


@final
class _RowReader:
    """Reads the rows of one file in their order. Used by one thread at a time."""

    def __init__(self, source: Any, file: ArchivedFile) -> None:
        self._source: Final = source
        self._parquet: Final = pq.ParquetFile(source, buffer_size=READ_BUFFER_BYTES)
        self._rows: Final = self._parquet.metadata.num_rows
        if self._rows != file.range.count:
            raise ManifestBroken(f"{file.place.path} has {self._rows} rows, its record has {file.range.count}")
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        """Rows that were read and not taken."""

        self._is_begun = False
        self.next_row = 0
        """The first row that can be taken."""

    def take(self, first: int, count: int) -> pa.RecordBatch:
        """Return at most ``count`` rows from ``first`` on, which is not before `next_row`; fewer if they are large."""
        if not self._is_begun:
            self._begin_at(first)
        taken: list[pa.RecordBatch] = []
        size_bytes = 0
        while count and size_bytes < CHUNK_BYTES:
            batch = self._rest if self._rest is not None else next(self._batches)
            skipped = min(first - self.next_row, batch.num_rows)
            part = batch.slice(skipped, count)
            self.next_row += skipped + part.num_rows
            rest = batch.slice(skipped + part.num_rows)
            self._rest = rest if rest.num_rows else None
            if part.num_rows:
                taken.append(part)
                first += part.num_rows
                count -= part.num_rows
                size_bytes += part.nbytes
        return taken[0] if len(taken) == 1 else pa.Table.from_batches(taken).combine_chunks().to_batches()[0]

    def close(self) -> None:
        self._source.close()

    def _begin_at(self, first: int) -> None:
        """Begin with the row group that has the row ``first``."""
        self._is_begun = True
        metadata = self._parquet.metadata
        group = 0
        while self.next_row + metadata.row_group(group).num_rows <= first:
            self.next_row += metadata.row_group(group).num_rows
            group += 1
        groups = list(range(group, metadata.num_row_groups))
        row_bytes = max(
            metadata.row_group(one).total_byte_size // max(1, metadata.row_group(one).num_rows) for one in groups
        )
        # All rows of a batch are in memory, so batches of large rows are small.
        batch_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(1, row_bytes)))
        self._batches = self._parquet.iter_batches(batch_rows, row_groups=groups, columns=list(COLUMNS))
