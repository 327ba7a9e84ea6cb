"""Files of another store (log files, ``store.json``, recovery points) are detected at a start, without false alarms."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from gantry_broker.errors import ConfigCorrupt, LogReadOnly, StoreFailed
from gantry_broker.store import file_heads, lifecycle
from gantry_broker.store.checkpoint import CHECKPOINT_BYTES
from gantry_broker.store.file_heads import FileHead, LogHeads
from gantry_broker.store.identity import Epoch, IdentityFile
from gantry_broker.store.inspect.findings import Harm, Kind
from gantry_broker.store.inspect.summary import inspect_store
from gantry_broker.store.log_end import LogEndFile, decode_log_end
from gantry_broker.store.loss import LossCause
from gantry_broker.store.sealed_file import read_sealed, write_sealed
from gantry_testing.faulty_reading_disk import FaultyReadingDisk
from gantry_testing.log_head import remove_before as remove_head
from gantry_testing.store_world import StoreWorld, make_world
from gantry_testing.verifying import verify

SIZE = 16 * 1024
"""Size of a log file, in bytes."""


def segments(world: StoreWorld) -> list[str]:
    """Return the names of all log files, the oldest first."""
    return sorted(world.disk.list(world.path("commitlog")))


def fill(world: StoreWorld, word: str = "message", *, end: int = 3 * SIZE + SIZE // 2) -> None:
    """Append until the log ends at ``end`` or after it. Two words of equal length produce the same offsets."""
    while world.store.log.wrote < end:
        for topic in ("orders", "bills"):
            world.append([world.draft(topic, body=b"%s %05d" % (word.encode(), len(world.sent)))])
            world.clock.advance(1)
    world.store.flush()
    world.clock.advance(60_000)
    world.store.flush_step()


def make_filled_store(kind: str, tmp_path: Path, word: str = "message") -> StoreWorld:
    """Return a store whose log has four files, the last one incomplete."""
    world = make_world(kind, tmp_path / word)
    world.open()
    fill(world, word)
    return world


def stop(world: StoreWorld, *, is_clean: bool) -> None:
    world.close() if is_clean else world.kill()


def replace_with_file_of(world: StoreWorld, other: StoreWorld, name: str) -> None:
    """Replace the file ``name`` of a store by that of another."""
    world.disk.write_file(world.path(name), other.disk.read_file(other.path(name)))


HEADS = "log-heads.json"
"""The file with the *heads* of the log files: a checksum of the first record of each."""


def heads_of(world: StoreWorld) -> LogHeads:
    heads = read_sealed(world.disk, world.path(HEADS), LogHeads)
    assert heads is not None
    return heads


def write_heads(world: StoreWorld, heads: LogHeads) -> None:
    write_sealed(world.disk, world.path(HEADS), heads)


def assert_healthy(world: StoreWorld) -> None:
    """Start the store and check that nothing is reported."""
    report = world.open()
    assert (report.set_aside, report.missing, report.damaged) == ([], [], [])
    assert world.find_altered() is None
    for topic in ("orders", "bills"):
        assert world.bodies(topic) == world.sent_bodies(topic)


# -- log files ---------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[list[int], LossCause]] = {
    "first": ([0], LossCause.HEAD),
    "two first": ([0, 1], LossCause.HEAD),
    "middle": ([1], LossCause.MIDDLE),
    "newest": ([3], LossCause.TAIL),
    "all": ([0, 1, 2, 3], LossCause.ALL),
}


@pytest.mark.verify(quick=14)
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("case", CASES)
def test_log_file_of_another_store_is_set_aside_and_counts_as_missing(
    kind: str, tmp_path: Path, case: str, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign file is moved to set-aside; its range is a loss, and no foreign message is served."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    end = world.store.log.wrote
    stop(world, is_clean=is_clean)
    stop(other, is_clean=is_clean)
    numbers, cause = CASES[case]
    names = [segments(world)[number] for number in numbers]
    for name in names:
        replace_with_file_of(world, other, f"commitlog/{name}")
    report = world.open()
    assert [lost.cause for lost in report.missing] == [cause], report
    assert report.missing[0].start == int(names[0])
    assert report.missing[0].end == min(int(names[-1]) + SIZE, end)
    assert [world.disk.read_file(path) for path in report.set_aside] == [
        other.disk.read_file(other.path(f"commitlog/{name}")) for name in names
    ]
    reported = [line for line in caplog.records if "log file set aside" in line.getMessage()]
    assert [line.__dict__["path"] for line in reported] == [world.path(f"commitlog/{name}") for name in names]
    assert all(line.levelno == logging.ERROR and "accept-loss" in line.__dict__["remedy"] for line in reported)
    for topic in ("orders", "bills"):
        assert set(world.bodies(topic)) <= set(world.sent_bodies(topic))
    world.store.accept_loss("a test")
    fill(world, end=world.store.log.wrote + SIZE)
    for _ in range(2):
        world.close()
        report = world.open()
        assert (report.missing, report.set_aside) == ([], [])


def test_without_the_comparison_a_log_file_of_another_store_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the test above: its assertions fail without the comparison."""
    monkeypatch.setattr(lifecycle, "compare_heads", lambda *_: file_heads.ComparedHeads())
    monkeypatch.setattr(file_heads.HeadKeeper, "is_foreign", lambda *_: False)
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    world.close()
    other.close()
    replace_with_file_of(world, other, f"commitlog/{segments(world)[1]}")
    report = world.open()
    assert (report.missing, report.set_aside, report.damaged) == ([], [], [])
    assert not set(world.bodies("orders")) <= set(world.sent_bodies("orders"))


