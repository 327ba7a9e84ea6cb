"""Void records: records in the place of damaged ones that no member of the group has any more.

    | record | damaged | record |   ->   | record | void | record |

The stream to a slave cannot pass a damaged record, and every other record must keep its offset. So the range gets a
good record that is in no queue and has no key: one with the flag of rolled back messages, which Gantry, RocketMQ and
the tools of both leave out everywhere. At the end of a file it is a blank record. Queues get a filler in place of the
lost message's unit.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gantry_broker.ports.disk import Disk, write_fully
from gantry_broker.store.commit_log import blank_record
from gantry_broker.store.file_queue import make_durable_directory
from gantry_broker.store.replay import SET_ASIDE
from gantry_wire.message import (
    BLANK_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    Buffer,
    StoredMessage,
    check_record,
    decode_record,
    encode_record,
)
from gantry_wire.names import VOID_TOPIC
from gantry_wire.seal import SEAL_BYTES

VOID_BYTES_MIN: Final = RECORD_BYTES_MIN + len(VOID_TOPIC) + SEAL_BYTES
"""The smallest range that a void record can fill. A record of a client is larger: it has a unique key."""

VOID_BYTES_MAX: Final = 1 << 20
"""The size of the parts of a larger range, so that each fits into one frame of replication."""


def void_records(start: int, end: int, file_bytes: int, timestamp_ms: int) -> bytes:
    """Return the void records for ``[start, end)`` of a log with files of ``file_bytes``; the range is in one file.

    ``timestamp_ms`` is their store time. Raises ValueError for a range that is too small.
    """
    is_file_end = end % file_bytes == 0
    if is_file_end and start % file_bytes and end - start >= BLANK_BYTES:
        return blank_record(end - start).ljust(end - start, b"\0")
    tail = blank_record(BLANK_BYTES) if is_file_end else b""
    stop = end - len(tail)
    if stop - start < VOID_BYTES_MIN:
        raise ValueError(f"a void record has at least {VOID_BYTES_MIN} bytes, but the damaged range has {end - start}")
    parts: list[bytes] = []
    while start < stop:
        rest = stop - start
        size = rest if rest <= VOID_BYTES_MAX else min(VOID_BYTES_MAX, rest - VOID_BYTES_MIN)
        parts.append(_void_record(start, size, timestamp_ms))
        start += size
    return b"".join((*parts, tail))


def _void_record(offset: int, size: int, timestamp_ms: int) -> bytes:
    message = StoredMessage(
        topic=VOID_TOPIC, queue_id=0, body=bytes(size - VOID_BYTES_MIN), physical_offset=offset,
        sys_flag=TRANSACTION_ROLLBACK, born_timestamp_ms=timestamp_ms, store_timestamp_ms=timestamp_ms,
    )  # fmt: skip
    return encode_record(message, is_sealed=True)


def is_void(data: Buffer, offset: int) -> bool:
    """Return whether ``data``, read from the log at ``offset``, begins with a void record."""
    if not check_record(data, 0, physical_offset=offset, is_sealed=True).is_good:
        return False
    message = decode_record(data)
    return message.topic == VOID_TOPIC and message.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK


def set_aside_damage(disk: Disk, root: str, start: int, damaged: bytes) -> str:
    """Copy damaged bytes to ``<root>/set-aside``, durably, with a note of the reason. Return the path of the copy."""
    directory = f"{root}/{SET_ASIDE}"
    make_durable_directory(disk, directory)
    path = f"{directory}/damaged-{start:020d}"
    if disk.exists(path):
        disk.remove(path)
    file = disk.create(path, len(damaged), reserve=len(damaged))
    try:
        write_fully(file, damaged, 0)
        file.sync()
    finally:
        file.close()
    note = {"reason": "no replica had these damaged bytes", "start": start, "end": start + len(damaged)}
    disk.write_file(f"{path}.json", msgspec.json.format(msgspec.json.encode(note)))
    disk.sync_directory(directory)
    return path
