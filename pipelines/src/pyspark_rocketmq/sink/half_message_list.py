"""The locations of half messages: what a task reports to the driver, and what a marker lists. Pure.

    topics, brokers   JSON, each named once
    columns           topic, broker, offset of the half message, physical offset; the last two as differences
    all of it         packed with zlib: 2 to 4 bytes for each row

The half messages are in the order of the rows, because they are committed in this order.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple, final

import numpy as np

from gantry_wire.errors import RemoteProtocolError

ZLIB_LEVEL: Final = 1
"""The fastest level: the numbers are small already."""

BYTES_MAX: Final = 1 << 30
"""The maximum unpacked size of one batch: some 44 million half messages of 24 bytes."""


class HalfMessageRef(NamedTuple):
    """The location of one half message."""

    topic: str
    """The topic to which a commit delivers the message."""
    broker: str
    half_offset: int
    """Its offset in its broker's queue of half messages, where its producer stored it."""
    physical_offset: int
    """Its offset in the broker's log."""


@final
class HalfMessageList:
    """The half messages of a task, or of a whole batch."""

    def __init__(self, refs: Iterable[HalfMessageRef] = ()) -> None:
        self.refs: Final[tuple[HalfMessageRef, ...]] = tuple(refs)

    def __repr__(self) -> str:
        return f"<HalfMessageList {len(self)}>"

    def __len__(self) -> int:
        return len(self.refs)

    def __iter__(self) -> Iterator[HalfMessageRef]:
        return iter(self.refs)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics of the half messages, sorted."""
        return tuple(sorted({ref.topic for ref in self.refs}))

    @cached_property
    def fingerprint(self) -> str:
        """A hash that identifies one attempt at a batch: the same half messages in the same order."""
        return hashlib.sha256(self._plain()).hexdigest()[:32]

    def without(self, other: HalfMessageList) -> HalfMessageList:
        """Return the half messages that `other` does not have."""
        known = {(ref.broker, ref.half_offset) for ref in other.refs}
        return HalfMessageList(ref for ref in self.refs if (ref.broker, ref.half_offset) not in known)

    def pack(self) -> bytes:
        """Return the packed list as bytes."""
        return zlib.compress(self._plain(), ZLIB_LEVEL)

    def _plain(self) -> bytes:
        topics, brokers = self.topics, tuple(sorted({ref.broker for ref in self.refs}))
        topic_numbers = {name: number for number, name in enumerate(topics)}
        broker_numbers = {name: number for number, name in enumerate(brokers)}
        head = json.dumps({"v": 1, "count": len(self), "topics": topics, "brokers": brokers}).encode()
        columns = (
            np.fromiter((topic_numbers[ref.topic] for ref in self.refs), "<u4", len(self)),
            np.fromiter((broker_numbers[ref.broker] for ref in self.refs), "<u4", len(self)),
            _differences(np.fromiter((ref.half_offset for ref in self.refs), "<i8", len(self))),
            _differences(np.fromiter((ref.physical_offset for ref in self.refs), "<i8", len(self))),
        )
        return b"".join((len(head).to_bytes(4, "little"), head, *(column.tobytes() for column in columns)))


def unpack(data: bytes) -> HalfMessageList:
    """Return the list that `pack` has packed. Raises RemoteProtocolError for anything else."""
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(data, BYTES_MAX)
        if inflater.unconsumed_tail or not inflater.eof:
            raise RemoteProtocolError("half messages are truncated, or too many")
        head_bytes = int.from_bytes(plain[:4], "little")
        head = json.loads(plain[4 : 4 + head_bytes])
        count, topics, brokers = int(head["count"]), list(head["topics"]), list(head["brokers"])
        position, columns = 4 + head_bytes, []
        for kind in ("<u4", "<u4", "<i8", "<i8"):
            columns.append(np.frombuffer(plain, kind, count, position))
            position += count * np.dtype(kind).itemsize
        if head["v"] != 1 or position != len(plain):
            raise RemoteProtocolError("half messages have an unknown version, or an inconsistent length")
        return HalfMessageList(
            HalfMessageRef(topics[topic], brokers[broker], half, physical)
            for topic, broker, half, physical in zip(
                columns[0].tolist(), columns[1].tolist(), np.cumsum(columns[2]).tolist(),
                np.cumsum(columns[3]).tolist(), strict=True,
            )
        )  # fmt: skip
    except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise RemoteProtocolError(f"half messages cannot be decoded: {error}") from error


def join_lists(parts: Sequence[HalfMessageList]) -> HalfMessageList:
    """Return the half messages of several tasks, one after the other."""
    return HalfMessageList(ref for part in parts for ref in part)


def _differences(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.diff(values, prepend=values.dtype.type(0)) if len(values) else values
