"""Units of consume queues against the records that a chunk holds.

    log    records 40, 41, 42 of queue 3     ->  the units 40, 41, 42 as they must be, 60 bytes
    copy   units 40, 41, 42                  ->  the same 60 bytes, or one by one: missing, wrong

That every number between two chunks has a record, and that no unit leads elsewhere, is asked when all chunks are done:
see `concluding`. One thing looks like damage and is none: a topic that was deleted and made again begins at number 0
again, and its older records have no units any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from gantry_pipelines.audit.copies import CopyState, LogCopy
from gantry_pipelines.audit.model import Check, Finding, Kind, QueueRun
from gantry_pipelines.audit.walking import Record, record_at
from gantry_store_files import EXTENSION_CODE_MAX, UNIT, UNIT_BYTES, Unit, is_empty
from gantry_wire.names import SCHEDULE_TOPIC

UNITS_AT_ONCE: Final = 1 << 15
LIVE_PATIENCE_S: Final = 5.0
"""How long a unit of a running broker may be on its way: records are confirmed before their queues are written."""

ByQueue = dict[tuple[str, int], list[Record]]


def by_queue(records: list[Record]) -> ByQueue:
    """Records that have units, by topic and queue, in the order of the log."""
    found: ByQueue = {}
    for record in records:
        if record.is_queued:
            found.setdefault((record.topic, record.queue), []).append(record)
    return found


def queue_runs(broker: str, queues: ByQueue) -> Iterator[QueueRun]:
    """What a chunk holds of each queue; a number that does not follow begins another run."""
    for (topic, queue), records in queues.items():
        start = 0
        for at in range(1, len(records) + 1):
            if at == len(records) or records[at].offset != records[at - 1].offset + 1:
                first, last = records[start], records[at - 1]
                yield QueueRun(broker, topic, queue, first.offset, last.offset + 1, first.physical)
                start = at


def check_units(
    broker: str, number: int, copy: LogCopy, state: CopyState, queues: ByQueue,
    clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:  # fmt: skip
    """What is wrong with one copy's units of these records."""
    deadline = clock() + LIVE_PATIENCE_S
    for (topic, queue), records in queues.items():
        born = state.deleted.get(topic, 0)
        wanted = [one for one in records if one.end <= state.span.end and one.physical >= max(born, state.span.begin)]
        for start in range(0, len(wanted), UNITS_AT_ONCE):
            part = wanted[start : start + UNITS_AT_ONCE]
            bad = _bad_units(copy, topic, queue, part)
            while bad and state.is_live and any(is_empty(unit) for _, unit in bad) and clock() < deadline:
                pause(0.2)
                bad = _bad_units(copy, topic, queue, part)
            yield from _findings(broker, number, copy, state, bad)


def wanted_unit(record: Record) -> Unit:
    """The unit of a record."""
    return record.physical, record.size, record.tags


def _bad_units(copy: LogCopy, topic: str, queue: int, records: list[Record]) -> list[tuple[Record, Unit]]:
    """Records whose unit is not what it must be, and what is there."""
    first = min(record.offset for record in records)
    last = max(record.offset for record in records)
    if not 0 <= first <= last < first + 4 * UNITS_AT_ONCE:
        # Numbers that leap are a finding of their own; here each unit is asked for alone.
        units = {one.offset: UNIT.unpack(copy.units(topic, queue, max(one.offset, 0), 1)) for one in records}
    else:
        data = copy.units(topic, queue, first, last + 1 - first)
        if topic != SCHEDULE_TOPIC and data == b"".join(UNIT.pack(*wanted_unit(one)) for one in records):
            return []
        units = {one.offset: UNIT.unpack_from(data, (one.offset - first) * UNIT_BYTES) for one in records}
    return [(one, units[one.offset]) for one in records if not _agrees(one, units[one.offset])]


def _agrees(record: Record, unit: Unit) -> bool:
    if unit[:2] != (record.physical, record.size):
        return False
    # A delayed message's code is its delivery time, by delay levels that only its broker knows.
    return unit[2] == record.tags or record.topic == SCHEDULE_TOPIC or unit[2] <= EXTENSION_CODE_MAX


def _findings(
    broker: str, number: int, copy: LogCopy, state: CopyState, bad: list[tuple[Record, Unit]]
) -> Iterator[Finding]:
    """Neighbours with the same fault are one finding."""
    run: Finding | None = None
    for record, unit in bad:
        kind, detail = _fault(record, unit)
        if is_empty(unit) and record.physical >= state.units_end:
            continue
        if unit[0] > record.physical and not is_empty(unit) and _is_younger(copy, state, record, unit):
            continue
        same = run is not None and (run.topic, run.queue, run.kind) == (record.topic, record.queue, kind)
        if run is not None and same and run.offset + run.count == record.offset and kind is Kind.UNIT_MISSING:
            run = Finding(broker, number, Check.INDEX, kind, run.topic, run.queue, run.offset, run.physical,
                          run.size, run.count + 1, run.detail)  # fmt: skip
            continue
        if run is not None:
            yield run
        run = Finding(broker, number, Check.INDEX, kind, record.topic, record.queue, record.offset, record.physical,
                      record.size, 1, detail)  # fmt: skip
    if run is not None:
        yield run


def _fault(record: Record, unit: Unit) -> tuple[Kind, str]:
    if is_empty(unit):
        return Kind.UNIT_MISSING, "no unit"
    if unit[:2] == (record.physical, record.size):
        return Kind.UNIT_WRONG, f"has the code {unit[2]} of other tags, and its record {record.tags}"
    return Kind.UNIT_WRONG, f"leads to {unit[0]} ({unit[1]} bytes)"


def _is_younger(copy: LogCopy, state: CopyState, record: Record, unit: Unit) -> bool:
    """Whether the unit leads to a younger record with this number: then this one is of an earlier life of the topic."""
    if not state.span.begin <= unit[0] < state.span.end or not 0 < unit[1] <= state.span.end - unit[0]:
        return False
    found = record_at(copy.read(unit[0], unit[0] + unit[1]), unit[0], ())
    return found is not None and (found.topic, found.queue, found.offset) == (record.topic, record.queue, record.offset)
