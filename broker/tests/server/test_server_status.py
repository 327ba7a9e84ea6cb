"""The broker's status page: its heartbeat is the loop's, and a problem with the page is none for the broker."""

import asyncio
import errno
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

import pytest
from crash.processes import ServerProcess, broker

from gantry_broker.app import Broker
from gantry_broker.errors import BrokerError, StoreLocked
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.admin.status import StatusPublisher
from gantry_broker.server.admin.status_thread import OpenPage, PageUnusable
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store import recovery, scan_dispatcher
from gantry_status import (
    Medium,
    Origin,
    PageInUse,
    PageNotFound,
    PageReader,
    PageWriter,
    Phase,
    Reading,
    Role,
    Status,
)
from gantry_testing.local import dialogue, local_conf, running_broker, wait_until
from gantry_testing.ports import free_broker_port, free_port, free_ports

SMALL: Final = {"mappedFileSizeCommitLog": "1048576", "maxMessageSize": "262144"}


def make_broker(path: Path, *, open_page: OpenPage = PageWriter, **conf: str) -> Broker:
    settings = broker_settings(local_conf(path, **conf))
    return Broker(settings, disk=RealDisk(), clock=SystemClock(), open_page=open_page)


@asynccontextmanager
async def publishing_broker(path: Path, *, open_page: OpenPage = PageWriter, **conf: str) -> AsyncIterator[Broker]:
    """A broker of this process that publishes."""
    one = make_broker(path, open_page=open_page, **conf)
    await one.start()
    try:
        yield one
    finally:
        await one.close()


def read_page(path: Path, name: str = "status") -> Reading:
    with PageReader(str(path / name)) as reader:
        return reader.read()


async def test_status_page_shows_the_state_of_the_broker(tmp_path: Path) -> None:
    """Positions, identity, pool, disk, counts: each is what the broker itself holds, a tenth of a second ago."""
    async with publishing_broker(tmp_path, brokerName="broker-a") as broker, dialogue(broker) as client:
        await client.send_ok(b"x" * 100)
        await asyncio.to_thread(broker.store.flush)
        await wait_until(lambda: read_page(tmp_path).status.flushed == broker.store.log.wrote)
        await wait_until(lambda: read_page(tmp_path).status.disk_total_bytes is not None)

        reading = read_page(tmp_path)

        status, store = reading.status, broker.store
        assert (status.phase, status.role) == (Phase.SERVING, Role.MASTER)
        assert (status.wrote, status.committed, status.flushed) == (
            store.log.wrote,
            store.log.committed,
            store.log.flushed,
        )
        assert (status.confirmed, status.min_physical) == (store.positions.confirmed, store.log.min_physical)
        assert status.store_uuid is not None and status.store_uuid.hex == store.identity.uuid
        assert (status.generation, status.epoch) == (store.identity.generation, store.identity.epoch)
        assert (status.pool_medium, status.is_crash_safe) == (Medium.NONE, True)
        assert status.disk_total_bytes and status.disk_used_bytes and status.disk_total_bytes > status.disk_used_bytes
        assert (status.connections, status.queues, status.held_sends) == (1, 1, 0)
        assert (status.last_error, status.is_refusing_sends) == ("", False)
        assert (reading.origin.pid, reading.origin.broker_name) == (os.getpid(), "broker-a")
        assert reading.origin.version != "unknown"
        assert reading.is_writer_alive and not reading.is_stale()


async def test_confirmed_never_shrinks_when_a_slave_leaves(tmp_path: Path) -> None:
    """Without the slave's acks nothing more becomes visible, but the confirmed position does not go back."""
    async with publishing_broker(tmp_path) as broker, dialogue(broker) as client:
        await client.send_ok(b"shown")
        shown = broker.store.log.wrote
        broker.store.positions.set_acked(-1)
        assert broker.store.positions.confirmed == 0

        await wait_until(lambda: read_page(tmp_path).status.confirmed == shown)
        assert broker.roles.report().confirmed == shown
        broker.store.positions.clear_acked()


