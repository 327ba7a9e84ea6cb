"""Every transport returns the same rows, on every replica, despite interruptions."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from admin_scene import READ_TOKEN, sidecar_process, wait_for, write_token_files
from spark_kit.cutting_proxy import CuttingProxy
from spark_kit.processes import BROKER, TOPIC, Group, group

from gantry_testing.ports import free_ports
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import InvalidOption, NoReplica, Refused
from pyspark_rocketmq.model import Bounds, QueueId, QueueRange, ReadFrom, Replica, Task, TransportKind
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.schema import COLUMNS
from pyspark_rocketmq.settings import ReadSettings

pytestmark = pytest.mark.verify

COUNT = 800
SMALL = {"range_bytes": 32 * 1024}
"""So that a task is many pieces."""
QUEUES = tuple(QueueId(TOPIC, BROKER, number) for number in range(4))
TRANSPORTS = [TransportKind.PULL, TransportKind.HTTP, TransportKind.FILE]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """A master and a slave with sidecars, and 800 messages over two log files."""
    with group(tmp_path_factory.mktemp("running")) as made:
        made.send(COUNT, tags=("red", "green", "blue"), bytes_each=1500)
        wait_for(lambda: _has_all(made), "the slave shows all of it", 120)
        yield made


def _has_all(made: Group) -> bool:
    with Catalog(made.settings(TransportKind.HTTP)) as catalog:
        return sum(one.end for one in catalog.bounds(QUEUES).values()) == COUNT


def settings_of(running: Group, transport: TransportKind, **more: Any) -> ReadSettings:
    if transport is TransportKind.FILE:
        more["directories"] = {f"{BROKER}:{number}": str(store) for number, store in enumerate(running.stores)}
    return running.settings(transport, **more)


def task_of(settings: ReadSettings, *, by_chunk: bool = False, **more: Any) -> Task:
    """Return a task for the whole topic, as a driver plans it."""
    with Catalog(settings) as catalog:
        bounds = catalog.bounds(catalog.queues([TOPIC]))
        ranges = tuple(QueueRange(queue, one.begin, one.end) for queue, one in bounds.items())
        log = catalog.logs([BROKER])[BROKER]
        replicas = catalog.replicas(BROKER)
    physical = (log.begin, log.end) if by_chunk else None
    return Task(BROKER, replicas, settings.transport, ranges, COLUMNS, physical=physical, **more)


def rows_of(task: Task, settings: ReadSettings) -> list[dict[str, Any]]:
    return [row for batch in read_task(task, settings) for row in batch.to_pylist()]


def expected(running: Group, *, by_chunk: bool = False) -> list[tuple[int, int, bytes, str, str]]:
    found = [(one.queue, one.offset, one.body, one.tags, one.key) for one in running.sent]
    return found if by_chunk else sorted(found)


def seen(rows: list[dict[str, Any]]) -> list[tuple[int, int, bytes, str, str]]:
    return [(row["queue"], row["offset"], row["body"], row["tags"], row["keys"]) for row in rows]


@pytest.mark.parametrize("read_from", [ReadFrom.SLAVE, ReadFrom.MASTER])
@pytest.mark.parametrize("way", TRANSPORTS)
def test_every_transport_returns_all_messages_from_every_replica(
    running: Group, way: TransportKind, read_from: ReadFrom
) -> None:
    """The rows of a task are the sent messages, on a slave as on its master."""
    settings = settings_of(running, way, read_from=read_from, **SMALL)
    task = task_of(settings)

    assert [one.number for one in task.replicas] == [0 if read_from is ReadFrom.MASTER else 1]
    assert seen(rows_of(task, settings)) == expected(running)


@pytest.mark.parametrize("way", [TransportKind.HTTP, TransportKind.FILE])
def test_chunk_of_the_log_has_the_same_rows_in_log_order(running: Group, way: TransportKind) -> None:
    """Each byte is read once, for all queues together."""
    settings = settings_of(running, way, **SMALL)

    assert seen(rows_of(task_of(settings, by_chunk=True), settings)) == expected(running, by_chunk=True)


@pytest.mark.parametrize("way", TRANSPORTS)
def test_catalog_is_the_same_by_every_transport(running: Group, way: TransportKind) -> None:
    """Bounds, locations and offsets by time do not depend on the replica or the transport."""
    settings = settings_of(running, way)
    last = dict.fromkeys(QUEUES, COUNT // 4 - 1)
    with Catalog(settings) as catalog, Catalog(settings_of(running, TransportKind.PULL)) as plain:
        assert catalog.queues(catalog.topics()) == list(QUEUES)
        assert catalog.bounds(QUEUES) == {queue: Bounds(0, COUNT // 4) for queue in QUEUES}
        assert catalog.physical(last) == plain.physical(last)
        assert catalog.logs([BROKER])[BROKER].end == plain.logs([BROKER])[BROKER].end
        middle = rows_of(task_of(settings), settings)[COUNT // 8]["storeTime"]
        at = round(middle.timestamp() * 1000)
        assert catalog.offsets_at(QUEUES, at) == plain.offsets_at(QUEUES, at)
        assert catalog.offsets_at(QUEUES, 1 << 44) == dict.fromkeys(QUEUES, COUNT // 4)
        with pytest.raises(InvalidOption, match="topic 'nothing' not found"):
            catalog.queues(["nothing"])


def test_log_has_its_epochs(running: Group) -> None:
    """The sidecar reports the epochs of the log, as the store itself does."""
    with (
        Catalog(settings_of(running, TransportKind.HTTP)) as catalog,
        Catalog(settings_of(running, TransportKind.FILE)) as files,
    ):
        epochs = catalog.logs([BROKER])[BROKER].epochs

        assert epochs == files.logs([BROKER])[BROKER].epochs
        assert epochs[0].begin == 0


def test_groups_are_read_and_committed_at_the_master(running: Group) -> None:
    """Ordinary tools see the committed offset; a group without one has no offset."""
    with Catalog(settings_of(running, TransportKind.HTTP)) as catalog:
        assert catalog.group_offsets("archive", QUEUES) == dict.fromkeys(QUEUES)
        catalog.commit_group("archive", {QUEUES[1]: 17, QUEUES[2]: 5})

        assert catalog.group_offsets("archive", QUEUES) == {
            QUEUES[0]: None, QUEUES[1]: 17, QUEUES[2]: 5, QUEUES[3]: None
        }  # fmt: skip


def test_replicas_are_slaves_first_with_all_their_transports(running: Group) -> None:
    """One sidecar's address is enough to find those of the whole group."""
    with Catalog(running.settings(TransportKind.AUTO, directories={f"{BROKER}:1": str(running.stores[1])})) as catalog:
        slave, master = catalog.replicas(BROKER)

    assert (slave.number, slave.sidecar, slave.directory) == (1, running.sidecar_urls[1], str(running.stores[1]))
    assert (master.number, master.sidecar, master.directory) == (0, running.sidecar_urls[0], None)
    assert master.address == running.brokers[0].address


