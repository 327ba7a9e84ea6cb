"""The bytes of a status page and their meaning. All functions are pure: there is no file and no clock.

    [header 512][copy 0: 1792][copy 1: 1792]                                            4096 bytes, one page of memory

The header describes the publisher and never changes. A publication is a whole copy, and publications alternate between
the two copies, so that a writer that is killed or stopped during a publication leaves the previous one intact: the last
publication of a dead broker can still be read. A copy is valid when its sequence is even and its CRC is correct.

Compatibility: within a major version no field moves, shrinks or changes its meaning. A minor version may give a meaning
to reserved bytes, where 0 must mean "unknown", or make copies longer, as a reader takes their length from the header.
So a reader accepts every minor version, and reads an unknown phase, role or medium as UNKNOWN. The tables below define
the layout; ``broker/docs/status-page.md`` repeats them, and a test compares the two.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from typing import Any, Final, TypeVar

from gantry_status.errors import PageDamaged, PageForeign, PageTooShort, PageVersionUnknown
from gantry_status.page_values import HotPath, LogRange, Medium, Origin, Phase, RefusalReason, Role, SlaveStatus, Status

MAGIC: Final = b"GANTRYST"
MAJOR: Final = 1
MINOR: Final = 4
"""1.1: certificate_ends_wall_ms. 1.2: refused_requests, damage, scrubbing, missing log data, and rebuilds of queues
and index. 1.3: hot_path and its reason. 1.4: more_refused_requests."""

UNKNOWN: Final = -1
"""An unknown number on the page. Outside of this module it is None."""

HEADER_BYTES: Final = 512
COPY_BYTES: Final = 1792
"""The size of a copy that this version writes."""
COPY_BYTES_MAX: Final = 64 * 1024
"""The largest copy of a later minor version that a reader accepts."""
COPIES_COUNT: Final = 2
SLAVES_COUNT_MAX: Final = 16
FIRST_REFUSALS_COUNT: Final = 16
"""The number of counters in the field refused_requests; the others are in more_refused_requests."""
REFUSALS_COUNT_MAX: Final = 17
RANGES_COUNT_MAX: Final = 4
"""The number of missing ranges of the log that fit into a copy."""
ERROR_BYTES_MAX: Final = 255

FLAG_CRASH_SAFE: Final = 1
"""The bit of ``flags`` for ``Status.is_crash_safe``."""
FLAG_SENDS_REFUSED: Final = 2
"""The bit of ``flags`` for ``Status.is_refusing_sends``."""

HEADER_FIELDS: Final = (
    ("magic", "8s"),
    ("major", "H"),
    ("minor", "H"),
    ("copy_bytes", "I"),
    ("boot_id", "16s"),
    ("machine_boot_id", "16s"),
    ("started_wall_ms", "q"),
    ("started_boottime_ns", "q"),
    ("pid", "q"),
    ("broker_name", "128p"),
    ("version", "32p"),
    ("hot_path", "B"),
    ("hot_path_reason", "128p"),
    ("reserved", "147x"),
    ("crc", "I"),
)
COPY_FIELDS: Final = (
    ("sequence", "Q"),
    ("crc", "I"),
    ("flags", "H"),
    ("phase", "B"),
    ("role", "B"),
    ("pool_medium", "B"),
    ("reserved_1", "7x"),
    ("published_boottime_ns", "q"),
    ("published_wall_ms", "q"),
    ("wrote", "q"),
    ("committed", "q"),
    ("flushed", "q"),
    ("confirmed", "q"),
    ("min_physical", "q"),
    ("epoch", "q"),
    ("generation", "q"),
    ("store_uuid", "16s"),
    ("pool_buffers_total", "q"),
    ("pool_buffers_free", "q"),
    ("disk_total_bytes", "q"),
    ("disk_used_bytes", "q"),
    ("recovery_done_bytes", "q"),
    ("recovery_total_bytes", "q"),
    ("connections", "q"),
    ("queues", "q"),
    ("held_sends", "q"),
    ("last_error_wall_ms", "q"),
    ("last_error", "256p"),
    ("slaves", "1024s"),
    ("certificate_ends_wall_ms", "q"),
    ("refused_requests", "128s"),
    ("damaged_records", "q"),
    ("damaged_bytes", "q"),
    ("damaged_records_found", "q"),
    ("healed_records", "q"),
    ("lost_records", "q"),
    ("scrub_position", "q"),
    ("scrubbed_bytes", "q"),
    ("scrub_pass_ended_wall_ms", "q"),
    ("log_missing_ranges", "64s"),
    ("more_refused_requests", "8s"),
    ("reserved_2", "8x"),
    ("log_missing_bytes", "q"),
    ("log_accepted_loss_bytes", "q"),
    ("queues_rebuilding", "q"),
    ("queue_units_rebuilt", "q"),
    ("index_rebuilds", "q"),
)
"""The fields of a copy in order, each with its code in ``struct``; p is a text with its length."""
SLAVE_FIELDS: Final = (
    ("is_used", "B"),
    ("reserved_1", "7x"),
    ("slave_id", "q"),
    ("received", "q"),
    ("flushed", "q"),
    ("last_seen_boottime_ns", "q"),
    ("reserved_2", "24x"),
)


def _struct(fields: tuple[tuple[str, str], ...]) -> struct.Struct:
    return struct.Struct(">" + "".join(code for _, code in fields))


HEADER: Final = _struct(HEADER_FIELDS)
COPY: Final = _struct(COPY_FIELDS)
SLAVE: Final = _struct(SLAVE_FIELDS)
SEQUENCE: Final = struct.Struct(">Q")
"""The first field of a copy, which is written and read by itself."""
_CRC: Final = struct.Struct(">I")
_REFUSALS: Final = struct.Struct(f">{REFUSALS_COUNT_MAX}q")
_FIRST_REFUSALS_BYTES: Final = 8 * FIRST_REFUSALS_COUNT
_RANGE: Final = struct.Struct(">qq")
_CRC_POSITION: Final = SEQUENCE.size
_CRC_END: Final = _CRC_POSITION + _CRC.size
_ZERO_MEANS_UNKNOWN: Final = frozenset(
    {
        "certificate_ends_wall_ms",
        "log_missing_bytes",
        "log_accepted_loss_bytes",
        "queues_rebuilding",
        "queue_units_rebuilt",
        "index_rebuilds",
    }
)
"""Numbers that older writers left as zero, so zero means unknown."""

_STORED_PLUS_ONE: Final = frozenset(
    ("damaged_records", "damaged_bytes", "damaged_records_found", "healed_records", "lost_records", "scrub_position",
     "scrubbed_bytes", "scrub_pass_ended_wall_ms")
)  # fmt: skip
"""Numbers whose value may be zero. The page has the value plus one, since older writers left zero there."""

_NUMBERS: Final = tuple(name for name, code in COPY_FIELDS if code == "q")
_NAMES: Final = tuple(name for name, code in COPY_FIELDS if not code.endswith("x"))
_SLAVE_NUMBERS: Final = tuple(name for name, code in SLAVE_FIELDS if code == "q")
_NO_UUID: Final = bytes(16)
PAGE_BYTES: Final = HEADER_BYTES + COPIES_COUNT * COPY_BYTES

assert HEADER.size == HEADER_BYTES
assert COPY.size == COPY_BYTES
assert SLAVE.size * SLAVES_COUNT_MAX == 1024
assert _RANGE.size * RANGES_COUNT_MAX == 64
assert len(RefusalReason) <= REFUSALS_COUNT_MAX
assert _REFUSALS.size == 128 + 8
assert PAGE_BYTES == 4096


# -- header ------------------------------------------------------------------------------------------------------------


def encode_header(origin: Origin) -> bytes:
    """Return the header of a page, its first 512 bytes."""
    data = HEADER.pack(
        MAGIC, MAJOR, origin.minor, COPY_BYTES, origin.boot_id.bytes, _uuid_bytes(origin.machine_boot_id),
        origin.started_wall_ms, origin.started_boottime_ns, origin.pid,
        bounded_utf8(origin.broker_name, 127), bounded_utf8(origin.version, 31),
        origin.hot_path, bounded_utf8(origin.hot_path_reason, 127), 0,
    )  # fmt: skip
    checked = data[: -_CRC.size]
    return checked + _CRC.pack(zlib.crc32(checked))


def decode_header(data: bytes) -> tuple[Origin, int]:
    """Return the origin of a page and the length of a copy.

    Raises ``PageTooShort``, ``PageForeign``, ``PageVersionUnknown`` or ``PageDamaged``.
    """
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise PageForeign("it does not begin with GANTRYST")
    if len(data) < HEADER_BYTES:
        raise PageTooShort(f"it has {len(data)} bytes, a header alone has {HEADER_BYTES}")
    (
        _, major, minor, copy_bytes, boot_id, machine_boot_id, wall_ms, boottime_ns, pid, name, version,
        hot_path, hot_path_reason, crc,
    ) = HEADER.unpack_from(data)  # fmt: skip
    if major != MAJOR:
        raise PageVersionUnknown(f"it has layout {major}.{minor}, this reader supports {MAJOR}.x")
    if zlib.crc32(data[: HEADER_BYTES - _CRC.size]) != crc:
        raise PageDamaged("the CRC of its header is wrong")
    if not COPY_BYTES <= copy_bytes <= COPY_BYTES_MAX:
        raise PageDamaged(f"its header gives a copy length of {copy_bytes} bytes")
    origin = Origin(
        boot_id=uuid.UUID(bytes=boot_id),
        machine_boot_id=_uuid(machine_boot_id),
        started_wall_ms=wall_ms,
        started_boottime_ns=boottime_ns,
        pid=pid,
        broker_name=name.decode(errors="replace"),
        version=version.decode(errors="replace"),
        minor=minor,
        hot_path=_enum_member(HotPath, hot_path),
        hot_path_reason=hot_path_reason.decode(errors="replace"),
    )
    return origin, copy_bytes


# -- copies ------------------------------------------------------------------------------------------------------------


def encode_copy(sequence: int, status: Status) -> bytes:
    """Return one whole copy. ``sequence`` is even: an odd one marks a copy that is being written."""
    assert sequence > 0 and sequence % 2 == 0, sequence
    flags = FLAG_CRASH_SAFE * status.is_crash_safe | FLAG_SENDS_REFUSED * status.is_refusing_sends
    values: dict[str, int | bytes] = {name: _encode_number(getattr(status, name)) for name in _NUMBERS}
    values |= {name: (getattr(status, name) or 0) + 1 for name in _STORED_PLUS_ONE if getattr(status, name) is not None}
    refusals = _encode_refusals(status.refused_requests)
    values |= {
        "sequence": sequence,
        "crc": 0,
        "flags": flags,
        "phase": status.phase,
        "role": status.role,
        "pool_medium": status.pool_medium,
        "store_uuid": _uuid_bytes(status.store_uuid),
        "last_error": bounded_utf8(status.last_error, ERROR_BYTES_MAX),
        "refused_requests": refusals[:_FIRST_REFUSALS_BYTES],
        "more_refused_requests": refusals[_FIRST_REFUSALS_BYTES:],
        "log_missing_ranges": _encode_ranges(status.log_missing_ranges[:RANGES_COUNT_MAX]),
        "slaves": b"".join(map(_encode_slave, status.slaves[:SLAVES_COUNT_MAX])),
    }
    data = COPY.pack(*(values[name] for name in _NAMES))
    return data[:_CRC_POSITION] + _CRC.pack(_copy_crc(data)) + data[_CRC_END:]


def decode_copy(data: bytes) -> Status | None:
    """Return the status in a copy, or None if it is not valid: never written, being written, or damaged."""
    values = dict(zip(_NAMES, COPY.unpack_from(data), strict=True))
    sequence = values["sequence"]
    if sequence == 0 or sequence % 2 or values["crc"] != _copy_crc(data):
        return None
    numbers: dict[str, Any] = {name: _decode_number(values[name]) for name in _NUMBERS}
    numbers |= {name: numbers[name] or None for name in _ZERO_MEANS_UNKNOWN}
    numbers |= {name: values[name] - 1 if values[name] > 0 else None for name in _STORED_PLUS_ONE}
    return Status(
        **numbers,
        phase=_enum_member(Phase, values["phase"]),
        role=_enum_member(Role, values["role"]),
        pool_medium=_enum_member(Medium, values["pool_medium"]),
        is_crash_safe=bool(values["flags"] & FLAG_CRASH_SAFE),
        is_refusing_sends=bool(values["flags"] & FLAG_SENDS_REFUSED),
        store_uuid=_uuid(values["store_uuid"]),
        last_error=values["last_error"].decode(errors="replace"),
        refused_requests=_decode_refusals(values["refused_requests"] + values["more_refused_requests"]),
        log_missing_ranges=_decode_ranges(values["log_missing_ranges"]),
        slaves=tuple(_decode_slaves(values["slaves"])),
    )


def sequence_of(data: bytes) -> int:
    """Return the sequence of a copy, its first number."""
    sequence: int = SEQUENCE.unpack_from(data)[0]
    return sequence


def _copy_crc(data: bytes) -> int:
    return zlib.crc32(data[_CRC_END:], zlib.crc32(data[:_CRC_POSITION]))


def _encode_refusals(counts: tuple[int, ...]) -> bytes:
    return _REFUSALS.pack(*counts, *[0] * (REFUSALS_COUNT_MAX - len(counts)))


def _decode_refusals(data: bytes) -> tuple[int, ...]:
    """Return the counters without zeros at the end. A page of an older writer has only zeros."""
    counts = _REFUSALS.unpack(data)
    used = max((place for place, count in enumerate(counts, start=1) if count), default=0)
    return counts[:used]


def _encode_ranges(ranges: tuple[LogRange, ...]) -> bytes:
    return b"".join(_RANGE.pack(one.start, one.end) for one in ranges).ljust(RANGES_COUNT_MAX * _RANGE.size, b"\0")


def _decode_ranges(data: bytes) -> tuple[LogRange, ...]:
    """Return the ranges without the empty slots. A page of an older writer has only empty slots."""
    return tuple(LogRange(start, end) for start, end in _RANGE.iter_unpack(data) if end > start)


def _encode_slave(slave: SlaveStatus) -> bytes:
    return SLAVE.pack(1, *(_encode_number(getattr(slave, name)) for name in _SLAVE_NUMBERS))


def _decode_slaves(data: bytes) -> list[SlaveStatus]:
    slaves = []
    for is_used, *numbers in SLAVE.iter_unpack(data):
        if is_used:
            named: dict[str, Any] = dict(zip(_SLAVE_NUMBERS, map(_decode_number, numbers), strict=True))
            slaves.append(SlaveStatus(**named))
    return slaves


# -- values ------------------------------------------------------------------------------------------------------------


def bounded_utf8(text: str, bytes_max: int) -> bytes:
    """Return as much of ``text`` as fits, without splitting a character."""
    data = text.encode(errors="replace")
    if len(data) <= bytes_max:
        return data
    return data[:bytes_max].decode(errors="ignore").encode()


def _encode_number(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _decode_number(value: int) -> int | None:
    return None if value == UNKNOWN else value


def _uuid(data: bytes) -> uuid.UUID | None:
    return None if data == _NO_UUID else uuid.UUID(bytes=data)


def _uuid_bytes(value: uuid.UUID | None) -> bytes:
    return _NO_UUID if value is None else value.bytes


E = TypeVar("E", Phase, Role, Medium, HotPath)


def _enum_member(kind: type[E], value: int) -> E:
    return kind(value) if value in kind.__members__.values() else kind(0)