async def test_slave_without_its_master_reports_its_visible_end(tmp_path: Path) -> None:
    """Visible messages stay confirmed on a slave without a master: page and role agree."""
    conf = local_conf(tmp_path)
    async with running_broker(tmp_path, disk=None, clock=None, **conf) as master, dialogue(master) as client:
        await client.send_ok(b"shown")
        shown = master.store.log.wrote

    conf |= {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": f"127.0.0.1:{free_port()}"}
    async with publishing_broker(tmp_path, open_page=PageWriter, **conf) as slave:
        await wait_until(lambda: read_page(tmp_path).status.role is Role.SLAVE)

        assert read_page(tmp_path).status.confirmed == slave.roles.report().confirmed == shown


async def test_final_status_is_stopped_and_flushed(tmp_path: Path) -> None:
    """After a clean stop the page remains with the phase STOPPED, and with all bytes flushed."""
    async with publishing_broker(tmp_path) as broker, dialogue(broker) as client:
        for _ in range(20):
            await client.send_ok(b"x" * 100)

    last = read_page(tmp_path)
    assert last.status.phase is Phase.STOPPED
    assert last.status.flushed == last.status.wrote == broker.store.log.wrote
    assert last.status.min_physical == 0
    assert not last.is_writer_alive and not last.is_stale()


async def test_write_pool_is_on_the_page(tmp_path: Path) -> None:
    """The page shows the medium and the buffers of the pool, and that anonymous memory is not crash-safe."""
    async with (
        publishing_broker(
            tmp_path,
            transientStorePoolEnable="true",
            transientStorePoolSize="3",
            mappedFileSizeCommitLog=SMALL["mappedFileSizeCommitLog"],
            maxMessageSize=SMALL["maxMessageSize"],
        ) as broker,
        dialogue(broker) as client,
    ):
        await client.send_ok(b"x")
        await wait_until(lambda: read_page(tmp_path).status.pool_buffers_free == broker.store.pools.status.free)
        status = read_page(tmp_path).status

    assert (status.pool_medium, status.is_crash_safe) == (Medium.ANONYMOUS, False)
    assert status.pool_buffers_total == 3 and status.pool_buffers_free is not None
    assert 0 < status.pool_buffers_free < 3


async def test_recovery_progress_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """During recovery the page shows the progress, and its heartbeat continues, however long one step takes."""
    monkeypatch.setattr(scan_dispatcher, "PROGRESS_RECORDS", 10)
    monkeypatch.setattr(recovery, "READ_AHEAD_BYTES", 1000)
    async with running_broker(tmp_path) as filled, dialogue(filled) as client:
        for _ in range(40):
            await client.send_ok(b"x" * 100)
    (tmp_path / "abort").touch()
    (tmp_path / "recovery-point.json").unlink()
    go_on = threading.Semaphore(0)
    done_bytes: list[int] = []
    one = make_broker(tmp_path)

    def wait_for_leave(_done: int, _total: int) -> None:
        go_on.acquire()

    starting = asyncio.ensure_future(one.start(wait_for_leave))

    while len(done_bytes) < 3:
        await wait_until(lambda: is_recovering_beyond(tmp_path, done_bytes))
        status = read_page(tmp_path).status
        assert status.recovery_done_bytes is not None and status.recovery_total_bytes is not None
        done_bytes.append(status.recovery_done_bytes)
        assert done_bytes[-1] < status.recovery_total_bytes
        assert status.wrote is None and status.is_refusing_sends
        published_ns = status.published_boottime_ns
        await wait_until(lambda limit=published_ns: read_page(tmp_path).status.published_boottime_ns > limit)  # type: ignore[misc]
        go_on.release()
    for _ in range(100):
        go_on.release()
    await starting

    assert done_bytes == sorted(set(done_bytes))
    await wait_until(lambda: read_page(tmp_path).status.phase is Phase.SERVING)
    await one.close()


def is_recovering_beyond(path: Path, done_bytes: list[int]) -> bool:
    try:
        status = read_page(path).status
    except PageNotFound:
        return False
    return status.phase is Phase.RECOVERING and status.recovery_done_bytes not in (None, *done_bytes)


async def test_blocked_loop_lets_the_page_age(tmp_path: Path) -> None:
    """The heartbeat is the loop's, not the writing thread's: while the loop is held the page's age grows."""
    async with publishing_broker(tmp_path):
        ages: list[int] = []

        def check_page() -> None:
            reading = read_page(tmp_path)
            assert reading.age_ms is not None and reading.is_writer_alive
            ages.append(reading.age_ms)

        time.sleep(0.3)  # noqa: ASYNC251 - the loop is blocked on purpose; its last snapshot is written by now
        for _ in range(4):
            check_page()
            time.sleep(0.15)  # noqa: ASYNC251
        check_page()

        assert ages == sorted(ages) and ages[-1] > 500
        await wait_until(lambda: (read_page(tmp_path).age_ms or 0) < 300)


async def test_second_broker_does_not_touch_the_page(tmp_path: Path) -> None:
    """A broker that cannot lock the store does not write its page either."""
    async with publishing_broker(tmp_path):
        before = read_page(tmp_path)
        second = make_broker(tmp_path)

        with pytest.raises(StoreLocked):
            await second.start()

        assert read_page(tmp_path).origin == before.origin
        await wait_until(lambda: read_page(tmp_path).status.phase is Phase.SERVING)


async def test_page_of_a_running_broker_is_not_replaced(tmp_path: Path) -> None:
    """If two brokers have one page path, the second fails with the name of the setting, and leaves its store alone."""
    path = str(tmp_path / "shared")
    async with publishing_broker(tmp_path / "one", statusPagePath=path):
        before = read_page(tmp_path, "shared")
        with pytest.raises(PageUnusable, match=f"statusPagePath: another process publishes its status at {path}"):
            await make_broker(tmp_path / "two", statusPagePath=path).start()
        assert read_page(tmp_path, "shared").origin == before.origin

    assert not (tmp_path / "two" / "abort").exists()
    async with publishing_broker(tmp_path / "two", statusPagePath=path):
        assert read_page(tmp_path, "shared").origin != before.origin


async def test_unusable_page_path_prevents_the_start(tmp_path: Path) -> None:
    """An unusable path fails at the start, with a clear text; the store is closed."""
    with pytest.raises(PageUnusable, match=r"statusPagePath: .*nowhere/status cannot be created: No such file"):
        await make_broker(tmp_path, statusPagePath=str(tmp_path / "nowhere/status")).start()

    async with publishing_broker(tmp_path):
        await wait_until(lambda: read_page(tmp_path).status.phase is Phase.SERVING)


@final
class FailingPage:
    """A page on a disk that refuses for a while."""

    def __init__(self) -> None:
        self.refusal: OSError | PageInUse | None = OSError(errno.ENOSPC, "No space left on device")
        self.attempts = 0
        self.published: list[Status] = []

    def open(self, _path: str, _origin: Origin, first: Status) -> "FailingPage":
        self.publish(first)
        return self

    def publish(self, status: Status) -> None:
        self.attempts += 1
        if self.refusal is not None:
            raise self.refusal
        self.published.append(status)

    def close(self) -> None:
        return


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("is_at_start", [True, False], ids=["from-the-start", "later"])
async def test_unwritable_page_does_not_affect_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_at_start: bool
) -> None:
    """A full disk is logged once, sends continue, and the page is written again with space."""
    monkeypatch.setattr("gantry_broker.server.admin.status_thread.RETRY_INTERVAL_S", 0.01)
    failing = FailingPage()
    refusal = failing.refusal
    if not is_at_start:
        failing.refusal = None
    with caplog.at_level(logging.INFO):
        async with publishing_broker(tmp_path, open_page=failing.open) as broker, dialogue(broker) as client:
            failing.refusal = refusal
            before = failing.attempts
            await wait_until(lambda: failing.attempts > before + 3)
            await client.send_ok(b"x")
            failing.refusal = None
            published = len(failing.published)
            await wait_until(lambda: len(failing.published) > published + 2)

    messages = [record.message for record in caplog.records if "status page" in record.message]
    assert messages == ["failed to write status page; will retry", "status page writable again"]
    assert failing.published[-1].phase is Phase.STOPPED


