"""The store tool: RocketMQ's own store as a reference for tests."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from gantry_interop import store_tool

pytestmark = pytest.mark.needs_java

COUNT = 3_000
TOPICS = ("left", "right")
QUEUES = 2


@pytest.mark.verify
@pytest.mark.parametrize("end", [pytest.param("clean", marks=pytest.mark.slow), "halt"])
def test_java_reads_what_java_wrote(end: store_tool.End, tmp_path: Path) -> None:
    """The reference is valid: it finds every message of its own store, clean or with `abort` present."""
    plan = store_tool.WritePlan(count=COUNT, topics=TOPICS, queues=QUEUES, body_bytes=400, end=end)

    wrote = store_tool.write_store(tmp_path / "store", tmp_path, plan, shape=store_tool.SMALL)
    found = store_tool.read_store(
        tmp_path / "store",
        tmp_path,
        shape=store_tool.SMALL,
        keys=["left#key-0", "right#shared-1", "left#unused"],
        is_index_safe=True,
        with_messages=True,
    )

    assert found.abort_was_present == (end == "halt")
    assert found.physical_offset_max == wrote.physical_offset_max > store_tool.SMALL.commit_log_file_bytes
    written = {(m.topic, m.queue, m.message.queue_offset): m.message for m in wrote.messages}
    read = {
        (topic, queue, message.queue_offset): message
        for topic, queues in found.topics.items()
        for queue, stored in queues.items()
        for message in stored.messages
    }
    assert read.keys() == written.keys()
    for place, message in read.items():
        assert message.body_sha256 == written[place].body_sha256
        assert message.entry_physical_offset == written[place].physical_offset
        assert message.entry_record_bytes == written[place].record_bytes
    by_key = {
        key: sorted(
            m.message.physical_offset
            for m in wrote.messages
            if m.topic == topic and m.message.keys is not None and key in m.message.keys.split()
        )
        for topic, key in (("left", "key-0"), ("right", "shared-1"))
    }
    assert found.keys == {
        "left#key-0": by_key["key-0"],
        "right#shared-1": by_key["shared-1"],
        "left#unused": [],
    }


@pytest.mark.verify
def test_flipped_byte_is_detected(tmp_path: Path) -> None:
    """The reference can fail: with one byte of a body changed, Java does not read the same store."""
    plan = store_tool.WritePlan(count=50, topics=("left",), queues=1, end="halt")
    wrote = store_tool.write_store(tmp_path / "store", tmp_path, plan, shape=store_tool.SMALL)
    shutil.rmtree(tmp_path / "store" / "consumequeue")
    victim = wrote.messages[25].message
    log = tmp_path / "store" / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[victim.physical_offset + 100] ^= 0xFF
    log.write_bytes(content)

    found = store_tool.read_store(tmp_path / "store", tmp_path, shape=store_tool.SMALL, with_messages=True)

    assert found.physical_offset_max == victim.physical_offset
    readable = [message.body_sha256 for message in found.topics["left"][0].messages]
    assert readable == [m.message.body_sha256 for m in wrote.messages[:25]]
    assert hashlib.sha256("".join(readable).encode()).hexdigest() == found.topics["left"][0].bodies_sha256
