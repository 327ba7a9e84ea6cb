"""What is answered about the log, as typed documents."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gantry_admin.documents import BrokerMotion, Document


class LogFileDocument(Document):
    """One file of the log."""

    base: int
    bytes: int


class EpochDocument(Document):
    """From `begin` to the begin of the next one the log was written by one master."""

    epoch: int
    begin: int


class LogDocument(Document):
    """What of the log can be read here: [begin, end)."""

    begin: int
    end: int = Field(description="min(confirmed, committed): no covered fault takes back what lies before it.")
    committed: int
    confirmed: int
    epoch: int | None
    store_uuid: str | None
    etag: str
    epochs: list[EpochDocument] = Field(
        default=[], description="Who wrote which part, in the order of the log; empty where the store does not say it."
    )
    files: list[LogFileDocument]
    range_bytes_max: int
    fast_port: int | None = Field(description="The same ranges by sendfile: this host, this port, same path and rules.")
    broker: BrokerMotion


class ChecksumDocument(Document):
    """Of the bytes [offset, offset + length) of the log."""

    offset: int
    length: int
    algorithm: Literal["crc32", "sha256"]
    checksum: str = Field(description="Hexadecimal.")
    etag: str


class QueueBoundsDocument(Document):
    """One queue, as its files say: units [begin, end) are readable."""

    topic: str
    queue_id: int
    begin: int
    end: int


class QueuesBoundsDocument(Document):
    """Queues of some topics, all by one look at how far the log can be read; those without files are left out."""

    queues: list[QueueBoundsDocument]


class QueueTimeDocument(Document):
    """The first message of a queue that was stored at a time or later."""

    topic: str
    queue_id: int
    timestamp_ms: int
    offset: int = Field(description="The queue's end when every message is older.")
    end: int
