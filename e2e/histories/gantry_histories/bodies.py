"""Message bodies that say which message they are and prove that they are whole.

key \\n padding ... digest 16          the digest covers everything before it
"""

from __future__ import annotations

import hashlib
from typing import Final

DIGEST_BYTES: Final = 16


def make_body(key: str, padding: bytes) -> bytes:
    """The body of the message with this key."""
    start = key.encode() + b"\n" + padding
    return start + _digest(start)


def read_key(body: bytes) -> str | None:
    """Which message it is; None when it is not whole."""
    start, end = body[:-DIGEST_BYTES], body[-DIGEST_BYTES:]
    key, newline, _ = start.partition(b"\n")
    return key.decode(errors="replace") if newline and _digest(start) == end else None


def digest_of(body: bytes) -> str:
    """A whole body's name."""
    return body[-DIGEST_BYTES:].hex()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
