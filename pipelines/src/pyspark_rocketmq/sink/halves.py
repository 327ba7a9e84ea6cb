"""Where half messages lie: what a task tells the driver, and what a marker says of a batch. Pure.

    topics, brokers   JSON, each named once
    columns           topic, broker, offset of the half, place in the log; the last two as differences
    all of it         packed with zlib: 2 to 4 bytes for each row

In the order of the rows, because they are committed in it.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, final

import numpy as np

from gantry_wire.errors import RemoteProtocolError

LEVEL: Final = 1
BYTES_MAX: Final = 1 << 30
"""What one batch may unpack to: fifty million halves."""


class HalfPlace(NamedTuple):
    """One half message."""

    topic: str
    broker: str
    half_offset: int
    """In its broker's queue of half messages, where its producer has stored it."""
    physical_offset: int


@final
class Halves:
    """Those of a task, or of a whole batch."""

    def __init__(self, places: Iterable[HalfPlace] = ()) -> None:
        self.places: Final[tuple[HalfPlace, ...]] = tuple(places)

    def __repr__(self) -> str:
        return f"<Halves {len(self)}>"

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[HalfPlace]:
        return iter(self.places)

    @property
    def topics(self) -> tuple[str, ...]:
        """Sorted."""
        return tuple(sorted({place.topic for place in self.places}))

    @property
    def fingerprint(self) -> str:
        """Equal for the same halves in the same order only: one attempt at a batch."""
        return hashlib.sha256(self._plain()).hexdigest()[:32]

    def without(self, other: Halves) -> Halves:
        """Those that `other` has not."""
        known = {(place.broker, place.half_offset) for place in other.places}
        return Halves(place for place in self.places if (place.broker, place.half_offset) not in known)

    def pack(self) -> bytes:
        """As bytes."""
        return zlib.compress(self._plain(), LEVEL)

    def _plain(self) -> bytes:
        topics, brokers = self.topics, tuple(sorted({place.broker for place in self.places}))
        topic_numbers = {name: number for number, name in enumerate(topics)}
        broker_numbers = {name: number for number, name in enumerate(brokers)}
        head = json.dumps({"v": 1, "count": len(self), "topics": topics, "brokers": brokers}).encode()
        columns = (
            np.fromiter((topic_numbers[place.topic] for place in self.places), "<u4", len(self)),
            np.fromiter((broker_numbers[place.broker] for place in self.places), "<u4", len(self)),
            _differences(np.fromiter((place.half_offset for place in self.places), "<i8", len(self))),
            _differences(np.fromiter((place.physical_offset for place in self.places), "<i8", len(self))),
        )
        return b"".join((len(head).to_bytes(4, "little"), head, *(column.tobytes() for column in columns)))


def unpack(data: bytes) -> Halves:
    """What `pack` made. Raises RemoteProtocolError for anything else."""
    try:
        inflater = zlib.decompressobj()
        plain = inflater.decompress(data, BYTES_MAX)
        if inflater.unconsumed_tail or not inflater.eof:
            raise RemoteProtocolError("halves are cut, or too many")
        head_bytes = int.from_bytes(plain[:4], "little")
        head = json.loads(plain[4 : 4 + head_bytes])
        count, topics, brokers = int(head["count"]), list(head["topics"]), list(head["brokers"])
        position, columns = 4 + head_bytes, []
        for kind in ("<u4", "<u4", "<i8", "<i8"):
            columns.append(np.frombuffer(plain, kind, count, position))
            position += count * np.dtype(kind).itemsize
        if head["v"] != 1 or position != len(plain):
            raise RemoteProtocolError("halves of another version, or of another length than they say")
        return Halves(
            HalfPlace(topics[topic], brokers[broker], half, physical)
            for topic, broker, half, physical in zip(
                columns[0].tolist(), columns[1].tolist(), np.cumsum(columns[2]).tolist(),
                np.cumsum(columns[3]).tolist(), strict=True,
            )
        )  # fmt: skip
    except (zlib.error, ValueError, KeyError, IndexError, TypeError) as error:
        raise RemoteProtocolError(f"halves cannot be read: {error}") from error


def joined(parts: Sequence[Halves]) -> Halves:
    """Those of several tasks, one after the other."""
    return Halves(place for part in parts for place in part)


def _differences(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.diff(values, prepend=values.dtype.type(0)) if len(values) else values
