"""RocketMQ's own store and `gantry store` read the same data from the same files, also with the write buffer on.

Java is the reference: its store opens a copy, and lists every message of every queue with its place. The
tools must report the same from the files, without opening the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gantry_interop import store_tool

from gantry_broker.ports.real_buffers import file_system_of
from gantry_cli.main import cli

pytestmark = pytest.mark.needs_java

SHARED_MEMORY = "/dev/shm"
COUNT = 3_000
TOPICS = ("left", "right")
QUEUES = 2
Found = dict[tuple[str, int, int], tuple[int, int, str]]
"""(topic, queue, queue offset) to (physical offset, size, SHA-256 of the body)."""

WRITE = """
import sys
from gantry_broker.store.message_store import MessageStore
from gantry_broker.store.settings import PoolSettings, StoreSettings
from gantry_testing.killable_disk import KillableDisk
from gantry_testing.store_world import STORE_HOST, StoreWorld
root, path, count, file_size, queue_size, slots, entries = sys.argv[1:]
settings = StoreSettings(
    mapped_file_size_commit_log=int(file_size), mapped_file_size_consume_queue=int(queue_size),
    max_hash_slot_num=int(slots), max_index_num=int(entries),
    pool=PoolSettings(is_enabled=True, buffers_count=4, path=path),
)
world = StoreWorld(KillableDisk(), root, settings)
store = MessageStore(root, settings, disk=world.disk, clock=world.clock, store_host=STORE_HOST, on_fatal=print)
store.open(is_flushing=False)
world.adopt(store)
for number in range(int(count)):
    keys = f"key-{number} shared-{number % 10}"
    body = b"%d" % number * 60
    topic, tag = ("left", "right")[number % 2], "abc"[number % 3]
    world.append([world.draft(topic, number // 2 % 2, body=body, tag=tag, keys=keys)])
    if number % 100 == 0:
        world.clock.advance(1_000)
        store.commit_step()
        store.flush_step()
print(store.log.wrote, store.log.committed, flush=True)
if sys.stdin.readline() == "stop\\n":
    store.close()
    print("stopped", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Written:
    """A store that one of our processes wrote through its buffers."""

    root: Path
    wrote: int
    committed: int


@pytest.fixture
def buffers() -> Iterator[Path]:
    """A directory on a tmpfs."""
    if not os.path.isdir(SHARED_MEMORY) or file_system_of(SHARED_MEMORY) != "tmpfs":
        pytest.skip(f"no tmpfs at {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
        yield Path(directory)


def write_through_buffers(root: Path, buffers: Path, *, is_killed: bool) -> Written:
    """Let a process write a store with the pool on, and stop it cleanly or kill it."""
    shape = store_tool.SMALL
    sizes = (shape.commit_log_file_bytes, shape.consume_queue_file_bytes, shape.hash_slots, shape.index_entries)
    words = [sys.executable, "-c", WRITE, str(root), str(buffers), str(COUNT), *map(str, sizes)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        wrote, committed = map(int, process.stdout.readline().split())
        if is_killed:
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.write("stop\n")
            process.stdin.flush()
            assert process.stdout.readline() == "stopped\n"
        process.kill()
    return Written(root, wrote, committed)


def gantry(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["store", *words])
    return result.exit_code, result.output


def verified(root: Path) -> dict[str, Any]:
    """Return the report of `verify` on a store that must be valid."""
    code, output = gantry("verify", str(root), "--json")
    report: dict[str, Any] = json.loads(output)
    assert code == 0, report
    assert report["findings"] == []
    return report


def dumped(root: Path) -> Found:
    """Return the messages that `dump` finds in the log."""
    code, output = gantry("dump", str(root), "--count", "0", "--body", "hex", "--json")
    assert code == 0
    found: Found = {}
    for record in map(json.loads, output.splitlines()):
        digest = hashlib.sha256(bytes.fromhex(record["body_hex"])).hexdigest()
        found[record["topic"], record["queue_id"], record["queue_offset"]] = (record["offset"], record["size"], digest)
    return found


def read_by_java(root: Path, work: Path, *, is_sealed: bool = False) -> tuple[store_tool.StoreReport, Found]:
    """Return what Java finds in a copy of the store."""
    copy = work / "copy"
    shutil.copytree(root, copy)
    report = store_tool.read_store(copy, work, shape=store_tool.SMALL, with_messages=True, is_sealed=is_sealed)
    found: Found = {
        (topic, queue, message.queue_offset): (message.physical_offset, message.record_bytes, message.body_sha256)
        for topic, queues in report.topics.items()
        for queue, stored in queues.items()
        for message in stored.messages
    }
    return report, found


@pytest.mark.verify
@pytest.mark.parametrize("end", ["clean", "killed"])
def test_java_opens_what_was_written_through_the_buffer(end: str, tmp_path: Path, buffers: Path) -> None:
    """After a clean stop, or a kill and `gantry store recover`: every message is found, and the tools agree with
    Java."""
    written = write_through_buffers(tmp_path / "store", buffers, is_killed=end == "killed")
    root = written.root
    if end == "killed":
        assert written.committed < written.wrote, (
            "expected data that is only in the buffer; without it the test proves nothing"
        )
        assert len(dumped(root)) < COUNT
        code, output = gantry("recover", str(root), "--yes", "--json")
        report = json.loads(output)
        assert (code, report["end"], report["replayed_bytes"] > 0) == (0, written.wrote, True)
    assert list(buffers.glob("buffer-*")) == [] or end == "clean"

    ours = verified(root)
    java, found = read_by_java(root, tmp_path, is_sealed=True)

    assert not java.abort_was_present
    assert java.physical_offset_max == ours["end"] == written.wrote > store_tool.SMALL.commit_log_file_bytes
    assert len(found) == ours["records"] == ours["units"] == COUNT
    assert ours["records_sealed"] == COUNT
    assert dumped(root) == found


@pytest.mark.verify
@pytest.mark.parametrize("end", [pytest.param("clean", marks=pytest.mark.slow), "halt"])
def test_tools_read_what_java_wrote(end: store_tool.End, tmp_path: Path) -> None:
    """For the tools a store of RocketMQ is valid, after a clean stop and after a crash."""
    root = tmp_path / "store"
    plan = store_tool.WritePlan(count=COUNT, topics=TOPICS, queues=QUEUES, body_bytes=400, end=end)
    wrote = store_tool.write_store(root, tmp_path, plan, shape=store_tool.SMALL)

    _, output = gantry("inspect", str(root), "--json")
    seen = json.loads(output)
    assert (seen["writer"], seen["is_clean"], seen["uuid"]) == ("rocketmq", end == "clean", "")
    assert seen["log"]["end"] == wrote.physical_offset_max
    ours = verified(root)
    _, found = read_by_java(root, tmp_path)

    assert ours["end"] == wrote.physical_offset_max
    assert (ours["records"], ours["records_sealed"], ours["units"]) == (COUNT, 0, COUNT)
    assert ours["index_entries"] > 0
    assert dumped(root) == found
    assert json.loads(gantry("repair-plan", str(root), "--json")[1])["is_full"]


@pytest.mark.verify
def test_tools_find_corruption_in_javas_store(tmp_path: Path) -> None:
    """Two changed bytes of a body: the record is reported, with the queue offset that Java gave it."""
    root = tmp_path / "store"
    wrote = store_tool.write_store(root, tmp_path, store_tool.WritePlan(count=500), shape=store_tool.SMALL)
    victim = wrote.messages[250]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(victim.message.physical_offset + 100)
        log.write(b"\xff\xff")

    code, output = gantry("verify", str(root), "--json")
    [finding] = json.loads(output)["findings"]

    assert code == 1
    assert (finding["kind"], finding["offset"], finding["length"]) == (
        "rot", victim.message.physical_offset, victim.message.record_bytes,
    )  # fmt: skip
    assert finding["lost"] == [[victim.topic, victim.queue, victim.message.queue_offset]]


@pytest.mark.verify
def test_store_moves_from_java_to_us_and_back(tmp_path: Path, buffers: Path) -> None:
    """Java writes, we append through the buffer and are killed, `recover`, and Java reads everything."""
    root = tmp_path / "store"
    plan = store_tool.WritePlan(count=500, topics=TOPICS, queues=QUEUES, end="halt")
    store_tool.write_store(root, tmp_path, plan, shape=store_tool.SMALL)
    written = write_through_buffers(root, buffers, is_killed=True)

    assert gantry("recover", str(root), "--yes")[0] == 0
    ours = verified(root)
    seen = json.loads(gantry("inspect", str(root), "--json")[1])
    java, found = read_by_java(root, tmp_path)

    assert (seen["writer"], [epoch["is_ours"] for epoch in seen["epochs"]]) == ("both", [False, True])
    assert (ours["records"], ours["records_sealed"]) == (500 + COUNT, COUNT)
    assert java.physical_offset_max == ours["end"] == written.wrote
    assert dumped(root) == found
