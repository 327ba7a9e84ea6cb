"""Writes the broker's tables to disk in worker threads.

A table is marked as changed; its file is written soon after, one write at a time, always from a fresh copy that the
event loop made. Topics and groups are written at once, and an administrator's reply waits for the write
(`wait_until_written`); offsets are written every few seconds and at a clean stop.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import msgspec

from gantry_broker.errors import BrokerError
from gantry_wire.commands.documents import plain_document

log = logging.getLogger(__name__)

Snapshot = Callable[[], msgspec.Struct]
"""Returns a copy of a table, made in the event loop."""
Write = Callable[[dict[str, Any]], None]
"""Writes a table in JSON types to its file; called in a worker thread."""
T = TypeVar("T")


@final
class TableFile:
    """A file of one table, with the function that copies the table and the one that writes the file."""

    def __init__(self, name: str, snapshot: Snapshot, write: Write) -> None:
        self.name: Final = name
        self._snapshot = snapshot
        self._write = write
        self._lock = asyncio.Lock()
        self._change_count = 0
        self._written_count = 0

    @property
    def is_stale(self) -> bool:
        """Whether the file lacks a change of the table."""
        return self._change_count != self._written_count

    def mark(self) -> None:
        """Record a change of the table, to be written later."""
        self._change_count += 1

    async def write_changes(self) -> None:
        """Write the file if the table has changed. Raises OSError and BrokerError of the write."""
        async with self._lock:
            change_count = self._change_count
            if change_count == self._written_count:
                return
            document = self._copy()
            await run_in_thread(lambda: self._write(document))
            self._written_count = change_count

    def _copy(self) -> dict[str, Any]:
        """Return a copy of the table in JSON types, without nulls: RocketMQ's files have none."""
        return plain_document(self._snapshot())


@final
class Persistence:
    """The files of all tables. Owned by the event loop; the writes run in its worker threads."""

    def __init__(
        self,
        on_mark: Callable[[str], None] = lambda name: None,
        on_written: Callable[[str], None] = lambda name: None,
    ) -> None:
        """``on_mark`` is called with the name of each table that changes, ``on_written`` when its file is current."""
        self._on_mark: Final = on_mark
        self._on_written: Final = on_written
        self._files: dict[str, TableFile] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The last immediate write of each table."""
        self.failure: str | None = None
        """The table and the error of the last attempt to write a table; None if it succeeded or wrote nothing."""

    def add(self, file: TableFile) -> None:
        self._files[file.name] = file

    def mark(self, name: str, *, now: bool) -> None:
        """Record a change of a table; with `now` it is written at once, not at the next periodic write."""
        file = self._files[name]
        file.mark()
        self._on_mark(name)
        task = self._tasks.get(name)
        if now and (task is None or task.done()):
            self._tasks[name] = asyncio.ensure_future(self._write_until_current(file))

    async def wait_until_written(self, name: str) -> None:
        """Wait until the table with all changes up to now is on disk."""
        await self._files[name].write_changes()

    async def write_all(self) -> None:
        """Write every table as it is now. Raises OSError and BrokerError of the first write that fails."""
        for file in self._files.values():
            file.mark()
            await file.write_changes()

    async def write_stale(self) -> None:
        """Write every table that has changed."""
        for file in self._files.values():
            await self._try_write(file)

    async def wait_for_writes(self) -> None:
        """Wait until the immediate writes have ended."""
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Write all tables. Failures are logged."""
        await self.wait_for_writes()
        for file in self._files.values():
            file.mark()
        await self.write_stale()

    async def _write_until_current(self, file: TableFile) -> None:
        """Write until the file is current, or until a write fails, which the next periodic write retries."""
        while file.is_stale and await self._try_write(file):
            pass

    async def _try_write(self, file: TableFile) -> bool:
        try:
            await file.write_changes()
        except (OSError, BrokerError) as error:
            self.failure = f"{file.name}: {error}"
            facts = {"table": file.name, "reason": str(error)}
            log.error("failed to write table; will retry", extra=facts)
            return False
        self.failure = None
        if not file.is_stale:
            self._on_written(file.name)
        return True


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run blocking work in a thread and return its result.

    A cancellation waits for the work: a thread cannot be stopped, and still uses its arguments.
    """
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
