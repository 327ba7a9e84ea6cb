"""Row D2 of the fault catalogue: torn and reordered writes.

The first bad record ends the log, and what follows it is never served. A twin runs without one check of the recovery,
and must find the damage.

A failure names its seed: `pytest broker/tests/faults/test_fault_torn.py --slow -k "from25-"` repeats its group.
"""

import shutil
from collections.abc import Callable, Iterator

import pytest
from faults.loop_disk import LoopDisk, loop_disk
from faults.torn import Torn, in_memory, on_disk, run_until_torn

from gantry_broker.store import recovery
from gantry_broker.store.recovery import scan_log
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.message import RecordCheck, check_record

GROUP = 25
"""The number of seeds of one test."""
GROUPS = range(0, 200, GROUP)


@pytest.fixture(scope="module")
def torn_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    """One disk for all seeds; each has its own store on it."""
    with loop_disk(tmp_path_factory.mktemp("torn")) as disk:
        yield disk


def run_all(run_seed: Callable[[int], Torn], seeds: range) -> list[Torn]:
    """Run all seeds; a failure names its seed."""
    found = []
    for seed in seeds:
        try:
            found.append(run_seed(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return found


def expect_holes(outcomes: list[Torn]) -> None:
    """Check that some losses left whole records after a hole: otherwise nothing was proved."""
    assert sum(1 for outcome in outcomes if outcome.cut) > len(outcomes) / 3
    assert sum(outcome.whole_after_hole for outcome in outcomes) > 0


@pytest.mark.parametrize("first", (0, 25), ids=lambda first: f"from{first}-")
def test_a_torn_tail_is_cut_at_the_first_bad_record(first: int) -> None:
    """D2, in memory: for any subset of the unsynced sectors the log is a prefix of what was sent."""
    expect_holes(run_all(lambda seed: run_until_torn(in_memory(), seed), range(first, first + GROUP)))


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.needs_loop
@pytest.mark.parametrize("first", GROUPS, ids=lambda first: f"from{first}-")
def test_a_torn_tail_on_ext4_is_cut_at_the_first_bad_record(torn_disk: LoopDisk, first: int) -> None:
    """D2, 200 seeds on a real file system: whichever dirty pages are missing, the log is a prefix."""

    def run_seed(seed: int) -> Torn:
        name = f"store{seed}"
        world = on_disk(torn_disk, name)
        try:
            return run_until_torn(world, seed, torn_disk)
        finally:
            world.disk.kill()
            shutil.rmtree(torn_disk.path / name)

    expect_holes(run_all(run_seed, range(first, first + GROUP)))


@pytest.mark.slow
def test_recovery_that_skips_holes_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2's twin: a scan that takes every hole for damage and skips it serves later records, and is detected."""

    def jumping(files: object, start: int, mark: int, found: object, **options: object) -> object:
        return scan_log(files, start, recovery.INFINITE, found, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("gantry_broker.store.recovery_execution.scan_log", jumping)

    with pytest.raises(AssertionError):
        run_all(lambda seed: run_until_torn(in_memory(), seed), range(50))


@pytest.mark.slow
def test_recovery_without_checksums_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2's twin: without checksums half a record is taken for a whole one, and that is detected."""

    def believing(*arguments: object, **options: object) -> RecordCheck:
        return check_record(*arguments, **(options | {"verify_crc": False}))  # type: ignore[arg-type]

    monkeypatch.setattr("gantry_broker.store.recovery.check_record", believing)

    with pytest.raises((AssertionError, RemoteProtocolError)):
        run_all(lambda seed: run_until_torn(in_memory(), seed), range(50))
