"""The pure parts of an audit: chunks, bisection, and findings about records, units and numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest

from gantry_pipelines.audit.chunk import ChunkAudit
from gantry_pipelines.audit.comparing import PIECE_BYTES_MIN, View, find_differing_spans, judge
from gantry_pipelines.audit.concluding import Conclusion
from gantry_pipelines.audit.copies import OFFSET_MAX, Bytes, CopyState
from gantry_pipelines.audit.directory import last_unit_end
from gantry_pipelines.audit.indexing import check_units
from gantry_pipelines.audit.model import Check, Chunk, Coverage, Finding, FindingKind, QueueRun, Span
from gantry_pipelines.audit.planning import plan_broker, split_span
from gantry_pipelines.audit.result import ArchiveResult, AuditResult, BrokerResult
from gantry_pipelines.audit.walking import Grade, Record, grade_at, walk
from gantry_store_files import UNIT
from gantry_wire.message import StoredMessage, encode_record


def state(begin: int, end: int, **more: object) -> CopyState:
    return CopyState(Span(begin, end), False, **more)  # type: ignore[arg-type]


def log_of(*bodies: bytes, is_sealed: bool = True, begin: int = 0) -> bytes:
    """Return the bytes of consecutive records of one queue."""
    data = b""
    for number, body in enumerate(bodies):
        message = StoredMessage(
            topic="orders", queue_id=0, body=body, queue_offset=number, physical_offset=begin + len(data)
        )
        data += encode_record(message, is_sealed=is_sealed)
    return data


def copy_view(data: bytes, sealed_spans: tuple[Span, ...] | None = None) -> View:
    read = Bytes(0, data)
    return View(read, walk(read, 0, len(data), sealed_spans, is_all=True), sealed_spans, len(data))


# -- planning ----------------------------------------------------------------------------------------------------------


def test_chunks_end_at_multiples_of_their_size() -> None:
    """The same range has the same chunks in each audit, wherever the log begins."""
    assert split_span(Span(70, 260), 100) == [Span(70, 100), Span(100, 200), Span(200, 260)]
    assert split_span(Span(100, 100), 100) == []


def test_ranges_of_only_some_copies_are_separate_chunks_with_notes() -> None:
    """A chunk never crosses the begin or the end of a copy; uncompared ranges are mentioned in notes."""
    plan = plan_broker("a", {0: state(0, 350), 1: state(100, 300), 2: state(100, 300)}, (0, 1, 2), 1_000)

    assert [(chunk.span, chunk.copies) for chunk in plan.chunks] == [
        (Span(0, 100), (0,)), (Span(100, 300), (0, 1, 2)), (Span(300, 350), (0,)),
    ]  # fmt: skip
    assert plan.compared == Span(100, 300)
    assert len(plan.notes) == 2


def test_copies_without_common_range_are_a_note() -> None:
    """Copies that do not overlap are neither an error nor a finding."""
    plan = plan_broker("a", {0: state(500, 600), 1: state(0, 100)}, (0, 1), 1_000)

    assert plan.compared.length == 0
    assert any("no common range" in note for note in plan.notes)


# -- bisection ---------------------------------------------------------------------------------------------------------


def checksum_of(data: bytes, asked: list[tuple[int, int]]) -> Callable[[int, int], str | None]:
    def ask(begin: int, end: int) -> str | None:
        asked.append((begin, end))
        return str(zlib.crc32(data[begin:end]))

    return ask


def test_bisection_needs_few_checksums_and_equal_copies_need_one() -> None:
    """Each halving needs the checksum of one half if that half is equal; equal copies need a single checksum."""
    length = 64 * PIECE_BYTES_MIN
    one = bytes(length)
    other = bytearray(length)
    other[37 * PIECE_BYTES_MIN + 5] = 1
    asked: list[tuple[int, int]] = []

    found = find_differing_spans(checksum_of(one, asked), checksum_of(bytes(other), []), Span(0, length))

    assert found == [Span(37 * PIECE_BYTES_MIN, 38 * PIECE_BYTES_MIN)]
    assert len(asked) <= 13
    asked.clear()
    assert find_differing_spans(checksum_of(one, asked), checksum_of(one, []), Span(0, length)) == []
    assert len(asked) == 1


def test_unreadable_range_differs() -> None:
    """A range without checksum differs from any range of the other copy."""
    assert find_differing_spans(lambda *_: None, lambda *_: "0", Span(0, 1_000)) == [Span(0, 1_000)]


# -- records -----------------------------------------------------------------------------------------------------------


def test_walk_continues_after_damage() -> None:
    """One damaged record is one damage, from its begin to the begin of the next record."""
    data = bytearray(log_of(b"one", b"two", b"three"))
    size = len(log_of(b"one"))
    data[size + 90] ^= 1

    found = walk(Bytes(0, bytes(data)), 0, len(data), None, is_all=True)

    assert [record.offset for record in found.records] == [0, 2]
    assert found.damages == [Span(size, 2 * size)]


def test_grade_depends_on_the_seal_and_on_where_seals_are_required() -> None:
    """Where it is unknown whether seals are required, a record without one is PLAIN, one with a wrong one SUSPECT."""
    sealed, plain = log_of(b"one"), log_of(b"one", is_sealed=False)
    topic = bytearray(sealed)
    topic[sealed.index(b"orders")] ^= 1
    sealed_spans = (Span(0, 1 << 40),)

    assert grade_at(Bytes(0, sealed), 0, None) is Grade.SEALED
    assert grade_at(Bytes(0, plain), 0, None) is Grade.PLAIN
    assert grade_at(Bytes(0, bytes(topic)), 0, None) is Grade.SUSPECT
    assert grade_at(Bytes(0, bytes(topic)), 0, sealed_spans) is Grade.BAD
    assert grade_at(Bytes(0, plain), 0, sealed_spans) is Grade.BAD
    assert grade_at(Bytes(0, plain), 0, ()) is Grade.PLAIN


def test_copy_with_the_higher_grade_is_right_even_if_it_is_the_slave() -> None:
    """If the master's record has a wrong seal, the finding is on the master."""
    right = log_of(b"one", b"two")
    wrong = bytearray(right)
    wrong[right.index(b"orders")] ^= 1

    [found] = judge("a", {0: copy_view(bytes(wrong)), 1: copy_view(right)}, [Span(0, len(right))])

    assert (found.replica, found.kind, found.topic, found.offset) == (0, FindingKind.CORRUPT, "orders", 0)


