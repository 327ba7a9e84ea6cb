"""A file that changes settings under a running broker: as a whole or not at all, and stronger than anybody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.setting_keys import effective_settings
from gantry_testing.local import dialogue, running_broker
from gantry_wire import Command, RequestCode, ResponseCode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file."""
    return tmp_path / "live.conf"


@pytest.fixture
async def broker(tmp_path: Path, path: Path) -> AsyncIterator[Broker]:
    """One that looks at the file, which says something at its start."""
    write(path, "fileReservedTime=48\n")
    async with running_broker(
        tmp_path / "store", liveSettingsPath=str(path), fileReservedTime="24", maxPullBatchSize="32"
    ) as one:
        yield one


def write(path: Path, text: str) -> None:
    """What somebody edits."""
    path.write_text(text)


def remove(path: Path) -> None:
    """What is there no more."""
    path.unlink()


def now(broker: Broker, key: str) -> str:
    """What holds."""
    return effective_settings(broker.core.live.now)[key]


async def change(broker: Broker, text: str) -> Command:
    """What an administrator asks for."""
    async with dialogue(broker) as client:
        return await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def test_the_file_holds_from_the_start_and_follows_its_edits(broker: Broker, path: Path) -> None:
    """It wins over broker.conf; a key that it no longer names is again what broker.conf says."""
    assert (now(broker, "fileReservedTime"), now(broker, "maxPullBatchSize")) == ("48", "32")

    write(path, "# edited\nmaxPullBatchSize=64\n")
    await broker.settings_file.reload()

    assert (now(broker, "fileReservedTime"), now(broker, "maxPullBatchSize")) == ("24", "64")
    assert effective_settings(broker.settings)["maxPullBatchSize"] == "64"


@pytest.mark.parametrize(
    "text",
    [
        "maxPullBatchSize=64\nflushDiskType=SYNC_FLUSH\n",
        "maxPullBatchSize=64\nfileReservedTime=soon\n",
        "maxPullBatchSize\n",
    ],
    ids=["not at run time", "no value", "no line"],
)
async def test_a_file_is_used_as_a_whole_or_not_at_all(broker: Broker, path: Path, text: str) -> None:
    """What held before goes on, the reason is said, and a file that is mended is used."""
    write(path, text)
    await broker.settings_file.reload()

    assert (now(broker, "fileReservedTime"), now(broker, "maxPullBatchSize")) == ("48", "32")
    assert broker.settings_file.trouble
    write(path, "fileReservedTime=12\n")
    await broker.settings_file.reload()
    assert now(broker, "fileReservedTime") == "12" and broker.settings_file.trouble is None


async def test_a_file_that_is_gone_changes_nothing(broker: Broker, path: Path) -> None:
    """Whoever mounts it is replacing it."""
    remove(path)

    await broker.settings_file.reload()

    assert now(broker, "fileReservedTime") == "48"


async def test_what_the_file_says_is_changed_there_only(broker: Broker, path: Path) -> None:
    """An administrator is told so; other keys are his, until the file names them, and again when it does no more."""
    refused = await change(broker, "fileReservedTime=1\n")
    taken = await change(broker, "maxPullBatchSize=16\n")
    write(path, "maxPullBatchSize=64\n")
    await broker.settings_file.reload()
    from_file = now(broker, "maxPullBatchSize")
    write(path, "\n")
    await broker.settings_file.reload()

    assert refused.code == ResponseCode.NO_PERMISSION
    assert "liveSettingsPath" in (refused.remark or "")
    assert (taken.code, from_file, now(broker, "maxPullBatchSize")) == (0, "64", "16")


async def test_an_edit_holds_though_an_administrator_changes_something_else_at_that_moment(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is being written down for the one does not take the other back."""
    began, may_end, live = threading.Event(), threading.Event(), broker.core.live
    save = live._file.save

    def saved_later(document: dict[str, Any]) -> None:
        began.set()
        may_end.wait(60)
        save(document)

    monkeypatch.setattr(live._file, "save", saved_later)
    changing = asyncio.ensure_future(live.update({"maxPullBatchSize": "64"}))
    await asyncio.to_thread(began.wait, 60)
    write(path, "fileReservedTime=72\n")
    await broker.settings_file.reload()
    may_end.set()
    await changing

    assert (now(broker, "fileReservedTime"), now(broker, "maxPullBatchSize")) == ("72", "64")
