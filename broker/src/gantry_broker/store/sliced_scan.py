"""A scan of a range of the log, record by record, in bounded slices while the store serves.

    [start ...... read ...... next slice ...... end)        damaged ranges are collected and skipped

The loop's thread reads, since between two steps write buffers may be reused and the oldest files of the log deleted. So
no view is kept from one step to the next. The disk is asked to read ahead what the next steps need.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

from gantry_broker.store.commit_log import CommitLog
from gantry_broker.store.mapped_file import Extent
from gantry_broker.store.recovery import PlainRecordsHandler, Seals, record_candidates
from gantry_wire.message import RecordFault, check_record
from gantry_wire.plain_records import PlainRun

SLICE_BYTES: Final = 512 * 1024
"""How much one step reads: a few milliseconds, including checksums."""

AHEAD_BYTES: Final = 8 << 20
"""How much the disk is asked to read ahead."""


@final
class LogScan:
    """One scan over ``[start, end)`` of the log that verifies every record."""

    def __init__(
        self,
        commit_log: CommitLog,
        start: int,
        end: int,
        seals: Seals,
        *,
        on_record: Callable[[memoryview, int, int, int], None],
        on_plain_records: PlainRecordsHandler,
    ) -> None:
        """Create the scan. As with ``scan_log``, ``on_record`` is called for each record that is not plain.

        Its arguments are view, position, physical offset and size.
        """
        self.offset = start
        self.end: Final = end
        self.damaged: Final[list[tuple[int, int]]] = []
        """Half-open ranges that contain no good record."""

        self._log: Final = commit_log
        self._seals: Final = seals
        self._on_record: Final = on_record
        self._on_plain_records: Final = on_plain_records
        self._damage_start: int | None = None
        self._read_ahead_end = start

    def __repr__(self) -> str:
        return f"<LogScan {self.offset} of {self.end} damaged={len(self.damaged)}>"

    def step(self) -> bool:
        """Read one slice. Return whether anything is left."""
        self.offset = max(self.offset, self._log.min_physical)
        extent = self._log.at(self.offset) if self.offset < self.end else None
        if extent is None:
            self._end_damage(self.offset)
            return False
        self._log.require_own_file(self.offset)
        self._read_ahead()
        stop = min(self.offset + SLICE_BYTES, extent.end_offset, self.end)
        while self.offset < stop:
            if self._damage_start is not None:
                self._find_record(extent, stop)
            elif not self._read_records(extent, stop):
                self._damage_start = self.offset
                self.offset += 1
        if self.offset < self.end:
            return True
        self._end_damage(self.end)
        return False

    def _read_ahead(self) -> None:
        """Ask the disk to read what the next steps need."""
        file = self._log.files.at(self.offset)
        if file is not None and self.offset >= self._read_ahead_end:
            self._read_ahead_end = min(self.offset + AHEAD_BYTES, file.end_offset)
            file.advise(self.offset, self._read_ahead_end)

    def _read_records(self, extent: Extent, stop: int) -> bool:
        """Pass on the records from the present offset to ``stop``. Return False at damage."""
        view, base = extent.view, extent.base_offset
        while self.offset < stop:
            is_sealed, sealed_end = self._seals(self.offset)
            run_end = min(stop, sealed_end) - base
            records = PlainRun(view, self.offset - base, run_end, base, is_sealed=is_sealed)
            self.offset = self._on_plain_records(records, self.offset)
            if self.offset >= stop:
                break
            position = self.offset - base
            check = check_record(view, position, physical_offset=self.offset, is_sealed=is_sealed)
            if check.is_good:
                self._on_record(view, position, self.offset, check.size)
                self.offset += check.size
            elif check.fault is RecordFault.BLANK and self.offset + check.size == extent.end_offset:
                self.offset = extent.end_offset
            else:
                return False
        return True

    def _find_record(self, extent: Extent, stop: int) -> None:
        """Search ``[offset, stop)`` for the first good record, which ends the damage."""
        for offset in record_candidates(extent, self.offset, stop):
            is_sealed = self._seals(offset).is_ours
            position = offset - extent.base_offset
            if check_record(extent.view, position, physical_offset=offset, is_sealed=is_sealed).is_good:
                self._end_damage(offset)
                self.offset = offset
                return
        self.offset = stop

    def _end_damage(self, end: int) -> None:
        if self._damage_start is not None:
            self.damaged.append((self._damage_start, end))
            self._damage_start = None
