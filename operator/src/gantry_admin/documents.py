"""What the sidecar answers, as typed documents: the source of the OpenAPI document. Times end in their units.

``null`` means "not known", everywhere; -1 and empty words of other layers do not get here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Offset = Annotated[int, Field(ge=0, description="In the whole log, in bytes.")]


class Document(BaseModel):
    """Root of all answers. A peer of a younger version may say more; that is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProblemDocument(BaseModel):
    """Any answer that is not what was asked for: why, for people; more fields, for programs."""

    model_config = ConfigDict(extra="allow")

    reason: str


class BrokerMotion(Document):
    """Whether the broker's event loop moves, as its status page shows it."""

    state: Literal["absent", "moving", "standing still", "gone", "ended"]
    reason: str
    since_ms: int | None = Field(description="Age of its last publication on the boot-time clock, which grows while it "
                                 "stands still; it publishes every 100 ms.")  # fmt: skip
    last_heartbeat_wall_ms: int | None = Field(description="When that was, in ms since 1970.")


class LiveDocument(Document):
    """Whether the sidecar lives. It does not fail with its broker: restarting it would mend nothing."""

    live: bool
    reason: str
    broker: BrokerMotion


class ReadyDocument(Document):
    """Whether clients should be at this broker now, with hysteresis."""

    ready: bool
    reason: str
    now: str = Field(description="What this very moment looks like, before hysteresis.")
    broker: BrokerMotion


class StartedDocument(Document):
    """Whether recovery is over, and how far it is."""

    started: bool
    reason: str
    phase: str | None
    recovery_done_bytes: int | None
    recovery_total_bytes: int | None


class AtRiskDocument(Document):
    """What one kind of break would take now."""

    loss: Literal["process", "machine", "master"]
    bytes: int | None
    seconds: float | None = Field(description="Age of the oldest of these bytes, at most.")


class SlaveDocument(Document):
    """One slave as its master sees it."""

    slave_id: int
    identity: str | None
    address: str | None
    received: int | None
    flushed: int | None
    behind_bytes: int | None
    silent_ms: int | None


class BufferDocument(Document):
    """The write buffer."""

    medium: str
    buffers_total: int | None
    buffers_free: int | None
    is_crash_safe: bool


class DiskDocument(Document):
    """The disk that the log lies on."""

    total_bytes: int | None
    used_bytes: int | None


class RangeDocument(Document):
    """A range of the log."""

    start: int
    end: int = Field(description="Exclusive.")


class RoleDocument(Document):
    """What the broker said last of its role, over its control socket."""

    role: str
    epoch: int
    promised_epoch: int
    broker_id: int | None
    identity: str
    cluster: str
    broker_name: str
    address: str
    ha_address: str
    electable: list[int]
    acks_needed: int
    acked: int | None
    dispatched: int | None
    master: str | None
    trouble: str | None
    is_draining: bool
    may_acknowledge: bool
    missing: list[RangeDocument] = Field(
        default_factory=list, description="Ranges of the log that were on the disk and are gone; all of them."
    )
    accepted: list[RangeDocument] = Field(
        default_factory=list, description="Ranges of the log whose loss an operator has accepted."
    )
    damaged_bytes: int = Field(default=0, description="Of the log, known to hold no good record now.")


class Answered(Document):
    """How fresh something is that the broker had to be asked for."""

    age_ms: int | None
    fault: str | None = Field(description="Why the last question was not answered; null when it was.")


class LeaseDocument(Document):
    """The shard's Lease, as this sidecar renews it for its broker."""

    is_held: bool = Field(description="Whether the newest renewal still counts for the broker.")
    renewed_age_ms: int | None
    duration_ms: int | None
    reason: str | None = Field(description="Why it is not renewed; null while it is.")


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


