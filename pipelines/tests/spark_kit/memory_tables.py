"""Tables in memory, which only list files, for tests of publications."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from gantry_pipelines.archive.tables.model import (
    TableChange,
    TableFile,
    TableRoot,
    TableShape,
    TableState,
    TableUnavailable,
)
from gantry_spec.pipelines.parts import TableFormat


@final
class MemoryTable:
    """A table that only lists files. A commit can be lost, or its answer."""

    def __init__(self, root: TableRoot) -> None:
        self.root = root
        self.files: dict[str, TableFile] = {}
        self.changes: list[TableChange] = []
        self.expired_before_ms: list[int] = []
        self.fault = ""

    def read(self) -> TableState | None:
        return TableState({path: file.size_bytes for path, file in self.files.items()}, self.properties())

    def paths(self) -> frozenset[str]:
        return frozenset(self.files)

    def properties(self) -> Mapping[str, str]:
        return self.changes[-1].properties if self.changes else {}

    def commit(self, change: TableChange) -> None:
        if self.fault == "refused":
            raise TableUnavailable("the catalog does not answer")
        for path in change.remove:
            del self.files[path]
        for file in change.add:
            assert file.path not in self.files, "expected no file to be added twice"
            self.files[file.path] = file
        self.changes.append(change)
        if self.fault == "no answer":
            raise TableUnavailable("the connection was lost")

    def expire(self, before_ms: int) -> None:
        self.expired_before_ms.append(before_ms)

    def drop(self) -> None:
        self.files.clear()
        self.changes.clear()


@final
class MemoryTables:
    """Opens the tables of an archive, each once."""

    def __init__(self) -> None:
        self.by_topic: dict[str, MemoryTable] = {}

    def __call__(self, _: TableFormat, root: TableRoot, _shape: TableShape) -> MemoryTable:
        return self.by_topic.setdefault(root.topic, MemoryTable(root))

    def faulty(self, topic: str, fault: str) -> None:
        """Let the commits of one topic fail, or ("") succeed again."""
        self.by_topic[topic].fault = fault
