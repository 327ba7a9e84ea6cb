"""Message bodies that identify their message and prove that they are undamaged.

    | run 8 | producer 4 | sequence 8 | padding ... | digest 16 |        the digest covers everything before it

A body of another run, or one with a changed byte, is recognised from the body alone.
"""

import hashlib
import struct
from typing import Final, NamedTuple

_HEAD: Final = struct.Struct(">8sIQ")
assert _HEAD.size == 20
DIGEST_BYTES: Final = 16
BODY_BYTES_MIN: Final = _HEAD.size + DIGEST_BYTES


class Mark(NamedTuple):
    """The producer and the sequence number of a message."""

    producer: int
    """The number of the producer in its run."""

    sequence: int
    """The number of the message among those of its producer."""


def make_body(run: bytes, mark: Mark, padding: bytes) -> bytes:
    """Build the body of one message."""
    start = _HEAD.pack(run, mark.producer, mark.sequence) + padding
    return start + digest(start)


def read_body(run: bytes, body: bytes) -> Mark | None:
    """Return the mark of a body; None if the body is damaged, or of another run."""
    if len(body) < BODY_BYTES_MIN:
        return None
    start, end = body[:-DIGEST_BYTES], body[-DIGEST_BYTES:]
    found_run, producer, sequence = _HEAD.unpack_from(start)
    return Mark(producer, sequence) if found_run == run and digest(start) == end else None


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
