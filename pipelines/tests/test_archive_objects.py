"""An archive in an object store, tested with a real S3 server: after a start it has every message once, and at no time
a message twice. Without rename, a kill may leave visible rows that are not in the manifest."""

from __future__ import annotations

import multiprocessing
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyarrow import fs
from spark_kit.listings import READERS, RowCounts
from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import ToyRun, acquire_lock, lose_checkpoint, run_toy

from gantry_pipelines.__main__ import main
from gantry_pipelines.archive import crash_points, lock
from gantry_pipelines.archive.errors import ArchiveBusy, BadDestination, FencedOut, StorageFailed
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.job_errors import extract_known_error
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.manifest_reader import read_manifest
from gantry_pipelines.archive.object_storage import ObjectStorage, storage_of
from gantry_pipelines.archive.verification import verify
from gantry_pipelines.archive.writer import ArchiveWriter
from pyspark_rocketmq.model import QueueId

pytestmark = pytest.mark.needs_object_store

QUEUES = [QueueId("orders", "broker-a", 0), QueueId("%RETRY%bills", "broker-b", 0)]
LOG = ToyLog({QUEUES[0]: 250, QUEUES[1]: 30}, step_us=HOUR_US // 20)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    store = ObjectStore(tmp_path_factory.mktemp("objects") / "buckets")
    store.start()
    try:
        yield store
    finally:
        store.kill()


@pytest.fixture(autouse=True)
def access_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def toy_run(server: ObjectStore, tmp_path: Path) -> ToyRun:
    """Return a run that is not killed."""
    return ToyRun(
        str(tmp_path / "archive"), LOG, rows_max=150, destination=server.address(tmp_path.name), environment=KEYS
    )


def all_rows() -> RowCounts:
    """Return every row of the log, once."""
    return Counter(
        (queue.topic, queue.broker, queue.number, offset, LOG.row(queue, offset)["body"])
        for queue, end in LOG.ends.items()
        for offset in range(end)
    )


def listed(server: ObjectStore, tmp_path: Path) -> list[RowCounts]:
    """Return the rows that each reader finds by listing the bucket."""
    return [read(server.folder / "archives" / tmp_path.name) for read in READERS.values()]


def test_object_storage_returns_what_was_written(server: ObjectStore, tmp_path: Path) -> None:
    """Small and large objects, in one upload or several, are read back; missing ones raise FileNotFoundError."""
    storage = storage_of(server.address("one/prefix"))
    large = bytes(range(256)) * (12 << 12)
    assert (storage.paths(), storage.size("a/b"), storage.is_folder) == ([], None, False)

    storage.write("a/b", b"small")
    local = storage.new_file()
    local.write_bytes(large)
    staged = storage.finish(local, "data/large")
    storage.publish(staged, "data/large")

    assert (storage.paths(), storage.paths("a")) == (["a/b", "data/large"], ["a/b"])
    assert (storage.read("a/b"), storage.read("data/large"), storage.size("data/large")) == (b"small", large, 12 << 20)
    assert not local.exists()
    with storage.open("data/large") as file:
        file.seek(5 << 20)
        assert file.read(256) == large[:256]
    storage.remove("a/b")
    storage.remove("a/b")
    assert storage.paths() == ["data/large"]
    with pytest.raises(FileNotFoundError):
        storage.read("a/b")


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [
        crash_points.AFTER_DATA,
        crash_points.MID_BATCH,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (crash_points.AFTER_RECORD, crash_points.BEFORE_RECORD, crash_points.AFTER_BATCH)
        ),
    ],
)
def test_kill_at_any_step_of_a_batch_neither_loses_nor_duplicates_messages(
    server: ObjectStore, toy_run: ToyRun, tmp_path: Path, point: str
) -> None:
    """The process is killed when it hits the crash point for the second time; the next start has other limits."""
    killed = replace(toy_run, crash_at=(point, 2)).run_process()
    after_kill = listed(server, tmp_path)
    ended = replace(toy_run, rows_max=1000).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert [seen <= all_rows() for seen in after_kill] == [True, True]
    assert listed(server, tmp_path) == [all_rows(), all_rows()]
    assert verify(storage_of(toy_run.destination), is_deep=True).findings == ()


@pytest.mark.slow
def test_a_lost_checkpoint_is_recovered_from_the_manifest(server: ObjectStore, toy_run: ToyRun, tmp_path: Path) -> None:
    """A run without checkpoint begins where the manifest ends; uploads of dead workers after that are deleted."""
    killed = replace(toy_run, crash_at=(crash_points.AFTER_DATA, 3)).run_process()
    lose_checkpoint(Path(toy_run.root))
    ended = replace(toy_run, rows_max=70).run_process()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert listed(server, tmp_path) == [all_rows(), all_rows()]


@pytest.mark.verify
def test_pyarrow_reads_the_archive_from_the_object_store(server: ObjectStore, toy_run: ToyRun, tmp_path: Path) -> None:
    """pyarrow's S3 client reads all rows from the bucket."""
    assert toy_run.run_process() == 0

    system, prefix = fs.FileSystem.from_uri(toy_run.destination)
    table = ds.dataset(f"{prefix}/data", filesystem=system, format="parquet").to_table(columns=["queue", "offset"])

    assert table.num_rows == sum(LOG.ends.values())
    assert read_manifest(storage_of(toy_run.destination)).ends() == LOG.ends


