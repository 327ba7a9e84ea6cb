"""Compare the units of consume queues with the records of a chunk.

    log    records 40, 41, 42 of queue 3     ->  the expected units 40, 41, 42, 60 bytes
    copy   units 40, 41, 42                  ->  the same 60 bytes, or one by one: missing, wrong

Gaps between chunks and units without a record are checked after all chunks, see `concluding`. One case looks like
damage and is none: a topic that was deleted and created again starts at offset 0 again, and its older records have no
units.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from gantry_pipelines.audit.copies import CopyState, LogCopy
from gantry_pipelines.audit.model import Check, Finding, FindingKind, QueueRun
from gantry_pipelines.audit.walking import Record, record_at
from gantry_store_files import EXTENSION_CODE_MAX, UNIT, UNIT_BYTES, Unit, is_empty
from gantry_wire.names import SCHEDULE_TOPIC

UNITS_AT_ONCE: Final = 1 << 15
"""The most units that are read at a time."""

LIVE_PATIENCE_S: Final = 5.0
"""How long a unit of a running broker may be missing: records are confirmed before their units are written."""

RecordsByQueue = dict[tuple[str, int], list[Record]]
"""The records by topic and number of the queue."""


def group_by_queue(records: list[Record]) -> RecordsByQueue:
    """Group the records that have units by topic and queue, in the order of the log."""
    found: RecordsByQueue = {}
    for record in records:
        if record.is_queued:
            found.setdefault((record.topic, record.queue), []).append(record)
    return found


def queue_runs(broker: str, queues: RecordsByQueue) -> Iterator[QueueRun]:
    """Yield the runs of consecutive offsets that a chunk has of each queue."""
    for (topic, queue), records in queues.items():
        start = 0
        for at in range(1, len(records) + 1):
            if at == len(records) or records[at].offset != records[at - 1].offset + 1:
                first, last = records[start], records[at - 1]
                yield QueueRun(broker, topic, queue, first.offset, last.offset + 1, first.physical)
                start = at


def check_units(
    broker: str, number: int, copy: LogCopy, state: CopyState, queues: RecordsByQueue,
    clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:  # fmt: skip
    """Yield findings for units of one copy that do not match these records."""
    deadline = clock() + LIVE_PATIENCE_S
    for (topic, queue), records in queues.items():
        deleted_at = state.deleted.get(topic, 0)
        expected = [
            one for one in records if one.end <= state.span.end and one.physical >= max(deleted_at, state.span.begin)
        ]
        for start in range(0, len(expected), UNITS_AT_ONCE):
            part = expected[start : start + UNITS_AT_ONCE]
            bad = _bad_units(copy, topic, queue, part)
            while bad and state.is_live and any(is_empty(unit) for _, unit in bad) and clock() < deadline:
                pause(0.2)
                bad = _bad_units(copy, topic, queue, part)
            yield from _findings(broker, number, copy, state, bad)


def expected_unit(record: Record) -> Unit:
    """Return the unit that a record must have."""
    return record.physical, record.size, record.tags


def _bad_units(copy: LogCopy, topic: str, queue: int, records: list[Record]) -> list[tuple[Record, Unit]]:
    """Return the records whose unit does not match, with the unit of the copy."""
    first = min(record.offset for record in records)
    last = max(record.offset for record in records)
    if not 0 <= first <= last < first + 4 * UNITS_AT_ONCE:
        # Offsets that are far apart are a separate finding; here each unit is read alone.
        units = {one.offset: UNIT.unpack(copy.units(topic, queue, max(one.offset, 0), 1)) for one in records}
    else:
        data = copy.units(topic, queue, first, last + 1 - first)
        if topic != SCHEDULE_TOPIC and data == b"".join(UNIT.pack(*expected_unit(one)) for one in records):
            return []
        units = {one.offset: UNIT.unpack_from(data, (one.offset - first) * UNIT_BYTES) for one in records}
    return [(one, units[one.offset]) for one in records if not _matches_unit(one, units[one.offset])]


def _matches_unit(record: Record, unit: Unit) -> bool:
    if unit[:2] != (record.physical, record.size):
        return False
    # The code of a delayed message is its delivery time, which depends on the broker's delay levels.
    return unit[2] == record.tags or record.topic == SCHEDULE_TOPIC or unit[2] <= EXTENSION_CODE_MAX


def _findings(
    broker: str, number: int, copy: LogCopy, state: CopyState, bad: list[tuple[Record, Unit]]
) -> Iterator[Finding]:
    """Yield one finding for each run of consecutive missing units, and for each wrong unit."""
    run: Finding | None = None
    for record, unit in bad:
        kind, detail = _classify(record, unit)
        if is_empty(unit) and record.physical >= state.units_end:
            continue
        if unit[0] > record.physical and not is_empty(unit) and _is_offset_reused(copy, state, record, unit):
            continue
        same = run is not None and (run.topic, run.queue, run.kind) == (record.topic, record.queue, kind)
        if run is not None and same and run.offset + run.count == record.offset and kind is FindingKind.UNIT_MISSING:
            run = Finding(broker, number, Check.INDEX, kind, run.topic, run.queue, run.offset, run.physical,
                          run.size, run.count + 1, run.detail)  # fmt: skip
            continue
        if run is not None:
            yield run
        run = Finding(broker, number, Check.INDEX, kind, record.topic, record.queue, record.offset, record.physical,
                      record.size, 1, detail)  # fmt: skip
    if run is not None:
        yield run


def _classify(record: Record, unit: Unit) -> tuple[FindingKind, str]:
    if is_empty(unit):
        return FindingKind.UNIT_MISSING, "no unit"
    if unit[:2] == (record.physical, record.size):
        return FindingKind.UNIT_WRONG, f"has tags code {unit[2]}, its record has {record.tags}"
    return FindingKind.UNIT_WRONG, f"points to {unit[0]} ({unit[1]} bytes)"


def _is_offset_reused(copy: LogCopy, state: CopyState, record: Record, unit: Unit) -> bool:
    """Return whether the unit points to a newer record with this offset, as after a topic was created again."""
    if not state.span.begin <= unit[0] < state.span.end or not 0 < unit[1] <= state.span.end - unit[0]:
        return False
    found = record_at(copy.read(unit[0], unit[0] + unit[1]), unit[0], ())
    return found is not None and (found.topic, found.queue, found.offset) == (record.topic, record.queue, record.offset)