class StatusDocument(Document):
    """One broker at this moment."""

    broker_name: str | None
    version: str | None
    boot_id: str | None
    store_uuid: str | None
    pid: int | None
    started_wall_ms: int | None
    motion: BrokerMotion
    looked_ms: int | None = Field(
        default=None,
        description="When this sidecar looked at the status page, on its machine's clock since boot: of two answers"
        " the newer one is the one with the larger number. Null from a sidecar that does not say it.",
    )
    phase: str | None
    ready: ReadyDocument
    epoch: int | None
    generation: int | None
    role: str | None
    oldest: int | None = Field(description="The log holds [oldest, wrote).")
    wrote: int | None
    committed: int | None
    flushed: int | None
    acked: int | None
    confirmed: int | None
    written_bytes_per_second: float | None
    at_risk: list[AtRiskDocument]
    slaves: list[SlaveDocument]
    flush_mode: Literal["sync", "async"] | None = Field(
        default=None, description="Whether sends wait for the disk; null until the broker has said so."
    )
    buffer: BufferDocument | None
    disk: DiskDocument | None
    is_refusing_sends: bool | None
    parked_sends: int | None
    connections: int | None
    queues: int | None
    recovery_done_bytes: int | None
    recovery_total_bytes: int | None
    certificate_ends_wall_ms: int | None = Field(
        default=None, description="When the first of the broker's TLS certificates ends."
    )
    log_missing_bytes: int | None = Field(
        default=None,
        description="Bytes of the log that were on the disk and are gone; the broker takes no sends before an operator"
        " accepts that. Null when nothing is missing, and from a broker that does not know.",
    )
    log_missing_ranges: list[RangeDocument] | None = Field(
        default=None,
        description="Which bytes these are: all ranges where the broker has answered, else the first four. Null when"
        " nothing is missing.",
    )
    log_accepted_loss_bytes: int | None = Field(
        default=None, description="Bytes of the log whose loss an operator has accepted; null for none."
    )
    damaged_records: int | None = Field(
        default=None,
        description="Stored messages that are known to be damaged now; null from a broker that does not say.",
    )
    damaged_bytes: int | None = Field(default=None, description="Of the log, known to be damaged now.")
    last_error: str | None
    last_error_wall_ms: int | None
    lease: LeaseDocument | None = Field(default=None, description="Where this sidecar was given a Lease to renew.")
    regaining: str | None = Field(
        default=None, description="Why a broker that lost its role with its process does not get it back by itself yet."
    )
    said: RoleDocument | None = Field(
        description="What it said last of its role; see `said_fresh` for how old that is."
    )
    said_fresh: Answered
    rates: RatesDocument | None = Field(default=None, description="Null from a sidecar that does not know them.")
    sidecar: dict[str, str]


class WaitDocument(Document):
    """What became of waiting."""

    reached: bool
    level: Literal["flushed", "acked", "confirmed"]
    offset: int
    position: int | None = Field(description="How far `level` is now.")
    epoch: int | None = Field(description="Another one than when the bytes were written: they may be other bytes.")
    boot_id: str | None
    waited_ms: int
    broker: BrokerMotion


class QueueDocument(Document):
    """One queue: it holds [begin, end)."""

    queue_id: int
    begin: int
    end: int
    last_stored_ms: int | None


class ProofDocument(Document):
    """That the certificate of this port is ours."""

    proof: str = Field(
        description="HMAC-SHA256 by the first token that may change something; see gantry_spec.sidecar_proof."
    )


class TopicDocument(Document):
    """One topic on this broker."""

    name: str
    kind: Literal["user", "retry", "dead-letter", "system"]
    read_queues: int
    write_queues: int
    permission: str
    messages: int
    queues: list[QueueDocument]


class Source(Document):
    """Where a table is from, and how old."""

    source: Literal["broker", "disk"] = Field(description="`disk`: tables as the broker saved them last, and queue "
                                              "files; up to some seconds behind the broker itself.")  # fmt: skip
    age_ms: int
    reason: str | None = Field(description="Why the broker itself was not the source.")


class TopicsDocument(Source):
    """The topics of this broker, by name."""

    topics: list[TopicDocument]
    left_out: int
    system_messages: dict[str, int] | None = Field(
        default=None,
        description="How many messages RocketMQ's own topics have, for example delayed ones; `null`: an older sidecar.",
    )


class QueueLagDocument(Document):
    """How far a group is in one queue."""

    topic: str
    queue_id: int
    consumed: int
    end: int
    lag: int


class GroupDocument(Document):
    """One consumer group on this broker."""

    name: str
    lag: int
    retry_lag: int
    dead_letters: int
    queues: list[QueueLagDocument]


class GroupsDocument(Source):
    """The consumer groups of this broker, by name."""

    groups: list[GroupDocument]
    left_out: int
