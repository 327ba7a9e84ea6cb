"""Message bodies that carry the message's key and a digest which detects corruption.

key \\n padding ... digest (16 bytes)          the digest covers everything before it
"""

from __future__ import annotations

import hashlib
from typing import Final

DIGEST_BYTES: Final = 16


def make_body(key: str, padding: bytes) -> bytes:
    """Return the body of the message with this key."""
    start = key.encode() + b"\n" + padding
    return start + _digest(start)


def read_key(body: bytes) -> str | None:
    """Return the key of the message with this body, or None if the body is corrupt."""
    start, end = body[:-DIGEST_BYTES], body[-DIGEST_BYTES:]
    key, newline, _ = start.partition(b"\n")
    return key.decode(errors="replace") if newline and _digest(start) == end else None


def digest_of(body: bytes) -> str:
    """Return the digest that identifies an intact body."""
    return body[-DIGEST_BYTES:].hex()


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
