"""Creating many topics: those that arrive during a write share the next one, and each answer means "on disk"."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantry_broker.app import Broker
from gantry_broker.server.core.persist import Persistence
from gantry_broker.server.roles.table_sync import TableSync
from gantry_broker.store.config_file import ConfigFile
from gantry_testing.local import Dialogue, dialogue, running_broker
from gantry_wire import RequestCode
from gantry_wire.commands import documents
from gantry_wire.commands.admin import TopicConfig, TopicConfigTable
from gantry_wire.commands.documents import plain_document, write_document

COUNT = 100


def names_on_disk(path: Path) -> set[str]:
    return set(msgspec.json.decode((path / "config/topics.json").read_bytes())["topicConfigTable"])


async def create(peer: Dialogue, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    reply = await peer.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert reply.code == 0, reply.remark


async def missing_when_answered(broker: Broker, path: Path) -> list[str]:
    """Create many topics at once; return those that were not on disk when their creation was answered."""
    missing = []

    async def create_and_look(peer: Dialogue, topic: str) -> None:
        await create(peer, topic)
        if topic not in names_on_disk(path):
            missing.append(topic)

    async with dialogue(broker) as peer:
        await asyncio.gather(*(create_and_look(peer, f"topic-{number}") for number in range(COUNT)))
    return missing


@pytest.fixture
def saves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the tables that were written, in order."""
    paths: list[str] = []
    save = ConfigFile.save

    def record(file: ConfigFile, document: dict[str, Any]) -> None:
        paths.append(file.path)
        save(file, document)

    monkeypatch.setattr(ConfigFile, "save", record)
    return paths


async def test_creations_share_writes_and_are_on_disk_when_answered(tmp_path: Path, saves: list[str]) -> None:
    """A hundred creations at once need a few writes; each is on disk when it is answered."""
    store = tmp_path / "store"
    async with running_broker(store) as broker:
        before = len(saves)
        assert await missing_when_answered(broker, store) == []
        writes = len([path for path in saves[before:] if path.endswith("topics.json")])
        assert writes <= COUNT // 10
        found = names_on_disk(store)

    assert {f"topic-{number}" for number in range(COUNT)} <= found


async def test_without_the_wait_an_answered_creation_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin: without waiting for the write, answers come before the topics are on disk."""

    async def do_not_wait(persistence: Persistence, name: str) -> None:
        """Return before anything is written."""

    monkeypatch.setattr(Persistence, "wait_until_written", do_not_wait)
    async with running_broker(tmp_path / "store") as broker:
        assert await missing_when_answered(broker, tmp_path / "store") != []


async def test_no_table_is_encoded_for_slaves_that_do_not_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master without slaves does not encode its table at each change; a slave gets all tables when it joins."""
    encoded: list[str] = []
    monkeypatch.setattr(TableSync, "_encode_table", lambda sync, name: encoded.append(name))
    async with running_broker(tmp_path / "store") as broker, dialogue(broker) as peer:
        await create(peer, "orders")

        assert encoded == []


@pytest.mark.parametrize("convert", [plain_document, write_document])
def test_a_table_without_nulls_is_not_searched(monkeypatch: pytest.MonkeyPatch, convert: Any) -> None:
    """A topic table has no nulls, and its values are not visited one by one in Python at each write."""
    table = TopicConfigTable(topic_config_table={"orders": TopicConfig(topic_name="orders")})
    expected = documents._without_nulls(msgspec.to_builtins(table, str_keys=True))
    monkeypatch.setattr(documents, "_without_nulls", None)

    found = convert(table)

    assert (msgspec.json.decode(found) if isinstance(found, bytes) else found) == expected
