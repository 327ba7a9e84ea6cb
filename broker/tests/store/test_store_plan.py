"""Planning of recovery without a disk: where reading starts, and what damage means."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.store.record_dispatch import parse_record_fields
from gantry_broker.store.recovery import INFINITE, StartFacts, StartPlan, plan_start, scan_log
from gantry_broker.store.settings import DEFAULT_DELAY_LEVELS, StoreSettings, parse_delay_levels
from gantry_wire.hashing import tags_code
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, FLAG_INNER_BATCH, StoredMessage, encode_record
from gantry_wire.properties import message_keys

FILE_BYTES = 2048
FAILED_AT_600 = {"failed_flushed": 600, "is_point_proved": True, "written": 1500}
"""A flush failed when the log was flushed up to 600; what was written after that may be on no disk."""


@pytest.mark.parametrize(
    ("facts", "plan"),
    [
        ({"point_through": 500, "is_point_proved": True}, StartPlan(500, 700, False, 700)),
        ({"point_through": 500, "is_point_proved": True, "is_clean": True}, StartPlan(500, INFINITE, False, INFINITE)),
        ({"point_through": 900, "is_point_proved": True}, StartPlan(900, 900, False, 900)),
        ({"point_through": 500, "is_point_proved": False}, StartPlan(100, 700, True, 700)),
        ({"point_through": None, "is_point_proved": False}, StartPlan(100, 700, True, 700)),
        ({"point_through": 50, "is_point_proved": True}, StartPlan(100, 700, True, 700)),
        ({"point_through": 5000, "is_point_proved": True}, StartPlan(100, 700, True, 700)),
        ({"point_through": None, "is_point_proved": False, "sealed_flushed": 0}, StartPlan(100, 0, True, 0)),
        (FAILED_AT_600 | {"point_through": 500}, StartPlan(500, 600, False, 600)),
        (FAILED_AT_600 | {"point_through": 800}, StartPlan(800, 800, False, 800)),
        (FAILED_AT_600 | {"point_through": None, "sealed_flushed": 0}, StartPlan(100, 600, True, 600)),
    ],
    ids=[
        "point",
        "clean",
        "point-beyond-seal",
        "unproved",
        "none",
        "expired",
        "beyond-files",
        "nothing-known",
        "failed-flush",
        "failed-flush-before-point",
        "failed-flush-alone",
    ],
)
def test_the_start_is_the_proved_recovery_point_or_the_beginning(facts: dict[str, Any], plan: StartPlan) -> None:
    """Nothing unproved is used; the durable mark is the end of what is known to be on the disk: proved or sealed."""
    known: dict[str, Any] = {"is_clean": False, "min_physical": 100, "files_end": 2000, "sealed_flushed": 700} | facts

    assert plan_start(StartFacts(**known)) == plan


@dataclass
class MemoryFile:
    base_offset: int
    view: memoryview

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.view)

    def advise(self, start: int, end: int) -> None:
        """Do nothing, since all bytes are in memory."""


def make_log(bodies: list[int]) -> tuple[tuple[MemoryFile, ...], list[tuple[int, int]]]:
    """Build a log of records with bodies of these sizes, in files of 2 KiB: (files, [start, end) of every record)."""
    data = bytearray()
    places = []
    for number, size in enumerate(bodies):
        record = encode_record(
            StoredMessage(topic="t", queue_id=0, body=bytes([number % 251]) * size, physical_offset=len(data))
        )
        remaining = FILE_BYTES - len(data) % FILE_BYTES
        if len(record) + 8 > remaining:
            data += BLANK_RECORD.pack(remaining, BLANK_MAGIC) + bytes(remaining - 8)
            record = record[:28] + len(data).to_bytes(8, "big") + record[36:]
        places.append((len(data), len(data) + len(record)))
        data += record
    data += bytes(-len(data) % FILE_BYTES + FILE_BYTES)
    view = memoryview(data)
    files = tuple(MemoryFile(base, view[base : base + FILE_BYTES]) for base in range(0, len(data), FILE_BYTES))
    return files, places


def scan(files: tuple[MemoryFile, ...], mark: int, start: int = 0) -> tuple[list[tuple[int, int]], object]:
    found: list[tuple[int, int]] = []
    result = scan_log(files, start, mark, lambda view, position, offset, size: found.append((offset, offset + size)))
    return found, result


BODIES = st.lists(st.integers(0, 1500), min_size=1, max_size=30)


@given(BODIES)
def test_undamaged_log_is_read_to_its_end(bodies: list[int]) -> None:
    """Every record is read across every file border, and the end is that of the last one."""
    files, places = make_log(bodies)

    found, result = scan(files, 0)

    assert found == places
    assert result.end == places[-1][1]  # type: ignore[attr-defined]


@settings(max_examples=200)
@given(st.data())
def test_damage_after_the_mark_ends_the_log_and_before_it_is_skipped(data: st.DataObject) -> None:
    """The durable mark alone distinguishes a torn tail from damage."""
    bodies = data.draw(st.lists(st.integers(1, 700), min_size=3, max_size=20))
    files, places = make_log(bodies)
    damaged_number = data.draw(st.integers(0, len(places) - 2))
    start = places[damaged_number][0]
    file = files[start // FILE_BYTES]
    file.view[start - file.base_offset + 88] ^= 0x55

    before, torn = scan(files, start)
    after, damaged = scan(files, places[-1][1])

    assert before == places[:damaged_number]
    assert torn.end == start  # type: ignore[attr-defined]
    assert after == places[:damaged_number] + places[damaged_number + 1 :]
    assert damaged.damaged == [(start, places[damaged_number + 1][0])]  # type: ignore[attr-defined]


@settings(max_examples=300)
@given(st.data())
def test_scan_of_arbitrary_bytes_ends_and_invents_nothing(data: st.DataObject) -> None:
    """With any bytes written over the log, only original records are found, and reading ends."""
    files, places = make_log(data.draw(BODIES))
    for _ in range(data.draw(st.integers(1, 4))):
        file = data.draw(st.sampled_from(files))
        junk = data.draw(st.binary(min_size=1, max_size=64))
        position = data.draw(st.integers(0, FILE_BYTES - len(junk)))
        file.view[position : position + len(junk)] = junk
    mark = data.draw(st.integers(0, files[-1].end_offset))

    found, result = scan(files, mark)

    assert all(a[1] <= b[0] for a, b in pairwise(found))
    assert {start for start, _ in found} <= {start for start, _ in places}
    assert result.end <= files[-1].end_offset  # type: ignore[attr-defined]


# -- dispatch from bytes ---------------------------------------------------------------------------------------------


def fields_of(properties: str, topic: str = "t", sys_flag: int = 0) -> object:
    record = encode_record(
        StoredMessage(
            topic=topic, queue_id=3, body=b"b", queue_offset=9, store_timestamp_ms=1_000, sys_flag=sys_flag,
            properties_bytes=properties.encode(),
        )
    )  # fmt: skip
    return parse_record_fields(memoryview(b"xx" + record), 2, len(record), StoreSettings().delay_levels_ms)


def test_facts_of_a_record_are_read_from_its_bytes() -> None:
    """Topic, queue, offsets, tag hash, keys and time are read, for both magics."""
    for topic in ("orders", "%RETRY%" + "g" * 200):
        fields = fields_of("TAGS\x01a\x02KEYS\x01k1  k2\x02UNIQ_KEY\x01u\x02", topic)

        assert fields == (topic, 3, 9, True, tags_code("a"), ("u", "k1", "k2"), 1_000, 1)


@pytest.mark.parametrize(
    ("sys_flag", "properties", "offsets"),
    [
        (FLAG_INNER_BATCH, "INNER_NUM\x015\x02INNER_BASE\x019\x02", 5),
        (FLAG_INNER_BATCH, "INNER_NUM\x0132767\x02INNER_BASE\x019\x02", 32767),
        (FLAG_INNER_BATCH, "INNER_NUM\x010\x02INNER_BASE\x019\x02", 1),
        (FLAG_INNER_BATCH, "INNER_NUM\x01many\x02INNER_BASE\x019\x02", 1),
        (FLAG_INNER_BATCH, "INNER_NUM\x015\x02INNER_BASE\x018\x02", 1),
        (FLAG_INNER_BATCH, "INNER_NUM\x015\x02", 1),
        (0, "INNER_NUM\x015\x02INNER_BASE\x019\x02", 1),
    ],
)
def test_batch_in_one_record_takes_an_offset_for_each_message(sys_flag: int, properties: str, offsets: int) -> None:
    """RocketMQ's flag and properties must agree; anything else is one message."""
    assert fields_of(properties, sys_flag=sys_flag)[7] == offsets  # type: ignore[index]


