"""A file that changes settings of a running broker, completely or not at all; only the command line overrides it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry_broker.app import Broker
from gantry_broker.setting_keys import effective_settings
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.local import dialogue, running_broker
from gantry_wire import Command, RequestCode, ResponseCode


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the settings file."""
    return tmp_path / "live.conf"


@pytest.fixture
async def broker(tmp_path: Path, path: Path) -> AsyncIterator[Broker]:
    """Return a broker that reads the file, which has some settings at its start."""
    write(path, "fileReservedTime=48\n")
    async with running_broker(
        tmp_path / "store", liveSettingsPath=str(path), fileReservedTime="24", maxPullBatchSize="32"
    ) as one:
        yield one


def write(path: Path, text: str) -> None:
    """Replace the content of the file, as an editor does."""
    path.write_text(text)


def remove(path: Path) -> None:
    """Remove the settings file from the disk."""
    path.unlink()


def value_in_effect(broker: Broker, key: str) -> str:
    """Return the value that is in effect."""
    return effective_settings(broker.core.live.current)[key]


async def change(broker: Broker, text: str) -> Command:
    """Change a setting as an administrator does."""
    async with dialogue(broker) as client:
        return await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def test_settings_file_is_effective_from_the_start_and_after_edits(broker: Broker, path: Path) -> None:
    """It overrides broker.conf; a key that is removed from it has the value of broker.conf again."""
    assert (value_in_effect(broker, "fileReservedTime"), value_in_effect(broker, "maxPullBatchSize")) == ("48", "32")

    write(path, "# edited\nmaxPullBatchSize=64\n")
    await broker.settings_file.reload()

    assert (value_in_effect(broker, "fileReservedTime"), value_in_effect(broker, "maxPullBatchSize")) == ("24", "64")
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
async def test_settings_file_is_used_completely_or_not_at_all(broker: Broker, path: Path, text: str) -> None:
    """With an invalid file the old values stay, the reason is logged, and a corrected file is used."""
    write(path, text)
    await broker.settings_file.reload()

    assert (value_in_effect(broker, "fileReservedTime"), value_in_effect(broker, "maxPullBatchSize")) == ("48", "32")
    assert broker.settings_file.problem
    write(path, "fileReservedTime=12\n")
    await broker.settings_file.reload()
    assert value_in_effect(broker, "fileReservedTime") == "12" and broker.settings_file.problem is None


async def test_missing_settings_file_changes_nothing(broker: Broker, path: Path) -> None:
    """The file may just be being replaced."""
    remove(path)

    await broker.settings_file.reload()

    assert value_in_effect(broker, "fileReservedTime") == "48"


async def test_settings_of_the_file_cannot_be_changed_otherwise(broker: Broker, path: Path) -> None:
    """An administrator's change is refused with a reason; other keys can be changed, unless the file has them."""
    refused = await change(broker, "fileReservedTime=1\n")
    taken = await change(broker, "maxPullBatchSize=16\n")
    write(path, "maxPullBatchSize=64\n")
    await broker.settings_file.reload()
    from_file = value_in_effect(broker, "maxPullBatchSize")
    write(path, "\n")
    await broker.settings_file.reload()

    assert refused.code == ResponseCode.NO_PERMISSION
    assert "liveSettingsPath" in (refused.remark or "")
    assert (taken.code, from_file, value_in_effect(broker, "maxPullBatchSize")) == (0, "64", "16")


async def test_change_that_a_simultaneous_edit_makes_invalid_is_refused_and_not_stored(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two would be valid without the other; the next start does not find the change either."""
    live = broker.core.live
    await live.update({"diskMaxUsedSpaceRatio": "80"})
    save, saved = live._file.save, list[dict[str, Any]]()

    def record(document: dict[str, Any]) -> None:
        saved.append(document["settings"])
        save(document)
        if len(saved) == 1:
            write(path, "diskMaxUsedSpaceRatio=95\n")
            asyncio.run_coroutine_threadsafe(broker.settings_file.reload(), loop).result(60)

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(live._file, "save", record)
    with pytest.raises(SettingsError, match="must not decrease"):
        await live.update({"diskSpaceCleanForciblyRatio": "90"})

    before = {"diskMaxUsedSpaceRatio": "80"}
    assert saved == [before | {"diskSpaceCleanForciblyRatio": "90"}, before]
    assert (
        value_in_effect(broker, "diskMaxUsedSpaceRatio"),
        value_in_effect(broker, "diskSpaceCleanForciblyRatio"),
    ) == ("95", "99")


async def test_edit_and_simultaneous_change_are_both_effective(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving one of the two does not revert the other."""
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

    assert (value_in_effect(broker, "fileReservedTime"), value_in_effect(broker, "maxPullBatchSize")) == ("72", "64")
