"""Markers: one message decides a batch. Pure.

    part    a piece of a list of half messages that is too long for one marker
    commit  "query, batch: these halves"      the first one that counts decides the batch, for ever
    abort   "not these halves"                a commit of the same halves that comes later does not count

All markers of one query are in one queue, and whoever stores one reads that queue up to it before acting. So everybody
who asks sees the same order and comes to the same answer: a driver that was thought dead and goes on, and its
successor, cannot both have their way.

To find those of a batch nobody reads a whole queue: each marker says how far its writer had read (`scanned`), and which
was the newest batch of the query before that (`newest`). A reader goes back to the first such place that is early
enough.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, final

from gantry_wire.errors import RemoteProtocolError
from pyspark_rocketmq.sink.halves import Halves, unpack

MAGIC: Final = b"GSM1"
_HEAD: Final = struct.Struct("<4sI")
NO_BATCH: Final = -1
PART_BYTES_MAX: Final = 200_000
"""Of one marker: brokers may be told to take much less than 4 MiB."""


class MarkerKind(StrEnum):
    """What a marker is."""

    PART = "part"
    COMMIT = "commit"
    ABORT = "abort"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One message of the marker topic."""

    kind: MarkerKind
    query: str
    batch: int
    attempt: str
    """The fingerprint of the halves that it is about."""
    run: str | None = None
    """Which run of the query wrote it."""
    rows: int = 0
    scanned: int = 0
    """Its writer had read the queue up to here,"""
    newest: int = NO_BATCH
    """and this was the newest batch of the query there."""
    parts: tuple[int, ...] = ()
    """Where the parts are, if the payload is not in this message."""
    payload: bytes = b""

    def encode(self) -> bytes:
        """As the body of a message."""
        fields = asdict(self)
        del fields["payload"]
        head = json.dumps(fields).encode()
        return _HEAD.pack(MAGIC, len(head)) + head + self.payload


def decode(body: bytes) -> Marker:
    """The marker in a message. Raises RemoteProtocolError when there is none."""
    try:
        magic, head_bytes = _HEAD.unpack_from(body)
        if magic != MAGIC or _HEAD.size + head_bytes > len(body):
            raise RemoteProtocolError("a message of the marker topic is no marker")
        head = json.loads(body[_HEAD.size : _HEAD.size + head_bytes])
        return Marker(
            kind=MarkerKind(head["kind"]), query=str(head["query"]), batch=int(head["batch"]),
            attempt=str(head["attempt"]), run=head["run"], rows=int(head["rows"]), scanned=int(head["scanned"]),
            newest=int(head["newest"]), parts=tuple(int(part) for part in head["parts"]),
            payload=body[_HEAD.size + head_bytes :],
        )  # fmt: skip
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"a marker cannot be read: {error}") from error


def deciding(markers: Mapping[int, Marker], query: str, batch: int) -> Marker | None:
    """The one that decides a batch, of those in a queue by their offsets; None while none does."""
    aborted: set[str] = set()
    for offset in sorted(markers):
        marker = markers[offset]
        if (marker.query, marker.batch) != (query, batch):
            continue
        if marker.kind is MarkerKind.ABORT:
            aborted.add(marker.attempt)
        elif marker.kind is MarkerKind.COMMIT and marker.attempt not in aborted:
            return marker
    return None


def cut(payload: bytes, part_bytes: int = PART_BYTES_MAX) -> list[bytes]:
    """A payload in pieces that fit a message."""
    return [payload[start : start + part_bytes] for start in range(0, len(payload), part_bytes)] or [b""]


def halves_of(marker: Marker, parts: Sequence[bytes] = ()) -> Halves:
    """The halves that it is about. Raises RemoteProtocolError if they are not those that it names."""
    halves = unpack(b"".join(parts) if marker.parts else marker.payload)
    if halves.fingerprint != marker.attempt:
        raise RemoteProtocolError(f"the marker of batch {marker.batch} does not list the halves that it means")
    return halves


def group_of(query: str) -> str:
    """The producer group of a query's half messages."""
    return f"SPARK_SINK_{hashlib.sha256(query.encode()).hexdigest()[:16]}"


def queue_number(query: str, queues: int) -> int:
    """Which queue of the marker topic is a query's."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") % queues
