"""The pure parts of an audit: chunks, bisection, and what is said of records, units and numbers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import pytest

from gantry_pipelines.audit.comparing import PIECE_BYTES_MIN, View, differing, judge
from gantry_pipelines.audit.concluding import Conclusion
from gantry_pipelines.audit.copies import OFFSET_MAX, Bytes, CopyState
from gantry_pipelines.audit.directory import last_unit_end
from gantry_pipelines.audit.indexing import check_units
from gantry_pipelines.audit.model import Check, Finding, Kind, QueueRun, Span
from gantry_pipelines.audit.planning import cut, planned
from gantry_pipelines.audit.result import ArchiveResult, AuditResult, BrokerResult
from gantry_pipelines.audit.walking import Grade, Record, grade_at, walk
from gantry_store_files import UNIT
from gantry_wire.message import StoredMessage, encode_record

BIG = 64 << 20


def state(begin: int, end: int, **more: object) -> CopyState:
    return CopyState(Span(begin, end), False, **more)  # type: ignore[arg-type]


def log_of(*bodies: bytes, is_sealed: bool = True, begin: int = 0) -> bytes:
    """Records of one queue, one behind the other."""
    data = b""
    for number, body in enumerate(bodies):
        message = StoredMessage(
            topic="orders", queue_id=0, body=body, queue_offset=number, physical_offset=begin + len(data)
        )
        data += encode_record(message, is_sealed=is_sealed)
    return data


def view(data: bytes, ours: tuple[Span, ...] | None = None) -> View:
    read = Bytes(0, data)
    return View(read, walk(read, 0, len(data), ours, is_all=True), ours, len(data))


# -- planning ----------------------------------------------------------------------------------------------------------


def test_chunks_end_at_multiples_of_their_size_wherever_a_log_begins() -> None:
    """The same range has the same chunks in each audit."""
    assert cut(Span(70, 260), 100) == [Span(70, 100), Span(100, 200), Span(200, 260)]
    assert cut(Span(100, 100), 100) == []


def test_what_only_some_copies_have_is_looked_at_alone_and_said() -> None:
    """Chunks never go over the place where a copy begins or ends."""
    plan = planned("a", {0: state(0, 350), 1: state(100, 300), 2: state(100, 300)}, (0, 1, 2), 1_000)

    assert [(chunk.span, chunk.copies) for chunk in plan.chunks] == [
        (Span(0, 100), (0,)), (Span(100, 300), (0, 1, 2)), (Span(300, 350), (0,)),
    ]  # fmt: skip
    assert plan.compared == Span(100, 300)
    assert len(plan.notes) == 2


def test_copies_without_anything_in_common_are_said() -> None:
    """No overlap is no error and no finding."""
    plan = planned("a", {0: state(500, 600), 1: state(0, 100)}, (0, 1), 1_000)

    assert plan.compared.length == 0
    assert any("nothing in common" in note for note in plan.notes)


# -- bisection ---------------------------------------------------------------------------------------------------------


def sums(data: bytes, asked: list[tuple[int, int]]) -> Callable[[int, int], str | None]:
    def ask(begin: int, end: int) -> str | None:
        asked.append((begin, end))
        return str(zlib.crc32(data[begin:end]))

    return ask


def test_a_difference_is_found_with_few_questions_and_equal_copies_cost_one() -> None:
    """Each halving asks for one half; the other's checksum is known from that."""
    length = 64 * PIECE_BYTES_MIN
    one = bytes(length)
    other = bytearray(length)
    other[37 * PIECE_BYTES_MIN + 5] = 1
    asked: list[tuple[int, int]] = []

    found = differing(sums(one, asked), sums(bytes(other), []), Span(0, length))

    assert found == [Span(37 * PIECE_BYTES_MIN, 38 * PIECE_BYTES_MIN)]
    assert len(asked) <= 13
    asked.clear()
    assert differing(sums(one, asked), sums(one, []), Span(0, length)) == []
    assert len(asked) == 1


def test_a_range_that_cannot_be_read_differs() -> None:
    """Whatever the other copy has there."""
    assert differing(lambda *_: None, lambda *_: "0", Span(0, 1_000)) == [Span(0, 1_000)]


# -- records -----------------------------------------------------------------------------------------------------------


def test_a_walk_goes_on_behind_damage() -> None:
    """One bad record is one damage, from where it begins to where the next one does."""
    data = bytearray(log_of(b"one", b"two", b"three"))
    size = len(log_of(b"one"))
    data[size + 90] ^= 1

    found = walk(Bytes(0, bytes(data)), 0, len(data), None, is_all=True)

    assert [record.offset for record in found.records] == [0, 2]
    assert found.damages == [Span(size, 2 * size)]


