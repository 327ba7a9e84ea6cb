"""RocketMQ's own store, opened on a directory, as the reference for file compatibility.

`read_store` reports what Java finds in any directory; `write_store` lets Java fill one. Opening is what
a starting broker does (it recovers, may cut the log, and removes `abort` at its clean end), so a directory whose
original state is still needed must be copied first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gantry_interop import java
from gantry_interop.errors import InteropError
from gantry_interop.processes import Nursery

TOOL_SECONDS_MAX = 240.0
PROGRAM = java.Program(java.REFERENCE, "dev.gantry.interop.StoreTool", heap_mib=1024, options=java.OPENED_MODULES)


End = Literal["clean", "halt"]
"""How Java ends: it closes the store, or halts the virtual machine without closing it."""


@dataclass(frozen=True)
class StoreShape:
    """File sizes of a store; both sides must use the same, or Java refuses to load."""

    commit_log_file_bytes: int = 1 << 30
    consume_queue_file_bytes: int = 6_000_000
    hash_slots: int = 5_000_000
    index_entries: int = 20_000_000

    def arguments(self) -> list[str]:
        return [
            *("--commit-log-file-bytes", str(self.commit_log_file_bytes)),
            *("--consume-queue-file-bytes", str(self.consume_queue_file_bytes)),
            *("--hash-slots", str(self.hash_slots)),
            *("--index-entries", str(self.index_entries)),
        ]


SMALL = StoreShape(
    commit_log_file_bytes=1 << 20, consume_queue_file_bytes=20_000, hash_slots=5_000, index_entries=20_000
)
"""A shape in which a few thousand messages roll every kind of file."""


@dataclass(frozen=True)
class StoredMessage:
    """One message of a queue, and the consume queue entry that points to it."""

    queue_offset: int
    physical_offset: int
    record_bytes: int
    body_sha256: str
    tags: str | None
    keys: str | None
    store_timestamp: int = 0
    entry_physical_offset: int | None = None
    entry_record_bytes: int | None = None
    entry_tags_code: int | None = None


@dataclass(frozen=True)
class StoredQueue:
    """One queue: its half-open range of offsets, and how many of them can be read."""

    offset_min: int
    offset_max: int
    readable: int
    bodies_sha256: str
    messages: tuple[StoredMessage, ...] = ()


@dataclass(frozen=True)
class StoreReport:
    """The content that Java found in a store."""

    abort_was_present: bool
    physical_offset_min: int
    physical_offset_max: int
    topics: dict[str, dict[int, StoredQueue]]
    keys: dict[str, list[int]]
    """The physical offsets of the messages that Java's index finds, by `topic#key`."""


@dataclass(frozen=True)
class WrittenMessage:
    """One message as Java stored it."""

    topic: str
    queue: int
    message: StoredMessage


@dataclass(frozen=True)
class WrittenStore:
    """Everything that Java wrote into a store."""

    physical_offset_min: int
    physical_offset_max: int
    messages: tuple[WrittenMessage, ...]


def read_store(
    root: Path,
    work: Path,
    *,
    shape: StoreShape = StoreShape(),
    keys: Iterable[str] = (),
    with_messages: bool = False,
    is_sealed: bool = False,
    is_index_safe: bool = False,
) -> StoreReport:
    """Open the store at `root` as a Java broker would, and report; `keys` are `topic#key`.

    With `is_sealed`, every record that recovery reads must have a correct `__CRC32#` (`forceVerifyPropCRC`).
    With `is_index_safe`, recovery begins where the index was last flushed (`messageIndexSafe`). RocketMQ's default is
    no: after a halt it removes index files of the last seconds, and finds only keys of the records that it reads again.
    """
    arguments = ["read", "--root", str(root), *shape.arguments(), "--messages", str(with_messages).lower()]
    arguments += ["--seals", str(is_sealed).lower(), "--index-safe", str(is_index_safe).lower()]
    for key in keys:
        if "#" not in key:
            raise ValueError(f"a key must have the form topic#key: {key!r}")
        arguments += ["--key", key]
    found = _run(arguments, work)
    return StoreReport(
        abort_was_present=found["abort_was_present"],
        physical_offset_min=found["physical_offset_min"],
        physical_offset_max=found["physical_offset_max"],
        topics={
            topic: {int(queue): _queue(described) for queue, described in queues.items()}
            for topic, queues in found["topics"].items()
        },
        keys=found["keys"],
    )


@dataclass(frozen=True)
class WritePlan:
    """What Java writes: `count` messages, distributed over topics, then over queues.

    Message number n has the tag `tag-<n % 3>`, the keys `key-<n>` and `shared-<n % 10>`, and n as its flag.
    """

    count: int = 100
    topics: Sequence[str] = ("interop",)
    queues: int = 4
    body_bytes: int = 128
    seed: int = 1
    end: End = "clean"
    """`halt` ends the virtual machine without closing the store, so that `abort` stays."""
    is_sealed: bool = False
    """Whether Java writes and requires `__CRC32#` (`enabledAppendPropCRC`, `forceVerifyPropCRC`). The default is no."""
    copied_seal: str | None = None
    """The `__CRC32#` of every message: a copy of another record's, which is wrong for this one."""


def write_store(
    root: Path,
    work: Path,
    plan: WritePlan = WritePlan(),
    *,
    shape: StoreShape = StoreShape(),
) -> WrittenStore:
    """Let Java open (or create) the store at `root`, append to it, and end as planned."""
    done = _run(
        [
            "write",
            *("--root", str(root)),
            *shape.arguments(),
            *("--count", str(plan.count)),
            *("--topics", ",".join(plan.topics)),
            *("--queues", str(plan.queues)),
            *("--body-bytes", str(plan.body_bytes)),
            *("--seed", str(plan.seed)),
            *("--end", plan.end),
            *("--seals", str(plan.is_sealed).lower()),
            *(() if plan.copied_seal is None else ("--copied-seal", plan.copied_seal)),
        ],
        work,
    )
    messages = tuple(
        WrittenMessage(line.pop("topic"), line.pop("queue"), StoredMessage(**line)) for line in done["messages"]
    )
    return WrittenStore(done["physical_offset_min"], done["physical_offset_max"], messages)


def _queue(described: dict[str, Any]) -> StoredQueue:
    messages = tuple(StoredMessage(**message) for message in described.pop("messages", ()))
    return StoredQueue(**described, messages=messages)


def _run(arguments: list[str], work: Path) -> dict[str, Any]:
    java.build()
    home = work / "java-home"
    with Nursery(work) as nursery:
        name = f"store-tool-{arguments[0]}-{len(list(work.glob('store-tool-*.log')))}"
        child = nursery.run(name, PROGRAM.command(home, arguments), java.environment(home), TOOL_SECONDS_MAX)
    lines = [line for line in child.log.read_text(errors="replace").splitlines() if line.startswith("{")]
    if child.process.returncode != 0 or not lines:
        raise InteropError(f"the store tool failed; see {child.log}:\n{child.tail()}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
