"""An archive in an object store: a real server that speaks S3. The rule is the same one: after a start, every message
once; and at any moment no message twice. Where there is no rename, a kill may leave rows that the manifest has not."""

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
from spark_kit.listings import READERS, Seen
from spark_kit.object_store import KEYS, ObjectStore
from spark_kit.toy_log import HOUR_US, ToyLog
from spark_kit.toy_run import Life, live, lose_checkpoint, watched

from gantry_pipelines.__main__ import main
from gantry_pipelines.archive import lock, points
from gantry_pipelines.archive.errors import ArchiveBusy, BadDestination, CannotCompact, FencedOut, StorageFailed
from gantry_pipelines.archive.exits import own_error
from gantry_pipelines.archive.format import ArchiveFormat
from gantry_pipelines.archive.layout import WRITER
from gantry_pipelines.archive.objects import Objects, storage_of
from gantry_pipelines.archive.reading import read_manifest
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
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def life(server: ObjectStore, tmp_path: Path) -> Life:
    """One that comes to its end."""
    return Life(
        str(tmp_path / "archive"), LOG, rows_max=150, destination=server.address(tmp_path.name), environment=KEYS
    )


def whole() -> Seen:
    """Every row of the log, once."""
    return Counter(
        (queue.topic, queue.broker, queue.number, offset, LOG.row(queue, offset)["body"])
        for queue, end in LOG.ends.items()
        for offset in range(end)
    )


def listed(server: ObjectStore, tmp_path: Path) -> list[Seen]:
    """What readers see who list all there is."""
    return [read(server.folder / "archives" / tmp_path.name) for read in READERS.values()]


def test_a_storage_of_objects_keeps_what_it_is_given(server: ObjectStore, tmp_path: Path) -> None:
    """Small and large, in one upload or several; what is not there is not there."""
    storage = storage_of(server.address("one/prefix"))
    large = bytes(range(256)) * (12 << 12)
    assert (storage.paths(), storage.size("a/b"), storage.is_folder) == ([], None, False)

    storage.write("a/b", b"small")
    local = storage.new_file()
    local.write_bytes(large)
    staged = storage.finish(local, "data/large")
    storage.show(staged, "data/large")

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
    with pytest.raises(CannotCompact):
        storage.exchange("data", "other")


@pytest.mark.verify
@pytest.mark.parametrize(
    "point",
    [
        points.AFTER_DATA,
        points.MID_BATCH,
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (points.AFTER_RECORD, points.BEFORE_RECORD, points.AFTER_BATCH)
        ),
    ],
)
def test_a_kill_at_any_step_of_a_batch_neither_loses_nor_doubles(
    server: ObjectStore, life: Life, tmp_path: Path, point: str
) -> None:
    """Killed at the second time that the work comes to this step; the next start may have other limits."""
    killed = replace(life, crash_at=(point, 2)).lived()
    after_kill = listed(server, tmp_path)
    ended = replace(life, rows_max=1000).lived()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert [seen <= whole() for seen in after_kill] == [True, True]
    assert listed(server, tmp_path) == [whole(), whole()]
    assert verify(storage_of(life.destination), is_deep=True).findings == ()


@pytest.mark.slow
def test_a_lost_checkpoint_is_recovered_from_the_manifest(server: ObjectStore, life: Life, tmp_path: Path) -> None:
    """A run begins where the manifest ends; what a dead worker uploaded beyond that is taken away first."""
    killed = replace(life, crash_at=(points.AFTER_DATA, 3)).lived()
    lose_checkpoint(Path(life.root))
    ended = replace(life, rows_max=70).lived()

    assert (killed, ended) == (-signal.SIGKILL, 0)
    assert listed(server, tmp_path) == [whole(), whole()]


@pytest.mark.verify
def test_readers_see_it_through_the_store(server: ObjectStore, life: Life, tmp_path: Path) -> None:
    """As a person reads a bucket with pyarrow."""
    assert life.lived() == 0

    system, prefix = fs.FileSystem.from_uri(life.destination)
    table = ds.dataset(f"{prefix}/data", filesystem=system, format="parquet").to_table(columns=["queue", "offset"])

    assert table.num_rows == sum(LOG.ends.values())
    assert read_manifest(storage_of(life.destination)).ends() == LOG.ends


