"""Markers: messages that decide which attempt at a batch is committed. Pure.

    part    a piece of a list of half messages that is too long for one marker
    commit  "query, batch: these half messages"      the first valid one decides the batch, finally
    abort   "not these half messages"                a later commit of the same half messages is invalid

All markers of one query are in one queue, and a driver that stores one reads that queue up to it before acting. So all
drivers have the same order of markers and reach the same decision: a driver that was thought dead but still runs, and
its successor, cannot commit different attempts.

To find the markers of a batch, a reader need not read the whole queue: each marker contains the offset up to which its
writer had read (`scanned`), and the newest batch of the query before that (`newest`). A reader goes back to the first
such offset that is early enough.
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
from pyspark_rocketmq.sink.half_message_list import HalfMessageList, unpack

MAGIC: Final = b"GSM1"
"""The first bytes of each marker, with the version of its format."""

_HEAD: Final = struct.Struct("<4sI")
"""The magic bytes, and the length of the JSON after them."""

NO_BATCH: Final = -1
"""Stands for the newest batch of a query that has none."""

PART_BYTES_MAX: Final = 200_000
"""Bytes of one marker: brokers may be configured to accept much less than 4 MiB."""


class MarkerKind(StrEnum):
    """The kind of a marker."""

    PART = "part"
    """A piece of a list of half messages that is too long for one marker."""

    COMMIT = "commit"
    """The half messages of the attempt are the batch."""

    ABORT = "abort"
    """The half messages of the attempt are never committed."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """One message of the marker topic."""

    kind: MarkerKind
    query: str
    """The id or name of the query."""
    batch: int
    attempt: str
    """The fingerprint of the half messages of the attempt."""
    run: str | None = None
    """The run of the query that wrote it."""
    rows: int = 0
    """The number of half messages in the list."""
    scanned: int = 0
    """The offset up to which its writer had read the queue."""
    newest: int = NO_BATCH
    """The newest batch of the query before that offset."""
    parts: tuple[int, ...] = ()
    """The offsets of the parts, if the payload is not in this message."""
    payload: bytes = b""
    """The packed list of half messages; empty if it is in parts."""

    def encode(self) -> bytes:
        """Return the marker as the body of a message."""
        fields = asdict(self)
        del fields["payload"]
        head = json.dumps(fields).encode()
        return _HEAD.pack(MAGIC, len(head)) + head + self.payload


def decode(body: bytes) -> Marker:
    """Return the marker in the body of a message. Raises RemoteProtocolError if it has none."""
    try:
        magic, head_bytes = _HEAD.unpack_from(body)
        if magic != MAGIC or _HEAD.size + head_bytes > len(body):
            raise RemoteProtocolError("a message of the marker topic is not a marker")
        head = json.loads(body[_HEAD.size : _HEAD.size + head_bytes])
        return Marker(
            kind=MarkerKind(head["kind"]), query=str(head["query"]), batch=int(head["batch"]),
            attempt=str(head["attempt"]), run=head["run"], rows=int(head["rows"]), scanned=int(head["scanned"]),
            newest=int(head["newest"]), parts=tuple(int(part) for part in head["parts"]),
            payload=body[_HEAD.size + head_bytes :],
        )  # fmt: skip
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"a marker cannot be decoded: {error}") from error


def find_deciding_marker(markers: Mapping[int, Marker], query: str, batch: int) -> Marker | None:
    """Return the marker that decides a batch, from markers by their offsets; None if none does."""
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


def split_payload(payload: bytes, part_bytes: int = PART_BYTES_MAX) -> list[bytes]:
    """Split a payload into pieces that fit in a message."""
    return [payload[start : start + part_bytes] for start in range(0, len(payload), part_bytes)] or [b""]


def halves_of(marker: Marker, parts: Sequence[bytes] = ()) -> HalfMessageList:
    """Return the half messages of a marker. Raises RemoteProtocolError if their fingerprint differs."""
    halves = unpack(b"".join(parts) if marker.parts else marker.payload)
    if halves.fingerprint != marker.attempt:
        raise RemoteProtocolError(f"the marker of batch {marker.batch} has a wrong fingerprint of its half messages")
    return halves


def group_of(query: str) -> str:
    """Return the producer group of a query's half messages."""
    return f"SPARK_SINK_{hashlib.sha256(query.encode()).hexdigest()[:16]}"


def queue_number(query: str, queues: int) -> int:
    """Return which of so many queues of the marker topic a query has, from 0 in the order of their ids."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") % queues