@pytest.mark.verify
def test_second_writer_is_refused_and_waits_after_a_kill(toy_run: ToyRun) -> None:
    """A second writer gets an error that names the first; after a kill it waits until the lock has timed out."""
    storage = storage_of(toy_run.destination)
    held = hold_writer_lock(toy_run)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lock, "HEARTBEAT_INTERVAL_S", 0.5)
            patch.setattr(lock, "TAKEOVER_S", 10.0)
            with pytest.raises(ArchiveBusy, match=rf"is being written by process {held.pid} on "):
                lock.acquire_writer_lock(storage)
    finally:
        held.kill()
        held.join()

    began_s = time.monotonic()
    assert toy_run.run_process() == 0
    assert time.monotonic() - began_s > toy_run.takeover_s


@pytest.mark.verify
def test_writer_that_did_not_renew_its_lock_is_fenced(toy_run: ToyRun) -> None:
    """A writer that did not renew for the lock timeout is taken over; its next check fails."""
    storage = storage_of(toy_run.destination)
    first: Any = acquire_lock(storage, toy_run.takeover_s)
    first._ended.set()
    first._thread.join()
    first.check()
    second = acquire_lock(storage, toy_run.takeover_s)
    with pytest.raises(FencedOut, match="another writer"):
        first.check()
    second.check()
    first.release()
    second.check()
    second.release()

    assert storage.paths() == []


def test_unavailable_store_does_not_hide_the_error_of_a_run(toy_run: ToyRun) -> None:
    """If releasing the lock fails, the original error is raised; the next start waits for the lock timeout."""

    def gone(*_: object) -> bytes:
        raise OSError("unavailable")

    storage = storage_of(toy_run.destination)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ArithmeticError),
        ArchiveWriter.open(storage, ArchiveFormat(100), acquire_lock(storage, toy_run.takeover_s)),
    ):
        patch.setattr(ObjectStorage, "read", gone)
        raise ArithmeticError

    assert storage.size(WRITER) is not None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Py4J\nOSError: [Errno 28] No space left on device\n\tat org.apache", StorageFailed),
        ("x\nOSError: AWS Error NETWORK_CONNECTION\ngantry.FencedOut: another writer\n", FencedOut),
        ("x\nFencedOut: another writer\nOSError: AWS Error NETWORK_CONNECTION\n", FencedOut),
    ],
    ids=["the place", "ours after it", "ours before it"],
)
def test_known_error_is_extracted_from_sparks_error_text(text: str, kind: type[Exception]) -> None:
    """A known error has precedence over a storage error, wherever it is in the text."""
    assert type(extract_known_error(RuntimeError(text))) is kind
    assert extract_known_error(RuntimeError("x\nValueError: no\n")) is None


def hold_writer_lock(toy_run: ToyRun) -> Any:
    """Start a process that takes the writer lock and keeps it."""
    context = multiprocessing.get_context("forkserver")
    ready = context.Event()
    process = context.Process(target=_hold_writer_lock, args=(toy_run, ready))
    process.start()
    assert ready.wait(120)
    return process


def _hold_writer_lock(toy_run: ToyRun, ready: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.setattr(lock, "HEARTBEAT_INTERVAL_S", 0.1)
        lock.acquire_writer_lock(storage_of(toy_run.destination))
        ready.set()
        threading.Event().wait(600)


@pytest.mark.slow
def test_crash_of_the_object_store_ends_the_run_without_damage(tmp_path: Path) -> None:
    """The store is killed while a run uploads files; when it is available again the next run completes the archive."""
    store = ObjectStore(tmp_path / "buckets")
    store.start()
    toy_run = ToyRun(str(tmp_path / "archive"), LOG, 100, destination=store.address("dies"), environment=KEYS)
    try:
        context: Any = multiprocessing.get_context("forkserver")
        process = context.Process(target=run_toy, args=(toy_run,))
        process.start()
        while not any(name.startswith("data/") for name in store.files("dies")):
            assert process.is_alive()
            time.sleep(0.001)
        store.kill()
        process.join(300)
        broken = process.exitcode
        store.start()
        assert toy_run.run_process() == 0, "the run failed although the store is available again"
        seen = [read(store.folder / "archives" / "dies") for read in READERS.values()]
    finally:
        store.kill()

    assert broken == 1, "the run did not end with an error while the store was down"
    assert seen == [all_rows(), all_rows()]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("address", "text", "code"),
    [
        ("s3://archives/x?endpoint_overide=1", "is not a valid destination: Unexpected query parameter", 2),
        ("abc://archives/x", "is not a valid destination: Unrecognized filesystem type", 2),
        ("unavailable", "cannot read or write the archive in .*Could not connect", 1),
        ("nothing", "no archive in s3://archives/nothing", 3),
    ],
    ids=["a word", "a scheme", "unavailable", "no archive"],
)
def test_unusable_destination_is_reported_in_one_line(
    server: ObjectStore, tmp_path: Path, capfd: pytest.CaptureFixture[str], address: str, text: str, code: int
) -> None:
    """The line on standard error states what is wrong with the destination."""
    if "://" not in address:
        port = server.port if address == "nothing" else 9
        address = server.address(address).replace(str(server.port), str(port))

    with pytest.raises(SystemExit) as ended:
        main(["verify", "--set", f"runtime.destination={address}"])

    lines = capfd.readouterr().err.splitlines()
    assert ended.value.code == code and len(lines) == 1
    assert re.search(text, lines[0])


def test_invalid_address_is_refused_before_the_first_request() -> None:
    """The first use of a storage with an invalid address raises BadDestination."""
    with pytest.raises(BadDestination):
        storage_of("s3://archives/x?endpoint_overide=1").paths()