def test_of_three_copies_the_majority_is_right() -> None:
    """If all records are valid and two are equal, the third one differs."""
    one, other = log_of(b"one"), log_of(b"eno")

    [found] = judge("a", {0: copy_view(other), 1: copy_view(one), 2: copy_view(one)}, [Span(0, len(one))])

    assert (found.replica, found.kind) == (0, FindingKind.DIFFERS)


def test_forked_logs_are_reported_by_the_records_of_the_first_copy() -> None:
    """After a fork records have other positions; each later record of the master is one finding on the slave."""
    master, slave = log_of(b"same", b"two", b"three"), log_of(b"same", b"another", b"four")
    span = [Span(0, len(master))]

    found = list(judge("a", {0: copy_view(master), 1: copy_view(slave[: len(master)])}, span))

    assert {one.replica for one in found} == {1}
    assert [one.offset for one in found] == [1, 2]


# -- numbers and units -------------------------------------------------------------------------------------------------


class FakeCopy:
    """A fake copy that has the units of one queue, and possibly a log."""

    def __init__(
        self, *units: tuple[int, int, int], knows_topic: bool | None = None, deleted_at: int = 0, log: bytes = b""
    ) -> None:  # fmt: skip
        self._log = log
        self._data = b"".join(UNIT.pack(*unit) for unit in units)
        self._knows_topic = knows_topic
        self._deleted_at = deleted_at

    def state(self) -> CopyState:
        return state(0, 1_000, deleted={"orders": self._deleted_at} if self._deleted_at else {})

    def checksum(self, begin: int, end: int, algorithm: str) -> str | None:
        return None

    def read(self, begin: int, end: int) -> Bytes:
        return Bytes(begin, self._log[begin:end] if self._log else bytes(end - begin))

    def queues(self) -> list[tuple[str, int]]:
        return [("orders", 0)] if self._data else []

    def knows_topic(self, topic: str) -> bool | None:
        return self._knows_topic

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, len(self._data) // UNIT.size

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        return self._data[first * UNIT.size : (first + count) * UNIT.size].ljust(count * UNIT.size, b"\0")

    def close(self) -> None:
        pass


