"""Inspection of the JSON tables beside the log: their names, number of entries and faults.

Their content cannot be rebuilt from the log. A start uses a table's copy (``.bak``) when the table cannot be read, is
older, or was written by another store, and is refused when neither can be read and it needs the table (``NEEDED_FILES``
of ``config_file``). So both files are always judged together, by the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.config_file import NEEDED_FILES
from gantry_store_files.queue_units import parse_queue_id
from gantry_store_files.sealed import read_small
from gantry_store_files.store_identity import read_identity
from gantry_store_files.table_copies import TableCopy, edition_store, parse_table, reason_for_backup

SUFFIX: Final = ".json"
BACKUP: Final = ".bak"
_TABLES: Final = (
    "topicConfigTable", "offsetTable", "subscriptionGroupTable", "configTable", "messageRequestModeMap", "users",
)  # fmt: skip
"""The fields of tables that hold the entries."""
PRIVATE_TABLE: Final = "accounts"
"""The table with passwords, which only the broker's user may read."""
GROUP_SEPARATOR: Final = "@"
"""Separates topic and group in the keys of the consumer offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary:
    """One table and its backup copy, without its content."""

    name: str
    """The name of the file without ``.json``, such as ``topics``."""

    size: int
    """The size of the file in bytes; -1 if only the copy exists."""

    entries: int
    """Number of topics, of groups, or of pairs of topic and group with offsets, in the file that a start would use."""

    fault: str
    """Why a start would not use the table; empty if it would."""

    backup_fault: str
    """Why the copy cannot be used; empty if it can, or if there is none."""

    has_backup: bool
    """Whether the copy (``.bak``) exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTable(TableSummary):
    """One table and its backup copy, with its content."""

    document: dict[str, Any] | None
    """The content of the file that a start would use; None if neither can be read."""

    def summary(self) -> TableSummary:
        """Return the table without its content, which can be read from its JSON file."""
        return TableSummary(**{one.name: getattr(self, one.name) for one in fields(TableSummary)})

    @property
    def is_usable(self) -> bool:
        """Whether a start could read the table or its copy."""
        return self.document is not None

    @property
    def is_needed(self) -> bool:
        """Whether a start is refused if neither the table nor its copy can be read."""
        return self.name in NEEDED_FILES


def read_config_tables(disk: ReadingDisk, root: str) -> list[ConfigTable]:
    """Return every ``config/*.json`` of the store, including tables of which only the copy exists.

    Users and policies are left out if only the broker's user may read them.
    """
    names = {name.removesuffix(BACKUP) for name in disk.list(f"{root}/config") if not name.endswith(".tmp")}
    store = edition_store(read_identity(disk, root))
    paths = [f"{root}/config/{name}" for name in sorted(names) if name.endswith(SUFFIX)]
    return [_table(disk, path, store) for path in paths if not _is_private(disk, path)]


def _is_private(disk: ReadingDisk, path: str) -> bool:
    """Return whether the file holds secrets, and this process is not the broker's user."""
    if not path.endswith(f"/{PRIVATE_TABLE}{SUFFIX}"):
        return False
    try:
        read_small(disk, path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def known_topics(tables: list[ConfigTable]) -> frozenset[str] | None:
    """Return the topics in ``topics.json``; None if it is missing or unreadable."""
    table = _field(tables, "topics", "topicConfigTable")
    return None if table is None else frozenset(table)


def consumer_offsets(tables: list[ConfigTable]) -> list[tuple[str, str, int, int]]:
    """Return (topic, group, queue id, offset) of every consumer offset."""
    found: list[tuple[str, str, int, int]] = []
    for name, queues in (_field(tables, "consumerOffset", "offsetTable") or {}).items():
        topic, separator, group = str(name).partition(GROUP_SEPARATOR)
        if separator and isinstance(queues, dict):
            found += [
                (topic, group, queue_id, offset)
                for queue, offset in queues.items()
                if (queue_id := parse_queue_id(str(queue))) is not None and isinstance(offset, int)
            ]
    return found


def _field(tables: list[ConfigTable], name: str, field: str) -> dict[str, Any] | None:
    for table in tables:
        if table.name == name and table.document is not None:
            value = table.document.get(field)
            return value if isinstance(value, dict) else None
    return None


def _table(disk: ReadingDisk, path: str, store: str) -> ConfigTable:
    current, size = _read(disk, path)
    backup, backup_size = _read(disk, path + BACKUP)
    reason = reason_for_backup(current, backup, store)
    used = (backup if reason else current).document
    return ConfigTable(
        name=path.rpartition("/")[2].removesuffix(SUFFIX),
        size=max(size, 0),
        entries=_entries(used) if used is not None else 0,
        fault=reason or current.fault or ("the file does not exist" if size < 0 else ""),
        backup_fault=backup.fault,
        has_backup=backup_size >= 0,
        document=used,
    )


def _read(disk: ReadingDisk, path: str) -> tuple[TableCopy, int]:
    """Read one copy of a table; return it with its size, which is -1 without a file."""
    try:
        data = read_small(disk, path)
    except OSError as exc:
        return TableCopy(fault=f"it cannot be read: {exc.strerror}"), 0
    return (TableCopy(), -1) if data is None else (parse_table(data), len(data))


def _entries(document: dict[str, Any]) -> int:
    for field in _TABLES:
        value = document.get(field)
        if isinstance(value, dict | list):
            return len(value)
    return len(document)
