"""Writing the broker's tables to disk, off the event loop.

A table marks itself changed; its file is written soon after, one write at a time, always from a fresh copy that the
loop made. Topics and groups are written at once, and an administrator's reply waits for it (`settled`); offsets every
few seconds and at a clean stop.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar, final

import msgspec

from gantry_broker.errors import BrokerError

log = logging.getLogger(__name__)

Snapshot = Callable[[], msgspec.Struct]
Write = Callable[[dict[str, Any]], None]
T = TypeVar("T")


@final
class TableFile:
    """One file: how to get a copy of its table, how to write it."""

    def __init__(self, name: str, snapshot: Snapshot, write: Write) -> None:
        self.name: Final = name
        self._snapshot = snapshot
        self._write = write
        self._lock = asyncio.Lock()
        self._wanted = 0
        self._written = 0

    @property
    def is_stale(self) -> bool:
        """Whether the disk lacks a change."""
        return self._wanted != self._written

    def mark(self) -> None:
        """The table has changed."""
        self._wanted += 1

    async def settle(self) -> None:
        """Have everything marked so far on disk. Raises OSError and BrokerError of the write."""
        async with self._lock:
            wanted = self._wanted
            if wanted == self._written:
                return
            document = self._copy()
            await in_thread(lambda: self._write(document))
            self._written = wanted

    def _copy(self) -> dict[str, Any]:
        """The table as it is now, in JSON's types."""
        document: dict[str, Any] = without_nulls(msgspec.to_builtins(self._snapshot(), str_keys=True))
        return document


@final
class Persistence:
    """All table files. Owned by the event loop; the writes run in its worker threads."""

    def __init__(self, on_mark: Callable[[str], None] = lambda name: None) -> None:
        """``on_mark`` is called with the name of each table that changes."""
        self._on_mark: Final = on_mark
        self._files: dict[str, TableFile] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The last write of each table that was asked for at once."""
        self.failure: str | None = None

    def add(self, file: TableFile) -> None:
        self._files[file.name] = file

    def mark(self, name: str, *, now: bool) -> None:
        """The table has changed; with `now` it is written without waiting for the next round."""
        file = self._files[name]
        file.mark()
        self._on_mark(name)
        task = self._tasks.get(name)
        if now and (task is None or task.done()):
            self._tasks[name] = asyncio.ensure_future(self._settle_whole(file))

    async def settled(self, name: str) -> None:
        """Wait until the table is on disk as it is now."""
        await self._files[name].settle()

    async def round(self) -> None:
        """Write whatever has changed."""
        for file in self._files.values():
            await self._settle(file)

    async def finish(self) -> None:
        """Wait for writes under way."""
        if self._tasks:
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def close(self) -> None:
        """Write everything once more. What cannot be written is logged."""
        await self.finish()
        for file in self._files.values():
            file.mark()
        await self.round()

    async def _settle_whole(self, file: TableFile) -> None:
        """Write until nothing has changed meanwhile, or until it fails: then the next round tries."""
        while file.is_stale and await self._settle(file):
            pass

    async def _settle(self, file: TableFile) -> bool:
        try:
            await file.settle()
        except (OSError, BrokerError) as error:
            self.failure = f"{file.name}: {error}"
            facts = {"table": file.name, "reason": str(error)}
            log.error("a table could not be written; it is tried again", extra=facts)
            return False
        self.failure = None
        return True


def without_nulls(document: Any) -> Any:
    """`document` without what is absent: RocketMQ's files have no nulls."""
    if isinstance(document, dict):
        return {name: without_nulls(value) for name, value in document.items() if value is not None}
    return [without_nulls(value) for value in document] if isinstance(document, list) else document


async def in_thread(work: Callable[[], T]) -> T:
    """The result of blocking work. A cancellation waits for it: a thread cannot be stopped, and uses what it has."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
