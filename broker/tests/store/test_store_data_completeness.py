"""An election learns whether a store still has everything that it has acknowledged; doubt survives clean stops.

A store is *in doubt* (`is_complete` is False) if it may have lost acknowledged messages. The boot id is called a
*machine* here: another one means that the machine went down in between.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from gantry_broker.app import Broker
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.roles.replication import PEAK_WINDOWS, PeakRate
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.data_completeness import (
    DAMAGED_MAX,
    ByteRange,
    CompletenessRecord,
    DataCompleteness,
    RecoveryFindings,
    decide_completeness,
    join_ranges,
)
from gantry_broker.store.loss import LossCause, LostRange
from gantry_broker.store.recovery_report import RecoveryReport
from gantry_broker.store.write_pool import NO_POOL, PoolStatus
from gantry_store_files.sealed import encode_sealed
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import dialogue, local_conf, wait_until

KNOWN_COMPLETE: Final = CompletenessRecord(is_complete=True, machine="a", is_crash_safe=True, buffers=3)
ANONYMOUS: Final = PoolStatus("anonymous", 3, 3, False)


def crash(buffers: int = 3, *, is_damaged: bool = False) -> RecoveryFindings:
    """Return what a start finds after a crash, with this number of write buffers."""
    return RecoveryFindings(is_clean=False, is_empty=False, is_damaged=is_damaged, buffers=buffers)


@pytest.mark.parametrize(
    ("last", "found", "machine", "expected"),
    [
        pytest.param(KNOWN_COMPLETE, crash(), "a", True, id="the process was killed"),
        pytest.param(KNOWN_COMPLETE, crash(), "b", False, id="the machine went down"),
        pytest.param(KNOWN_COMPLETE, crash(buffers=2), "a", False, id="a write buffer is gone"),
        pytest.param(KNOWN_COMPLETE, crash(is_damaged=True), "a", False, id="bytes are gone"),
        pytest.param(CompletenessRecord(True, "a", False), crash(), "a", False, id="anonymous buffers were killed"),
        pytest.param(CompletenessRecord(True, "", True), crash(), "", False, id="unknown machine"),
        pytest.param(KNOWN_COMPLETE, RecoveryFindings(True, False, False, 0), "b", True, id="a clean stop"),
        pytest.param(KNOWN_COMPLETE, RecoveryFindings(True, False, True, 3), "a", False, id="rot after a clean stop"),
        pytest.param(
            CompletenessRecord(False, "a", True),
            RecoveryFindings(True, False, False),
            "a",
            False,
            id="doubt, and a clean stop",
        ),
        pytest.param(CompletenessRecord(None, "a", True), crash(0), "a", None, id="unknown before"),
        pytest.param(None, RecoveryFindings(True, True, False), "a", True, id="a new store"),
        pytest.param(None, RecoveryFindings(True, False, False), "a", None, id="a store from before"),
        pytest.param(None, RecoveryFindings(True, False, True), "a", False, id="a damaged store from before"),
    ],
)
def test_completeness_after_a_start(
    last: CompletenessRecord | None, found: RecoveryFindings, machine: str, expected: bool | None
) -> None:
    """It is True only where that is certain, and False wherever an acknowledged message may be lost."""
    assert decide_completeness(last, found, machine) is expected


def report(*, is_clean: bool = False, end: int = 100) -> RecoveryReport:
    return RecoveryReport(is_clean=is_clean, start=0, end=end)


def started(disk: FaultyDisk, machine: str, found: RecoveryReport, pool: PoolStatus = NO_POOL) -> DataCompleteness:
    """Return the completeness after a start on the run ``machine`` of a machine, whose recovery reports ``found``."""
    one = DataCompleteness(disk, "/store", machine)
    one.load()
    one.record_start(found, pool)
    return one


def known_disk() -> FaultyDisk:
    """Return the disk of a store that had everything, on machine "a"."""
    disk = FaultyDisk()
    disk.make_directory("/store")
    disk.sync_directory("/")
    assert started(disk, "a", report(is_clean=True, end=0)).is_complete is True
    return disk


def test_doubt_survives_clean_stops_and_power_loss() -> None:
    """It ends when the broker has followed a master, and not before."""
    disk = known_disk()
    assert started(disk, "b", report()).is_complete is False
    disk.lose_unsynced()
    assert started(disk, "b", report(is_clean=True)).is_complete is False

    started(disk, "b", report(is_clean=True)).record_caught_up()
    disk.lose_unsynced()

    assert started(disk, "b", report()).is_complete is True, "expected complete data: only the process was killed"
    assert started(disk, "c", report()).is_complete is False


def scoped(disk: FaultyDisk, scope: str) -> bool | None:
    """Return the completeness of a start in a pod after a crash, on one run of one machine."""
    one = DataCompleteness(disk, "/store", "a", scope=scope)
    one.load()
    one.record_start(report(), NO_POOL)
    return one.is_complete


def test_other_pod_on_the_same_machine_may_lack_data() -> None:
    """Its memory is not the old pod's, though the machine kept running; the container of one pod may restart."""
    disk = known_disk()
    assert scoped(disk, "pod-1") is False
    started(disk, "a", report(is_clean=True)).record_caught_up()

    one = DataCompleteness(disk, "/store", "a", scope="pod-1")
    one.load()
    one.record_start(report(is_clean=True), NO_POOL)
    assert one.is_complete is True
    assert scoped(disk, "pod-1") is True
    assert scoped(disk, "pod-2") is False


