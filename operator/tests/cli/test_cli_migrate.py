"""The procedure of a migration: whatever goes wrong, never two masters, never none for good, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final, overload

import pytest

from gantry_cli.migrate import run as migrate_run
from gantry_cli.migrate.record import Home, Phase, Record
from gantry_cli.migrate.run import LEVEL_BYTES, Migration, Progress
from gantry_cli.migrate.source import CLOSED, STOPPED, CannotMigrate, Listing, Offsets, SourceLog
from gantry_status.orders import (
    AskPromise,
    HaRole,
    HaStatus,
    OrderRefused,
    OrderUnanswered,
    Promised,
    Promote,
    StatusOrder,
)

BEFORE = {"brokerRole": "SYNC_MASTER", "slaveReadEnable": "false", "brokerPermission": "6", "brokerName": "b"}
CONF = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterIsClassic": "true", "listenPort": "10911"}


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STILL_S", "POLL_S", "PROGRESS_S"):
        monkeypatch.setattr(migrate_run, name, 0.0)
    monkeypatch.setattr(migrate_run, "ROUTES_S", 0.05)
    monkeypatch.setattr(migrate_run, "PATIENCE_S", -1.0)


@final
class World:
    """An old broker that takes a message in every turn while it may, ours that copies, and one name server.

    ``trouble`` is raised in the call of that number, once, before or after it was done.
    """

    def __init__(
        self, home: Home, *, at: int = 0, trouble: BaseException | None = None, is_after: bool = False
    ) -> None:
        self.home = home
        self.settings = dict(BEFORE)
        self.end = 1_000
        self.in_flight = 2
        """Appends that had passed the check of the role when it was set."""

        self.is_copying = True
        self.is_led = True
        self.built = 10**9
        """How much of its queues our broker builds before each answer."""

        self.status = HaStatus(role=HaRole.SLAVE, wrote=0, confirmed=0, dispatched=0, address="ours")
        self.refusals = 0
        self.calls = 0
        self.told: list[str] = []
        self._at, self._trouble, self._is_after = at, trouble, is_after

    @property
    def takes(self) -> bool:
        """Whether the old broker takes messages."""
        return self.settings["brokerRole"] != "SLAVE"

    def turn(self) -> Iterator[None]:
        """One call: trouble before it or after it."""
        self.calls += 1
        is_hit = self.calls == self._at and self._trouble is not None
        assert self._trouble is not None or not is_hit
        if is_hit and not self._is_after:
            raise self._trouble  # type: ignore[misc]
        if self.takes:
            self.end += 10
        elif self.in_flight:
            self.in_flight -= 1
            self.end += 10
        yield
        if is_hit and self._is_after:
            raise self._trouble  # type: ignore[misc]

    def check(self) -> None:
        """Never two that take messages, and ours only with all of the old one's."""
        is_master = self.status.role is HaRole.MASTER
        assert not (is_master and self.takes), "two masters"
        assert not is_master or self.status.wrote == self.end, "something is lost"

    def migration(self, timeout_s: float = 60.0) -> Migration:
        record = self.home.record() or Record(old_address="old", broker_name="b")
        return Migration(
            Old(self), Ours(self), Names(self), self.home, record,
            tell=self.told.append, show=self.show, timeout_s=timeout_s,
        )  # fmt: skip

    def show(self, progress: Progress) -> None:
        assert 0 <= progress.copied <= progress.total


@final
class Old:
    address = "old"

    def __init__(self, world: World) -> None:
        self._world = world

    async def config(self) -> dict[str, str]:
        for _ in self._world.turn():
            pass
        return dict(self._world.settings)

    async def log(self) -> SourceLog:
        for _ in self._world.turn():
            pass
        return SourceLog(0, self._world.end)

    async def set(self, values: Mapping[str, str]) -> None:
        for _ in self._world.turn():
            self._world.settings |= values
            self._world.check()

    async def offsets(self) -> Offsets:
        return {}


@final
class Ours:
    path = "ours"

    def __init__(self, world: World) -> None:
        self._world = world

    @overload
    async def call(self, order: AskPromise, *, timeout_s: float | None = None) -> Promised: ...

    @overload
    async def call(self, order: StatusOrder, *, timeout_s: float | None = None) -> HaStatus: ...

    async def call(self, order: AskPromise | StatusOrder, *, timeout_s: float | None = None) -> HaStatus | Promised:
        world = self._world
        await asyncio.sleep(0)
        for _ in world.turn():
            role, wrote, epoch = world.status.role, world.status.wrote, world.status.epoch
            if role is HaRole.SLAVE and world.is_copying:
                wrote = world.end
            if isinstance(order, Promote):
                if world.refusals:
                    world.refusals -= 1
                    raise OrderRefused("epoch 9 was promised to another master")
                assert world.home.read_conf()["brokerRole"] == "ASYNC_MASTER", "it would come back as a slave"
                role, epoch = HaRole.MASTER, order.epoch
            dispatched = min(wrote or 0, (world.status.dispatched or 0) + world.built)
            world.status = HaStatus(
                role=role, wrote=wrote, confirmed=wrote, dispatched=dispatched, epoch=epoch, address="ours"
            )
            world.check()
        return world.status


@final
class Names:
    def __init__(self, world: World) -> None:
        self._world = world

    async def listings(self, name: str) -> list[Listing]:
        for _ in self._world.turn():
            pass
        is_ours = self._world.status.role is HaRole.MASTER and self._world.is_led
        return [Listing("ns", 479, "c", {0: "ours" if is_ours else "old"})]


async def go(world: World) -> Migration:
    """One run of the command, from wherever the last one ended."""
    migration = world.migration()
    if migration.record.phase is Phase.PROMOTING:
        await migration.promote()
    else:
        await migration.resume()
        await migration.catch_up()
        await migration.switch()
    await migration.finish()
    return migration


