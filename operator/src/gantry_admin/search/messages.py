"""What a search process and its sidecar send each other: MessagePack in frames with a length of four bytes.

sidecar -> process    SearchRequest, once; then a byte for each budget that is granted
process -> sidecar    Hit, Progress and BudgetRequest in any number, then End
"""

from __future__ import annotations

import struct
from typing import Final, Literal

import msgspec

from gantry_wire.message import RECORD_BYTES_MAX
from gantry_wire.search import SearchCriteria

LENGTH: Final = struct.Struct(">I")

FRAME_BYTES_MAX: Final = RECORD_BYTES_MAX + 1024
"""The longest frame: a hit with the largest record."""

BUDGET_BYTES: Final = 1 << 20
"""The bytes of the log that a process may read for one grant: one window of a scan. At the default rate, the sidecar
answers 256 requests per second, which costs it some hundredths of a core; less would delay the first hit at low rates
less, and cost more."""

GRANT: Final = b"+"
"""The byte that grants a budget."""

EndReason = Literal["complete", "limit", "deadline", "stopped"]


class SearchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One search. The readable part of the log comes from the status page."""

    store: str
    topic: str
    begin: int
    """Where the readable part of the log begins."""

    end: int
    """Where it ends: min(confirmed, committed). Nothing beyond is read."""

    criteria: SearchCriteria
    hits_max: int
    deadline_s: float
    niceness: int
    """The niceness of the process: that of log readers (`--log-nice`)."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far a search has come. Messages count by their queue units; all ranges are fixed at the start."""

    total_messages: int
    """The messages of the topic in the time range, on this broker."""

    scanned_messages: int
    """Those of them that were compared with the conditions."""

    deleted_messages: int
    """Those that retention deleted before they were reached."""

    unreadable_messages: int
    """Those of which the record or the body could not be read."""

    read_bytes: int
    """The bytes of the log that were read."""

    hits: int
    elapsed_ms: int

    def share(self) -> float:
        """Return which share of the messages was compared with the conditions; 1 for an empty range."""
        return self.scanned_messages / self.total_messages if self.total_messages else 1.0


class Hit(msgspec.Struct, frozen=True, tag=True):
    """A matching message, as the log stores it."""

    record: bytes


class BudgetRequest(msgspec.Struct, frozen=True, tag=True):
    """The process waits for a grant."""


class End(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last message of a process: why the search has ended, and how far it came."""

    reason: EndReason
    progress: Progress
    fault: str | None = None
    """Why it was stopped; None for other reasons."""


FromProcess = Hit | Progress | BudgetRequest | End

encode_request: Final = msgspec.msgpack.Encoder().encode
decode_request: Final = msgspec.msgpack.Decoder(SearchRequest).decode
encode_message: Final = msgspec.msgpack.Encoder().encode
decode_message: Final = msgspec.msgpack.Decoder(FromProcess).decode


def frame(data: bytes) -> bytes:
    """Return data with its length in front."""
    return LENGTH.pack(len(data)) + data
