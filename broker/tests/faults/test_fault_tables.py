"""Row D13 of the fault catalogue: damaged JSON files beside the log, and crashes between write and rename of one.

They hold facts that cannot be rebuilt from the log. A damaged file is replaced by its copy, and that is logged; if both
are damaged the broker does not start, since consumers at offset zero would be worse.
"""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from crash.producer import TOPICS
from faults.scene import Scene

from gantry_remoting import Channel
from gantry_store_files import StoreIdentity, decode_sealed
from gantry_wire import Command, RequestCode
from gantry_wire.commands.admin import SubscriptionGroupConfig
from gantry_wire.commands.documents import write_document
from gantry_wire.commands.offsets import QueryConsumerOffset, UpdateConsumerOffset

GROUP = "FaultReaders"
TABLES = ("topics", "subscriptionGroup", "consumerOffset", "delayOffset")
REQUEST_TIMEOUT_MS = 60_000

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "garbled": lambda data: bytes(byte ^ 0x5A for byte in data),
    "zeroed": lambda data: bytes(len(data)),
    "another-shape": lambda data: b"[1, 2, 3]",
}
DAMAGES_SOME_SLOW = [pytest.param(name, marks=[] if name == "cut" else pytest.mark.slow) for name in DAMAGES]


async def commit_offset(scene: Scene, offset: int) -> None:
    """Commit the offset of a group in queue 0 of the first topic."""
    channel = await Channel.connect(scene.address)
    fields = UpdateConsumerOffset(consumer_group=GROUP, topic=TOPICS[0], queue_id=0, commit_offset=offset)
    group = write_document(SubscriptionGroupConfig(group_name=GROUP))
    known = Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group)
    assert (await channel.request(known, REQUEST_TIMEOUT_MS)).code == 0
    command = Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, ext=fields.write())
    assert (await channel.request(command, REQUEST_TIMEOUT_MS)).code == 0
    await channel.close()


async def committed_offset(scene: Scene) -> int | None:
    """Return the committed offset of the group, or None if the broker has none."""
    channel = await Channel.connect(scene.address)
    fields = QueryConsumerOffset(consumer_group=GROUP, topic=TOPICS[0], queue_id=0)
    reply = await channel.request(
        Command(code=RequestCode.QUERY_CONSUMER_OFFSET, ext=fields.write()), REQUEST_TIMEOUT_MS
    )
    await channel.close()
    return int(reply.ext["offset"]) if reply.code == 0 else None


async def use_store_twice(scene: Scene) -> None:
    """Use the store and stop its broker, twice, so that every table and its copy were read and written again."""
    for offset in (3, 7):
        await scene.start()
        await scene.send_once(200)
        await commit_offset(scene, offset)
        assert await scene.broker.stop() == 0


def table(scene: Scene, name: str) -> Path:
    return scene.store / "config" / f"{name}.json"


def damage_file(path: Path, damage: str) -> None:
    path.write_bytes(DAMAGES[damage](path.read_bytes()))


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("damage", DAMAGES_SOME_SLOW)
@pytest.mark.parametrize("name", ["topics", "consumerOffset"])
async def test_a_damaged_table_is_replaced_by_its_copy(name: str, damage: str, tmp_path: Path) -> None:
    """D13: the good copy is used and named in the log; no offset is reset and no topic is lost."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        damage_file(table(scene, name), damage)

        await scene.start()

        assert "using its .bak copy" in scene.log and f"{name}.json" in scene.log
        assert await committed_offset(scene) == 7
        assert await scene.lost_messages() == []
        await scene.send_once(50)
        assert await scene.broker.stop() == 0
        assert isinstance(json.loads(table(scene, name).read_bytes()), dict)


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["subscriptionGroup", "delayOffset"])
async def test_the_other_tables_have_copies_too(name: str, damage: str, tmp_path: Path) -> None:
    """D13: the same holds for groups and for the progress of delayed messages."""
    await test_a_damaged_table_is_replaced_by_its_copy(name, damage, tmp_path)


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("damage", DAMAGES_SOME_SLOW)
@pytest.mark.parametrize("copy", ["store.json", "store.json.bak"])
async def test_one_damaged_copy_of_the_identity_changes_nothing(copy: str, damage: str, tmp_path: Path) -> None:
    """D13: the identity of the store is written twice, and one copy is enough."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        uuid = decode_sealed((scene.store / "store.json").read_bytes(), StoreIdentity).uuid
        damage_file(scene.store / copy, damage)

        await scene.start()

        assert await scene.lost_messages() == []
        assert decode_sealed((scene.store / "store.json").read_bytes(), StoreIdentity).uuid == uuid


@pytest.mark.verify
@pytest.mark.parametrize(
    "name", ["consumerOffset", *(pytest.param(name, marks=pytest.mark.slow) for name in ("topics", "store"))]
)
async def test_two_damaged_copies_are_a_refusal(name: str, tmp_path: Path) -> None:
    """D13: without a good copy the start fails, names the file and leaves both unchanged for an administrator."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        path = scene.store / "store.json" if name == "store" else table(scene, name)
        copies = [path, path.with_name(path.name + ".bak")]
        for copy in copies:
            damage_file(copy, "cut")
        before = [copy.read_bytes() for copy in copies]

        refusal = await scene.start_is_refused()

        assert path.name in refusal
        assert [copy.read_bytes() for copy in copies] == before


@pytest.mark.slow
async def test_missing_table_is_replaced_by_its_copy(tmp_path: Path) -> None:
    """D13: if a table is gone, for example after a crash, its copy is used, which has the same content."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        for name in TABLES:
            table(scene, name).unlink()

        await scene.start()

        assert scene.log.count("using its .bak copy") == len(TABLES)
        assert await committed_offset(scene) == 7
        assert await scene.lost_messages() == []


@pytest.mark.verify
@pytest.mark.parametrize("number", [1, 5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3, 4, 6, 7))])
async def test_a_kill_between_write_and_rename_leaves_a_good_copy(number: int, tmp_path: Path) -> None:
    """D13: a broker killed at its n-th rename starts again with every table whole, old or new, and never empty."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        scene.set_broker_options("--kill-at-rename", str(number))
        await scene.launch()
        code = await scene.run_until_ended(commit_offset(scene, 9))
        assert code == -signal.SIGKILL, f"there is no rename number {number}"
        scene.set_broker_options()

        await scene.start()

        assert await committed_offset(scene) in (7, 9)
        assert await scene.lost_messages() == []
        assert "using its .bak copy" not in scene.log, "a table is damaged after the kill"


@pytest.mark.verify
async def test_temporary_file_of_a_table_is_ignored(tmp_path: Path) -> None:
    """D13: a temporary file that a crash left is no table, and does not prevent the next save."""
    async with Scene(tmp_path) as scene:
        await use_store_twice(scene)
        for name in TABLES:
            table(scene, name).with_suffix(".json.tmp").write_bytes(b'{"offsetTable":{')

        await scene.start()

        assert await committed_offset(scene) == 7
        assert await scene.broker.stop() == 0
        assert isinstance(json.loads(table(scene, "consumerOffset").read_bytes()), dict)
