"""A storage like an object store, in a folder: a file is visible when it is written, and there are no links."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pyarrow as pa

from gantry_pipelines.archive.storage import Folder


@final
@dataclass(frozen=True)
class VisibleFolder:
    """The storage of one archive, which no process locks: tests use it with a `NoLock`."""

    root: str

    def __str__(self) -> str:
        return f"file://{self.root}"

    @property
    def is_folder(self) -> bool:
        return False

    @property
    def _folder(self) -> Folder:
        return Folder(self.root)

    def paths(self, folder: str = "") -> list[str]:
        return self._folder.paths(folder)

    def read(self, path: str) -> bytes:
        return self._folder.read(path)

    def open(self, path: str) -> pa.NativeFile:
        return self._folder.open(path)

    def size(self, path: str) -> int | None:
        return self._folder.size(path)

    def write(self, path: str, data: bytes) -> None:
        self._folder.write(path, data)

    def remove(self, path: str) -> None:
        self._folder.remove(path)

    def new_file(self) -> Path:
        return self._folder.new_file()

    def finish(self, local: Path, path: str) -> str:
        at = Path(self.root, path)
        at.parent.mkdir(parents=True, exist_ok=True)
        os.replace(local, at)
        return ""

    def publish(self, staged: str, path: str) -> None:
        pass


@final
class NoLock:
    """A writer lock that is never lost."""

    def check(self) -> None:
        pass

    def release(self) -> None:
        pass
