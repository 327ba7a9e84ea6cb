"""Faults that are injected into the files of a stopped store by a seed, and the findings that an audit must report.

The expected findings are computed from the bytes: the records and the units whose bytes have changed. An audit has
found a fault if it reports each of them on the damaged copy, and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, final

from gantry_pipelines.audit.model import Check, Finding, FindingKind
from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD, decode_record, encode_record
from gantry_wire.seal import SEAL_BYTES

UNIT_BYTES: Final = 20
LOG_KINDS: Final = frozenset(
    {FindingKind.CORRUPT, FindingKind.MISSING, FindingKind.DIFFERS, FindingKind.SWAPPED, FindingKind.FILLER}
)
UNIT_KINDS: Final = frozenset({FindingKind.UNIT_MISSING, FindingKind.UNIT_WRONG, FindingKind.UNIT_STRAY})


class Stored(NamedTuple):
    """One record as it was before the fault."""

    physical: int
    size: int
    topic: str
    queue: int
    offset: int
    body: int
    """Position of the body within the record."""
    body_end: int


@final
@dataclass(slots=True)
class Log:
    """A store's undamaged log, which fits into memory."""

    root: Path
    files: list[Path] = field(default_factory=list)
    data: bytes = b""
    records: list[Stored] = field(default_factory=list)
    blanks: list[tuple[int, int]] = field(default_factory=list)
    end: int = 0

    @classmethod
    def of(cls, root: Path) -> Log:
        """Read a log with the wire format's decoder only."""
        files = sorted((root / "commitlog").iterdir())
        log = cls(root, files, b"".join(one.read_bytes() for one in files))
        size = files[0].stat().st_size
        at = 0
        while at + 8 <= len(log.data):
            length, magic = BLANK_RECORD.unpack_from(log.data, at)
            if magic == BLANK_MAGIC:
                log.blanks.append((at, at + length))
                at = (at // size + 1) * size
                continue
            if not length:
                break
            one = decode_record(log.data, at)
            body_end = log.data.index(one.topic.encode(), at + 88 + len(one.body)) - 1 - at
            queued = not one.sys_flag & 0x4
            log.records.append(Stored(at, length, one.topic, one.queue_id, one.queue_offset if queued else -1,
                                      body_end - len(one.body), body_end))  # fmt: skip
            at += length
        log.end = at
        return log

    def file_at(self, physical: int) -> tuple[Path, int]:
        """Return the file of a log offset, and the position in the file."""
        size = self.files[0].stat().st_size
        return self.files[physical // size], physical % size


def overwrite(log: Log, root: Path, physical: int, data: bytes) -> None:
    """Overwrite bytes of a log, within one file."""
    path, position = log.file_at(physical)
    with open(root / "commitlog" / path.name, "r+b") as file:
        file.seek(position)
        file.write(data)


# -- the log -----------------------------------------------------------------------------------------------------------


def flip(log: Log, root: Path, rng: random.Random, low: int, high: int) -> str:
    """Flip one bit of a byte in `[low, high)`."""
    at = rng.randrange(low, high)
    bit = 1 << rng.randrange(8)
    overwrite(log, root, at, bytes([log.data[at] ^ bit]))
    return f"bit {bit} of byte {at}"


def flip_body(log: Log, root: Path, rng: random.Random) -> str:
    one = rng.choice([one for one in log.records if one.body_end > one.body])
    return flip(log, root, rng, one.physical + one.body, one.physical + one.body_end)


def flip_header(log: Log, root: Path, rng: random.Random) -> str:
    one = rng.choice(log.records)
    return flip(log, root, rng, one.physical, one.physical + one.body)


def flip_properties(log: Log, root: Path, rng: random.Random) -> str:
    """Flip a bit in the topic's length, the topic, properties, or the seal."""
    one = rng.choice(log.records)
    return flip(log, root, rng, one.physical + one.body_end, one.physical + one.size)


def cut_tail(log: Log, root: Path, rng: random.Random) -> str:
    """Truncate the last file of the log."""
    path, _ = log.file_at(log.end - 1)
    base = int(path.name)
    at = rng.randrange(base + 1, log.end)
    with open(root / "commitlog" / path.name, "r+b") as file:
        file.truncate(at - base)
    return f"the last file ends at {at}"


def zero_tail(log: Log, root: Path, rng: random.Random) -> str:
    """Overwrite the end of the log with zeros, as after a lost write."""
    path, _ = log.file_at(log.end - 1)
    at = rng.randrange(max(int(path.name), log.end - 40_000), log.end)
    overwrite(log, root, at, bytes(log.end - at))
    return f"zeros from {at} to the end"


def zero_middle(log: Log, root: Path, rng: random.Random) -> str:
    at, length = _random_range(log, rng, rng.choice((512, 4_096, 20_000)))
    overwrite(log, root, at, bytes(length))
    return f"{length} zeros at {at}"


def lose_file(log: Log, root: Path, rng: random.Random) -> str:
    """Delete a file in the middle of the log."""
    used = [one for one in log.files if int(one.name) < log.end]
    name = rng.choice(used[1:-1] or used[1:]).name
    (root / "commitlog" / name).unlink()
    return f"the file {name} is gone"


def swap_chunks(log: Log, root: Path, rng: random.Random) -> str:
    """Swap two blocks, as a misdirected write or a faulty copy does."""
    length = rng.choice((512, 4_096, 32_768))
    while True:
        one, _ = _random_range(log, rng, length)
        other, _ = _random_range(log, rng, length)
        if abs(one - other) >= length:
            overwrite(log, root, one, log.data[other : other + length])
            overwrite(log, root, other, log.data[one : one + length])
            return f"{length} bytes at {one} and {other} have changed places"


def swap_records(log: Log, root: Path, rng: random.Random) -> str:
    """Swap two records of the same size."""
    by_size: dict[int, list[Stored]] = {}
    for one in log.records:
        by_size.setdefault(one.size, []).append(one)
    pair = rng.sample(rng.choice([ones for ones in by_size.values() if len(ones) > 1]), 2)
    for one, other in (pair, pair[::-1]):
        overwrite(log, root, one.physical, log.data[other.physical : other.physical + other.size])
    return f"the records at {pair[0].physical} and {pair[1].physical} have changed places"


def other_record(log: Log, root: Path, rng: random.Random) -> str:
    """Replace a record by a valid one with another body, as in a forked log."""
    one = rng.choice([one for one in log.records if one.body_end - one.body >= 8])
    message = decode_record(log.data, one.physical)
    body = bytes(byte ^ 0x55 for byte in message.body)
    properties = message.properties_bytes[:-SEAL_BYTES]
    fields = {name: getattr(message, name) for name in message.__dataclass_fields__ if not name.startswith("_")}
    record = encode_record(type(message)(**{**fields, "body": body, "properties_bytes": properties}), is_sealed=True)
    assert len(record) == one.size, "the other record has another length"
    overwrite(log, root, one.physical, record)
    return f"another whole record at {one.physical}"


def flip_filler(log: Log, root: Path, rng: random.Random) -> str:
    """Flip a bit in the unused end of a file."""
    begin, end = rng.choice([blank for blank in log.blanks if blank[1] - blank[0] > 8])
    return flip(log, root, rng, begin, end)


def _random_range(log: Log, rng: random.Random, length: int) -> tuple[int, int]:
    """Draw a range of offsets within one file of the log."""
    size = log.files[0].stat().st_size
    while True:
        at = rng.randrange(0, log.end - length)
        if at // size == (at + length) // size:
            return at, length


# -- units -------------------------------------------------------------------------------------------------------------


def _units(root: Path) -> list[tuple[Path, int]]:
    """Return (file, index in the file) of each unit of a message."""
    found: list[tuple[Path, int]] = []
    for path in sorted((root / "consumequeue").glob("*/*/*")):
        data = path.read_bytes()
        found += [(path, at) for at in range(len(data) // UNIT_BYTES)
                  if 0 < int.from_bytes(data[at * 20 + 8 : at * 20 + 12], "big") < 0x7FFFFFFF]  # fmt: skip
    return found


def _overwrite_unit(place: tuple[Path, int], data: bytes, position: int = 0) -> str:
    path, number = place
    with open(path, "r+b") as file:
        file.seek(number * UNIT_BYTES + position)
        file.write(data)
    return f"unit {int(path.name) // UNIT_BYTES + number} of {path.parent.parent.name}/{path.parent.name}"


def _unit(place: tuple[Path, int]) -> bytes:
    return place[0].read_bytes()[place[1] * UNIT_BYTES : (place[1] + 1) * UNIT_BYTES]


def lose_unit(log: Log, root: Path, rng: random.Random) -> str:
    return "no " + _overwrite_unit(rng.choice(_units(root)), bytes(UNIT_BYTES))


def filler_unit(log: Log, root: Path, rng: random.Random) -> str:
    return "a filler for " + _overwrite_unit(rng.choice(_units(root)), bytes(8) + b"\x7f\xff\xff\xff" + bytes(8))


def misdirect_unit(log: Log, root: Path, rng: random.Random) -> str:
    """Point a unit to another valid record of any queue."""
    one, other = rng.sample(_units(root), 2)
    return "another place in " + _overwrite_unit(one, _unit(other)[:12])


def wrong_size(log: Log, root: Path, rng: random.Random) -> str:
    place = rng.choice(_units(root))
    size = int.from_bytes(_unit(place)[8:12], "big") + rng.choice((-1, 1, 256))
    return "another size in " + _overwrite_unit(place, size.to_bytes(4, "big"), 8)


def wrong_tags(log: Log, root: Path, rng: random.Random) -> str:
    places = [one for one in _units(root) if one[0].parent.parent.name != "SCHEDULE_TOPIC_XXXX"]
    place = rng.choice(places)
    return "other tags in " + _overwrite_unit(place, bytes([_unit(place)[19] ^ (1 << rng.randrange(8))]), 19)


def swap_units(log: Log, root: Path, rng: random.Random) -> str:
    one, other = rng.sample(_units(root), 2)
    first, second = _unit(one), _unit(other)
    return "changed places: " + _overwrite_unit(one, second) + ", " + _overwrite_unit(other, first)


def cut_queue(log: Log, root: Path, rng: random.Random) -> str:
    """Truncate the last file of a queue."""
    path, number = rng.choice(_units(root))
    with open(path, "r+b") as file:
        file.truncate(number * UNIT_BYTES + rng.randrange(UNIT_BYTES))
    return f"{path.parent.parent.name}/{path.parent.name} ends before unit {int(path.name) // UNIT_BYTES + number}"


def lose_queue(log: Log, root: Path, rng: random.Random) -> str:
    path, _ = rng.choice(_units(root))
    path.unlink()
    return f"{path.parent.parent.name}/{path.parent.name} has no file {path.name}"


def stray_unit(log: Log, root: Path, rng: random.Random) -> str:
    """Add a unit at the end of a queue that points to a record which already has one."""
    units = _units(root)
    last = dict(units)
    path = rng.choice([one for one in last if (last[one] + 2) * UNIT_BYTES <= one.stat().st_size])
    return "one more: " + _overwrite_unit((path, last[path] + 1), _unit(rng.choice(units)))


Injection = Callable[[Log, Path, random.Random], str]

LOG_FAULTS: Final[dict[str, Injection]] = {
    "flip-body": flip_body,
    "flip-header": flip_header,
    "flip-properties": flip_properties,
    "cut-tail": cut_tail,
    "zero-tail": zero_tail,
    "zero-middle": zero_middle,
    "lose-file": lose_file,
    "swap-chunks": swap_chunks,
    "swap-records": swap_records,
    "other-record": other_record,
    "flip-filler": flip_filler,
}
UNIT_FAULTS: Final[dict[str, Injection]] = {
    "lose-unit": lose_unit,
    "filler-unit": filler_unit,
    "misdirect-unit": misdirect_unit,
    "wrong-size": wrong_size,
    "wrong-tags": wrong_tags,
    "swap-units": swap_units,
    "cut-queue": cut_queue,
    "lose-queue": lose_queue,
    "stray-unit": stray_unit,
}
FAULTS: Final = LOG_FAULTS | UNIT_FAULTS
EITHER_COPY: Final = "other-record"
"""Of two valid records it is unknown which one is right: a finding on either copy is accepted."""
ON_BOTH: Final = ("flip-body", "flip-header", "flip-properties", "zero-middle")
"""Faults that are also injected into both copies alike, so that the checksums of the copies agree."""


def inject(name: str, log: Log, roots: Iterable[Path], seed: int) -> str:
    """Inject the same fault into each of the stores, and return its description."""
    texts = {FAULTS[name](log, root, random.Random(seed)) for root in roots}
    return " | ".join(sorted(texts))


# -- what must be found ------------------------------------------------------------------------------------------------

Place = tuple[int, str, int, int, int]
"""Copy, topic, queue, number, physical offset; -1 and "" where a kind of finding does not have them."""


def changed_records(log: Log, root: Path) -> list[Stored]:
    """Return the records of the log whose bytes have changed or are missing."""
    size = log.files[0].stat().st_size if log.files[0].exists() else len(log.data) // len(log.files)
    parts: list[bytes] = []
    for path in log.files:
        damaged = root / "commitlog" / path.name
        data = damaged.read_bytes() if damaged.exists() else b""
        parts.append(data + bytes(size - len(data)))
    now = b"".join(parts)
    return [one for one in log.records if now[one.physical : one.physical + one.size] !=
            log.data[one.physical : one.physical + one.size]]  # fmt: skip


def changed_units(clean: Path, root: Path) -> set[tuple[str, int, int]]:
    """Return the units that have changed."""
    found: set[tuple[str, int, int]] = set()
    for path in sorted((clean / "consumequeue").glob("*/*/*")):
        was = path.read_bytes()
        damaged = root / path.relative_to(clean)
        now = (damaged.read_bytes() if damaged.exists() else b"").ljust(len(was), b"\0")
        for at in range(0, len(was), UNIT_BYTES):
            if was[at : at + UNIT_BYTES] != now[at : at + UNIT_BYTES]:
                found.add((path.parent.parent.name, int(path.parent.name), (int(path.name) + at) // UNIT_BYTES))
    return found


def unit_places(findings: Iterable[Finding], copy: int) -> set[tuple[str, int, int]]:
    """Return the units in the findings of a copy; a finding of several units counts as each of them."""
    return {
        (one.topic, one.queue, one.offset + more)
        for one in findings if one.replica == copy and one.check is Check.INDEX and one.kind in UNIT_KINDS
        for more in range(one.count)
    }  # fmt: skip


def audit_errors(findings: list[Finding], log: Log, clean: Path, damaged: dict[int, Path]) -> list[str]:
    """Return the errors of an audit: faults that it has not found, and findings without a fault."""
    errors: list[str] = []
    for copy, root in damaged.items():
        records = {(one.physical, one.topic, one.queue, one.offset) for one in changed_records(log, root)}
        named = {(one.physical, one.topic, one.queue, one.offset) for one in findings
                 if one.replica == copy and one.kind in LOG_KINDS and one.kind is not FindingKind.FILLER}  # fmt: skip
        errors += [f"copy {copy}: not found: record {one}" for one in sorted(records - named)]
        errors += [f"copy {copy}: invented: record {one}" for one in sorted(named - records)]
        units, known = changed_units(clean, root), unit_places(findings, copy)
        errors += [f"copy {copy}: not found: unit {one}" for one in sorted(units - known)]
        errors += [f"copy {copy}: invented: unit {one}" for one in sorted(known - units)]
        if (
            not records
            and not units
            and not any(one.kind is FindingKind.FILLER and one.replica == copy for one in findings)
        ):
            errors.append(f"copy {copy}: its fault is in no record and no unit, and was not found")
    errors += [f"another finding: {one}" for one in findings
             if one.replica not in damaged or one.kind in (FindingKind.GAP, FindingKind.TWICE)]  # fmt: skip
    return errors
