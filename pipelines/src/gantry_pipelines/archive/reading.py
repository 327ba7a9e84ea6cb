"""The manifest of an archive as it is now, for whoever only reads it.

Records are never changed, they only come and go, so one that was read is known. The writer deletes a record after the
one that replaces it has appeared: who lists first and then finds one missing lists again."""

from typing import Final, final

from gantry_pipelines.archive.layout import RECORDS
from gantry_pipelines.archive.manifest import Manifest, Record, decode
from gantry_pipelines.archive.storage import Storage

LISTINGS_MAX: Final = 20
"""Each listing that fails had a compaction beside it; so many in a row are no accident."""


@final
class ManifestReader:
    """Reads what is new. Owned by one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Final = storage
        self._known: dict[str, Record] = {}

    def read(self) -> Manifest:
        """As it is now."""
        for _ in range(LISTINGS_MAX):
            names = [
                path.removeprefix(f"{RECORDS}/") for path in self._storage.paths(RECORDS) if path.endswith(".json")
            ]
            names = [name for name in names if not name.rpartition("/")[2].startswith(".")]
            try:
                self._known = {name: self._known.get(name) or self._record(name) for name in names}
            except FileNotFoundError:
                continue
            return Manifest(dict(self._known))
        raise FileNotFoundError(f"{self._storage}: records of the manifest vanish as they are read")

    def _record(self, name: str) -> Record:
        return decode(name, self._storage.read(f"{RECORDS}/{name}"))


def read_manifest(storage: Storage) -> Manifest:
    """As it is now."""
    return ManifestReader(storage).read()