@pytest.fixture
def home(tmp_path: Path) -> Home:
    one = Home(tmp_path / "data")
    one.write_conf(CONF, "a test")
    return one


async def test_the_role_moves_with_all_that_was_taken(home: Home) -> None:
    """Appends that had begun when writes were stopped are waited for; the old broker stays closed."""
    world = World(home)

    migration = await go(world)

    assert (world.status.role, world.status.wrote, world.in_flight) == (HaRole.MASTER, world.end, 0)
    assert {key: world.settings[key] for key in STOPPED} == STOPPED | CLOSED
    assert migration.record.phase is Phase.DONE and migration.record.end == world.end
    assert migration.record.pause_ms >= 0
    assert home.read_conf() == {"brokerRole": "ASYNC_MASTER", "brokerId": "0", "listenPort": "10911"}


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "trouble",
    [CannotMigrate("gone"), asyncio.CancelledError(), OrderUnanswered("no answer")],
    ids=["failure", "ctrl-c", "silence"],
)
async def test_whatever_fails_the_old_broker_goes_on_or_ours_does(
    home: Home, trouble: BaseException, is_after: bool
) -> None:
    """At every single call, and the same command run again ends well."""
    whole = World(home)
    await go(whole)
    for at in range(1, whole.calls + 1):
        home.record_file.unlink(missing_ok=True)
        home.write_conf(CONF, "a test")
        world = World(home, at=at, trouble=trouble, is_after=is_after)
        try:
            await go(world)
        except (CannotMigrate, OrderUnanswered, asyncio.CancelledError):
            record = home.record()
            phase = Phase.ATTACHED if record is None else record.phase
            assert phase is not Phase.ATTACHED or world.settings == BEFORE, f"call {at}: not as it was"
            assert phase is not Phase.STOPPING, f"call {at}: nobody takes messages"
        world.check()

        record = home.record()
        if record is None or record.phase is not Phase.DONE:
            await go(world)
        assert world.status.role is HaRole.MASTER, f"call {at}"
        world.check()


async def test_queues_are_built_before_writes_are_stopped(home: Home) -> None:
    """They are behind the log after a long copy, and a promotion waits for them: not in the pause."""
    world = World(home)
    world.end, world.built = 5 * LEVEL_BYTES, LEVEL_BYTES

    await world.migration().catch_up()

    assert (world.status.dispatched or 0) >= world.end - LEVEL_BYTES - 100
    assert world.calls >= 8


async def test_a_pause_has_a_bound(home: Home) -> None:
    """Where our broker does not get the rest in time, the old one goes on as before."""
    world = World(home)
    migration = world.migration(timeout_s=0.5)
    await migration.catch_up()
    world.is_copying = False

    with pytest.raises(CannotMigrate, match=r"within 0.5 s"):
        await migration.switch()

    assert world.settings == BEFORE
    assert migration.record.phase is Phase.ATTACHED


async def test_an_old_broker_that_cannot_be_put_back_is_said(home: Home) -> None:
    """It takes no messages then: the record says so, and --abort, which resumes, puts it back."""
    world = World(home)
    migration = world.migration(timeout_s=0.5)
    await migration.catch_up()
    world.is_copying = False
    world.settings["brokerRole"] = "ASYNC_MASTER"
    put_back, calls = migration.put_back, 0

    async def broken() -> None:
        nonlocal calls
        calls += 1
        raise CannotMigrate("old: connection refused")

    migration.put_back = broken  # type: ignore[method-assign]
    with pytest.raises(CannotMigrate, match="could not be put back") as caught:
        await migration.switch()
    assert "--abort" in (caught.value.remedy or "") and calls == 1
    record = home.record()
    assert record is not None and record.phase is Phase.STOPPING

    migration.put_back = put_back  # type: ignore[method-assign]
    await world.migration().resume()
    assert world.settings == BEFORE | {"brokerRole": "ASYNC_MASTER"}


async def test_a_refused_promotion_leaves_the_way_open(home: Home) -> None:
    """Writes stay stopped, since nobody knows why; the next run promotes."""
    world = World(home)
    world.refusals = 1

    with pytest.raises(CannotMigrate, match="promised to another master"):
        await go(world)
    assert not world.takes
    await go(world)

    assert world.status.role is HaRole.MASTER


async def test_name_servers_that_do_not_follow_are_named(home: Home) -> None:
    """The role has moved already, so nothing is put back; the next run waits for them again."""
    world = World(home)
    world.is_led = False

    with pytest.raises(CannotMigrate, match="do not lead to it yet: ns"):
        await go(world)
    assert world.status.role is HaRole.MASTER and not world.takes
    world.is_led = True

    assert (await go(world)).record.phase is Phase.DONE


async def test_messages_that_the_old_broker_takes_afterwards_are_said(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has set it back by hand, say: what it then took is not here, and that is no success."""
    world = World(home)
    migration = world.migration()
    await migration.resume()
    await migration.catch_up()
    await migration.switch()
    monkeypatch.setattr(World, "check", lambda _: None)
    world.end += 500

    with pytest.raises(CannotMigrate, match="has taken more after the switch"):
        await migration.finish()


async def test_a_broker_that_is_no_slave_is_not_switched_to(home: Home) -> None:
    """It is another one's directory, or a group that has begun without the old broker."""
    world = World(home)
    world.status = HaStatus(role=HaRole.UNASSIGNED, wrote=1_000, confirmed=1_000)

    with pytest.raises(CannotMigrate, match="is UNASSIGNED, and does not follow"):
        await world.migration().catch_up()
