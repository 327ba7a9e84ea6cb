"""Crashes around a change of users: a start has all of a change or nothing of it, and every answered one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
from test_server_account_changes import ALICE, allow, create_user, put_acl, send_as, update_user

from gantry_broker.app import Broker
from gantry_broker.errors import StoreFull
from gantry_broker.server.core.account_records import CHANGES_TOPIC, last_recorded_change
from gantry_broker.store.draft import Draft
from gantry_testing.accounts import FIRST_USER, SUPER, signed_dialogue
from gantry_testing.faulty_disk import FaultyDisk
from gantry_testing.local import TOPIC, running_broker

Crash = Callable[[FaultyDisk], None]
CRASHES: dict[str, Crash] = {
    "kill": FaultyDisk.kill,
    "power cut": FaultyDisk.lose_unsynced,
    "torn": lambda disk: disk.tear(7),
}


def on(disk: FaultyDisk, **conf: str) -> AbstractAsyncContextManager[Broker]:
    settings = {**FIRST_USER, "haListenPort": "-1", **conf}
    return running_broker("/store", disk=disk, clock=None, **settings)


class Snapshots:
    """Copies of a disk, made at each system call that writes the file of users."""

    def __init__(self, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies: list[FaultyDisk] = []
        meet_fault = disk.meet_fault

        def copy_before(operation: str, path: str) -> None:
            if "accounts.json" in path and operation != "read":
                self.copies.append(disk.copy())
            meet_fault(operation, path)

        monkeypatch.setattr(disk, "meet_fault", copy_before)


def users_of(broker: Broker) -> set[str]:
    assert broker.core.accounts is not None
    return set(broker.core.accounts.tables.users)


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
async def test_start_after_a_crash_has_whole_changes(crash: Crash, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every write of the file and of its copy; the first user is there in any case."""
    disk = FaultyDisk()
    async with on(disk) as broker, signed_dialogue(broker, SUPER) as root:
        await broker.core.persistence.wait_until_written("accounts")
        snapshots = Snapshots(disk, monkeypatch)
        assert (await create_user(root)).code == 0
        during = list(snapshots.copies)
        assert len(during) >= 4, "expected a write and a sync of both files"
    for copied in during:
        crash(copied)
        async with on(copied) as broker:
            assert users_of(broker) in ({"root"}, {"root", "alice"})


@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES)
async def test_answered_changes_survive_a_crash(crash: Crash) -> None:
    """The file is durable before the answer, also with ASYNC_FLUSH, where a power cut may lose messages."""
    disk = FaultyDisk()
    async with on(disk) as broker, signed_dialogue(broker, SUPER) as root:
        assert (await create_user(root)).code == 0
        assert (await put_acl(root, allow(f"Topic:{TOPIC}", "Pub"))).code == 0
        copied = disk.copy()
    crash(copied)
    async with on(copied) as broker:
        assert await send_as(broker, ALICE) == 0


async def test_change_that_was_not_written_is_lost_in_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a broker that answers before the write loses the change."""
    disk = FaultyDisk()
    async with on(disk) as broker, signed_dialogue(broker, SUPER) as root:
        await broker.core.persistence.wait_until_written("accounts")
        monkeypatch.setattr(disk, "write_file", lambda path, data, *, is_private=False: None)
        assert (await create_user(root)).code == 0
        copied = disk.copy()
        monkeypatch.undo()
    copied.lose_unsynced()
    async with on(copied) as broker:
        assert await send_as(broker, ALICE) == 16


async def test_failed_write_is_answered_and_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the answer says that the change applies and is not on disk; the next periodic write stores it."""
    disk = FaultyDisk()
    async with on(disk, flushConsumerOffsetInterval="100") as broker, signed_dialogue(broker, SUPER) as root:
        await broker.core.persistence.wait_until_written("accounts")
        write_file, failures = disk.write_file, [OSError(28, "No space left on device")] * 2

        def fail_first(path: str, data: bytes, *, is_private: bool = False) -> None:
            if is_private and failures:
                raise failures.pop()
            write_file(path, data, is_private=is_private)

        monkeypatch.setattr(disk, "write_file", fail_first)
        reply = await create_user(root)
        assert (reply.code, "in effect, but not on the disk" in (reply.remark or "")) == (10, True)
        await broker.core.persistence.wait_until_written("accounts")
        copied = disk.copy()
    copied.lose_unsynced()
    async with on(copied) as broker:
        assert users_of(broker) == {"root", "alice"}


async def test_repeated_change_is_answered_when_it_is_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that asks for what applies here is refused like the first one while the disk is full, and then safe."""
    disk, is_full = FaultyDisk(), True
    async with on(disk, flushConsumerOffsetInterval="600000") as broker, signed_dialogue(broker, SUPER) as root:
        await broker.core.persistence.wait_until_written("accounts")
        write_file = disk.write_file

        def fail_while_full(path: str, data: bytes, *, is_private: bool = False) -> None:
            if is_private and is_full:
                raise OSError(28, "No space left on device")
            write_file(path, data, is_private=is_private)

        monkeypatch.setattr(disk, "write_file", fail_while_full)
        assert (await create_user(root)).code == 10
        assert [(await update_user(root, userStatus="disable")).code for _ in range(2)] == [10, 10]
        is_full = False
        assert (await update_user(root, userStatus="disable")).code == 0
        await broker.core.persistence.wait_for_writes()  # of the table of topics, which has the topic of records now
        copied = disk.copy()
    copied.lose_unsynced()
    async with on(copied) as broker:
        assert users_of(broker) == {"root", "alice"}


async def test_change_that_the_log_refuses_is_answered_as_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full log: the answer says that the change is stored here; a repeated request appends the record, once."""
    disk = FaultyDisk()
    async with on(disk) as broker, signed_dialogue(broker, SUPER) as root:
        append, full = broker.store.append, [StoreFull("no space"), StoreFull("no space")]

        def refuse_first(drafts: Sequence[Draft]) -> object:
            if full:
                raise full.pop()
            return append(drafts)

        monkeypatch.setattr(broker.store, "append", refuse_first)
        for reply in (await create_user(root), await create_user(root, "bob")):
            assert (reply.code, "is stored here, but a failover may lose it" in (reply.remark or "")) == (12, True)
        assert last_recorded_change(broker.store) is None
        broker.core.gate.refuse_changes("this broker is a slave")
        assert (await update_user(root, userStatus="enable")).code == 14, "no master has sent this change"
        broker.core.gate.accept_changes()
        assert [(await update_user(root, userStatus="enable")).code for _ in range(3)] == [0, 0, 0]
        queue = broker.store.queues.get(CHANGES_TOPIC, 0)
        assert queue is not None and broker.core.accounts is not None
        assert (queue.end, last_recorded_change(broker.store)) == (1, broker.core.accounts.tables.change_count)
