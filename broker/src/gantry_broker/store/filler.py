"""A log file that stands for one that is lost, so that the log has no gap and every reader steps over it.

    | blank record: size of the whole file 4, magic 4 | mark 8 | state 1 | zeros ...... |

A file of ours or of RocketMQ's never begins with a blank record, since every record fits into an empty file. Readers of
both go from a blank record to the next file, whatever follows it. The mark tells people and programs what it is, and
the state whether an operator has accepted the loss. It is copied to slaves like any other bytes, so that a replica of
a log with an accepted hole has the same accepted hole.
"""

from __future__ import annotations

from typing import Final

from gantry_wire.message import BLANK_MAGIC, BLANK_RECORD

MARK: Final = b"GANTRYLO"
MISSING: Final = b"m"
ACCEPTED: Final = b"a"
HEAD_BYTES: Final = BLANK_RECORD.size + len(MARK) + 1


def filler_head(file_size: int, *, is_accepted: bool) -> bytes:
    """The first bytes of a filler; the others are zero."""
    return BLANK_RECORD.pack(file_size, BLANK_MAGIC) + MARK + (ACCEPTED if is_accepted else MISSING)


def is_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether a log file that begins with ``head`` is a filler."""
    return bytes(head[: HEAD_BYTES - 1]) == filler_head(file_size, is_accepted=True)[:-1]


def is_zero(data: bytes | memoryview) -> bool:
    """Whether there is nothing but zeros, as behind the head of a filler."""
    return not any(data) if len(data) < 64 else bytes(data).count(0) == len(data)


def is_accepted_filler(head: bytes | memoryview, file_size: int) -> bool:
    """Whether it is one for a loss that was accepted."""
    return bytes(head[:HEAD_BYTES]) == filler_head(file_size, is_accepted=True)
