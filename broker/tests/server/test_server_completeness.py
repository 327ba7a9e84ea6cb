"""A store whose damage a start has found has no vote before the damage is healed, over any number of restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from test_server_damage import DAMAGED_NUMBER, send_all
from test_server_healing import damage_at, running_master, running_slave, wait_until_copied, wait_until_followed

from gantry_broker.app import Broker
from gantry_broker.ha.healing import Healer
from gantry_broker.ports import SystemClock
from gantry_broker.store import offline
from gantry_broker.store.damage import Damage
from gantry_testing.local import TOPIC, dialogue, running_broker, wait_until
from gantry_testing.store_world import make_world


def forget_what_was_verified(broker: Broker) -> None:
    """Remove the small files that say how far the log was read, so that the next start reads all of it."""
    for name in ("recovery-point.json", "checkpoint"):
        (Path(broker.store.root) / name).unlink()


async def damage_of_a_slave(folder: Path, master: Broker) -> int:
    """Send messages, damage one of them on the slave, and let a start of the slave find it. Return its offset."""
    async with running_slave(folder, master) as slave:
        await wait_until_followed(master)
        await send_all(master)
        await wait_until_copied(master, slave)
        queue = slave.store.queues.get(TOPIC, 0)
        unit = None if queue is None else queue.unit(DAMAGED_NUMBER)
    assert unit is not None
    offset = unit[0]
    damage_at(slave, offset)
    forget_what_was_verified(slave)
    away = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "127.0.0.1:9"}
    async with running_broker(folder / "slave", disk=None, clock=None, **away) as slave:
        assert slave.roles.completeness.is_complete is False
        assert [start for start, _ in slave.roles.completeness.damaged] == [offset]
    return offset


async def has_caught_up(master: Broker, slave: Broker) -> None:
    """Wait until the slave has caught up and has checked its completeness at least once since."""
    await wait_until(lambda: slave.store.log.wrote == master.store.log.wrote and slave.roles.recorder.is_waiting)


async def test_damage_costs_the_vote_until_it_is_healed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catching up after a clean restart gives no vote, since the log still has the damage; healing does."""
    request = Healer.request

    def wait_for_replica(self: Healer, damage: Damage) -> bool:
        return True

    async with running_master(tmp_path) as master:
        offset = await damage_of_a_slave(tmp_path, master)
        monkeypatch.setattr(Healer, "request", wait_for_replica)
        for _ in range(2):  # After the first of these runs a start no longer reads the damaged part of the log.
            async with running_slave(tmp_path, master) as slave:
                await has_caught_up(master, slave)
                assert (await slave.orders.status()).is_complete is False
                assert offset in slave.store.guard.damage, "expected that the damage is known again, to be healed"
        monkeypatch.setattr(Healer, "request", request)
        async with running_slave(tmp_path, master) as slave:
            await wait_until(lambda: slave.roles.completeness.is_complete is True)
            assert slave.store.guard.damage.counters.healed == 1
        async with running_slave(tmp_path, master) as slave:
            assert (slave.roles.completeness.is_complete, slave.roles.completeness.damaged) == (True, ())


async def test_promoted_master_is_complete_when_a_slave_has_healed_it(tmp_path: Path) -> None:
    """The election has chosen its log, but a slave may have what is damaged: until then nothing is recorded."""
    async with running_master(tmp_path) as master:
        await damage_of_a_slave(tmp_path, master)
    master_conf = {"brokerRole": "SYNC_MASTER", "brokerId": "1", "roleAtStart": "UNASSIGNED"}
    async with running_broker(tmp_path / "slave", disk=None, clock=None, **master_conf) as promoted:
        epoch = promoted.store.identity.epoch
        await promoted.orders.promote(epoch + 1, [2], force=False)
        assert (await promoted.orders.status()).is_complete is False
        follower = {"brokerRole": "SLAVE", "brokerId": "2", "haMasterAddress": promoted.settings.ha_address}
        async with running_broker(tmp_path / "master", disk=None, clock=None, **follower):
            await wait_until(lambda: promoted.roles.completeness.is_complete is True)
        assert promoted.store.guard.damage.counters.healed == 1