@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1_000), ("18", 7_200_000), ("19", 7_200_000), ("0", None), ("-1", None), ("x", None)]
)
def test_delayed_record_has_its_delivery_time_in_the_queue(level: str, delay_ms: int | None) -> None:
    """Levels above the last are clamped; an invalid level makes an ordinary message."""
    fields = fields_of(f"DELAY\x01{level}\x02TAGS\x01a\x02", "SCHEDULE_TOPIC_XXXX")

    assert fields[4] == (1_000 + delay_ms if delay_ms is not None else tags_code("a"))  # type: ignore[index]


def test_delay_applies_to_the_schedule_topic_only() -> None:
    """The property stays on delivered messages, whose queue entry has the tag code again."""
    assert fields_of("DELAY\x013\x02")[4] == 0  # type: ignore[index]


@pytest.mark.parametrize(("flag", "is_queued", "has_keys"), [(0, 1, 1), (4, 0, 1), (8, 1, 1), (12, 0, 0)])
def test_transaction_bits_determine_queue_and_index(flag: int, is_queued: int, has_keys: int) -> None:
    """Prepared messages are indexed only, rolled back ones neither queued nor indexed, committed ones both."""
    fields = fields_of("UNIQ_KEY\x01u\x02", sys_flag=flag)

    assert (fields[3], bool(fields[5])) == (bool(is_queued), bool(has_keys))  # type: ignore[index]


def test_message_without_keys_is_not_indexed() -> None:
    """A message without a unique key and user keys has no index keys."""
    assert message_keys({}) == ()
    assert message_keys({"KEYS": " a  b "}) == ("a", "b")


def test_delay_levels_are_parsed_and_invalid_text_is_refused() -> None:
    """RocketMQ's notation is parsed into milliseconds, and anything else is refused."""
    levels = parse_delay_levels(DEFAULT_DELAY_LEVELS)
    assert (len(levels), levels[0], levels[4], levels[17]) == (18, 1_000, 60_000, 7_200_000)
    for text in ("1x", "s", "1.5s", "-1s", "²s", "٣s"):
        with pytest.raises(ValueError, match="is not a delay level"):
            parse_delay_levels(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("mapped_file_size_consume_queue", 30), ("mapped_file_size_commit_log", 10), ("max_hash_slot_num", 0)],
)
def test_invalid_sizes_are_refused_by_name(field: str, value: Any) -> None:
    """A size that cannot work is refused at once, with the name of its setting."""
    with pytest.raises(ValueError, match=r"mappedFileSize|maxHashSlotNum"):
        dataclasses.replace(StoreSettings(), **{field: value})
