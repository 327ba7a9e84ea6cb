"""A master whose process has ended regains its role in the same epoch, if nothing was promised, revoked or lost."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_broker.app import Broker
from gantry_broker.ha.role_files import RoleRecord
from gantry_broker.ports import RealDisk, SystemClock
from gantry_broker.server.roles.role_status import RoleStatus, explain_no_regain
from gantry_broker.setting_keys import broker_settings
from gantry_broker.store.data_completeness import CompletenessRecord
from gantry_broker.store.sealed_file import write_sealed
from gantry_status.orders import HaRole, OrderRefused
from gantry_testing.local import dialogue, local_conf, wait_until
from gantry_wire import ResponseCode

EPOCH: Final = 3_000
UNCHANGED_MASTER: Final = RoleStatus(
    role=HaRole.UNASSIGNED,
    record=RoleRecord(EPOCH, is_master=True, electable=[2], acks_needed=1),
    log_epoch=EPOCH,
    promised_epoch=EPOCH,
    is_complete=True,
    acks_needed=1,
)


def changed_master(**changes: Any) -> RoleStatus:
    record = {name: changes.pop(name) for name in ("is_over", "is_master", "epoch") if name in changes}
    fields = {name: getattr(UNCHANGED_MASTER.record, name) for name in UNCHANGED_MASTER.record.__struct_fields__}
    return UNCHANGED_MASTER._replace(record=RoleRecord(**(fields | record)), **changes)


def test_killed_master_may_regain_its_role() -> None:
    """Nothing was promised, revoked or lost, and the required acks are the same."""
    assert explain_no_regain(UNCHANGED_MASTER) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"role": HaRole.SLAVE}, "SLAVE"),
        ({"epoch": 0}, "no role before"),
        ({"is_over": True}, "revoked"),
        ({"promised_epoch": EPOCH + 1}, "promised after"),
        ({"log_epoch": EPOCH - 1}, "ends in epoch"),
        ({"is_complete": False}, "may have lost"),
        ({"is_complete": None}, "may have lost"),
        ({"acks_needed": 0}, "waited for 1 slaves"),
        ({"acks_needed": 2}, "waited for 1 slaves"),
    ],
    ids=["role", "new", "taken", "promised", "unfinished", "lost", "unknown", "fewer-acks", "more-acks"],
)
def test_each_change_prevents_regaining(changes: dict[str, Any], why: str) -> None:
    """Each of these changes alone is sufficient, and is the reason in the answer."""
    assert why in explain_no_regain(changed_master(**changes))


def test_record_of_older_version_cannot_be_regained() -> None:
    """It lacks the number of required acks, and an election may count on more than the broker would wait for."""
    old = RoleRecord(EPOCH, is_master=True, electable=[2])

    assert explain_no_regain(UNCHANGED_MASTER._replace(record=old, acks_needed=0)) != ""


def test_slave_follows_again_without_a_complete_log() -> None:
    """It gets the missing data, and acknowledges only what it has."""
    assert explain_no_regain(changed_master(is_master=False, is_complete=False, log_epoch=EPOCH - 1)) == ""
    assert explain_no_regain(changed_master(is_master=False, is_over=True)) != ""


@given(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.sampled_from((True, False, None)), st.booleans())
def test_role_below_a_promise_is_never_regained(
    epoch: int, log_epoch: int, promised: int, is_complete: bool | None, is_over: bool
) -> None:
    """The promise overrules all other facts."""
    known = changed_master(
        epoch=epoch, log_epoch=log_epoch, promised_epoch=promised, is_complete=is_complete, is_over=is_over
    )

    if not explain_no_regain(known):
        assert promised <= epoch == log_epoch and is_complete is True and not is_over


# -- brokers -----------------------------------------------------------------------------------------------------------


class Pair:
    """A master, 1, and its slave, 2, whose roles are given by orders. Each can be killed and started again."""

    def __init__(self, root: Path, role: str) -> None:
        self.confs = {
            number: local_conf(root / str(number), roleAtStart="UNASSIGNED", brokerRole=role, brokerId=str(number))
            for number in (1, 2)
        }
        self.brokers: dict[int, Broker] = {}

    async def start(self, number: int, **conf: str) -> Broker:
        broker = Broker(broker_settings(self.confs[number] | conf), disk=RealDisk(), clock=SystemClock())
        await broker.start()
        self.brokers[number] = broker
        return broker

    async def begin(self) -> Broker:
        master, slave = await self.start(1), await self.start(2)
        await master.orders.promote(EPOCH, [2], False)
        await slave.orders.follow(EPOCH, master.settings.ha_address)
        await wait_until(lambda: len(master.replication.acks) == 1)
        return master

    async def restart_as_killed(self, number: int, **conf: str) -> Broker:
        """Restart a broker as after a kill -9: with the mark of an unclean stop, and on the same machine."""
        await self.brokers[number].close()
        (Path(self.confs[number]["storePathRootDir"]) / "abort").touch()
        return await self.start(number, **conf)


@asynccontextmanager
async def running_pair(root: Path, role: str = "SYNC_MASTER") -> AsyncIterator[Pair]:
    one = Pair(root, role)
    try:
        yield one
    finally:
        for broker in one.brokers.values():
            await broker.close()


async def code_of_a_send(broker: Broker) -> int:
    async with dialogue(broker) as peer:
        return (await peer.send(b"x")).code


@pytest.mark.parametrize("role", ["SYNC_MASTER", "ASYNC_MASTER"], ids=["sync", "async"])
async def test_killed_master_continues_in_its_epoch(tmp_path: Path, role: str) -> None:
    """No epoch begins, the slave follows without any order, and all acknowledged messages are there."""
    async with running_pair(tmp_path, role) as group:
        master = await group.begin()
        await wait_until(lambda: master.replication.policy.may_acknowledge())
        assert await code_of_a_send(master) == 0
        end = master.store.log.wrote

        again = await group.restart_as_killed(1)
        assert (await again.orders.status()).may_regain
        assert (await again.orders.status()).role is HaRole.UNASSIGNED
        status = await again.orders.regain(EPOCH)

        assert (status.role, status.epoch, status.last_epoch, status.wrote) == (HaRole.MASTER, EPOCH, EPOCH, end)
        assert status.is_regained and status.electable == (2,)
        await wait_until(lambda: len(again.replication.acks) == 1 and again.replication.policy.may_acknowledge())
        assert await code_of_a_send(again) == 0
        assert (await again.orders.regain(EPOCH)).role is HaRole.MASTER, "expected the repeated order to change nothing"


async def test_regained_master_acknowledges_by_the_same_rules(tmp_path: Path) -> None:
    """A slave that has promised a newer epoch acknowledges nothing."""
    async with running_pair(tmp_path) as group:
        await group.begin()
        await group.brokers[2].orders.promise(EPOCH + 1_000, "another")

        again = await group.restart_as_killed(1)
        await again.orders.regain(EPOCH)

        assert await code_of_a_send(again) != 0


@pytest.mark.parametrize("taken", ["fence", "withdraw", "promise"])
async def test_revoked_role_is_not_regained_by_a_restart(tmp_path: Path, taken: str) -> None:
    """Fenced in its own epoch, withdrawn, or promised to another master: a restart undoes none of them."""
    async with running_pair(tmp_path) as group:
        master = await group.begin()
        match taken:
            case "fence":
                await master.orders.fence(EPOCH)
            case "withdraw":
                await master.orders.drain(10_000, withdraw=True)
            case _:
                await master.orders.promise(EPOCH + 1_000, "another")

        again = await group.restart_as_killed(1)

        assert not (await again.orders.status()).may_regain
        with pytest.raises(OrderRefused):
            await again.orders.regain(EPOCH)
        assert again.roles.role is HaRole.UNASSIGNED


@pytest.mark.parametrize("taken", ["fence", "withdraw", "empty"])
async def test_role_is_not_revoked_if_that_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: str
) -> None:
    """A refused order has changed nothing: on a full disk the master continues, and so may its next process."""
    async with running_pair(tmp_path) as group:
        master = await group.begin()
        full = OSError(errno.ENOSPC, "no room")

        def write(record: RoleRecord) -> None:
            raise full

        monkeypatch.setattr(master.roles.role_file, "write", write)
        with pytest.raises(OrderRefused, match="no room"):
            await (
                master.orders.fence(EPOCH)
                if taken == "fence"
                else master.orders.drain(10_000, withdraw=taken == "withdraw", clients_only=taken == "empty")
            )

        assert master.roles.role is HaRole.MASTER and not master.roles.is_withdrawn
        assert await code_of_a_send(master) == 0


async def test_broker_that_has_promised_a_fence_is_fenced_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An election relies on a reported promise: below that epoch the broker is no master, also after a restart."""
    async with running_pair(tmp_path) as group:
        master = await group.begin()

        def write(record: RoleRecord) -> None:
            raise OSError(errno.ENOSPC, "no room")

        monkeypatch.setattr(master.roles.role_file, "write", write)
        with suppress(OrderRefused):
            await master.orders.fence(EPOCH + 1_000)

        status = await master.orders.status()
        assert (status.promised_epoch, status.role) == (EPOCH + 1_000, HaRole.UNASSIGNED)
        assert await code_of_a_send(master) == ResponseCode.SERVICE_NOT_AVAILABLE
        assert not (await (await group.restart_as_killed(1)).orders.status()).may_regain