def test_a_seal_is_demanded_where_we_wrote_and_believed_where_it_is_right() -> None:
    """Without knowing who wrote, a record without a seal is plain, and one with a wrong seal is suspect."""
    sealed, plain = log_of(b"one"), log_of(b"one", is_sealed=False)
    topic = bytearray(sealed)
    topic[sealed.index(b"orders")] ^= 1
    ours = (Span(0, 1 << 40),)

    assert grade_at(Bytes(0, sealed), 0, None) is Grade.SEALED
    assert grade_at(Bytes(0, plain), 0, None) is Grade.PLAIN
    assert grade_at(Bytes(0, bytes(topic)), 0, None) is Grade.SUSPECT
    assert grade_at(Bytes(0, bytes(topic)), 0, ours) is Grade.BAD
    assert grade_at(Bytes(0, plain), 0, ours) is Grade.BAD
    assert grade_at(Bytes(0, plain), 0, ()) is Grade.PLAIN


def test_the_copy_that_proves_more_is_right_be_it_the_slave() -> None:
    """A master whose record has a wrong seal is the one that is corrupt."""
    right = log_of(b"one", b"two")
    wrong = bytearray(right)
    wrong[right.index(b"orders")] ^= 1

    [found] = judge("a", {0: view(bytes(wrong)), 1: view(right)}, [Span(0, len(right))])

    assert (found.replica, found.kind, found.topic, found.offset) == (0, Kind.CORRUPT, "orders", 0)


def test_of_three_copies_the_majority_is_right() -> None:
    """All are whole, and two are the same."""
    one, other = log_of(b"one"), log_of(b"eno")

    [found] = judge("a", {0: view(other), 1: view(one), 2: view(one)}, [Span(0, len(one))])

    assert (found.replica, found.kind) == (0, Kind.DIFFERS)


def test_histories_that_fork_are_said_by_the_records_of_the_first_copy() -> None:
    """Another length behind the fork shifts all places; each record of the master is one finding on the slave."""
    master, slave = log_of(b"same", b"two", b"three"), log_of(b"same", b"another", b"four")
    span = [Span(0, len(master))]

    found = list(judge("a", {0: view(master), 1: view(slave[: len(master)])}, span))

    assert {one.replica for one in found} == {1}
    assert [one.offset for one in found] == [1, 2]


# -- numbers and units -------------------------------------------------------------------------------------------------


class Queues:
    """A copy with one queue's units, and nothing else."""

    def __init__(
        self, *units: tuple[int, int, int], topic_is_there: bool | None = None, deleted_at: int = 0
    ) -> None:  # fmt: skip
        self._data = b"".join(UNIT.pack(*unit) for unit in units)
        self._topic_is_there = topic_is_there
        self._deleted_at = deleted_at

    def state(self) -> CopyState:
        return state(0, 1_000, deleted={"orders": self._deleted_at} if self._deleted_at else {})

    def checksum(self, begin: int, end: int, algorithm: str) -> str | None:
        return None

    def read(self, begin: int, end: int) -> Bytes:
        return Bytes(begin, bytes(end - begin))

    def queues(self) -> list[tuple[str, int]]:
        return [("orders", 0)] if self._data else []

    def knows_topic(self, topic: str) -> bool | None:
        return self._topic_is_there

    def queue_end(self, topic: str, queue: int) -> tuple[int, int]:
        return 0, len(self._data) // UNIT.size

    def units(self, topic: str, queue: int, first: int, count: int) -> bytes:
        return self._data[first * UNIT.size : (first + count) * UNIT.size].ljust(count * UNIT.size, b"\0")

    def close(self) -> None:
        pass


def run(begin: int, end: int, physical: int) -> QueueRun:
    return QueueRun("a", "orders", 0, begin, end, physical)


def unit(at: int) -> tuple[int, int, int]:
    return at * 100, 100, 0


def concluded(copy: Queues, runs: list[QueueRun], *findings: Finding) -> list[tuple[Kind, int, int]]:
    made = Conclusion("a", {0: copy}, {0: copy.state()}, 0, findings, runs)
    return [(one.kind, one.offset, one.count) for one in made.findings()]


def test_numbers_that_follow_over_chunks_are_no_gap() -> None:
    """Chunks may come in any order."""
    assert concluded(Queues(*map(unit, range(6))), [run(3, 6, 300), run(0, 3, 0)]) == []


