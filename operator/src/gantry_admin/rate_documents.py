"""What a broker does a second, as a document: a part of its status."""

from __future__ import annotations

from pydantic import Field

from gantry_admin.document import Document


class AckWaitDocument(Document):
    """How long sends of the last seconds waited in the broker for their acknowledgement: for disk and slaves.

    Counted in powers of two, so each figure is the upper end of a bucket.
    """

    sends: int
    at_once: int = Field(description="Acknowledged in the very turn that wrote them.")
    median_ms: float | None
    p99_ms: float | None
    buckets: list[int] = Field(description="Bucket n counts waits below 2**n us and not below half of it.")


class RatesDocument(Document):
    """What the broker did in the last seconds, by its own counters, and how long it took to answer that question."""

    age_ms: int | None = Field(description="Of the counters; null before there are any.")
    fault: str | None = Field(description="Why the last question was not answered; null when it was.")
    answer_ms: float | None = Field(description="From question to answer over the broker's own port.")
    put_per_second: float | None
    put_bytes_per_second: float | None
    get_per_second: float | None
    get_bytes_per_second: float | None
    ack_wait: AckWaitDocument | None