@pytest.mark.parametrize(("electable", "is_resolved"), [("1", True), ("1;2", False), ("", False)])
async def test_damage_that_every_member_has_costs_no_vote(tmp_path: Path, electable: str, is_resolved: bool) -> None:
    """Where every other member lacks the record, too, a vote that is kept back protects nothing.

    A slave asks only its master, so where another slave may have the record, or the slaves are unknown, it stays
    without a vote.
    """
    async with running_master(tmp_path, **({"haElectable": electable} if electable else {})) as master:
        offset = await damage_of_a_slave(tmp_path, master)
        damage_at(master, offset)
        async with running_slave(tmp_path, master) as slave:
            await wait_until(lambda: slave.store.guard.damage.counters.lost == 1)
            if not is_resolved:
                await slave.roles.recorder.record_caught_up()
                assert (await slave.orders.status()).is_complete is False
            else:
                await wait_until(lambda: slave.roles.completeness.is_complete is True)


async def test_range_inside_another_record_is_not_damage(tmp_path: Path) -> None:
    """The log was cut after the damage was recorded: other records are there now, and none begins where it did."""
    async with running_master(tmp_path) as master, running_slave(tmp_path, master) as slave:
        await wait_until_followed(master)
        await send_all(master)
        await wait_until_copied(master, slave)
        recorder, completeness = slave.roles.recorder, slave.roles.completeness
        completeness.is_complete, completeness.damaged = False, ((20, 30), (slave.store.log.wrote, 1 << 40))
        await recorder.record_caught_up()
        assert completeness.is_complete is True
        assert slave.store.guard.damage.counters.found == 0


SMALL = {"mappedFileSizeCommitLog": "131072", "maxMessageSize": "16384"}


@asynccontextmanager
async def single(folder: Path) -> AsyncIterator[Broker]:
    async with running_broker(folder, disk=None, clock=None, **SMALL) as broker:
        yield broker


async def stopped_store(folder: Path) -> str:
    """Return the folder of a store with three log files, whose broker has stopped cleanly."""
    async with single(folder) as broker, dialogue(broker) as client:
        for _ in range(20):
            await client.send_ok(bytes(16_000))
        assert broker.roles.completeness.is_complete is True
    return broker.store.root


async def completeness_after_next_start(folder: Path) -> tuple[bool | None, int]:
    """Return completeness, and the number of damaged ranges, as the next start has recorded them."""
    async with single(folder) as broker:
        return broker.roles.completeness.is_complete, len(broker.roles.completeness.damaged)


async def test_loss_that_is_accepted_without_a_broker_costs_the_vote(tmp_path: Path) -> None:
    """The next start finds a clean store from which nothing is missing any more, and its acknowledged messages are."""
    root = await stopped_store(tmp_path)
    (Path(root) / "commitlog" / f"{131_072:020d}").unlink()

    offline.accept_loss(root, "a test")

    assert await completeness_after_next_start(tmp_path) == (False, 0)


async def test_damage_that_is_found_without_a_broker_costs_the_vote(tmp_path: Path) -> None:
    """The next start does not read that part of the log again."""
    root = Path(await stopped_store(tmp_path))
    for name in ("recovery-point.json", "checkpoint"):
        (root / name).unlink()
    with (root / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(5_000)
        file.write(b"XXXX")

    assert len(offline.recover(str(root)).damaged) == 1

    assert await completeness_after_next_start(tmp_path) == (False, 1)


@pytest.mark.parametrize("is_same_boot", [True, False])
async def test_recovery_without_a_broker_after_a_crash_is_recorded_like_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_boot: bool
) -> None:
    """A crash of the process loses nothing; one of the machine may have lost the end of the log."""
    root = await stopped_store(tmp_path)
    (Path(root) / "abort").write_bytes(b"")
    if not is_same_boot:
        monkeypatch.setattr(SystemClock, "boot_id", lambda self: "another boot")

    offline.recover(root)

    assert await completeness_after_next_start(tmp_path) == (is_same_boot, 0)


def test_recovery_of_a_store_of_rocketmq_records_nothing(tmp_path: Path) -> None:
    """Completeness is unknown there, and stays so."""
    world = make_world("real", tmp_path)
    world.open()
    world.send()
    world.close()

    offline.recover(world.root)

    assert not Path(world.path("completeness.json")).exists()