async def test_ended_withdrawal_does_not_prevent_regaining(tmp_path: Path) -> None:
    """A promotion in the same epoch ends it, also for the next process."""
    async with running_pair(tmp_path) as group:
        master = await group.begin()
        await master.orders.drain(10_000, withdraw=True)
        await master.orders.promote(EPOCH, [2], False)

        again = await group.restart_as_killed(1)

        assert (await again.orders.regain(EPOCH)).role is HaRole.MASTER


@pytest.mark.parametrize("is_chosen", [True, False], ids=["chosen", "not-chosen"])
async def test_promotion_makes_the_log_complete(tmp_path: Path, is_chosen: bool) -> None:
    """The log may lack messages, but after a promotion it is what counts, and the role may be regained."""
    async with running_pair(tmp_path) as group:
        await group.begin()
        await group.brokers[1].close()
        before = CompletenessRecord(is_complete=False, machine="another run", is_crash_safe=True)
        write_sealed(RealDisk(), str(tmp_path / "1/completeness.json"), before)
        doubtful = await group.restart_as_killed(1)
        assert doubtful.roles.completeness.is_complete is False

        if is_chosen:
            status = await doubtful.orders.promote(EPOCH + 1_000, [2], False)
            assert status.is_complete is True

        again = await group.restart_as_killed(1)
        assert again.roles.completeness.is_complete is is_chosen
        assert (await again.orders.status()).may_regain is is_chosen


async def test_other_acknowledgement_rules_need_a_new_term(tmp_path: Path) -> None:
    """Restarted as an asynchronous master it would acknowledge messages that an election does not protect."""
    async with running_pair(tmp_path) as group:
        await group.begin()

        again = await group.restart_as_killed(1, brokerRole="ASYNC_MASTER")

        with pytest.raises(OrderRefused, match="waited for 1 slaves"):
            await again.orders.regain(EPOCH)


async def test_regaining_as_a_slave_or_another_epoch_is_refused(tmp_path: Path) -> None:
    """Only the master of this very epoch can regain it."""
    async with running_pair(tmp_path) as group:
        await group.begin()
        slave, master = await group.restart_as_killed(2), await group.restart_as_killed(1)

        for broker, epoch in ((slave, EPOCH), (master, EPOCH + 1), (master, EPOCH - 1)):
            with pytest.raises(OrderRefused, match="was not the master"):
                await broker.orders.regain(epoch)
