"""Users and policies that were lost, or replaced by older ones, in both files: a start reports it, by the log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_server_account_changes import create_user

from gantry_broker.app import Broker
from gantry_broker.server.core.account_records import CHANGES_TOPIC, last_recorded_change
from gantry_testing.accounts import SUPER, signed_dialogue, stored_broker
from gantry_testing.local import running_broker

MISSING = "table file is missing; the table starts empty; stop the broker and restore a copy"
OLDER = "users and policies are older than the last change in the log; check them"


class Reports:
    """The errors that name the file of users, since the last call."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[str]:
        found = [
            record.getMessage()
            for record in self._caplog.records
            if record.levelname == "ERROR" and str(getattr(record, "path", "")).endswith("config/accounts.json")
        ]
        self._caplog.clear()
        return found


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Iterator[Reports]:
    with caplog.at_level("INFO"):
        yield Reports(caplog)


def files_of(path: Path) -> list[Path]:
    """Return the file of users and its copy."""
    return [path / "store" / "config" / name for name in ("accounts.json", "accounts.json.bak")]


def users_of(broker: Broker) -> set[str]:
    assert broker.core.accounts is not None
    return set(broker.core.accounts.tables.users)


async def change_users(path: Path, *names: str) -> None:
    async with stored_broker(path) as broker, signed_dialogue(broker, SUPER) as root:
        for name in names:
            assert (await create_user(root, name)).code == 0


async def test_lost_files_are_reported_once(tmp_path: Path, reports: Reports) -> None:
    """The broker starts with the first user alone, and reports that there were others."""
    await change_users(tmp_path, "alice", "bob")
    for file in files_of(tmp_path):
        file.unlink()
    reports.take()

    async with stored_broker(tmp_path) as broker:
        assert (users_of(broker), reports.take()) == ({"root"}, [MISSING])
    async with stored_broker(tmp_path) as broker:
        assert (users_of(broker), reports.take()) == ({"root"}, [])


async def test_older_files_are_reported_once(tmp_path: Path, reports: Reports) -> None:
    """A user who was deleted may be back, so the start reports it; later changes have higher numbers again."""
    await change_users(tmp_path, "alice")
    for file in files_of(tmp_path):
        shutil.copy(file, tmp_path / file.name)
    async with stored_broker(tmp_path) as broker, signed_dialogue(broker, SUPER) as root:
        assert (await root.ask(3003, {"username": "alice"})).code == 0
    for file in files_of(tmp_path):
        shutil.copy(tmp_path / file.name, file)
    reports.take()

    async with stored_broker(tmp_path) as broker:
        assert (users_of(broker), reports.take()) == ({"root", "alice"}, [OLDER])
    await change_users(tmp_path, "carol")
    async with stored_broker(tmp_path) as broker:
        assert (users_of(broker), reports.take()) == ({"root", "alice", "carol"}, [])
        assert broker.core.accounts is not None
        assert broker.core.accounts.tables.change_count == last_recorded_change(broker.core.store)


async def test_store_without_changes_of_users_lacks_nothing(tmp_path: Path, reports: Reports) -> None:
    """The twin: a store whose broker gets users for the first time, and one with its files, report nothing."""
    async with running_broker(tmp_path / "store", haListenPort="-1") as broker:
        assert last_recorded_change(broker.core.store) is None
    await change_users(tmp_path)
    await change_users(tmp_path, "alice")
    await change_users(tmp_path)

    assert reports.take() == []


async def test_expired_record_still_shows_that_there_were_users(tmp_path: Path, reports: Reports) -> None:
    """Without a readable record the number of the change is unknown, but a lost file is reported."""
    await change_users(tmp_path, "alice")
    async with stored_broker(tmp_path) as broker:
        queue = broker.core.store.queues.get(CHANGES_TOPIC, 0)
        assert queue is not None
        unit = queue.unit(queue.end - 1)
        assert unit is not None
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    with log.open("r+b") as file:
        file.seek(unit[0] + unit[1] - 1)
        file.write(b"\xff")
    for one in files_of(tmp_path):
        one.unlink()
    reports.take()

    async with stored_broker(tmp_path) as broker:
        assert last_recorded_change(broker.core.store) == 0
        assert reports.take() == [MISSING]
