"""Our store and RocketMQ's own on the same files: each reads what the other wrote, after a clean stop and a crash."""

from __future__ import annotations

import hashlib
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from gantry_interop import store_tool

from gantry_broker.store.settings import StoreSettings
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import StoreWorld
from gantry_wire.message import decode_records

pytestmark = pytest.mark.needs_java

SETTINGS = StoreSettings(
    mapped_file_size_commit_log=store_tool.SMALL.commit_log_file_bytes,
    mapped_file_size_consume_queue=store_tool.SMALL.consume_queue_file_bytes,
    max_hash_slot_num=store_tool.SMALL.hash_slots,
    max_index_num=store_tool.SMALL.index_entries,
    is_preallocating=False,
)
COUNT = 3_000
TOPICS = ("left", "right")
QUEUES = 2
Place = tuple[str, int]


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def offsets_of_key(world: StoreWorld, topic: str, key: str) -> list[int]:
    """Return the results of our index for a key, without messages that only share its hash."""
    records, _, _ = world.store.keys.records(topic, key, COUNT, 0, 1 << 60)
    messages = [message for record in records for message in decode_records(record)]
    return sorted(m.physical_offset for m in messages if key in m.properties.get("KEYS", "").split())


@pytest.mark.verify
@pytest.mark.parametrize(
    ("end", "is_sealed"), [("clean", False), ("crash", False), ("crash", True)], ids=["clean", "crash", "crash-seals"]
)
def test_java_reads_our_store_completely(end: str, is_sealed: bool, tmp_path: Path) -> None:
    """RocketMQ's store opens ours: the same end of the log, the same queues, bodies and key hits; then ours continues.

    With required seals it verifies every record of the log after a crash, and accepts ours as sealed.
    """
    root = tmp_path / "store"
    world = StoreWorld(KillableDisk(), str(root), SETTINGS)
    world.open()
    for number in range(COUNT):
        draft = world.draft(
            TOPICS[number % 2],
            number // 2 % QUEUES,
            body=b"%d" % number * 60,
            tag="abc"[number % 3],
            keys=f"key-{number} shared-{number % 500}",
        )
        world.append([draft])
    bodies = {(topic, queue): world.bodies(topic, queue) for topic in TOPICS for queue in range(QUEUES)}
    hits = {
        "left#key-100": offsets_of_key(world, "left", "key-100"),
        "right#shared-11": offsets_of_key(world, "right", "shared-11"),
        "left#unused": [],
    }
    wrote = world.store.log.wrote
    if end == "clean":
        world.close()
    else:
        world.kill()

    found = store_tool.read_store(
        root, tmp_path, shape=store_tool.SMALL, keys=list(hits), with_messages=True, is_sealed=is_sealed
    )

    assert found.abort_was_present == (end == "crash")
    assert found.physical_offset_max == wrote > store_tool.SMALL.commit_log_file_bytes, (
        "expected the same end of a log of more than one file"
    )
    assert {
        (topic, queue): [message.body_sha256 for message in stored.messages]
        for topic, queues in found.topics.items()
        for queue, stored in queues.items()
    } == {place: [sha256(body) for body in expected] for place, expected in bodies.items()}
    assert len(hits["left#key-100"]) == 1 and len(hits["right#shared-11"]) == COUNT // 500
    assert found.keys == hits

    again = StoreWorld(KillableDisk(), str(root), SETTINGS)
    again.open()
    assert {place: again.bodies(*place) for place in bodies} == bodies
    again.close()