def queue_run(begin: int, end: int, physical: int) -> QueueRun:
    return QueueRun("a", "orders", 0, begin, end, physical)


def index_unit(at: int) -> tuple[int, int, int]:
    return at * 100, 100, 0


def findings_of(copy: FakeCopy, runs: list[QueueRun], *findings: Finding) -> list[tuple[FindingKind, int, int]]:
    made = Conclusion("a", {0: copy}, {0: copy.state()}, 0, findings, runs)
    return [(one.kind, one.offset, one.count) for one in made.findings()]


def test_consecutive_numbers_across_chunks_are_no_gap() -> None:
    """Chunks may be given in any order."""
    assert findings_of(FakeCopy(*map(index_unit, range(6))), [queue_run(3, 6, 300), queue_run(0, 3, 0)]) == []


def test_number_without_record_is_a_gap_and_its_unit_is_stray() -> None:
    """Both are reported: the message is missing, and its unit points to no record."""
    assert findings_of(FakeCopy(*map(index_unit, range(6))), [queue_run(0, 2, 0), queue_run(3, 6, 300)]) == [
        (FindingKind.UNIT_STRAY, 2, 1), (FindingKind.GAP, 2, 1),
    ]  # fmt: skip


def test_damaged_record_is_one_finding_attributed_by_its_unit() -> None:
    """The damage itself does not identify the message; the unit that points to it does."""
    damage = Finding("a", 0, Check.COPIES, FindingKind.CORRUPT, physical=200, size=100, detail="no whole record")

    assert findings_of(FakeCopy(*map(index_unit, range(6))), [queue_run(0, 2, 0), queue_run(3, 6, 300)], damage) == [
        (FindingKind.CORRUPT, 2, 1)
    ]


def test_damage_is_reported_only_on_the_copy_that_was_read() -> None:
    """Without the comparison of copies only one is read, and its damage proves nothing about the others."""
    whole = log_of(b"one", b"two", b"three")
    size = len(log_of(b"one"))
    damaged = bytearray(whole)
    damaged[size + 90] ^= 1
    units = [(0, size, 0), (size, size, 0), (2 * size, len(whole) - 2 * size, 0)]
    copies = {0: FakeCopy(*units, log=bytes(damaged)), 1: FakeCopy(*units, log=whole)}
    states = dict.fromkeys(copies, state(0, len(whole)))
    chunk = Chunk("a", Span(0, len(whole)), (0, 1), 0)

    *found, coverage = ChunkAudit(chunk, copies, states, frozenset({Check.INDEX}), "crc32").run()

    findings = [one for one in found if isinstance(one, Finding)]
    assert [(one.replica, one.kind) for one in findings] == [(0, FindingKind.CORRUPT)]
    assert findings[0].detail.startswith("no whole record on the only copy that was read")
    assert isinstance(coverage, Coverage) and (coverage.records, coverage.bytes_compared) == (2, 0)