@pytest.mark.parametrize("bytes_max", [1, 3_000, 60_000], ids=["at once", "early", "in the middle"])
def test_interrupted_pull_continues_on_another_replica(running: Group, bytes_max: int) -> None:
    """A connection that breaks in the middle of a response costs time only: no row is missing or repeated."""
    settings = settings_of(running, TransportKind.PULL)
    task = task_of(settings)
    with CuttingProxy(running.brokers[1].address, bytes_max) as proxy:
        slave, master = task.replicas
        broken = replace(task, replicas=(replace(slave, address=proxy.address), master))

        assert seen(rows_of(broken, settings)) == expected(running)
        assert proxy.cuts > 0


def test_task_without_reachable_replica_names_its_messages(running: Group) -> None:
    """When patience ends the error names the missing messages, and the error of each replica."""
    settings = settings_of(running, TransportKind.PULL, patience_ms=1_000, name_servers="127.0.0.1:1")
    (port,) = free_ports(1)
    task = Task(
        BROKER, (Replica(BROKER, 1, f"127.0.0.1:{port}"),), TransportKind.PULL, (QueueRange(QUEUES[0], 5, 9),), COLUMNS
    )

    with pytest.raises(NoReplica, match=rf"orders/broker-a/0\[5, 9\) within 1000 ms: .*127.0.0.1:{port}"):
        rows_of(task, settings)


