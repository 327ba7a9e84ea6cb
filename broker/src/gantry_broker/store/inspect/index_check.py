"""Comparison of the key index with the log, in both directions, while the log is read once from end to end.

    log      record with keys a, b          there must be an entry for a and one for b, with this physical offset
    index    entry: hash, physical offset   a record must begin there, and have a key with this hash

Entries are in the order of the log, over all files, so both sides are merged like sorted lists. Then each file's chains
are computed again from its entries and compared with the stored ones, because queries find entries through chains only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from gantry_broker.ports.reading import ReadingDisk
from gantry_broker.store.inspect.findings import Finding, Findings, Harm, Kind
from gantry_broker.store.inspect.index_reader import Entry, IndexReader
from gantry_broker.store.inspect.queue_check import CheckContext
from gantry_store_files.segments import index_names


@final
class IndexCheck:
    """Checks all index files of a store. Call ``compare_record`` for every record, then ``finish``."""

    def __init__(self, disk: ReadingDisk, root: str, context: CheckContext) -> None:
        self.entries = 0
        """Number of entries that point to their records."""
        self.files = 0
        self._context: Final = context
        self._findings: Final[Findings] = context.findings
        self._readers: Final[list[IndexReader]] = []
        self._run: Finding | None = None
        for name in index_names(disk, f"{root}/index"):
            self._open(disk, f"{root}/index/{name}")
        self.has_files: Final = bool(self._readers)
        self.end: Final = max(
            (one.header.end_physical for one in self._readers if one.header and one.count), default=-1
        )
        """Start of the newest indexed message; -1 if none is."""
        self._stream: Final = self._all_entries()
        self._entry: Entry | None = None
        if self.has_files:
            self._next()

    def _open(self, disk: ReadingDisk, path: str) -> None:
        try:
            reader = IndexReader(disk, path)
        except FileNotFoundError:
            return
        self.files += 1
        if reader.fault:
            harm = Harm.DERIVED if self._context.is_cleanly_stopped else Harm.UNSETTLED
            text = f"{path} is not a valid index file: {reader.fault}"
            self._findings.add(Finding(kind=Kind.INDEX_FILE, harm=harm, text=text, path=path))
            reader.close()
            return
        self._readers.append(reader)

    def _all_entries(self) -> Iterator[Entry]:
        for reader in self._readers:
            yield from reader.entries()

    def _next(self) -> None:
        self._entry = next(self._stream, None)

    # -- while the log is read -----------------------------------------------------------------------------------------

    def compare_record(
        self, physical: int, hashes: Sequence[int], tag_hash: Callable[[], int | None], *, is_wanted: bool = True
    ) -> None:
        """Check a record with keys of these hashes. Without ``is_wanted``, for a deleted topic, it may lack entries.

        It may have an entry with ``tag_hash``, because RocketMQ 5.4 and later index tags, too.
        """
        entry = self._entry
        while entry is not None and entry.physical < physical:
            self._judge_stray(entry)
            self._next()
            entry = self._entry
        wanted = list(hashes)
        while entry is not None and entry.physical == physical:
            if entry.key_hash in wanted:
                wanted.remove(entry.key_hash)
                self.entries += 1
            elif entry.key_hash not in hashes and entry.key_hash != tag_hash():
                self._report(
                    Kind.INDEX_STRAY, Harm.DERIVED, physical, "has an entry for a key that the message does not have"
                )
            self._next()
            entry = self._entry
        if wanted and is_wanted:
            self._judge_missing(physical, len(wanted))

    def _judge_stray(self, entry: Entry) -> None:
        context = self._context
        if entry.physical < context.start or context.damage_at(entry.physical) is not None:
            return
        self._report(Kind.INDEX_STRAY, Harm.DERIVED, entry.physical, "has an entry that points to no record")

    def _judge_missing(self, physical: int, count: int) -> None:
        is_behind = physical > self.end
        if is_behind and not self._context.is_cleanly_stopped:
            self._report(Kind.INDEX_MISSING, Harm.UNSETTLED, physical, "is behind the log; the next start catches up")
        else:
            text = "lacks an entry: the message is not found by key"
            self._report(Kind.INDEX_MISSING, Harm.DERIVED, physical, text, count)

    # -- after the log was read ----------------------------------------------------------------------------------------

    def finish(self, *, is_full_range: bool) -> None:
        """Check the entries after the last record, and the chains, and close the files.

        Without ``is_full_range``, when only a part of the log was read, they are closed only. The chains of a store in
        use are not checked.
        """
        while is_full_range and self._entry is not None:
            if self._entry.physical >= self._context.end and not self._context.is_cleanly_stopped:
                text = "has an entry that points after the end of the log's files"
                self._report(Kind.INDEX_STRAY, Harm.UNSETTLED, self._entry.physical, text)
            else:
                self._judge_stray(self._entry)
            self._next()
        for reader in self._readers:
            if is_full_range and not self._context.is_in_use:
                self._check_chains(reader)
            reader.close()

    def _check_chains(self, reader: IndexReader) -> None:
        shape = reader.shape
        if shape is None:
            return
        newest = array("i", bytes(4 * shape.slots))
        wrong = 0
        for number, entry in enumerate(reader.entries(), start=1):
            slot = entry.key_hash % shape.slots
            wrong += entry.previous != newest[slot]
            newest[slot] = number
        position = 0
        for piece in reader.slots():
            stored = array("i", piece)
            stored.byteswap()
            if stored != newest[position : position + len(stored)]:
                pairs = zip(stored, newest[position : position + len(stored)], strict=True)
                wrong += sum(1 for actual, computed in pairs if actual != computed)
            position += len(stored)
        if wrong:
            harm = Harm.DERIVED if self._context.is_cleanly_stopped else Harm.UNSETTLED
            text = f"{reader.path}: {wrong} links of its chains are wrong; some messages are not found by key"
            self._findings.add(Finding(kind=Kind.INDEX_CHAIN, harm=harm, text=text, path=reader.path, count=wrong))

    def _report(self, kind: Kind, harm: Harm, physical: int, text: str, count: int = 1) -> None:
        run = self._run
        if run is not None and (run.kind, run.harm) == (kind, harm) and run.text.endswith(text):
            run.repeat(count)
            return
        text = f"the index, for the message at {physical}, {text}"
        self._run = self._findings.add(Finding(kind=kind, harm=harm, text=text, offset=physical, count=count))