@pytest.mark.parametrize("cause", ["first", "middle", "newest"])
def test_restored_own_file_completes_the_log(kind: str, tmp_path: Path, cause: str) -> None:
    """The remedy in the report works: nothing is missing once the store's own file is in place again."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    world.close()
    other.close()
    name = f"commitlog/{segments(world)[CASES[cause][0][0]]}"
    own = world.disk.read_file(world.path(name))
    replace_with_file_of(world, other, name)
    assert world.open().missing
    world.close()
    world.disk.write_file(world.path(name), own)
    assert_healthy(world)


def test_foreign_file_that_is_put_back_is_set_aside_again(tmp_path: Path) -> None:
    """Files in set-aside are never replaced, and a filler is compared like any other file."""
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    world.close()
    other.close()
    paths: set[str] = set()
    for _ in range(3):
        replace_with_file_of(world, other, f"commitlog/{segments(world)[1]}")
        paths |= set(world.open().set_aside)
        world.close()
    assert len(paths) == 3
    assert all(world.disk.exists(path) and world.disk.exists(f"{path}.json") for path in paths)


@pytest.mark.parametrize("number", range(4))
def test_damaged_first_record_is_damage_and_no_foreign_file(kind: str, tmp_path: Path, number: int) -> None:
    """A file is foreign only if its first record is whole; otherwise the record is reported as damaged."""
    world = make_filled_store(kind, tmp_path)
    world.close()
    for position in (0, 5, 25, 60, 100, 130):
        name = f"commitlog/{segments(world)[number]}"
        right = world.disk.read_file(world.path(name))
        world.overwrite(name, position, bytes([right[position] ^ 4]))
        for _ in range(2):  # The damage, and the original content.
            report = world.open()
            assert (report.set_aside, report.missing) == ([], [])
            world.close()
            world.disk.write_file(world.path(name), right)


# -- what changes files legally ----------------------------------------------------------------------------------------


def cut(world: StoreWorld, random_source: random.Random) -> None:
    ends = sorted({message.end for message in world.sent})
    end = random_source.choice(ends[len(ends) // 2 :] or [world.store.log.wrote])
    world.store.flush()
    world.store.truncate(
        end, [*world.store.identity.with_truncated_log(end).epochs, Epoch(world.store.identity.epoch + 1, end)]
    )
    world.forget_after(end)


def discard_log(world: StoreWorld, random_source: random.Random) -> None:
    begin = random_source.randrange(4) * SIZE
    world.store.discard_log(begin, [Epoch(world.store.identity.epoch + 1, begin)])
    world.sent.clear()
    world.records.clear()


def remove(world: StoreWorld, random_source: random.Random) -> None:
    begin = world.store.log.min_physical + SIZE * random_source.randrange(2)
    if begin < world.store.log.wrote - SIZE:
        world.store.flush()
        remove_head(world.store, begin)
        world.sent[:] = [message for message in world.sent if message.end > begin]
        for start in [start for start in world.records if start < begin]:
            del world.records[start]


def write(world: StoreWorld, random_source: random.Random) -> None:
    fill(
        world,
        random_source.choice(("message", "another")),
        end=world.store.log.wrote + random_source.randrange(2 * SIZE),
    )


def write_a_point(world: StoreWorld, _: random.Random) -> None:
    world.clock.advance(60_000)
    world.store.flush_step()


def start_again(world: StoreWorld, random_source: random.Random) -> None:
    stop(world, is_clean=random_source.random() < 0.5)
    assert_healthy(world)


def forget_files(world: StoreWorld, random_source: random.Random) -> None:
    """Remove one of the small files, or store.json with its copy, so that less is known."""
    stop(world, is_clean=random_source.random() < 0.5)
    for name in random_source.choice(
        (["recovery-point.json"], [HEADS], ["store.json"], ["store.json.bak"], ["store.json", "store.json.bak"])
    ):
        if world.disk.exists(world.path(name)):
            world.disk.remove(world.path(name))
    assert_healthy(world)


STEPS: list[Callable[[StoreWorld, random.Random], None]] = [
    write, write, write, write_a_point, start_again, start_again, cut, cut, discard_log, remove, forget_files,
]  # fmt: skip


@pytest.mark.verify(quick=23)
@pytest.mark.parametrize("seed", range(40))
def test_intact_store_is_never_taken_for_a_foreign_one(tmp_path: Path, seed: int) -> None:
    """Cuts, restarts, retention, kills and missing small files, in any order, never set a file aside."""
    random_source = random.Random(seed)
    world = make_filled_store("faulty", tmp_path)
    old: LogHeads | None = None
    for _ in range(14):
        step = random_source.choice(STEPS)
        step(world, random_source)
        if step is write_a_point and old is None:
            old = heads_of(world)
    world.close()
    identity = IdentityFile(world.disk, world.root).read()
    if old is not None and identity is not None and identity.accepts_uuid(old.store):
        # Records that replaced a cut must not look foreign to older heads.
        write_heads(world, old)
    assert world.open().set_aside == []
    assert world.find_altered() is None


def test_heads_from_before_a_cut_are_not_trusted(tmp_path: Path) -> None:
    """The log after a cut is rewritten with other records, which older heads must not call foreign."""
    world = make_filled_store("faulty", tmp_path)
    old, end = heads_of(world), world.sent[len(world.sent) // 4].end
    world.store.truncate(end)
    world.forget_after(end)
    fill(world, "another")
    world.close()
    now = heads_of(world)
    assert (
        [head.base_offset for head in old.heads]
        == [head.base_offset for head in now.heads]
        == [0, SIZE, 2 * SIZE, 3 * SIZE]
    )
    assert old.heads != now.heads and old.cuts < now.cuts
    write_heads(world, old)
    assert world.open().set_aside == []
    assert world.bodies("orders") == world.sent_bodies("orders")
    world.close()
    # The twin: with the present number of cuts the older heads would be trusted.
    write_heads(world, msgspec.structs.replace(old, cuts=now.cuts))
    assert world.open().set_aside != []


def test_file_rewritten_after_a_lost_end_is_not_foreign(tmp_path: Path) -> None:
    """A slave copies its lost end from a master with another history, so it has other records there."""
    world = make_filled_store("faulty", tmp_path)
    old = heads_of(world)
    world.close()
    for name in segments(world)[2:]:
        world.disk.remove(world.path(f"commitlog/{name}"))
    report = world.open()
    assert [lost.cause for lost in report.missing] == [LossCause.TAIL]
    world.forget_after(report.end)
    world.store.losses.forget_missing_end()
    fill(world, "another")
    world.close()
    write_heads(world, old)
    assert world.open().set_aside == []
    world.close()
    assert world.open().set_aside == []


def test_store_that_rocketmq_has_used_since_is_not_compared(tmp_path: Path) -> None:
    """RocketMQ may cut and rewrite the log without changing Gantry's files."""
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    world.close()
    other.close()
    replace_with_file_of(world, other, f"commitlog/{segments(world)[3]}")
    world.disk.write_file(world.path("checkpoint"), b"\0\0\0\1" * (CHECKPOINT_BYTES // 4))
    assert world.open().set_aside == []


def test_store_of_an_earlier_version_gets_its_heads_at_the_first_start(kind: str, tmp_path: Path) -> None:
    """A missing or damaged file of heads only causes the heads to be read again."""
    world = make_filled_store(kind, tmp_path)
    world.close()
    whole = heads_of(world)
    for earlier in (None, b"", b"00000000\n{}", world.disk.read_file(world.path(HEADS))[:-2]):
        world.disk.remove(world.path(HEADS))
        if earlier is not None:
            world.disk.write_file(world.path(HEADS), earlier)
        assert_healthy(world)
        world.close()
        assert heads_of(world) == whole


def test_heads_follow_the_log(kind: str, tmp_path: Path) -> None:
    """Each file with durable records has a head, and deleted files have none."""
    world = make_filled_store(kind, tmp_path)
    assert [head.base_offset for head in heads_of(world).heads] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    remove_head(world.store, SIZE)
    fill(world, end=4 * SIZE + SIZE // 2)
    assert [head.base_offset for head in heads_of(world).heads] == [SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]
    assert all(isinstance(head, FileHead) for head in heads_of(world).heads)


def test_samples_of_deleted_files_are_dropped(kind: str, tmp_path: Path) -> None:
    """A broker that reads its log for years keeps samples of existing files only."""
    world = make_filled_store(kind, tmp_path)
    world.bodies("orders")
    keeper = world.store._lifecycle.heads
    assert sorted(keeper._samples) == [0, SIZE, 2 * SIZE, 3 * SIZE]
    remove_head(world.store, 2 * SIZE)
    fill(world, end=4 * SIZE + SIZE // 2)
    assert min(keeper._samples) == 2 * SIZE


# -- under the running broker ------------------------------------------------------------------------------------------


def overwrite_all(world: StoreWorld, other: StoreWorld, number: int) -> int:
    """Overwrite an open log file in place with another store's file, and return its base offset."""
    name = f"commitlog/{segments(world)[number]}"
    world.overwrite(name, 0, other.disk.read_file(other.path(name)))
    return int(segments(world)[number])


READERS: dict[str, Callable[[StoreWorld, int], object]] = {
    "consumer": lambda world, base: world.bodies("orders"),
    "query by offset": lambda world, base: world.store.guard.message_at(base),
    "slave": lambda world, base: world.store.guard.read_verified(base, 1 << 20),
    "replica that heals": lambda world, base: world.store.guard.read_verified_range(
        base, min(base + SIZE, world.store.log.wrote)
    ),
    "scrubber": lambda world, base: world.store.guard.good_bytes(world.store.log.view(base), base),
    "damage report": lambda world, base: world.store.guard.damage.report(base),
    "queue repair": lambda world, base: world.store.repair.queues.request_repair(
        world.store.queues.get_or_create("orders", 0), len(world.sent_bodies("orders", before=base)), reason="a test"
    ),
}


@pytest.mark.verify(quick=19)
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_log_file_replaced_under_a_running_broker_ends_it(
    kind: str, tmp_path: Path, reader: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of the file is served, nothing is rebuilt from it, and the next start sets it aside."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    assert world.bodies("orders") == world.sent_bodies("orders")
    base = overwrite_all(world, other, number)
    world.store.queues.forget_sums()

    with caplog.at_level(logging.ERROR), pytest.raises(StoreFailed, match=f"commitlog/{base:020d} was replaced"):
        READERS[reader](world, base)

    assert [type(error) for error in world.fatal] == [StoreFailed]
    [line] = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert (line.start, line.end) == (base, base + SIZE)  # type: ignore[attr-defined]
    with pytest.raises(LogReadOnly):
        world.append([world.draft("orders")])
    world.kill()
    report = world.open()
    assert len(report.set_aside) == 1
    assert [lost.start for lost in report.missing if lost.cause is not LossCause.TAIL] in ([], [base])
    assert world.find_altered() is None


def test_without_the_running_check_foreign_messages_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above: its assertions fail without the check."""
    monkeypatch.setattr(file_heads.HeadKeeper, "is_foreign", lambda *_: False)
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    overwrite_all(world, other, 1)
    world.store.queues.forget_sums()
    assert not set(world.bodies("orders")) <= set(world.sent_bodies("orders"))
    assert world.fatal == []


def test_damaged_and_healed_first_record_does_not_look_foreign(tmp_path: Path) -> None:
    """Damage of a first record is reported as damage, before and after a replica has healed it."""
    world = make_filled_store("faulty", tmp_path)
    name, right = f"commitlog/{segments(world)[1]}", world.store.guard.message_at(SIZE)
    assert right is not None
    for position in (5, 60, 100, 130):
        world.overwrite(name, position, bytes([right[position] ^ 4]))
        assert world.store.guard.message_at(SIZE) is None
        world.store.guard.prepare_rewrite(SIZE, right)()
        assert world.store.guard.message_at(SIZE) == right
    assert world.fatal == []


# -- begun just before a kill ------------------------------------------------------------------------------------------


def begin_two_files(world: StoreWorld) -> None:
    """Begin two more files whose heads are not on the disk."""
    end = world.store.log.wrote + 2 * SIZE
    while world.store.log.wrote < end:
        world.append([world.draft("bills", body=b"%s %05d" % (b"message", len(world.sent)))])


@pytest.mark.parametrize("number", [4, 5])
def test_file_begun_just_before_a_kill_has_a_head(kind: str, tmp_path: Path, number: int) -> None:
    """``log-heads.json`` is written after the next flush; until then ``log-end`` has the heads."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    begin_two_files(world)
    fill(other, "another", end=world.store.log.wrote)
    assert [head.base_offset for head in heads_of(world).heads] == [0, SIZE, 2 * SIZE, 3 * SIZE]
    world.kill()
    other.close()
    replace_with_file_of(world, other, f"commitlog/{segments(world)[number]}")
    report = world.open()
    assert [Path(path).name for path in report.set_aside] == [f"commitlog-{number * SIZE:020d}-1"]
    assert report.missing != []
    assert world.find_altered() is None


def test_without_heads_in_the_log_end_a_foreign_file_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the test above: its assertions fail without those heads."""
    monkeypatch.setattr(LogEndFile, "note_head", lambda *_: None)
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    begin_two_files(world)
    fill(other, "another", end=world.store.log.wrote)
    world.kill()
    other.close()
    replace_with_file_of(world, other, f"commitlog/{segments(world)[4]}")
    assert world.open().set_aside == []


def test_heads_of_files_that_were_cut_are_not_in_the_log_end(tmp_path: Path) -> None:
    """Other records are written there, and a kill may happen before their own heads are recorded."""
    world = make_filled_store("faulty", tmp_path)
    begin_two_files(world)
    end = next(message.end for message in world.sent if message.end > 3 * SIZE)
    world.store.truncate(end)
    world.forget_after(end)
    assert not [base for base in decode_log_end(world.disk.read_file(world.path("log-end"))).heads if base >= end]
    begin_two_files(world)
    world.kill()
    assert_healthy(world)


# -- tools that only read ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_verify_names_log_files_of_another_store(kind: str, tmp_path: Path, case: str) -> None:
    """The administrator sees the file and the lost range before a start moves the file."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    world.close()
    other.close()
    names = [f"commitlog/{segments(world)[number]}" for number in CASES[case][0]]
    for name in names:
        replace_with_file_of(world, other, name)
    report = verify(world)
    foreign = [found for found in report.findings.kept if "belongs to another store or to another offset" in found.text]
    assert [(found.path, found.kind, found.harm) for found in foreign] == [
        (world.path(name), Kind.LOG_FILE, Harm.LOST) for name in names
    ]
    assert any(found.kind is Kind.MISSING for found in report.findings.kept)
    assert "would accept no messages" in str(inspect_store(FaultyReadingDisk(world.disk), world.root).next_start)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["store.json"], "store.json was written by another store"),
        (["store.json", "store.json.bak"], "another store wrote store.json and its copy"),
        (["recovery-point.json"], "it was written by another store"),
    ],
)
def test_verify_names_small_files_of_another_store(tmp_path: Path, names: list[str], text: str) -> None:
    """The administrator sees which copy a start would use, or why it would fail, before trying it."""
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    world.close()
    other.close()
    assert verify(world).findings.kept == []
    for name in names:
        replace_with_file_of(world, other, name)
    found = verify(world).findings.kept
    assert [one.path for one in found] == [names[0]]
    assert text in found[0].text
    is_refused = "would fail" in str(inspect_store(FaultyReadingDisk(world.disk), world.root).next_start)
    assert is_refused == (len(names) == 2)


def test_heads_do_not_wait_for_a_recovery_point(tmp_path: Path) -> None:
    """A broker that is killed soon after it began a file has the head of that file."""
    world = make_filled_store("faulty", tmp_path)
    fill_to = 4 * SIZE + SIZE // 2
    while world.store.log.wrote < fill_to:
        world.append([world.draft("bills")])
    world.store.flush_step()
    assert world.store.log.flushed >= 4 * SIZE
    assert [head.base_offset for head in heads_of(world).heads] == [0, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE]


def test_full_disk_keeps_valid_heads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The older heads stay valid; the failure is logged once, and the heads are written when there is space."""
    world = make_filled_store("faulty", tmp_path)
    before = heads_of(world)

    def refuse(path: str, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "full", path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.disk, "write_file", refuse)
        for end in (4, 5):
            while world.store.log.wrote < end * SIZE + SIZE // 2:
                world.append([world.draft("bills")])
            world.store.flush_step()
    assert caplog.messages.count("disk is full; store file not written") == 1
    assert heads_of(world) == before
    world.kill()
    assert world.open().set_aside == []
    assert len(heads_of(world).heads) == 6


# -- identity and recovery point ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_store_json_of_another_store_is_replaced_by_its_copy(
    kind: str, tmp_path: Path, is_clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If the copy is the store's own, it is used, and the report names the file."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    own = world.store.identity
    stop(world, is_clean=is_clean)
    stop(other, is_clean=is_clean)
    replace_with_file_of(world, other, "store.json")
    assert_healthy(world)
    assert (world.store.identity.uuid, world.store.identity.epochs) == (own.uuid, own.epochs)
    assert world.store.identity.generation == own.generation + 1
    assert "store.json was written by another store; its copy is used" in caplog.messages
    world.close()
    assert_healthy(world)


@pytest.mark.parametrize("is_copy_missing", [True, False], ids=["no copy", "both"])
def test_store_json_of_another_store_without_an_own_copy_refuses_the_start(
    kind: str, tmp_path: Path, is_copy_missing: bool
) -> None:
    """Then the used epochs are unknown. Each remedy in the refusal works."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    uuid = world.store.identity.uuid
    world.close()
    other.close()
    own = world.disk.read_file(world.path("store.json"))
    replace_with_file_of(world, other, "store.json")
    if is_copy_missing:
        world.disk.remove(world.path("store.json.bak"))
    else:
        replace_with_file_of(world, other, "store.json.bak")
    for _ in range(2):
        with pytest.raises(
            ConfigCorrupt, match=r"store\.json and its \.bak were written by another store .*remove both"
        ):
            world.open()
    foreign = world.disk.read_file(world.path("store.json"))
    world.disk.write_file(world.path("store.json"), own)
    assert_healthy(world)
    assert world.store.identity.uuid == uuid
    world.close()
    world.disk.write_file(world.path("store.json"), foreign)
    world.disk.remove(world.path("store.json.bak"))
    with pytest.raises(ConfigCorrupt):
        world.open()
    world.disk.remove(world.path("store.json"))
    assert_healthy(world)
    assert world.store.identity.former == uuid
    world.close()
    assert_healthy(world)


def test_copies_of_different_stores_without_another_uuid_refuse_the_start(tmp_path: Path) -> None:
    """Without another file with the store's uuid its own copy is unknown; the wrong one would number epochs twice."""
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    world.close()
    other.close()
    replace_with_file_of(world, other, "store.json")
    for name in ("recovery-point.json", HEADS):
        world.disk.remove(world.path(name))
    with pytest.raises(ConfigCorrupt, match="remove the one that another store wrote"):
        world.open()
    world.disk.remove(world.path("store.json"))
    assert_healthy(world)


@pytest.mark.parametrize("name", ["recovery-point.json", HEADS])
def test_small_file_of_another_store_is_not_used(
    kind: str, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If all other files have the uuid of one store, a file with another uuid is foreign, and no log file is."""
    world, other = make_filled_store(kind, tmp_path), make_filled_store(kind, tmp_path, "another")
    uuid = world.store.identity.uuid
    world.close()
    fill(other, "another", end=5 * SIZE)
    other.close()
    replace_with_file_of(world, other, name)
    assert_healthy(world)
    assert world.store.identity.uuid == uuid
    assert any("was written by another store and is not used" in text for text in caplog.messages)
    world.close()
    assert heads_of(world).store == uuid
    caplog.clear()
    assert_healthy(world)
    assert not any("another store" in text for text in caplog.messages)


@pytest.mark.parametrize("missing", [HEADS, "recovery-point.json"])
def test_own_copy_is_found_by_the_uuid_in_one_other_file(tmp_path: Path, missing: str) -> None:
    """Two of three files with the same uuid decide, if the log cannot."""
    world, other = make_filled_store("faulty", tmp_path), make_filled_store("faulty", tmp_path, "another")
    uuid = world.store.identity.uuid
    world.close()
    other.close()
    replace_with_file_of(world, other, "store.json")
    world.disk.remove(world.path(missing))
    assert_healthy(world)
    assert world.store.identity.uuid == uuid


@pytest.mark.parametrize("has_heads", [True, False], ids=["heads", "no heads"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_swapped_files_of_one_store_are_set_aside(kind: str, tmp_path: Path, is_clean: bool, has_heads: bool) -> None:
    """Such a file begins with a whole record other than its head. A note names the offset where it belongs."""
    world = make_filled_store(kind, tmp_path)
    stop(world, is_clean=is_clean)
    if not has_heads:
        world.disk.remove(world.path(HEADS))
    first, newest = segments(world)[0], segments(world)[3]
    one, two = (world.disk.read_file(world.path(f"commitlog/{name}")) for name in (first, newest))
    world.disk.write_file(world.path(f"commitlog/{first}"), two)
    world.disk.write_file(world.path(f"commitlog/{newest}"), one)
    report = world.open()
    assert [lost.cause for lost in report.missing] == [LossCause.HEAD, LossCause.TAIL]
    notes = [msgspec.json.decode(world.disk.read_file(f"{path}.json")) for path in report.set_aside]
    assert [(note["start"], note["own_offset"]) for note in notes] == [(0, 3 * SIZE), (3 * SIZE, 0)]
    world.close()
    for path, note in zip(report.set_aside, notes, strict=True):
        world.disk.rename(path, world.path(f"commitlog/{note['own_offset']:020d}"))
    assert_healthy(world)


def test_interrupted_start_with_a_new_identity_causes_no_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new identity for a log without store.json accepts the former uuid in files that were not replaced yet."""
    world = make_filled_store("faulty", tmp_path)
    world.close()
    for name in ("store.json", "store.json.bak"):
        world.disk.remove(world.path(name))

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(file_heads.HeadKeeper, "write", end)
        with pytest.raises(KeyboardInterrupt):
            world.open()
    world.kill()
    assert_healthy(world)
    world.kill()
    assert_healthy(world)


def test_newest_file_without_a_checkpoint_counts_as_missing_when_set_aside(tmp_path: Path) -> None:
    """A file begun after the last checkpoint belonged to the store: its offsets are not used again."""
    world, end = make_filled_store("faulty", tmp_path), 4 * SIZE
    while world.store.log.wrote < end + SIZE // 2:
        world.append([world.draft("bills", body=b"unflushed")])
    world.kill()
    name = segments(world)[-1]
    assert int(name) == end
    world.disk.write_file(
        world.path(f"commitlog/{name}"), world.disk.read_file(world.path(f"commitlog/{segments(world)[0]}"))
    )
    report = world.open()
    assert [(lost.start, lost.cause) for lost in report.missing] == [(end, LossCause.TAIL)]
    world.store.accept_loss("a test")
    physical, _ = world.append([world.draft("bills")])
    assert physical == [end + SIZE]
    world.close()
    report = world.open()
    assert (report.missing, report.set_aside) == ([], [])