@pytest.mark.parametrize("way", TRANSPORTS)
def test_range_that_is_not_yet_available_is_waited_for(running: Group, way: TransportKind) -> None:
    """A range beyond a replica's end is no error before patience ends, and never returned incomplete."""
    settings = settings_of(running, way, patience_ms=500)
    task = replace(task_of(settings), ranges=(QueueRange(QUEUES[0], COUNT // 4 - 2, COUNT // 4 + 1),))

    with pytest.raises(NoReplica, match=r"orders/broker-a/0\["):
        rows_of(task, settings)


def test_wrong_token_is_refused_and_tokens_are_never_shown(running: Group, tmp_path: Path) -> None:
    """Without a valid token the query ends at once with the reason; no text contains a token."""
    tokens = write_token_files(tmp_path / "tokens")
    with sidecar_process(running.stores[1], *tokens, "--log-listen", "127.0.0.1:0") as guarded:
        guarded.wait_ready()
        how = {"sidecars": (guarded.url,), "read_from": ReadFrom.SLAVE, "token": READ_TOKEN}
        settings = settings_of(running, TransportKind.HTTP, **how)
        task = task_of(settings)

        assert READ_TOKEN not in repr(settings) + str(settings)
        assert seen(rows_of(task, settings)) == expected(running)
        for wrong in (None, "an-unknown-token"):
            with pytest.raises(Refused, match="check the token"):
                rows_of(task, replace(settings, token=wrong))


@pytest.mark.slow
@pytest.mark.parametrize("way", [TransportKind.HTTP, TransportKind.PULL])
def test_task_continues_on_the_master_when_its_slave_dies(tmp_path: Path, way: TransportKind) -> None:
    """Broker and sidecar are killed between two batches: the task ends with exactly its rows."""
    with group(tmp_path) as made:
        made.send(COUNT, bytes_each=800)
        settings = made.settings(way, **SMALL)
        wait_for(lambda: _has_all(made), "the slave shows all of it", 120)
        batches = read_task(task_of(settings), settings)
        rows = next(batches).to_pylist()

        made.brokers[1].child.send(signal.SIGKILL)
        made.sidecars[1].child.send(signal.SIGKILL)
        rows += [row for batch in batches for row in batch.to_pylist()]

        assert seen(rows) == expected(made)


@pytest.mark.slow
def test_restarted_sidecar_is_waited_for(tmp_path: Path) -> None:
    """The only replica is away for some seconds, as in a rolling update; the task and the driver continue then."""
    with group(tmp_path, slaves=0) as made:
        made.send(COUNT, bytes_each=800)
        settings = made.settings(TransportKind.HTTP, **SMALL)
        wait_for(lambda: _has_all(made), "all of it is published", 120)
        task = task_of(settings)
        batches = read_task(task, settings)
        rows = next(batches).to_pylist()

        listen = made.sidecars[0].address
        made.sidecars[0].child.end()
        with ExitStack() as stack:
            again = sidecar_process(made.stores[0], "--open-reads", "--log-listen", "127.0.0.1:0", listen=listen)
            timer = threading.Timer(2.0, lambda: stack.enter_context(again))
            timer.start()
            rows += [row for batch in batches for row in batch.to_pylist()]
            timer.join()
            with Catalog(settings) as catalog:
                assert sum(one.end for one in catalog.bounds(QUEUES).values()) == COUNT

        assert seen(rows) == expected(made)
