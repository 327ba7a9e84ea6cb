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
"""The folder of the store, below the folder of its member."""
BUFFER_FOLDER: Final = "pool"
"""The folder of the write buffers, below the folder of their member."""
NAME_DIGITS: Final = 20


class UnknownFile(Exception):
    """A store has a file of unknown kind. Add the kind in ``damage/file_kinds.py``."""


class FileKind(StrEnum):
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
    """The queue of the ends of half messages."""
    QUEUE_RETRY = "queue-retry"
    INDEX = "index"
    CHECKPOINT = "checkpoint"
    ABORT = "abort"
    LOCK = "lock"
    STORE = "store.json"
    STORE_BAK = "store.json.bak"
    RECOVERY_POINT = "recovery-point"
    LOG_END = "log-end"
    """The file with the written end of the log."""
    LOG_HEADS = "log-heads"
    """Checksums of the heads of the log's files."""
    COMPLETENESS = "completeness"
    ROLE = "role"
    PROMISE = "promise"
    PROMISE_BAK = "promise.bak"
    RETENTION_CLOCK = "retention-clock"
    FLUSH_FAILED = "flush-failed"
    TOPICS = "topics"
    TOPICS_BAK = "topics.bak"
    GROUPS = "subscriptionGroup"
    GROUPS_BAK = "subscriptionGroup.bak"
    OFFSETS = "consumerOffset"
    OFFSETS_BAK = "consumerOffset.bak"
    DELAY_OFFSETS = "delayOffset"
    DELAY_OFFSETS_BAK = "delayOffset.bak"
    QUEUE_LOCKS = "queueLocks"
    QUEUE_LOCKS_BAK = "queueLocks.bak"
    LIVE_SETTINGS = "liveSettings"
    LIVE_SETTINGS_BAK = "liveSettings.bak"
    TIMER_PROGRESS = "timerProgress"
    TIMER_PROGRESS_BAK = "timerProgress.bak"
    TIMER_CHECK = "timercheck"
    """The progress of timers for RocketMQ."""
    POP_MODES = "messageRequestMode"
    POP_MODES_BAK = "messageRequestMode.bak"
    POP_ORDER = "consumerOrderInfo"
    POP_ORDER_BAK = "consumerOrderInfo.bak"
    ACCOUNTS = "accounts"
    ACCOUNTS_BAK = "accounts.bak"
    TIMERS = "timers"
    """The files of due timers, and their position."""
    BUFFER = "write-buffer"
    BUFFER_LOCK = "write-buffer-lock"


LOG_KINDS: Final = frozenset({FileKind.LOG_FIRST, FileKind.LOG_MIDDLE, FileKind.LOG_NEWEST})
QUEUE_KINDS: Final = frozenset(
    {FileKind.QUEUE, FileKind.QUEUE_DELAY, FileKind.QUEUE_HALF, FileKind.QUEUE_OP, FileKind.QUEUE_RETRY}
)
ACCOUNT_KINDS: Final = frozenset({FileKind.ACCOUNTS, FileKind.ACCOUNTS_BAK})
"""Kinds that only brokers have that store users."""
TIMER_KINDS: Final = frozenset(
    {FileKind.TIMERS, FileKind.TIMER_CHECK, FileKind.TIMER_PROGRESS, FileKind.TIMER_PROGRESS_BAK}
)
BUFFER_KINDS: Final = frozenset({FileKind.BUFFER, FileKind.BUFFER_LOCK})
ON_MASTER_ONLY: Final = frozenset(
    {FileKind.LIVE_SETTINGS, FileKind.LIVE_SETTINGS_BAK, FileKind.QUEUE_LOCKS, FileKind.QUEUE_LOCKS_BAK}
)
"""Kinds that are damaged on the master only: they are empty until an administrator or a consumer changes something."""
IN_GROUPS_ONLY: Final = frozenset({FileKind.PROMISE, FileKind.PROMISE_BAK})
"""Kinds that only members of a group have."""