async def test_page_of_another_process_is_retried_after_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start with a full disk another process may have the page: the thread tries again, and logs that once."""
    monkeypatch.setattr("gantry_broker.server.admin.status_thread.RETRY_INTERVAL_S", 0.01)
    failing = FailingPage()

    async def attempted() -> None:
        before = failing.attempts
        await wait_until(lambda: failing.attempts > before + 3)

    with caplog.at_level(logging.INFO):
        async with publishing_broker(tmp_path, open_page=failing.open):
            failing.refusal = PageInUse("another process publishes its status")
            await attempted()
            failing.refusal = None
            await attempted()

    messages = [record.message for record in caplog.records if "status page" in record.message]
    assert messages == ["failed to write status page; will retry", "status page writable again"]
    assert failing.published[-1].phase is Phase.STOPPED


async def test_hanging_page_write_blocks_nothing(tmp_path: Path) -> None:
    """While the page's disk hangs, the loop continues and snapshots are dropped; a stop does not wait for it."""
    hang = threading.Event()
    failing = FailingPage()
    failing.refusal = None
    publish = failing.publish

    def hanging(status: Status) -> None:
        publish(status)
        if len(failing.published) == 3:
            hang.wait(240)

    failing.publish = hanging  # type: ignore[method-assign]
    async with publishing_broker(tmp_path, open_page=failing.open) as broker, dialogue(broker) as client:
        await wait_until(lambda: len(failing.published) == 3)
        for _ in range(20):
            await client.send_ok(b"x")
            await asyncio.sleep(0.02)
        began = asyncio.get_running_loop().time()
        await broker.close()
        assert asyncio.get_running_loop().time() - began < 120

    assert len(failing.published) == 3
    hang.set()
    await wait_until(lambda: len(failing.published) == 4)
    assert failing.published[-1].phase is Phase.STOPPED, "expected only older snapshots to be dropped"


