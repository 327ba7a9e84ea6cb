"""Requests of a broker to an archive server, which returns messages that the broker's log does not have any more.

They are not RocketMQ's, so their codes are far above its own. The server (`gantry pipeline serve`) listens on a Unix
socket beside the broker, or on a TCP port. On a TCP port both sides first prove that they know a secret:

    broker                                                     server
      | CHALLENGE ----------------------------------------------> |
      | <--------------------------------------- its nonce ------ |
      | AUTHENTICATE: a nonce, proof for "broker" --------------> |   any other request before it is refused
      | <--------------------------- proof for "server" --------- |
"""

from enum import IntEnum

import msgspec

from gantry_wire.commands.fields import Fields, Int32, Int64
from gantry_wire.proofs import compute_proof


class ArchiveCode(IntEnum):
    """The operation that a broker asks an archive server for."""

    PULL = 30_001
    """Messages of a queue from an offset on."""

    SEARCH_OFFSET = 30_002
    """The offset at a store time."""

    LIST_RANGES = 30_003
    """The archived range of each queue of a broker."""

    CHALLENGE = 30_004
    """A nonce for the broker's proof that it knows the secret."""

    AUTHENTICATE = 30_005
    """The broker's proof. The reply has that of the server; code 16 means that their secrets differ."""


class ArchiveChallenge(Fields):
    """The header of the reply to CHALLENGE, with a random text for one connection."""

    nonce: str


class ArchiveHello(Fields):
    """The header of AUTHENTICATE, with the proof of the broker."""

    nonce: str
    """A nonce for the server's proof."""

    proof: str


class ArchiveWelcome(Fields):
    """The header of the reply to AUTHENTICATE, with the proof of the server."""

    proof: str


def broker_proof(secret: bytes, challenge: str, nonce: str) -> str:
    """Return the proof of a broker, for the server's nonce ``challenge`` and its own one."""
    return compute_proof(secret, "archive broker", challenge, nonce)


def server_proof(secret: bytes, challenge: str, nonce: str) -> str:
    """Return the proof of an archive server, for the same nonces."""
    return compute_proof(secret, "archive server", challenge, nonce)


class ArchivePull(Fields):
    """Messages of one queue from an offset on, as records.

    The reply has code 0 with messages, and code 20 without: then the next offset is where to continue. Code 19 means
    that the archive has none at or after the offset.
    """

    broker: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    count_max: Int32
    bytes_max: Int32
    """About how many bytes of records the reply may have; it has at least one record."""

    log_begin: Int64
    """The first offset that the log has. The reply skips no offset from it on, since the message may be there."""

    identity: str
    """The identity of the archive, as `ArchivedRanges` has it. The server of another archive answers with code 14."""

    subscription: str | None = None
    """The expression of the filter."""

    expression_type: str | None = None


class ArchivePulled(Fields):
    """The header of the reply to a pull."""

    next_offset: Int64
    count: Int32 = 0
    """The number of records in the body."""


class ArchiveSearch(Fields):
    """The first message of a queue that was stored at or after a time; with UPPER the last one at or before it."""

    broker: str
    topic: str
    queue_id: Int32
    timestamp: Int64
    identity: str
    boundary_type: str | None = None


class ArchiveRangesQuery(Fields):
    """The archived range of each queue of a broker.

    The reply is an `ArchivedRanges`; it has no body if the archive is still at ``version``.
    """

    broker: str
    version: str = ""


class ArchivedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The archived offsets ``[begin, end)`` of one queue, and when one of its messages was stored."""

    queue_id: int
    begin: int
    """The first message that can be read; older ones have expired in the archive."""

    end: int
    """The end of what was archived, has expired, or was lost before it was archived."""

    first_time_ms: int
    """The store time of the first message that can be read, or an earlier time of the same file."""

    known_offset: int = -1
    """The last message that was archived; -1 if none is known. By its time a broker recognizes its own log."""

    known_from_ms: int = 0
    """That message was stored at this time or later, by the times of the file in which it was archived."""

    known_to_ms: int = 0
    """That message was stored at this time or earlier."""


class ArchivedRanges(msgspec.Struct, frozen=True, rename="camel"):
    """What an archive has of one broker."""

    version: str
    """Differs when the archive has changed."""

    identity: str
    """The random id of the archive."""

    topics_pattern: str
    """A regular expression: topics whose whole name matches are to be archived, except for RocketMQ's own."""

    ranges: dict[str, list[ArchivedRange]] = msgspec.field(default_factory=dict)
    """The ranges by topic."""