@pytest.mark.verify
@pytest.mark.parametrize("end", ["clean", "halt"])
def test_we_read_javas_store_completely(end: store_tool.End, tmp_path: Path) -> None:
    """Our store opens RocketMQ's: the same end of the log, the same queues, offsets, bodies and key hits."""
    root = tmp_path / "store"
    plan = store_tool.WritePlan(count=COUNT, topics=TOPICS, queues=QUEUES, body_bytes=400, end=end)
    wrote = store_tool.write_store(root, tmp_path, plan, shape=store_tool.SMALL)
    expected: dict[Place, list[tuple[int, int, str]]] = defaultdict(list)
    for written in wrote.messages:
        message = written.message
        facts = (message.queue_offset, message.physical_offset, message.body_sha256)
        expected[written.topic, written.queue].append(facts)

    world = StoreWorld(KillableDisk(), str(root), SETTINGS)
    report = world.open()

    assert report.end == world.store.log.wrote == wrote.physical_offset_max
    for (topic, queue), facts_of_queue in expected.items():
        found = world.messages(topic, queue)
        assert [(m.queue_offset, m.physical_offset, sha256(m.body)) for m in found] == sorted(facts_of_queue)
    for topic, key in (("left", "key-0"), ("right", "shared-1")):
        holders = [w.message for w in wrote.messages if w.topic == topic]
        assert offsets_of_key(world, topic, key) == sorted(
            m.physical_offset for m in holders if m.keys is not None and key in m.keys.split()
        )
    world.close()


@pytest.mark.verify
def test_java_refuses_one_of_our_records_when_its_properties_changed(tmp_path: Path) -> None:
    """Java verifies our seals: a flipped bit after a body ends the log for it, if it requires seals."""
    root = tmp_path / "store"
    world = StoreWorld(KillableDisk(), str(root), SETTINGS)
    world.open()
    world.send("left", 20)
    wrote, damaged = world.store.log.wrote, world.messages("left")[9]
    world.kill()
    place = damaged.physical_offset + damaged.size - 30  # in the properties
    log = root / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[place] ^= 1
    log.write_bytes(data)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)

    without_seals = store_tool.read_store(copy, tmp_path, shape=store_tool.SMALL)
    with_seals = store_tool.read_store(root, tmp_path, shape=store_tool.SMALL, is_sealed=True)

    assert without_seals.physical_offset_max == wrote
    assert with_seals.physical_offset_max == damaged.physical_offset


@pytest.mark.verify
@pytest.mark.parametrize("kind", ["copied", "sealed"])
def test_records_that_java_appended_need_no_seal_of_ours(kind: str, tmp_path: Path) -> None:
    """Java's records may have a stale copy of a seal or a good one: all are served, and ours are sealed again."""
    root = tmp_path / "store"
    world = StoreWorld(KillableDisk(), str(root), SETTINGS)
    world.open()
    world.send("left", 20)
    ours_end = world.store.log.wrote
    ours = world.bodies("left")
    world.close()
    plan = store_tool.WritePlan(
        count=50,
        topics=("left",),
        queues=1,
        is_sealed=kind == "sealed",
        copied_seal="0123456789" if kind == "copied" else None,
    )
    theirs = store_tool.write_store(root, tmp_path, plan, shape=store_tool.SMALL)

    for _ in ("after Java", "after our crash"):
        world = StoreWorld(KillableDisk(), str(root), SETTINGS)
        report = world.open()

        assert report.damaged == [] and report.end == world.store.log.wrote >= theirs.physical_offset_max
        found = world.messages("left")
        assert [message.body for message in found[:20]] == ours
        assert [sha256(message.body) for message in found[20:70]] == [m.message.body_sha256 for m in theirs.messages]
        assert all(world.store.guard.message_at(message.physical_offset) is not None for message in found)
        if kind == "copied":  # records with good seals may count as ours
            assert not any(world.store.identity.is_ours(message.physical_offset) for message in found[20:70])
        world.send("left", 5)
        assert world.store.identity.is_ours(world.messages("left")[-1].physical_offset)
        world.kill()
    carried = {message.properties["__CRC32#"] for message in found[20:70]}
    assert carried == {"0123456789"} if kind == "copied" else len(carried) == 50
    assert found[20].physical_offset == ours_end
