"""Writing tables: one writer at a time, nothing marked is forgotten, and what failed is tried again."""

import asyncio
import threading
from typing import Any

import pytest

from gantry_broker.server.core.persist import Persistence, TableFile
from gantry_testing.local import wait_until
from gantry_wire.commands.admin import TopicConfigTable
from gantry_wire.commands.clients import Document


class Counter(Document):
    """A table with one number and one absence."""

    value: int = 0
    nothing: str | None = None


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


async def test_a_change_is_written_at_once_or_with_the_round() -> None:
    """What is marked for now is written now, what is not with the next round, and nothing twice for nothing."""
    table = Table()
    table.change(now=False)
    assert table.written == []
    await table.persistence.round()
    assert table.written == [{"value": 1}]

    table.change()
    await wait_until(lambda: len(table.written) == 2)
    await table.persistence.round()

    assert table.written == [{"value": 1}, {"value": 2}]


async def test_changes_during_a_write_are_written_after_it() -> None:
    """A change that comes while the disk is slow is on disk in the end, without anybody asking again."""
    table = Table()
    table.gate.clear()
    table.change()
    await wait_until(lambda: table.writers == 1)
    for _ in range(100):
        table.change()

    table.gate.set()
    await table.persistence.finish()

    assert table.written[-1] == {"value": 101}
    assert len(table.written) == 2
    assert table.writers_most == 1


async def test_settled_means_on_disk() -> None:
    """Who waits for the table waits for everything that was marked before."""
    table = Table()
    table.gate.clear()
    table.change()
    waiting = asyncio.ensure_future(table.persistence.settled("table"))
    await wait_until(lambda: table.writers == 1)
    assert not waiting.done()

    table.gate.set()
    await waiting

    assert table.written[-1] == {"value": 1}


async def test_a_write_that_failed_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A full disk is logged, the state says so, and the next round writes; who waited hears of it."""
    table = Table()
    table.failures = [OSError(28, "No space left on device"), OSError(28, "No space left on device")]
    table.change()
    await table.persistence.finish()
    assert "No space" in str(table.persistence.failure)
    with pytest.raises(OSError, match="No space"):
        await table.persistence.settled("table")

    await table.persistence.round()

    assert table.written == [{"value": 1}]
    assert str(table.persistence.failure) == "None"
    assert caplog.text.count("a table could not be written") == 1


async def test_a_cancelled_writer_leaves_no_second_one() -> None:
    """A thread cannot be stopped: whoever is cancelled during a write ends after it, and only then the next begins."""
    table = Table()
    table.gate.clear()
    table.change(now=False)
    rounds = asyncio.ensure_future(table.persistence.round())
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


async def test_nothing_absent_is_written() -> None:
    """RocketMQ's files have no nulls, at no depth."""
    seen: list[dict[str, Any]] = []
    file = TableFile("topics", lambda: TopicConfigTable(), seen.append)
    file.mark()

    await file.settle()

    assert seen == [{"dataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 0}, "topicConfigTable": {}}]
