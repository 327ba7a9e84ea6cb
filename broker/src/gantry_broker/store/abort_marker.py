"""The file whose presence at a start says that the last run did not end well.

Created, durably, before a start changes anything; removed, durably, as the very last step of a clean stop. RocketMQ
uses the same name and meaning.
"""

from __future__ import annotations

from typing import Final, final

from gantry_broker.ports.disk import Disk


@final
class AbortMarker:
    """``<root>/abort``."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk: Final = disk
        self._root: Final = root
        self._path: Final = f"{root}/abort"

    def is_present(self) -> bool:
        return self._disk.exists(self._path)

    def create(self) -> None:
        if not self._disk.exists(self._path):
            self._disk.create(self._path, 0).close()
        self._disk.sync_directory(self._root)

    def remove(self) -> None:
        if self._disk.exists(self._path):
            self._disk.remove(self._path)
            self._disk.sync_directory(self._root)
