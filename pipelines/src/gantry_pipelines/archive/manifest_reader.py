"""Read the current manifest of an archive, without the writer lock.

Records are added and deleted but never changed, so a record that was read is cached. The writer deletes a record only
after the one that replaces it is visible: a reader that finds a listed record deleted lists again."""

from typing import Final, final

from gantry_pipelines.archive.layout import RECORDS
from gantry_pipelines.archive.manifest import Manifest, Record, decode
from gantry_pipelines.archive.storage import Storage

LISTINGS_MAX: Final = 20
"""Listings before the reader gives up; a listing only fails if the writer deletes records at the same moment."""


@final
class ManifestReader:
    """Reads the manifest again and again; only new records are read from storage. Used by one thread."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Final = storage
        self._known: dict[str, Record] = {}

    def read(self) -> Manifest:
        """Return the current manifest. Raises FileNotFoundError, ManifestBroken."""
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
        raise FileNotFoundError(f"{self._storage}: records of the manifest were deleted during {LISTINGS_MAX} listings")

    def read_settled(self) -> Manifest:
        """Return the current manifest after two listings of which the second has all records of the first.

        A listing is not one step. It may have missed a record that was added behind it, and the ones that the record
        replaces, which were deleted before it. The next listing finds the new record. A writer needs no such read.
        """
        before = self.read()
        for _ in range(LISTINGS_MAX):
            manifest = self.read()
            if before.records.keys() <= manifest.records.keys():
                return manifest
            before = manifest
        raise FileNotFoundError(f"{self._storage}: records of the manifest were replaced in {LISTINGS_MAX} listings")

    def _record(self, name: str) -> Record:
        return decode(name, self._storage.read(f"{RECORDS}/{name}"))


def read_manifest(storage: Storage) -> Manifest:
    """Return the current manifest. Raises FileNotFoundError, ManifestBroken."""
    return ManifestReader(storage).read()