@pytest.mark.verify
def test_there_is_one_writer(life: Life) -> None:
    """Who comes while another writes is told who that is; who comes after it was killed waits until its name stands."""
    storage = storage_of(life.destination)
    held = hold(life)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lock, "BEAT_S", 0.5)
            patch.setattr(lock, "TAKEOVER_S", 10.0)
            with pytest.raises(ArchiveBusy, match=rf"is being written by process {held.pid} on "):
                lock.take(storage)
    finally:
        held.kill()
        held.join()

    began_s = time.monotonic()
    assert life.lived() == 0
    assert time.monotonic() - began_s > life.takeover_s


@pytest.mark.verify
def test_who_was_taken_for_dead_enters_nothing_any_more(life: Life) -> None:
    """It stood still for as long as another watched it: the next look at its name ends it."""
    storage = storage_of(life.destination)
    first: Any = watched(storage, life.takeover_s)
    first._ended.set()
    first._thread.join()
    first.check()
    second = watched(storage, life.takeover_s)
    with pytest.raises(FencedOut, match="another writer"):
        first.check()
    second.check()
    first.release()
    second.check()
    second.release()

    assert storage.paths() == []


def test_a_store_that_is_gone_does_not_hide_why_a_run_ended(life: Life) -> None:
    """The name stays, which costs the next start a moment; what is said is what went wrong first."""

    def gone(*_: object) -> bytes:
        raise OSError("nobody answers")

    storage = storage_of(life.destination)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ArithmeticError),
        ArchiveWriter.open(storage, ArchiveFormat(100), watched(storage, life.takeover_s)),
    ):
        patch.setattr(Objects, "read", gone)
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
def test_what_a_worker_meets_at_the_place_is_said_as_such(text: str, kind: type[Exception]) -> None:
    """An error of ours says more, wherever it stands."""
    assert type(own_error(RuntimeError(text))) is kind
    assert own_error(RuntimeError("x\nValueError: no\n")) is None


def hold(life: Life) -> Any:
    """A writer in a process of its own that has the lock, and keeps it."""
    context = multiprocessing.get_context("forkserver")
    ready = context.Event()
    process = context.Process(target=_hold, args=(life, ready))
    process.start()
    assert ready.wait(120)
    return process


def _hold(life: Life, ready: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        patch.setattr(lock, "BEAT_S", 0.1)
        lock.take(storage_of(life.destination))
        ready.set()
        threading.Event().wait(600)


@pytest.mark.slow
def test_a_store_that_dies_in_the_middle_ends_the_run_and_costs_nothing(tmp_path: Path) -> None:
    """It is killed with a file half uploaded or a record half written; when it is back the next run ends the work."""
    store = ObjectStore(tmp_path / "buckets")
    store.start()
    life = Life(str(tmp_path / "archive"), LOG, 100, destination=store.address("dies"), environment=KEYS)
    try:
        context: Any = multiprocessing.get_context("forkserver")
        process = context.Process(target=live, args=(life,))
        process.start()
        while not any(name.startswith("data/") for name in store.files("dies")):
            assert process.is_alive()
            time.sleep(0.001)
        store.kill()
        process.join(300)
        broken = process.exitcode
        store.start()
        assert life.lived() == 0, "the store is there again"
        seen = [read(store.folder / "archives" / "dies") for read in READERS.values()]
    finally:
        store.kill()

    assert broken == 1, "an error, and no kill or end"
    assert seen == [whole(), whole()]


@pytest.mark.verify
@pytest.mark.parametrize(
    ("address", "says", "code"),
    [
        ("s3://archives/x?endpoint_overide=1", "cannot be a destination: Unexpected query parameter", 2),
        ("abc://archives/x", "cannot be a destination: Unrecognized filesystem type", 2),
        ("nobody", "cannot be read or written: .*Could not connect", 1),
        ("nothing", "there is no archive in s3://archives/nothing", 3),
    ],
    ids=["a word", "a scheme", "nobody there", "no archive"],
)
def test_a_place_that_cannot_be_used_is_one_line(
    server: ObjectStore, tmp_path: Path, capfd: pytest.CaptureFixture[str], address: str, says: str, code: int
) -> None:
    """And says what is wrong with it."""
    if "://" not in address:
        port = server.port if address == "nothing" else 9
        address = server.address(address).replace(str(server.port), str(port))

    with pytest.raises(SystemExit) as ended:
        main(["verify", "--set", f"here.destination={address}"])

    lines = capfd.readouterr().err.splitlines()
    assert ended.value.code == code and len(lines) == 1
    assert re.search(says, lines[0])


def test_an_address_that_makes_no_sense_is_said_by_whoever_uses_it() -> None:
    """Before anything is asked of it."""
    with pytest.raises(BadDestination):
        storage_of("s3://archives/x?endpoint_overide=1").paths()