def test_a_number_that_no_record_has_is_a_gap_and_its_unit_a_stray() -> None:
    """Both are said: the message is gone, and its unit leads nowhere."""
    assert concluded(Queues(*map(unit, range(6))), [run(0, 2, 0), run(3, 6, 300)]) == [
        (Kind.UNIT_STRAY, 2, 1), (Kind.GAP, 2, 1),
    ]  # fmt: skip


def test_a_number_whose_record_is_damaged_is_one_fault_and_its_unit_gives_the_name() -> None:
    """The damage itself no longer knows who it was."""
    damage = Finding("a", 0, Check.COPIES, Kind.CORRUPT, physical=200, size=100, detail="no whole record")

    assert concluded(Queues(*map(unit, range(6))), [run(0, 2, 0), run(3, 6, 300)], damage) == [(Kind.CORRUPT, 2, 1)]


def test_a_second_record_with_a_number_is_said_and_a_second_life_of_a_topic_is_not() -> None:
    """A topic that was made again begins at 0."""
    assert concluded(Queues(*map(unit, range(6))), [run(0, 4, 0), run(3, 6, 400)]) == [(Kind.TWICE, 3, 1)]
    young = Queues(*(unit(at + 4) for at in range(3)))
    assert concluded(young, [run(0, 4, 0), run(0, 3, 400)]) == []


def test_a_unit_of_a_new_life_that_leads_to_before_the_deletion_is_a_stray() -> None:
    """Only a queue that is left over from the earlier life as a whole is none: a start clears it."""
    assert concluded(Queues(unit(4), unit(5), unit(2), deleted_at=400), [run(0, 2, 400)]) == [(Kind.UNIT_STRAY, 2, 1)]
    assert concluded(Queues(*map(unit, range(3)), deleted_at=400), []) == []
    assert concluded(Queues(*map(unit, range(3))), []) == [(Kind.UNIT_STRAY, at, 1) for at in range(3)]


@pytest.mark.parametrize(("units_end", "missing"), [(200, 2), (300, 3), (OFFSET_MAX, 4)])
def test_a_unit_that_the_next_start_makes_is_not_missed(units_end: int, missing: int) -> None:
    """Records that a stopped copy did not know to be confirmed have no units; a wrong unit is wrong there, too."""
    records = [Record(at * 100, 100, "orders", 0, at, True, 0, Grade.SEALED) for at in range(5)]
    copy = Queues(*[(0, 0, 0)] * 4, (7, 100, 0))

    found = list(check_units("a", 0, copy, state(0, 1_000, units_end=units_end), {("orders", 0): records}))

    assert [(one.kind, one.offset, one.count) for one in found] == [
        (Kind.UNIT_MISSING, 0, missing), (Kind.UNIT_WRONG, 4, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(("is_there", "expected"), [(None, 1), (True, 1), (False, 0)], ids=["unknown", "there", "gone"])
def test_records_of_a_topic_that_was_deleted_are_not_missed(is_there: bool | None, expected: int) -> None:
    """Only where the copy says that there is no such topic."""
    missing = Finding("a", 0, Check.INDEX, Kind.UNIT_MISSING, "orders", 0, 0, 0, 100, 3)

    assert len(concluded(Queues(topic_is_there=is_there), [run(0, 3, 0)], missing)) == expected


def test_the_document_of_a_result_fits_into_last_words() -> None:
    """However much is wrong: Kubernetes keeps 4096 bytes of what a pod says last, and more than this stands in them."""
    bad = Finding(
        "broker-" + "x" * 60, 1, Check.COPIES, Kind.SWAPPED, "t" * 127, 3, 1 << 40, 1 << 50, 4 << 20, 1, "d" * 300
    )
    one = BrokerResult(
        bad.broker, Span(0, 1 << 50), (0, 1, 2), 1 << 40, 1 << 40, 1 << 50, 1 << 50, (bad,) * 50, ("n" * 400,) * 20
    )
    result = AuditResult(0.0, 1.0, (one,) * 20, ArchiveResult(5, 5, (bad,) * 9, ("n" * 400,) * 9))

    assert len(json.dumps(result.document())) < 3_800
    assert result.exit_code == 1
    assert result.document()["findings"] == 1_009
    assert result.text().endswith("1009 findings (1.0 s)\n")


def test_units_behind_a_hole_still_count_as_units() -> None:
    """The last one that is a message's ends a file, wherever it has holes; fillers are none."""
    filler = UNIT.pack(0, 0x7FFFFFFF, 0)
    assert last_unit_end(UNIT.pack(*unit(0)) + bytes(20) + UNIT.pack(*unit(2)) + bytes(400)) == 60
    assert last_unit_end(filler * 3 + bytes(40)) == 0
    assert last_unit_end(b"") == 0
