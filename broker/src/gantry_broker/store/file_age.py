"""How old a closed log file is: the store time of the newest message in it.

    | record | record | ...... | newest record | blank record |          found from the end, backward

Store times never fall along the log, so the last record of a file is its newest. A file says nowhere where its last
record begins; it is looked for from the end, by its magic and its own offset, and believed only if it is whole and the
blank record that closes the file follows it. Where that finds nothing (rot, or a record larger than any allowed) the
first message of the next file answers, which is newer: a file may live too long for it, never too short. RocketMQ
takes the file's modification time instead, which copying a store changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gantry_broker.store.mapped_file import MappedFile
from gantry_wire.message import (
    INT,
    LONG,
    MESSAGE_MAGIC_V1,
    MESSAGE_MAGIC_V2,
    PHYSICAL_OFFSET_POSITION,
    RECORD_BYTES_MIN,
    RecordFault,
    check_record,
    record_store_timestamp,
)

SEARCH_BYTES: Final = (64 << 10, 1 << 20, 17 << 20)
"""How far from the end is looked, in this order: the usual record, a large one, the largest that a frame can bring."""
_MAGICS: Final = (MESSAGE_MAGIC_V1, MESSAGE_MAGIC_V2)
_MAGIC_BYTES: Final = tuple(INT.pack(magic) for magic in _MAGICS)
_MAGIC_POSITION: Final = 4


def newest_store_time(files: Sequence[MappedFile], index: int, *, log_newest_ms: int) -> int:
    """The store time of the newest message in ``files[index]``, or of one that is not older. Reads the disk."""
    found = _last_store_time(files[index])
    for file in files[index + 1 :]:
        if found is not None:
            return found
        found = _first_store_time(file)
    return found if found is not None else log_newest_ms


def _last_store_time(file: MappedFile) -> int | None:
    for length in SEARCH_BYTES:
        start = max(file.size - length, 0)
        data = file.file.pread(file.size - start, start)
        place = len(data)
        while (place := max(data.rfind(magic, 0, place) for magic in _MAGIC_BYTES)) >= 0:
            begin = place - _MAGIC_POSITION
            if begin >= 0 and _is_last(data, begin, file.base_offset + start + begin):
                return record_store_timestamp(data, begin)
        if start == 0:
            break
    return None


def _is_last(data: bytes, begin: int, physical_offset: int) -> bool:
    """Whether a whole record begins there and the end of the file comes right after it."""
    check = check_record(data, begin, physical_offset=physical_offset)
    if not check.is_good:
        return False
    blank = check_record(data, begin + check.size)
    return blank.fault is RecordFault.BLANK and begin + check.size + blank.size == len(data)


def _first_store_time(file: MappedFile) -> int | None:
    head = file.file.pread(RECORD_BYTES_MIN, 0)
    if len(head) < RECORD_BYTES_MIN:  # another process has shortened it
        return None
    if INT.unpack_from(head, _MAGIC_POSITION)[0] not in _MAGICS:
        return None
    if LONG.unpack_from(head, PHYSICAL_OFFSET_POSITION)[0] != file.base_offset:
        return None
    return record_store_timestamp(head)