def test_duplicate_number_is_a_finding_but_a_recreated_topic_is_not() -> None:
    """A topic that was deleted and created again starts at number 0."""
    assert findings_of(FakeCopy(*map(index_unit, range(6))), [queue_run(0, 4, 0), queue_run(3, 6, 400)]) == [
        (FindingKind.TWICE, 3, 1)
    ]
    young = FakeCopy(*(index_unit(at + 4) for at in range(3)))
    assert findings_of(young, [queue_run(0, 4, 0), queue_run(0, 3, 400)]) == []


def test_unit_that_points_before_the_deletion_of_its_topic_is_stray() -> None:
    """A queue that is completely left over from the deleted topic is no finding: the next start removes it."""
    assert findings_of(
        FakeCopy(index_unit(4), index_unit(5), index_unit(2), deleted_at=400), [queue_run(0, 2, 400)]
    ) == [(FindingKind.UNIT_STRAY, 2, 1)]
    assert findings_of(FakeCopy(*map(index_unit, range(3)), deleted_at=400), []) == []
    assert findings_of(FakeCopy(*map(index_unit, range(3))), []) == [(FindingKind.UNIT_STRAY, at, 1) for at in range(3)]


@pytest.mark.parametrize(("units_end", "missing"), [(200, 2), (300, 3), (OFFSET_MAX, 4)])
def test_unit_that_the_next_start_builds_is_not_missing(units_end: int, missing: int) -> None:
    """Records that were unconfirmed when a copy stopped may lack units; a wrong unit is a finding there, too."""
    records = [Record(at * 100, 100, "orders", 0, at, True, 0, Grade.SEALED) for at in range(5)]
    copy = FakeCopy(*[(0, 0, 0)] * 4, (7, 100, 0))

    found = list(check_units("a", 0, copy, state(0, 1_000, units_end=units_end), {("orders", 0): records}))

    assert [(one.kind, one.offset, one.count) for one in found] == [
        (FindingKind.UNIT_MISSING, 0, missing), (FindingKind.UNIT_WRONG, 4, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("is_there", "expected"), [(None, 1), (True, 1), (False, 0)], ids=["unknown", "there", "gone"])
def test_units_of_a_deleted_topic_are_not_missing(is_there: bool | None, expected: int) -> None:
    """Missing units are no finding only if the copy reports that the topic does not exist."""
    missing = Finding("a", 0, Check.INDEX, FindingKind.UNIT_MISSING, "orders", 0, 0, 0, 100, 3)

    assert len(findings_of(FakeCopy(knows_topic=is_there), [queue_run(0, 3, 0)], missing)) == expected


def test_document_of_a_result_fits_into_a_termination_message() -> None:
    """With any number of findings the document leaves room for the rest of the 4096 bytes that Kubernetes keeps."""
    bad = Finding(
        "broker-" + "x" * 60,
        1,
        Check.COPIES,
        FindingKind.SWAPPED,
        "t" * 127,
        3,
        1 << 40,
        1 << 50,
        4 << 20,
        1,
        "d" * 300,
    )
    one = BrokerResult(
        bad.broker, Span(0, 1 << 50), (0, 1, 2), 1 << 40, 1 << 40, 1 << 50, 1 << 50, (bad,) * 50, ("n" * 400,) * 20
    )
    result = AuditResult(0.0, 1.0, (one,) * 20, ArchiveResult(5, 5, (bad,) * 9, ("n" * 400,) * 9))

    assert len(json.dumps(result.document())) < 3_800
    assert result.exit_code == 1
    assert result.document()["findings"] == 1_009
    assert result.text().endswith("1009 findings (1.0 s)\n")


def test_end_of_units_is_after_the_last_unit_of_a_message() -> None:
    """Holes before the last unit of a message do not matter; empty units and fillers after it do not count."""
    filler = UNIT.pack(0, 0x7FFFFFFF, 0)
    assert last_unit_end(UNIT.pack(*index_unit(0)) + bytes(20) + UNIT.pack(*index_unit(2)) + bytes(400)) == 60
    assert last_unit_end(filler * 3 + bytes(40)) == 0
    assert last_unit_end(b"") == 0