def test_without_scope_a_detached_volume_counts_as_complete() -> None:
    """The twin: the boot id alone cannot distinguish one pod from the next."""
    disk = known_disk()

    assert scoped(disk, "") is True


async def test_store_of_another_broker_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong volume is mounted, or the broker was renamed: it starts, and warns once.

    The same name gives no warning.
    """

    async def reported(name: str) -> list[tuple[str, str]]:
        caplog.clear()
        broker = Broker(broker_settings(local_conf(tmp_path, brokerName=name)), disk=RealDisk(), clock=SystemClock())
        await broker.start()
        await broker.close()
        found = [vars(line) for line in caplog.records if "last used by another broker" in line.getMessage()]
        return [(line["last"], line["now"]) for line in found]

    assert [await reported(name) for name in ("broker-b", "broker-b")] == [[], []]
    assert await reported("broker-a") == [("TestCluster/broker-b", "TestCluster/broker-a")]
    assert await reported("broker-a") == []


def test_following_does_not_repair_damage() -> None:
    """Damaged bytes in the middle of the log are not copied again."""
    disk = known_disk()
    damaged = report()
    damaged.damaged.append((10, 20))
    one = started(disk, "a", damaged)

    one.record_caught_up()

    assert one.is_complete is False


def damaged_report(*ranges: tuple[int, int], is_clean: bool = False) -> RecoveryReport:
    """Return the report of a start that has found these damaged ranges."""
    found = report(is_clean=is_clean)
    found.damaged.extend(ranges)
    return found


def test_damage_survives_clean_restarts() -> None:
    """A clean start reads only the end of the log: that it finds no damage does not mean that the log has none."""
    disk = known_disk()
    started(disk, "a", damaged_report((10, 20), (40, 50)))
    started(disk, "a", damaged_report((20, 30)))
    disk.lose_unsynced()
    one = started(disk, "a", report(is_clean=True))
    assert one.damaged == ((10, 30), (40, 50))

    found: list[tuple[bool | None, tuple[ByteRange, ...]]] = []
    for unresolved in (None, ((40, 50),), ()):
        one.record_caught_up(damaged=unresolved)
        found.append((one.is_complete, one.damaged))
    assert found == [(False, ((10, 30), (40, 50))), (False, ((40, 50),)), (True, ())]

    again = started(disk, "a", report(is_clean=True))
    assert (again.is_complete, again.damaged) == (True, ())


def test_new_copy_of_the_log_resolves_damage() -> None:
    """The damaged bytes were thrown away; the next start does not look for them."""
    disk = known_disk()
    started(disk, "a", damaged_report((10, 20)))
    started(disk, "a", report(is_clean=True)).record_caught_up(is_copied_anew=True)

    again = started(disk, "a", report(is_clean=True))
    assert (again.is_complete, again.damaged) == (True, ())


def test_record_without_damaged_ranges_is_read() -> None:
    """An earlier version has recorded doubt and no ranges: then catching up is enough, as it was there."""
    disk = FaultyDisk()
    disk.make_directory("/store")
    content = {"is_complete": False, "machine": "a", "is_crash_safe": True, "buffers": 0, "broker": "c/b"}
    disk.write_file("/store/completeness.json", encode_sealed(content))
    one = started(disk, "a", report(is_clean=True))
    assert (one.is_complete, one.damaged) == (False, ())

    one.record_caught_up()

    assert one.is_complete is True


@pytest.mark.parametrize(
    ("ranges", "end", "expected"),
    [
        pytest.param([], 100, (), id="nothing"),
        pytest.param([(40, 50), (10, 20)], 100, ((10, 20), (40, 50)), id="in order"),
        pytest.param([(10, 20), (20, 30), (15, 18)], 100, ((10, 30),), id="adjacent and overlapping"),
        pytest.param([(10, 20), (90, 120), (100, 110)], 100, ((10, 20), (90, 100)), id="after the end"),
    ],
)
def test_damaged_ranges_are_joined(
    ranges: list[tuple[int, int]], end: int, expected: tuple[tuple[int, int], ...]
) -> None:
    """Each byte is in one range, and none is after the end of the log, where other records will be."""
    assert join_ranges(ranges, end) == expected


def test_number_of_damaged_ranges_is_limited() -> None:
    """No damage is left out: the last range contains the rest."""
    joined = join_ranges([(start, start + 1) for start in range(0, 3 * DAMAGED_MAX, 2)], 3 * DAMAGED_MAX)

    assert len(joined) == DAMAGED_MAX
    assert joined[-1] == (2 * (DAMAGED_MAX - 1), 3 * DAMAGED_MAX - 1)


def missing(cause: LossCause) -> RecoveryReport:
    """Return the report of a start that misses a range of the log."""
    found = report(is_clean=True)
    found.missing.append(LostRange(10, 20, cause))
    return found


@pytest.mark.parametrize("cause", [LossCause.TAIL, LossCause.ALL])
def test_following_restores_a_lost_tail(cause: LossCause) -> None:
    """Flushed bytes that are lost at the end are copied again, so the store is complete then."""
    disk = known_disk()
    one = started(disk, "a", missing(cause))
    assert one.is_complete is False

    one.record_caught_up()

    assert one.is_complete is True


@pytest.mark.parametrize("cause", [LossCause.HEAD, LossCause.MIDDLE])
def test_hole_is_resolved_by_a_new_copy_or_an_accepted_loss(cause: LossCause) -> None:
    """Following at the end restores nothing in the middle; the doubt survives the next start, too."""
    for is_anew in (True, False):
        disk = known_disk()
        one = started(disk, "a", missing(cause))
        one.record_caught_up()
        assert one.is_complete is False
        assert started(disk, "a", report(is_clean=True)).is_complete is False

        one.record_caught_up(is_copied_anew=is_anew, is_loss_accepted=not is_anew)
        assert one.is_complete is True


def test_lost_log_is_not_a_new_store() -> None:
    """The whole log is missing, which is a known loss, also where no start has recorded anything."""
    disk = FaultyDisk()
    disk.make_directory("/store")
    found = RecoveryReport(is_clean=True, start=0, end=0)
    found.missing.append(LostRange(0, 20, LossCause.ALL))

    assert started(disk, "a", found).is_complete is False


def test_kind_of_buffers_is_recorded() -> None:
    """The start after the next one may have another kind of buffer, and must know the previous kind."""
    disk = known_disk()
    started(disk, "a", report(is_clean=True), ANONYMOUS)

    assert started(disk, "a", report()).is_complete is False


def test_completeness_is_unknown_after_a_full_disk() -> None:
    """A doubt that cannot be recorded must not be forgotten by a clean stop."""
    disk = known_disk()
    disk.fail_next("sync", errno.ENOSPC)
    assert started(disk, "b", report()).is_complete is None

    assert started(disk, "b", report(is_clean=True)).is_complete is None


def test_unreadable_record_means_doubt() -> None:
    """It is no reason to refuse the start."""
    disk = known_disk()
    disk.write_file("/store/completeness.json", b"garbage")

    assert started(disk, "a", report(is_clean=True)).is_complete is None


def former_file(*, is_complete: bool | None, machine: str) -> bytes:
    """Return the record as earlier versions wrote it."""
    return encode_sealed({"is_whole": is_complete, "machine": machine, "is_crash_safe": True, "buffers": 0})


@pytest.mark.parametrize(("machine", "expected"), [("a", True), ("b", False)])
def test_record_of_an_earlier_version_is_read(machine: str, expected: bool) -> None:
    """`whole.json` counts as `completeness.json` does, and the first start replaces it."""
    disk = FaultyDisk()
    disk.make_directory("/store")
    disk.write_file("/store/whole.json", former_file(is_complete=True, machine="a"))

    assert started(disk, machine, report()).is_complete is expected

    assert not disk.exists("/store/whole.json")
    assert started(disk, machine, report()).is_complete is expected


def test_record_that_an_earlier_version_wrote_after_ours_counts() -> None:
    """After a downgrade the newer record is the one of the earlier version, which may be in doubt."""
    disk = known_disk()
    disk.write_file("/store/whole.json", former_file(is_complete=False, machine="a"))

    assert started(disk, "a", report(is_clean=True)).is_complete is False


def test_record_of_an_earlier_version_does_not_survive_a_full_disk() -> None:
    """The next start must not find it, since this start may have lost data and could not record it."""
    disk = FaultyDisk()
    disk.make_directory("/store")
    disk.write_file("/store/whole.json", former_file(is_complete=True, machine="a"))
    disk.fail_next("sync", errno.ENOSPC)

    assert started(disk, "a", report()).is_complete is None
    assert started(disk, "a", report(is_clean=True)).is_complete is None


def test_peak_rate_covers_every_second() -> None:
    """A second overlaps two neighbouring samples, so both count; samples older than a minute do not."""
    rate = PeakRate()
    assert rate.bytes_per_s(5) is None
    for wrote in (0, 10, 40, 45):
        rate.sample(wrote)
    assert rate.bytes_per_s(45) == 40
    assert rate.bytes_per_s(95) == 55, "expected that growth since the last sample counts, too"
    rate.sample(0)
    assert rate.bytes_per_s(0) == 40, "expected that a cut of the log counts as no growth"
    for _ in range(PEAK_WINDOWS):
        rate.sample(0)
    assert rate.bytes_per_s(0) == 0


@asynccontextmanager
async def running(conf: dict[str, str]) -> AsyncIterator[Broker]:
    broker = Broker(broker_settings(conf), disk=RealDisk(), clock=SystemClock())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


def mark_as_crashed(conf: dict[str, str]) -> None:
    """Write the file `abort` again, which a clean stop has removed, and a crash leaves."""
    (Path(conf["storePathRootDir"]) / "abort").write_bytes(b"")


async def test_slave_is_complete_when_it_has_caught_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of its process keeps it complete; after a crash of its machine it is in doubt until it has followed."""
    async with running(local_conf(tmp_path / "master")) as master:
        role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.settings.ha_address}
        conf = local_conf(tmp_path / "slave", **role)
        async with running(conf) as slave:
            async with dialogue(master) as peer:
                assert (await peer.send(b"one")).code == 0
            await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote)
            status = await slave.orders.status()
            assert (status.is_complete, status.is_crash_safe) == (True, True)
            assert status.heartbeat_age_ms is not None and 0 <= status.heartbeat_age_ms < 30_000
            assert status.epoch_start == 0
        mark_as_crashed(conf)
        async with running(conf | {"haMasterAddress": "127.0.0.1:9"}) as slave:
            assert (await slave.orders.status()).is_complete is True
            assert (await slave.orders.status()).heartbeat_age_ms is None, "expected none: no master has sent anything"
        mark_as_crashed(conf)
        async with running(conf | {"haMasterAddress": "127.0.0.1:9", "memoryScope": "another pod"}) as slave:
            assert (await slave.orders.status()).is_complete is False
        async with running(conf) as slave:
            await wait_until(lambda: slave.roles.completeness.is_complete is True)
        mark_as_crashed(conf)
        monkeypatch.setattr(SystemClock, "boot_id", lambda self: "another run")
        async with running(conf | {"haMasterAddress": "127.0.0.1:9"}) as slave:
            assert (await slave.orders.status()).is_complete is False
        async with running(conf) as slave:
            assert (await slave.orders.status()).is_complete is False
            await wait_until(lambda: slave.roles.completeness.is_complete is True)
