"""The hard links by which the tables of a folder keep files that the archive has replaced.

    _tables/T/day=D/NAME.parquet    the same file as `data/topic=T/day=D/NAME.parquet`, under a second name; in an
                                    archive that is partitioned by hour both are in day=D/hour=HH
    _tables/T/removed.json          when each link was found to be in no newest snapshot

A link is made, and made durable, before a snapshot names it. It is deleted when the tables have been without it for as
long as old snapshots stay readable. A second name costs no space until the archive deletes the first one.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, final

from gantry_pipelines.archive.layout import TABLES, quote_name
from gantry_pipelines.archive.storage import Folder
from gantry_pipelines.archive.tables.model import TableError, TableFile, TableUnavailable

REMOVED: Final = "removed.json"
"""The file that has, by path, when a link was found to be in no newest snapshot."""


@final
class TableLinks:
    """The links of all tables of an archive. All errors are TableErrors."""

    def __init__(self, storage: Folder) -> None:
        self._storage: Final = storage
        self._made: Final[dict[str, set[str]]] = {}
        """By topic: the links that this process has made, or has found to be right."""

    def are_known(self, topic: str) -> bool:
        """Return whether `make` has been called for a topic, and nothing was forgotten since."""
        return topic in self._made

    def forget(self, topic: str) -> None:
        """Forget what is known of a topic's links: after an error they may be lost."""
        self._made.pop(topic, None)

    def make(self, topic: str, wanted: Mapping[str, TableFile], added: Iterable[TableFile]) -> None:
        """Make the links that are missing or lead to another file, and make these and the added ones durable."""
        top = table_folder(topic)
        with _mapped_errors(top):
            made = self._made.setdefault(topic, set())
            new = sorted(wanted.keys() - made)
            for path in new:
                self._make_link(wanted[path].place.path, f"{top}/{path}")
                made.add(path)
            for folder in sorted(_folders_of((*new, *(file.path for file in added)))):
                self._storage.sync(f"{top}/{folder}")
            if new:
                self._storage.sync(top)
                self._storage.sync(TABLES)

    def remove_old(self, topic: str, live: frozenset[str], now_ms: int, before_ms: int) -> None:
        """Delete the links that were found to be in no newest snapshot before a time."""
        top, storage = table_folder(topic), self._storage
        with _mapped_errors(top):
            links = {path.removeprefix(f"{top}/") for path in storage.paths(top)}
            dead = {path for path in links if path.startswith("day=")} - live
            removed = self._read_removed(top)
            since = {path: removed.get(path, now_ms) for path in dead}
            due = sorted(path for path, at_ms in since.items() if at_ms < before_ms)
            for path in due:
                storage.remove(f"{top}/{path}")
            kept = {path: at_ms for path, at_ms in sorted(since.items()) if path not in due}
            if kept != removed:
                storage.write(f"{top}/{REMOVED}", json.dumps(kept).encode() + b"\n")

    def _make_link(self, source: str, target: str) -> None:
        """Make one link; a file of that name that is another file is replaced."""
        root = Path(self._storage.root)
        try:
            self._storage.link(source, target)
        except FileExistsError:
            if (root / source).exists() and not os.path.samefile(root / source, root / target):
                new = f"{target}.{secrets.token_hex(8)}"
                self._storage.link(source, new)
                os.replace(root / new, root / target)
        except FileNotFoundError as error:
            if not (root / target).exists():
                text = f"{source} is missing: run gantry pipeline verify, and restore the file"
                raise TableError(text) from error

    def _read_removed(self, top: str) -> dict[str, int]:
        """Read when links were removed; without a readable file their time begins now."""
        try:
            found: Any = json.loads(self._storage.read(f"{top}/{REMOVED}"))
        except (FileNotFoundError, ValueError):
            return {}
        return {path: at_ms for path, at_ms in found.items() if isinstance(at_ms, int)}


def _folders_of(paths: Iterable[str]) -> set[str]:
    """Return the folders of files, and those that these are in, relative to the folder of a topic's tables."""
    parents = [path.split("/")[:-1] for path in paths]
    return {"/".join(names[:depth]) for names in parents for depth in range(1, len(names) + 1)}


def table_folder(topic: str) -> str:
    """Return the folder of a topic's tables in an archive that is a folder.

    It is as in `data`, with `~` instead of `%`: readers of Delta decode percent signs in the address of a table.
    """
    return f"{TABLES}/{quote_name(topic).replace('~', '%7E').replace('%', '~')}"


@contextmanager
def _mapped_errors(top: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TableUnavailable(f"cannot link the files of tables in {top}: {error}") from error
