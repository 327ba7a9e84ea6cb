"""The procedure of a migration: after any failure there is at most one master, and no message is lost."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final, overload

import pytest

from gantry_cli.migrate import procedure as migrate_procedure
from gantry_cli.migrate import record as migrate_record
from gantry_cli.migrate.procedure import CAUGHT_UP_BYTES, Migration, Progress
from gantry_cli.migrate.record import MigrationDirectory, MigrationRecord, Phase
from gantry_cli.migrate.source import (
    CLOSE_SETTINGS,
    STOP_WRITES_SETTINGS,
    BrokerRegistration,
    MigrationError,
    Offsets,
    SourceLog,
)
from gantry_cli.migrate.text import result_text
from gantry_remoting.durable_files import replace_file
from gantry_status.orders import (
    HaRole,
    HaStatus,
    OrderRefused,
    OrderUnanswered,
    Promised,
    PromiseRequest,
    Promote,
    StatusOrder,
)
from gantry_testing.local import wait_until

OLD_SETTINGS = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "false", "brokerPermission": "6", "brokerName": "b"}
NEW_BROKER_CONF = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterIsClassic": "true", "listenPort": "10911"}


@pytest.fixture(autouse=True)
def _shorten_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STABLE_CHECK_S", "POLL_S", "PROGRESS_S"):
        monkeypatch.setattr(migrate_procedure, name, 0.0)
    monkeypatch.setattr(migrate_procedure, "ROUTES_TIMEOUT_S", 0.05)
    monkeypatch.setattr(migrate_procedure, "STATUS_RETRY_S", -1.0)


@final
class ModelMigration:
    """An old broker that accepts a message in every call while it may, ours that copies, and one name server.

    ``fault`` is raised once, before or after the call with the number ``fault_call``.
    """

    def __init__(
        self,
        home: MigrationDirectory,
        *,
        fault_call: int = 0,
        fault: BaseException | None = None,
        is_fault_after: bool = False,
    ) -> None:
        self.home = home
        self.settings = dict(OLD_SETTINGS)
        self.end = 1_000
        """The end of the old broker's log."""

        self.pending_appends = 2
        """Appends that passed the check of the role before it was changed."""

        self.is_copying = True
        """Whether our broker copies the log while it is a slave."""

        self.is_registered = True
        """Whether the name server lists our broker when it is the master."""

        self.dispatched_bytes_per_reply = 10**9
        """The bytes that the new broker dispatches to its queues before each response."""

        self.status = HaStatus(role=HaRole.SLAVE, wrote=0, confirmed=0, dispatched=0, address="ours")
        self.refusals = 0
        """How many promotions the new broker refuses."""

        self.calls = 0
        """The number of calls so far."""

        self.steps: list[str] = []
        """The reported steps."""

        self._fault_call, self._fault, self._is_fault_after = fault_call, fault, is_fault_after

    @property
    def old_accepts(self) -> bool:
        """Whether the old broker accepts messages."""
        return self.settings["brokerRole"] != "SLAVE"

    def fault_around_call(self) -> Iterator[None]:
        """Yield once for the call itself, and raise the fault before or after it, if this is its call."""
        self.calls += 1
        is_hit = self.calls == self._fault_call and self._fault is not None
        assert self._fault is not None or not is_hit
        if is_hit and not self._is_fault_after:
            raise self._fault  # type: ignore[misc]
        if self.old_accepts:
            self.end += 10
        elif self.pending_appends:
            self.pending_appends -= 1
            self.end += 10
        yield
        if is_hit and self._is_fault_after:
            raise self._fault  # type: ignore[misc]

    def check(self) -> None:
        """Check that at most one broker accepts messages, and that ours does so only with the whole old log."""
        is_master = self.status.role is HaRole.MASTER
        assert not (is_master and self.old_accepts), "two masters"
        assert not is_master or self.status.wrote == self.end, "something is lost"

    def migration(self, timeout_s: float = 60.0) -> Migration:
        record = self.home.load_record() or MigrationRecord(old_address="old", broker_name="b")
        return Migration(
            OldBroker(self), NewBroker(self), ModelNameServer(self), self.home, record,
            report_step=self.steps.append, report_progress=self.check_progress, timeout_s=timeout_s,
        )  # fmt: skip

    def check_progress(self, progress: Progress) -> None:
        assert 0 <= progress.copied <= progress.total