_SMALL: Final = {
    "checkpoint": FileKind.CHECKPOINT, "abort": FileKind.ABORT, "lock": FileKind.LOCK, "store.json": FileKind.STORE,
    "store.json.bak": FileKind.STORE_BAK, "recovery-point.json": FileKind.RECOVERY_POINT,
    "log-heads.json": FileKind.LOG_HEADS,
    "completeness.json": FileKind.COMPLETENESS,
    "role.json": FileKind.ROLE, "promise.json": FileKind.PROMISE, "promise.json.bak": FileKind.PROMISE_BAK,
    "flush-failed": FileKind.FLUSH_FAILED, "log-end": FileKind.LOG_END,
    "retention-clock.json": FileKind.RETENTION_CLOCK,
}  # fmt: skip
_TABLES: Final = {
    "topics": FileKind.TOPICS, "subscriptionGroup": FileKind.GROUPS, "consumerOffset": FileKind.OFFSETS,
    "delayOffset": FileKind.DELAY_OFFSETS, "queueLocks": FileKind.QUEUE_LOCKS, "liveSettings": FileKind.LIVE_SETTINGS,
    "timerProgress": FileKind.TIMER_PROGRESS, "timercheck": FileKind.TIMER_CHECK,
    "messageRequestMode": FileKind.POP_MODES, "consumerOrderInfo": FileKind.POP_ORDER, "accounts": FileKind.ACCOUNTS,
}  # fmt: skip
_BACKUPS: Final = {
    FileKind.TOPICS: FileKind.TOPICS_BAK, FileKind.GROUPS: FileKind.GROUPS_BAK, FileKind.OFFSETS: FileKind.OFFSETS_BAK,
    FileKind.DELAY_OFFSETS: FileKind.DELAY_OFFSETS_BAK, FileKind.QUEUE_LOCKS: FileKind.QUEUE_LOCKS_BAK,
    FileKind.LIVE_SETTINGS: FileKind.LIVE_SETTINGS_BAK, FileKind.TIMER_PROGRESS: FileKind.TIMER_PROGRESS_BAK,
    FileKind.POP_MODES: FileKind.POP_MODES_BAK, FileKind.POP_ORDER: FileKind.POP_ORDER_BAK,
    FileKind.ACCOUNTS: FileKind.ACCOUNTS_BAK,
}  # fmt: skip
_QUEUES: Final = {
    "SCHEDULE_TOPIC_XXXX": FileKind.QUEUE_DELAY,
    "RMQ_SYS_TRANS_HALF_TOPIC": FileKind.QUEUE_HALF,
    "RMQ_SYS_TRANS_OP_HALF_TOPIC": FileKind.QUEUE_OP,
}


class StoreFile(NamedTuple):
    """One file of a member, by its path below the member's folder."""

    kind: FileKind
    name: str


def files_below(folder: Path) -> Iterator[str]:
    """Return every file below ``folder``, by its relative path, in order."""
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield str((Path(directory) / name).relative_to(folder))


def classify_files(member: Path, *, end: int) -> list[StoreFile]:
    """Return every file of a member's store and buffers with its kind. Raises ``UnknownFile``.

    ``end`` is the end of its log.
    """
    return [StoreFile(kind_of(name, member, end=end), name) for name in files_below(member)]


def kind_of(name: str, member: Path, *, end: int) -> FileKind:
    """Return the kind of one file. Raises ``UnknownFile``."""
    parts = name.split("/")
    found: FileKind | None = None
    match parts:
        case [folder, "lock"] if folder == BUFFER_FOLDER:
            found = FileKind.BUFFER_LOCK
        case [folder, buffer] if folder == BUFFER_FOLDER and buffer.startswith("buffer-"):
            found = FileKind.BUFFER
        case [_, "commitlog", base] if _is_base(base):
            found = _log_kind(int(base), member / STORE / "commitlog", end)
        case [_, "consumequeue", topic, _, base] if _is_base(base):
            found = _QUEUES.get(topic, FileKind.QUEUE_RETRY if topic.startswith("%RETRY%") else FileKind.QUEUE)
        case [_, "timers", _]:
            found = FileKind.TIMERS
        case [_, "index", index] if index.isdigit():
            found = FileKind.INDEX
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
        raise UnknownFile(f"{name}: a file of no known kind; give it one in broker/tests/damage/file_kinds.py")
    return found


def _is_base(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isdigit()


def _log_kind(base: int, folder: Path, end: int) -> FileKind:
    bases = sorted(int(one) for one in os.listdir(folder))
    if base >= end and base > bases[0]:
        return FileKind.LOG_AHEAD
    used = [one for one in bases if one < end] or bases[:1]
    if base == used[-1]:
        return FileKind.LOG_NEWEST
    return FileKind.LOG_FIRST if base == used[0] else FileKind.LOG_MIDDLE


def report_words_of(file: StoreFile) -> list[str]:
    """Return the words by which a report may name a file."""
    parts = file.name.split("/")
    match file.kind:
        case kind if kind in LOG_KINDS or kind is FileKind.LOG_AHEAD:
            return [f"commitlog/{parts[-1]}", parts[-1]]
        case kind if kind in QUEUE_KINDS:
            return [f"consumequeue/{parts[2]}/{parts[3]}", f"'topic': '{parts[2]}'", f"{parts[2]}/{parts[3]}"]
        case FileKind.TIMERS:
            return ["due file", "due files", parts[-1]]
        case FileKind.INDEX:
            return ["index/", parts[-1], "key index"]
        case FileKind.RECOVERY_POINT:
            return ["recovery-point.json", "recovery point"]
        case FileKind.STORE | FileKind.STORE_BAK:
            return ["store.json", "store's identity"]
        case FileKind.BUFFER | FileKind.BUFFER_LOCK:
            return [parts[-1], "write buffer"]
        case _:
            return [parts[-1].removesuffix(".bak")]
