"""A fast reader for the most common form of record, with every check made.

A record is *plain* when both its hosts are IPv4, its topic has a one-byte length and it is one message in a queue, not
a batch of RocketMQ and not a half or a rolled back message. ``plain_records`` yields plain records as long as they
follow each other and each is one that ``check_record`` would accept. It stops at the first record for which it cannot
decide that, and the caller calls ``check_record``. So this module never accepts what ``check_record`` would reject. It
exists because a start may have to read ten gigabytes of log.
"""

import struct
from collections.abc import Iterator
from typing import Final, final

from gantry_wire.checksum import crc32
from gantry_wire.message import (
    CRC_MASK,
    FLAG_BORN_HOST_V6,
    FLAG_INNER_BATCH,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC_V1,
    RECORD_BYTES_MIN,
    RECORD_PREFIX_V4,
    SHORT,
    TRANSACTION_PREPARED,
)
from gantry_wire.properties import KEY_END, KEYS, PAIR_END, TAGS, UNIQUE_KEY, VALUE_END, index_keys
from gantry_wire.seal import SEAL_BYTES, SEAL_REVERSED, SEALED_PROPERTIES_MAX

_HEAD: Final = struct.Struct(">iiii4xqqi16xq20xi")
"""The fields before the body: size, magic, body CRC, queue id, queue offset, physical offset, system flag, store
timestamp, body length."""
_BODY_START: Final = RECORD_PREFIX_V4.size
assert _HEAD.size == _BODY_START

_NOT_PLAIN: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6 | FLAG_INNER_BATCH | TRANSACTION_PREPARED
"""The bits of the system flag of which a plain record has none."""


PlainRecord = tuple[int, int, bytes, int, int, int, bytes]
"""Physical offset, size, topic, queue id, queue offset, store timestamp, properties."""


@final
class PlainRun:
    """A part of a log from which plain records are read: the arguments of ``plain_records``. Iterating yields them."""

    __slots__ = ("base_offset", "is_sealed", "position", "stop", "verify_crc", "view")

    def __init__(
        self, view: memoryview, position: int, stop: int, base_offset: int, *, is_sealed: bool, verify_crc: bool = True
    ) -> None:
        self.view: Final = view
        self.position: Final = position
        self.stop: Final = stop
        self.base_offset: Final = base_offset
        self.is_sealed: Final = is_sealed
        self.verify_crc: Final = verify_crc

    def __iter__(self) -> Iterator[PlainRecord]:
        return self.records_from(self.position)

    def records_from(self, position: int) -> Iterator[PlainRecord]:
        """Yield the records from ``position`` on."""
        return plain_records(
            self.view, position, self.stop, self.base_offset, is_sealed=self.is_sealed, verify_crc=self.verify_crc
        )


def plain_records(
    view: memoryview, position: int, stop: int, base_offset: int, *, is_sealed: bool, verify_crc: bool = True
) -> Iterator[PlainRecord]:
    """Yield plain, good records from `position` on that begin before `stop`, of a file that begins at `base_offset`.

    Without `verify_crc` only offsets and lengths are checked, for callers that have verified the checksums before.
    """
    view_end = len(view)
    stop = min(stop, view_end - RECORD_BYTES_MIN + 1)
    # These are locals, because a look-up of a module's name would cost time for every record.
    unpack, unpack_short, checksum, mask = _HEAD.unpack_from, SHORT.unpack_from, crc32, CRC_MASK
    magic_v1, not_plain, body_offset, seal_bytes = MESSAGE_MAGIC_V1, _NOT_PLAIN, _BODY_START, SEAL_BYTES
    seal_text, properties_max, bytes_min = SEAL_REVERSED, SEALED_PROPERTIES_MAX, RECORD_BYTES_MIN
    while position < stop:
        size, magic, body_crc, queue_id, queue_offset, physical, sys_flag, timestamp_ms, body_bytes = unpack(
            view, position
        )
        end = position + size
        if magic != magic_v1 or sys_flag & not_plain or physical != base_offset + position or size < bytes_min:
            return
        body_start = position + body_offset
        body_end = body_start + body_bytes
        if end > view_end or body_bytes < 0 or body_end > end - 3:
            return
        topic_end = body_end + 1 + view[body_end]
        properties_start = topic_end + 2
        if properties_start > end or unpack_short(view, topic_end)[0] != end - properties_start:
            return
        properties = bytes(view[properties_start:end])
        if not verify_crc:
            pass
        elif is_sealed:
            if len(properties) > properties_max or not properties.endswith(
                (seal_text % (checksum(view[position : end - seal_bytes]) & mask))[::-1]
            ):
                return
        elif checksum(view[body_start:body_end]) & mask != body_crc:
            return
        topic = bytes(view[body_end + 1 : topic_end])
        yield physical, size, topic, queue_id, queue_offset, timestamp_ms, properties
        position = end


# -- properties --------------------------------------------------------------------------------------------------------

_UNIQUE: Final = f"{UNIQUE_KEY}{KEY_END}".encode()
_KEYS: Final = f"{KEYS}{KEY_END}".encode()
_TAGS: Final = f"{TAGS}{KEY_END}".encode()
_VALUE_END: Final = VALUE_END.encode()


def _value(properties: bytes, mark: bytes) -> bytes:
    """Return the value of the last pair whose name is that of `mark`, or empty bytes without such a pair."""
    at = properties.rfind(mark)
    while at > 0 and properties[at - 1] != PAIR_END:
        # The mark found is the end of a longer name, or part of a value.
        at = properties.rfind(mark, 0, at + len(mark) - 1)
    if at < 0:
        return b""
    start = at + len(mark)
    stop = properties.find(_VALUE_END, start)
    return properties[start:] if stop < 0 else properties[start:stop]


def tag_of(properties: bytes) -> bytes:
    """Return the tag in encoded properties, without decoding it, or empty bytes without a tag."""
    return _value(properties, _TAGS) if _TAGS in properties else b""


def keys_of(properties: bytes) -> tuple[str, ...]:
    """Return the keys by which a message is indexed: its unique key, then every key of its user."""
    text = _value(properties, _KEYS).decode("utf-8", "replace") if _KEYS in properties else ""
    return index_keys(_value(properties, _UNIQUE).decode("utf-8", "replace"), text)
