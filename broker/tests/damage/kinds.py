"""The kinds of files of a store; a file without a kind is an error.

    commitlog/ consumequeue/<topic>/<queue>/ index/ checkpoint abort lock log-end flush-failed *.json[.bak]
    config/*.json[.bak] and write buffers

Files of one kind are damaged in the same ways, even if different modules write them. A file of a kind that is not
listed here fails the run (``UnknownFile``), so that none can be forgotten.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

STORE: Final = "store"
POOL: Final = "pool"
NAME_DIGITS: Final = 20


class UnknownFile(Exception):
    """A store has a file of unknown kind. Add the kind in ``damage/kinds.py``."""


class Kind(StrEnum):
    """A kind of file, as the table of a run names it."""

    LOG_FIRST = "log-first"
    LOG_MIDDLE = "log-middle"
    LOG_NEWEST = "log-newest"
    LOG_AHEAD = "log-ahead"
    """The next, preallocated file of the log."""
    QUEUE = "queue"
    QUEUE_DELAY = "queue-delay"
    QUEUE_HALF = "queue-half"
    QUEUE_OP = "queue-op"
    QUEUE_RETRY = "queue-retry"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    ABORT = "abort"
    LOCK = "lock"
    STORE = "store.json"
    STORE_BAK = "store.json.bak"
    POINT = "recovery-point"
    LOG_END = "log-end"
    """The file with the written end of the log."""
    HEADS = "log-heads"
    COMPLETENESS = "completeness"
    ROLE = "role"
    PROMISE = "promise"
    PROMISE_BAK = "promise.bak"
    RETENTION_CLOCK = "retention-clock"
    FAILURE = "flush-failed"
    TOPICS = "topics"
    TOPICS_BAK = "topics.bak"
    GROUPS = "subscriptionGroup"
    GROUPS_BAK = "subscriptionGroup.bak"
    OFFSETS = "consumerOffset"
    OFFSETS_BAK = "consumerOffset.bak"
    DELAY = "delayOffset"
    DELAY_BAK = "delayOffset.bak"
    LOCKS = "queueLocks"
    LOCKS_BAK = "queueLocks.bak"
    LIVE = "liveSettings"
    LIVE_BAK = "liveSettings.bak"
    BUFFER = "write-buffer"
    BUFFER_LOCK = "write-buffer-lock"


LOG: Final = frozenset({Kind.LOG_FIRST, Kind.LOG_MIDDLE, Kind.LOG_NEWEST})
QUEUES: Final = frozenset({Kind.QUEUE, Kind.QUEUE_DELAY, Kind.QUEUE_HALF, Kind.QUEUE_OP, Kind.QUEUE_RETRY})
POOLED: Final = frozenset({Kind.BUFFER, Kind.BUFFER_LOCK})
OF_MASTERS: Final = frozenset({Kind.LIVE, Kind.LIVE_BAK, Kind.LOCKS, Kind.LOCKS_BAK})
"""Kinds that are damaged on the master only: they are empty until an administrator or a consumer changes something."""
IN_GROUPS: Final = frozenset({Kind.PROMISE, Kind.PROMISE_BAK})
"""Kinds that only members of a group have."""

_SMALL: Final = {
    "checkpoint": Kind.CHECKPOINT, "abort": Kind.ABORT, "lock": Kind.LOCK, "store.json": Kind.STORE,
    "store.json.bak": Kind.STORE_BAK, "recovery-point.json": Kind.POINT, "log-heads.json": Kind.HEADS,
    "completeness.json": Kind.COMPLETENESS,
    "role.json": Kind.ROLE, "promise.json": Kind.PROMISE, "promise.json.bak": Kind.PROMISE_BAK,
    "flush-failed": Kind.FAILURE, "log-end": Kind.LOG_END,
    "retention-clock.json": Kind.RETENTION_CLOCK,
}  # fmt: skip
_TABLES: Final = {
    "topics": Kind.TOPICS, "subscriptionGroup": Kind.GROUPS, "consumerOffset": Kind.OFFSETS,
    "delayOffset": Kind.DELAY, "queueLocks": Kind.LOCKS, "liveSettings": Kind.LIVE,
}  # fmt: skip
_BACKUPS: Final = {
    Kind.TOPICS: Kind.TOPICS_BAK, Kind.GROUPS: Kind.GROUPS_BAK, Kind.OFFSETS: Kind.OFFSETS_BAK,
    Kind.DELAY: Kind.DELAY_BAK, Kind.LOCKS: Kind.LOCKS_BAK, Kind.LIVE: Kind.LIVE_BAK,
}  # fmt: skip
_QUEUES: Final = {
    "SCHEDULE_TOPIC_XXXX": Kind.QUEUE_DELAY,
    "RMQ_SYS_TRANS_HALF_TOPIC": Kind.QUEUE_HALF,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": Kind.QUEUE_OP,
}


class StoreFile(NamedTuple):
    """One file of a member, by its path below the member's folder."""

    kind: Kind
    name: str


def files_below(folder: Path) -> Iterator[str]:
    """Return every file below ``folder``, by its relative path, in order."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield str((Path(directory) / name).relative_to(folder))


def survey(member: Path, *, end: int) -> list[StoreFile]:
    """Return every file of a member's store and buffers with its kind. Raises ``UnknownFile``.

    ``end`` is the end of its log.
    """
    return [StoreFile(kind_of(name, member, end=end), name) for name in files_below(member)]


def kind_of(name: str, member: Path, *, end: int) -> Kind:
    """Return the kind of one file. Raises ``UnknownFile``."""
    parts = name.split("/")
    found: Kind | None = None
    match parts:
        case [folder, "lock"] if folder == POOL:
            found = Kind.BUFFER_LOCK
        case [folder, buffer] if folder == POOL and buffer.startswith("buffer-"):
            found = Kind.BUFFER
        case [_, "commitlog", base] if _is_base(base):
            found = _log_kind(int(base), member / STORE / "commitlog", end)
        case [_, "consumequeue", topic, _, base] if _is_base(base):
            found = _QUEUES.get(topic, Kind.QUEUE_RETRY if topic.startswith("%RETRY%") else Kind.QUEUE)
        case [_, "index", index] if index.isdigit():
            found = Kind.INDEX
        case [_, "config", table]:
            stem = table.removesuffix(".bak").removesuffix(".json")
            found = _TABLES.get(stem)
            if found is not None and table.endswith(".bak"):
                found = _BACKUPS[found]
        case [_, small]:
            found = _SMALL.get(small)
        case _:
            found = None
    if found is None:
        raise UnknownFile(f"{name}: a file of no known kind; give it one in broker/tests/damage/kinds.py")
    return found


def _is_base(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isdigit()


def _log_kind(base: int, folder: Path, end: int) -> Kind:
    bases = sorted(int(one) for one in os.listdir(folder))
    if base >= end and base > bases[0]:
        return Kind.LOG_AHEAD
    used = [one for one in bases if one < end] or bases[:1]
    if base == used[-1]:
        return Kind.LOG_NEWEST
    return Kind.LOG_FIRST if base == used[0] else Kind.LOG_MIDDLE