@final
class OldBroker:
    address = "old"

    def __init__(self, model: ModelMigration) -> None:
        self._model = model

    async def config(self) -> dict[str, str]:
        for _ in self._model.fault_around_call():
            pass
        return dict(self._model.settings)

    async def log(self) -> SourceLog:
        for _ in self._model.fault_around_call():
            pass
        return SourceLog(0, self._model.end)

    async def update_config(self, values: Mapping[str, str]) -> None:
        for _ in self._model.fault_around_call():
            self._model.settings |= values
            self._model.check()

    async def offsets(self) -> Offsets:
        return {}


@final
class NewBroker:
    path = "ours"

    def __init__(self, model: ModelMigration) -> None:
        self._model = model

    @overload
    async def call(self, order: PromiseRequest, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: PromiseRequest | StatusOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        model = self._model
        await asyncio.sleep(0)
        for _ in model.fault_around_call():
            role, wrote, epoch = model.status.role, model.status.wrote, model.status.epoch
            if role is HaRole.SLAVE and model.is_copying:
                wrote = model.end
            if isinstance(order, Promote):
                if model.refusals:
                    model.refusals -= 1
                    raise OrderRefused("epoch 9 was promised to another master")
                assert model.home.read_conf()["brokerRole"] == "ASYNC_MASTER", "it would restart as a slave"
                role, epoch = HaRole.MASTER, order.epoch
            dispatched = min(wrote or 0, (model.status.dispatched or 0) + model.dispatched_bytes_per_reply)
            model.status = HaStatus(
                role=role, wrote=wrote, confirmed=wrote, dispatched=dispatched, epoch=epoch, address="ours"
            )
            model.check()
        return model.status


@final
class ModelNameServer:
    def __init__(self, model: ModelMigration) -> None:
        self._model = model

    async def registrations(self, name: str) -> list[BrokerRegistration]:
        for _ in self._model.fault_around_call():
            pass
        is_ours = self._model.status.role is HaRole.MASTER and self._model.is_registered
        return [BrokerRegistration("ns", 479, "c", {0: "ours" if is_ours else "old"})]


async def run_migration(model: ModelMigration) -> Migration:
    """Run the command once, from the state where the last run ended."""
    migration = model.migration()
    if migration.record.phase is Phase.PROMOTING:
        await migration.promote()
    else:
        await migration.resume()
        await migration.catch_up()
        await migration.switch()
    await migration.finish()
    return migration


@pytest.fixture
def home(tmp_path: Path) -> MigrationDirectory:
    one = MigrationDirectory(tmp_path / "data")
    one.write_conf(NEW_BROKER_CONF, "a test")
    return one


async def test_switch_keeps_all_accepted_messages(home: MigrationDirectory) -> None:
    """Appends in progress when writes are stopped are copied; the old broker stays closed."""
    model = ModelMigration(home)

    migration = await run_migration(model)

    assert (model.status.role, model.status.wrote, model.pending_appends) == (HaRole.MASTER, model.end, 0)
    assert {key: model.settings[key] for key in STOP_WRITES_SETTINGS} == STOP_WRITES_SETTINGS | CLOSE_SETTINGS
    assert migration.record.phase is Phase.DONE and migration.record.end == model.end
    assert migration.record.pause_ms >= 0
    assert "The old broker at old is closed and removed from the routes: stop it" in [
        *result_text(migration.record, None, 0)
    ]
    assert home.read_conf() == {"brokerRole": "ASYNC_MASTER", "brokerId": "0", "listenPort": "10911"}


@pytest.mark.parametrize("is_fault_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "fault",
    [MigrationError("gone"), asyncio.CancelledError(), OrderUnanswered("no answer")],
    ids=["failure", "ctrl-c", "silence"],
)
async def test_after_any_failure_at_most_one_broker_serves(
    home: MigrationDirectory, fault: BaseException, is_fault_after: bool
) -> None:
    """A fault in any single call never leaves two masters, and another run completes the migration."""
    whole = ModelMigration(home)
    await run_migration(whole)
    for at in range(1, whole.calls + 1):
        home.record_file.unlink(missing_ok=True)
        home.write_conf(NEW_BROKER_CONF, "a test")
        model = ModelMigration(home, fault_call=at, fault=fault, is_fault_after=is_fault_after)
        try:
            await run_migration(model)
        except (MigrationError, OrderUnanswered, asyncio.CancelledError):
            record = home.load_record()
            phase = Phase.ATTACHED if record is None else record.phase
            assert phase is not Phase.ATTACHED or model.settings == OLD_SETTINGS, (
                f"call {at}: the old broker is not restored"
            )
            assert phase is not Phase.STOPPING, f"call {at}: no broker accepts messages"
        model.check()

        record = home.load_record()
        if record is None or record.phase is not Phase.DONE:
            await run_migration(model)
        assert model.status.role is HaRole.MASTER, f"call {at}"
        model.check()


async def test_queues_are_built_before_the_write_pause(home: MigrationDirectory) -> None:
    """After a long copy, queues lag behind the log; they are built before the write pause begins."""
    model = ModelMigration(home)
    model.end, model.dispatched_bytes_per_reply = 5 * CAUGHT_UP_BYTES, CAUGHT_UP_BYTES

    await model.migration().catch_up()

    assert (model.status.dispatched or 0) >= model.end - CAUGHT_UP_BYTES - 100
    assert model.calls >= 8


async def test_time_until_the_rest_is_copied_is_limited(home: MigrationDirectory) -> None:
    """If the rest is not copied in time, the old broker is restored."""
    model = ModelMigration(home)
    migration = model.migration(timeout_s=0.5)
    await migration.catch_up()
    model.is_copying = False

    with pytest.raises(MigrationError, match=r"the rest of the log was not copied within 0.5 s"):
        await migration.switch()

    assert model.settings == OLD_SETTINGS
    assert migration.record.phase is Phase.ATTACHED


async def test_silent_old_broker_is_reported_as_an_error(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it does not return its settings in time, nothing was changed, and the error says so."""
    model = ModelMigration(home)
    migration = model.migration(timeout_s=0.05)
    await migration.catch_up()
    monkeypatch.setattr(OldBroker, "config", lambda self: asyncio.sleep(60, {}))

    with pytest.raises(MigrationError, match=r"did not return its settings within 0.05 s") as caught:
        await migration.switch()

    assert "still accepts messages" in (caught.value.remedy or "")
    assert (model.settings, migration.record.phase) == (OLD_SETTINGS, Phase.ATTACHED)


async def test_settings_that_changed_between_two_runs_are_restored(home: MigrationDirectory) -> None:
    """A run that fails restores the settings that the old broker had before that run, not those of an earlier one."""
    model = ModelMigration(home)
    model.is_copying = False
    changed = {"brokerRole": "SYNC_MASTER"}
    for settings in (OLD_SETTINGS, OLD_SETTINGS | changed):
        model.settings = dict(settings)
        with pytest.raises(MigrationError, match="not copied within"):
            await model.migration(timeout_s=0.5).switch()
        assert model.settings == settings


async def test_time_until_clients_are_routed_is_not_limited(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write pause may last longer than the timeout: after the promotion has begun, the old broker never resumes."""
    model = ModelMigration(home)
    model.is_registered = False
    monkeypatch.setattr(migrate_procedure, "ROUTES_TIMEOUT_S", 60.0)
    migration = model.migration(timeout_s=1.0)
    await migration.catch_up()

    switching = asyncio.create_task(migration.switch())
    await wait_until(lambda: not model.old_accepts)
    stopped = time.monotonic()
    await wait_until(lambda: time.monotonic() > stopped + 1.0)
    assert model.status.role is HaRole.MASTER and not switching.done()
    model.is_registered = True

    assert (await switching).pause_ms > 1_000
    assert not model.old_accepts


async def test_failed_restore_of_old_broker_is_reported(home: MigrationDirectory) -> None:
    """The record shows that the old broker refuses messages, and --abort restores it."""
    model = ModelMigration(home)
    migration = model.migration(timeout_s=0.5)
    await migration.catch_up()
    model.is_copying = False
    model.settings["brokerRole"] = "ASYNC_MASTER"
    restore_source, calls = migration.restore_source, 0

    async def broken() -> None:
        nonlocal calls
        calls += 1
        raise MigrationError("old: connection refused")

    migration.restore_source = broken  # type: ignore[method-assign]
    with pytest.raises(MigrationError, match="could not be restored") as caught:
        await migration.switch()
    assert "--abort" in (caught.value.remedy or "") and calls == 1
    record = home.load_record()
    assert record is not None and record.phase is Phase.STOPPING

    migration.restore_source = restore_source  # type: ignore[method-assign]
    await model.migration().resume()
    assert model.settings == OLD_SETTINGS | {"brokerRole": "ASYNC_MASTER"}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["full disk", "failed sync"])
async def test_unwritable_record_of_the_promotion_leaves_one_broker(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch, is_replaced: bool
) -> None:
    """The old broker is restored, except if the record has the promotion already: then the next run promotes."""
    model = ModelMigration(home)

    def fail(path: Path, data: bytes) -> None:
        is_promotion = b'"PROMOTING"' in data
        if is_replaced or not is_promotion:
            replace_file(path, data)
        if is_promotion:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(migrate_record, "replace_file", fail)
    with pytest.raises(MigrationError, match=r"migration\.json cannot be written: No space left") as caught:
        await run_migration(model)

    remedy = caught.value.remedy or ""
    assert "free space" in remedy and "--data" not in remedy
    assert ("the old broker stays stopped" in remedy, model.old_accepts) == (is_replaced, not is_replaced)
    assert is_replaced or model.settings == OLD_SETTINGS
    model.check()
    monkeypatch.setattr(migrate_record, "replace_file", replace_file)
    assert (await run_migration(model)).record.phase is Phase.DONE


@pytest.mark.parametrize("phase", ["STOPPING", "ATTACHED"])
async def test_old_broker_that_accepts_messages_is_not_reported_as_stopped(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """If only the record cannot be written, before the stop or after the restore, the error does not claim a stop."""
    model = ModelMigration(home)
    migration = model.migration(timeout_s=0.5)
    await migration.catch_up()
    model.is_copying = False

    def fail(path: Path, data: bytes) -> None:
        if f'"{phase}"'.encode() in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, data)

    monkeypatch.setattr(migrate_record, "replace_file", fail)
    with pytest.raises(MigrationError, match="cannot be written: No space left") as caught:
        await migration.switch()

    assert model.settings == OLD_SETTINGS
    assert "refuse" not in str(caught.value.remedy) and "--abort" not in str(caught.value.remedy)
    assert ("accepts messages again" in caught.value.reason) == (phase == "ATTACHED")
    monkeypatch.setattr(migrate_record, "replace_file", replace_file)
    model.is_copying = True
    assert (await run_migration(model)).record.phase is Phase.DONE


async def test_unwritable_settings_of_new_broker_are_reported_with_the_stopped_old_one(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the promotion was recorded, the error says that the old broker stays stopped; another run continues."""
    model = ModelMigration(home)

    def fail(path: Path, data: bytes) -> None:
        if path == home.conf:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(path, data)

    monkeypatch.setattr(migrate_record, "replace_file", fail)
    with pytest.raises(MigrationError, match=r"broker\.conf cannot be written") as caught:
        await run_migration(model)

    remedy = caught.value.remedy or ""
    assert "the old broker stays stopped" in remedy and "--data" not in remedy
    assert not model.old_accepts and model.status.role is HaRole.SLAVE
    monkeypatch.setattr(migrate_record, "replace_file", replace_file)
    assert (await run_migration(model)).record.phase is Phase.DONE


async def test_refused_promotion_can_be_repeated(home: MigrationDirectory) -> None:
    """Writes stay stopped, since the cause is unknown; the next run promotes the new broker."""
    model = ModelMigration(home)
    model.refusals = 1

    with pytest.raises(MigrationError, match="promised to another master"):
        await run_migration(model)
    assert not model.old_accepts
    await run_migration(model)

    assert model.status.role is HaRole.MASTER


async def test_name_servers_without_new_route_are_reported(home: MigrationDirectory) -> None:
    """After the promotion nothing is restored; the next run waits for the name servers again."""
    model = ModelMigration(home)
    model.is_registered = False

    with pytest.raises(MigrationError, match="is not registered at name servers: ns"):
        await run_migration(model)
    assert model.status.role is HaRole.MASTER and not model.old_accepts
    model.is_registered = True

    assert (await run_migration(model)).record.phase is Phase.DONE


async def test_messages_accepted_by_old_broker_after_switch_are_reported(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the old broker was set back manually and accepted messages, the migration fails."""
    model = ModelMigration(home)
    migration = model.migration()
    await migration.resume()
    await migration.catch_up()
    await migration.switch()
    monkeypatch.setattr(ModelMigration, "check", lambda _: None)
    model.end += 500

    with pytest.raises(MigrationError, match="accepted messages after the switch"):
        await migration.finish()


@pytest.mark.parametrize("lost", ["update_config", "log"])
async def test_old_broker_that_does_not_confirm_its_closing_is_reported(
    home: MigrationDirectory, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The migration is done, but its result, also of a later run, does not say that the old broker is closed."""
    model = ModelMigration(home)
    migration = model.migration()
    await migration.resume()
    await migration.catch_up()
    switched = await migration.switch()

    async def fail(*_: object) -> None:
        raise MigrationError("old: connection refused")

    monkeypatch.setattr(OldBroker, lost, fail)
    await migration.finish()

    record = home.load_record()
    assert record is not None and record.phase is Phase.DONE
    for text in ("\n".join(result_text(record, switched, 0)), "\n".join(result_text(record, None, 0))):
        assert "is closed and removed" not in text
        assert "WARNING: the old broker at old did not confirm" in text


async def test_write_pause_that_was_not_measured_is_left_out(home: MigrationDirectory) -> None:
    """A run that continues after one killed in the promotion does not know when the pause began."""
    model = ModelMigration(home)
    killed = model.migration()
    await killed.catch_up()
    model.refusals = 1
    with pytest.raises(MigrationError, match="promised to another master"):
        await killed.switch()

    migration = await run_migration(model)

    assert migration.record.phase is Phase.DONE and migration.record.pause_ms < 0
    assert not any("Write pause" in line for line in result_text(migration.record, None, 0))


async def test_broker_that_is_not_a_slave_is_refused(home: MigrationDirectory) -> None:
    """The new broker may have the directory of another broker, or may belong to a group that has started already."""
    model = ModelMigration(home)
    model.status = HaStatus(role=HaRole.UNASSIGNED, wrote=1_000, confirmed=1_000)

    with pytest.raises(MigrationError, match="has the role UNASSIGNED"):
        await model.migration().catch_up()