async def test_failed_start_is_on_the_page_with_its_reason(tmp_path: Path) -> None:
    """Once the store is locked the page shows how the broker ended, even if it never served."""
    main, fast = free_ports(2)
    async with running_broker(tmp_path / "other", listenPort=str(main)):
        with pytest.raises(OSError, match="address already in use"):
            await make_broker(tmp_path / "store", listenPort=str(main), fastListenPort=str(fast)).start()

    last = read_page(tmp_path / "store")
    assert last.status.phase is Phase.FAILED
    assert "cannot start" in last.status.last_error and "address already in use" in last.status.last_error
    assert last.status.last_error_wall_ms is not None


async def test_newest_logged_error_is_on_the_page(tmp_path: Path) -> None:
    """The page shows the last logged error with its extra fields but no traceback; warnings do not count."""
    log = logging.getLogger("gantry_broker.test")
    async with publishing_broker(tmp_path):
        try:
            raise ValueError("a bug")
        except ValueError:
            log.exception("something broke", extra={"offset": 73})
        log.warning("only a warning")
        await wait_until(lambda: read_page(tmp_path).status.last_error != "")
        status = read_page(tmp_path).status
    log.error("no peer answers")

    assert status.last_error == "something broke offset=73"
    assert status.last_error_wall_ms is not None
    assert read_page(tmp_path).status.last_error == "something broke offset=73"


async def test_failed_broker_is_on_the_page(tmp_path: Path) -> None:
    """After a failed flush the final phase is FAILED, and the store is left as it is."""
    one = make_broker(tmp_path)
    await one.start()

    await one.publish_failure(BrokerError("a flush failed: EIO"))

    last = read_page(tmp_path).status
    assert (last.phase, last.last_error) == (Phase.FAILED, "a flush failed: EIO")
    await one.close()
    assert read_page(tmp_path).status.phase is Phase.FAILED, "expected the final phase to be published once"


async def test_without_a_page_nothing_is_published(tmp_path: Path) -> None:
    """A broker that is not given a way to make pages makes none and works."""
    publisher = StatusPublisher(str(tmp_path / "status"), "broker-a", open_page=None)
    publisher.start(lambda task: None)
    publisher.create_page()
    publisher.enter(Phase.SERVING)
    await publisher.finish(Phase.STOPPED)

    async with running_broker(tmp_path):
        assert not (tmp_path / "status").exists()


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    """A broker of its own process that serves."""
    one = broker(tmp_path, free_broker_port(), free_port(), SMALL)
    await one.start()
    yield one
    await one.kill()


async def test_hanging_broker_is_distinguished_from_a_dead_one(tmp_path: Path, process: ServerProcess) -> None:
    """SIGSTOP: alive and stale. SIGCONT: fresh. SIGKILL: dead at once. A restart: another boot id, another file."""
    path = tmp_path / "store"
    with PageReader(str(path / "status")) as reader:
        await wait_until(lambda: reader.read().status.phase is Phase.SERVING)
        first = reader.read()
        assert not first.is_stale()

        os.kill(process.pid, signal.SIGSTOP)
        await wait_until(lambda: reader.read().is_stale(after_ms=600))
        assert reader.read().is_writer_alive and reader.read().status.phase is Phase.SERVING
        os.kill(process.pid, signal.SIGCONT)
        await wait_until(lambda: not reader.read().is_stale(after_ms=600))

        await process.kill()
        dead = reader.read()
        assert dead.is_writer_alive is False and dead.is_stale() and dead.status.phase is Phase.SERVING

        await process.start()
        await wait_until(lambda: reader.read().status.phase is Phase.SERVING)
        again = reader.read()
        assert again.origin.boot_id != first.origin.boot_id and again.is_writer_alive
        assert again.status.store_uuid == first.status.store_uuid
        assert (again.status.generation or 0) > (first.status.generation or 0)
