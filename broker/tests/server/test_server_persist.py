"""Writing tables: one writer at a time, no change is lost, and failed writes are retried."""

import asyncio
import threading
from typing import Any

import pytest

from gantry_broker.server.core.persist import Persistence, TableFile
from gantry_testing.local import wait_until
from gantry_wire.commands.clients import Document


class Counter(Document):
    """A table with a number, and with a value that may be null."""

    value: int = 0
    nothing: str | None = None


class Counters(Document):
    """A table of tables that have a null."""

    rows: dict[str, Counter]


class Table:
    """A table and the file it is written to, with a gate that holds a write as a slow disk would."""

    def __init__(self) -> None:
        self.value = 0
        self.written: list[dict[str, Any]] = []
        self.failures: list[OSError] = []
        self.gate = threading.Event()
        self.gate.set()
        self.writers = 0
        self.writers_most = 0
        self.persistence = Persistence()
        self.persistence.add(TableFile("table", lambda: Counter(value=self.value), self.write))

    def write(self, document: dict[str, Any]) -> None:
        self.writers += 1
        self.writers_most = max(self.writers, self.writers_most)
        try:
            assert self.gate.wait(120)
            if self.failures:
                raise self.failures.pop()
            self.written.append(document)
        finally:
            self.writers -= 1

    def change(self, *, now: bool = True) -> None:
        self.value += 1
        self.persistence.mark("table", now=now)


async def test_change_is_written_at_once_or_periodically() -> None:
    """An immediate change is written at once, others with the next periodic write, and an unchanged table never."""
    table = Table()
    table.change(now=False)
    assert table.written == []
    await table.persistence.write_stale()
    assert table.written == [{"value": 1}]

    table.change()
    await wait_until(lambda: len(table.written) == 2)
    await table.persistence.write_stale()

    assert table.written == [{"value": 1}, {"value": 2}]


async def test_changes_during_a_write_are_written_after_it() -> None:
    """A change during a slow write is written afterwards without another request."""
    table = Table()
    table.gate.clear()
    table.change()
    await wait_until(lambda: table.writers == 1)
    for _ in range(100):
        table.change()

    table.gate.set()
    await table.persistence.wait_for_writes()

    assert table.written[-1] == {"value": 101}
    assert len(table.written) == 2
    assert table.writers_most == 1


async def test_wait_until_written_means_on_disk() -> None:
    """Waiting for a table covers all changes that were marked before."""
    table = Table()
    table.gate.clear()
    table.change()
    waiting = asyncio.ensure_future(table.persistence.wait_until_written("table"))
    await wait_until(lambda: table.writers == 1)
    assert not waiting.done()

    table.gate.set()
    await waiting

    assert table.written[-1] == {"value": 1}


async def test_failed_write_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    """A failure is logged and kept in the state, the next periodic write retries, and a waiter gets the error."""
    table = Table()
    table.failures = [OSError(28, "No space left on device"), OSError(28, "No space left on device")]
    table.change()
    await table.persistence.wait_for_writes()
    assert "No space" in str(table.persistence.failure)
    with pytest.raises(OSError, match="No space"):
        await table.persistence.wait_until_written("table")

    await table.persistence.write_stale()

    assert table.written == [{"value": 1}]
    assert str(table.persistence.failure) == "None"
    assert caplog.text.count("failed to write table") == 1


async def test_cancelled_writer_leaves_no_second_one() -> None:
    """A thread cannot be stopped: a writer cancelled during a write ends after it, and only then the next starts."""
    table = Table()
    table.gate.clear()
    table.change(now=False)
    rounds = asyncio.ensure_future(table.persistence.write_stale())
    await wait_until(lambda: table.writers == 1)
    rounds.cancel()
    table.change(now=False)
    closing = asyncio.ensure_future(table.persistence.close())
    await wait_until(lambda: rounds.cancelling() == 1)
    assert table.writers == 1

    table.gate.set()
    await closing

    assert rounds.cancelled()
    assert table.writers_most == 1
    assert table.written[-1] == {"value": 2}


async def test_closing_writes_everything() -> None:
    """The last state is on disk, marked or not: delivery times and offsets move without marks, too."""
    table = Table()
    table.value = 7

    await table.persistence.close()

    assert table.written == [{"value": 7}]


async def test_null_values_are_not_written() -> None:
    """RocketMQ's files have no nulls, at no depth."""
    documents: list[dict[str, Any]] = []
    file = TableFile("counters", lambda: Counters(rows={"a": Counter(value=1)}), documents.append)
    file.mark()

    await file.write_changes()

    assert documents == [{"rows": {"a": {"value": 1}}}]
