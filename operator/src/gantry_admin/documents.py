"""The answers of the sidecar as typed documents, from which the OpenAPI document is made.

The name of a field with a time ends in the unit. ``null`` means "unknown", or "none" where there may be none, such as a
problem or a master, unless the description of the field gives it another meaning. Where a field may be null, the -1 and
the empty strings of other layers are converted to it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field

from gantry_status.former_names import LOOP_STATES

Offset = Annotated[int, Field(ge=0, description="In the whole log, in bytes.")]


class Document(BaseModel):
    """The base of all answers. Unknown fields, which a peer of a newer version may send, are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProblemDocument(BaseModel):
    """An error answer: the reason for people, and further fields for programs."""

    model_config = ConfigDict(extra="allow")

    reason: str


class LoopStateDocument(Document):
    """Whether the broker's event loop runs, as its status page shows it."""

    state: Annotated[
        Literal["absent", "running", "stalled", "crashed", "ended"],
        BeforeValidator(lambda state: LOOP_STATES.get(state, state) if isinstance(state, str) else state),
    ]
    """A sidecar of an earlier version has other names for some states."""
    reason: str
    since_ms: int | None = Field(description="Age of its last publication on the boot-time clock, which grows while it "
                                 "is stalled; it publishes every 100 ms.")  # fmt: skip
    last_heartbeat_wall_ms: int | None = Field(description="When that was, in ms since 1970.")


class LiveDocument(Document):
    """Whether the sidecar is alive. It does not fail with its broker: restarting the sidecar would repair nothing."""

    live: bool
    reason: str
    broker: LoopStateDocument


class ReadyDocument(Document):
    """Whether clients should be at this broker now, with hysteresis."""

    ready: bool
    """The verdict in effect, after hysteresis."""

    reason: str
    now: str = Field(description="The state at this moment, before hysteresis.")
    broker: LoopStateDocument


class StartedDocument(Document):
    """Whether recovery is complete, and its progress."""

    started: bool
    reason: str
    phase: str | None
    recovery_done_bytes: int | None
    recovery_total_bytes: int | None


class AtRiskDocument(Document):
    """The data that one kind of failure would destroy now."""

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
    """The time since the master last heard from the slave."""


class BufferDocument(Document):
    """The medium and the use of the write buffer."""

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
    """The role that the broker last reported over its control socket."""

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
    acks_needed: int | None = Field(description="How many slaves a send waits for; null if it is unknown.")
    acked: int | None
    """The offset up to which enough slaves have the log."""
    flushed: int | None = None
    """The end of the bytes of its log that are on the disk."""
    last_epoch: int = 0
    """The epoch of the last record in its log."""
    dispatched: int | None
    """The offset up to which the queues are built."""
    master: str | None
    problem: str | None = Field(validation_alias=AliasChoices("problem", "trouble"))
    """A sidecar of an earlier version names it `trouble`."""
    is_draining: bool
    may_acknowledge: bool
    missing: list[RangeDocument] = Field(
        default_factory=list, description="Ranges of the log that were on the disk and are gone; all of them."
    )
    accepted: list[RangeDocument] = Field(
        default_factory=list, description="Ranges of the log whose loss an administrator has accepted."
    )
    damaged_bytes: int = Field(default=0, description="Bytes of the log that are known to hold no good record now.")


class ReportFreshness(Document):
    """The age of the broker's last report, and why there is no newer one."""

    age_ms: int | None
    fault: str | None = Field(description="Why the last request failed; null if it succeeded.")


class LeaseDocument(Document):
    """The renewal of the shard's Lease by this sidecar for its broker."""

    is_held: bool = Field(description="Whether the newest renewal still counts for the broker.")
    renewed_age_ms: int | None
    duration_ms: int | None
    reason: str | None = Field(description="Why it is not renewed; null while it is.")


class AckWaitDocument(Document):
    """How long the sends of the last seconds waited in the broker for disk and slaves before they were acknowledged.

    The waits are counted in powers of two, so each figure is the upper end of a bucket. The last bucket has none.
    """

    sends: int
    at_once: int = Field(description="Sends that were acknowledged without a wait.")
    median_ms: float | None = Field(description="Null without sends, and if it is in the last bucket.")
    p99_ms: float | None = Field(description="Null without sends, and if it is in the last bucket.")
    buckets: list[int] = Field(
        description="Bucket 0 counts sends without a wait, bucket n waits of at least 2**(n-1) us and less than 2**n "
        "us, the last one all longer."
    )


class RatesDocument(Document):
    """The broker's rates in the last seconds, by its own counters, and how long it took to answer the request."""

    age_ms: int | None = Field(description="Age of the counters; null before there are any.")
    fault: str | None = Field(description="Why the last request failed; null if it succeeded.")
    answer_ms: float | None = Field(description="Time from request to answer on the broker's own port.")
    put_per_second: float | None
    put_bytes_per_second: float | None
    get_per_second: float | None
    get_bytes_per_second: float | None
    ack_wait: AckWaitDocument | None


class LagHistoryDocument(Document):
    """Where the sidecar keeps the history of consumer lag."""

    kept_in: Literal["file", "memory"] = Field(description="`memory`: a restart of the sidecar loses it.")
    reason: str | None = Field(description="Why it is not kept in a file; null if it is.")
    series_left_out: int = Field(description="Pairs of group and topic that are not recorded, because of the limit.")


class StatusDocument(Document):
    """One broker at this moment."""

    broker_name: str | None
    version: str | None
    hot_path: Literal["compiled", "python"] | None = Field(
        default=None,
        description="Which implementation of the functions that run for each message the broker uses; null until its"
        " status page was read, and from a broker of an older version.",
    )
    hot_path_reason: str | None = Field(
        default=None, description="Why the broker uses the Python path; null if it does not."
    )
    boot_id: str | None
    store_uuid: str | None
    pid: int | None
    started_wall_ms: int | None
    loop_state: LoopStateDocument = Field(validation_alias=AliasChoices("loop_state", "motion"))
    observed_ms: int | None = Field(
        default=None,
        validation_alias=AliasChoices("observed_ms", "looked_ms"),
        description="When this sidecar read the status page, on its machine's clock since boot: of two answers"
        " the one with the larger number is newer. Null from a sidecar of an older version.",
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
        default=None, description="Whether sends wait for the disk; null until the broker has reported it."
    )
    buffer: BufferDocument | None
    disk: DiskDocument | None
    is_refusing_sends: bool | None
    held_sends: int | None = Field(validation_alias=AliasChoices("held_sends", "parked_sends"))
    connections: int | None
    queues: int | None
    recovery_done_bytes: int | None
    recovery_total_bytes: int | None
    certificate_ends_wall_ms: int | None = Field(
        default=None, description="When the first of the broker's TLS certificates ends."
    )
    log_missing_bytes: int | None = Field(
        default=None,
        description="Bytes of the log that were on disk and are lost; the broker takes no sends before an"
        " administrator accepts the loss. Null if nothing is missing, and from a broker of an older version.",
    )
    log_missing_ranges: list[RangeDocument] | None = Field(
        default=None,
        description="The missing ranges: all of them if the broker has reported them, else the first four. Null if"
        " nothing is missing.",
    )
    lag_history: LagHistoryDocument | None = Field(default=None, description="Null from a sidecar of an older version.")
    log_accepted_loss_bytes: int | None = Field(
        default=None, description="Bytes of the log whose loss an administrator has accepted; null for none."
    )
    damaged_records: int | None = Field(
        default=None,
        description="Stored messages that are known to be damaged now; null from a broker of an older version.",
    )
    damaged_bytes: int | None = Field(default=None, description="Bytes of the log that are known to be damaged now.")
    last_error: str | None
    last_error_wall_ms: int | None
    lease: LeaseDocument | None = Field(default=None, description="Null if this sidecar renews no Lease.")
    regaining: str | None = Field(
        default=None, description="Why a broker that lost its role when its process ended has not regained it."
    )
    reported_role: RoleDocument | None = Field(
        validation_alias=AliasChoices("reported_role", "said"),
        description="The role that the broker last reported; `reported_role_fresh` has the age of the report.",
    )
    reported_role_fresh: ReportFreshness = Field(validation_alias=AliasChoices("reported_role_fresh", "said_fresh"))
    rates: RatesDocument | None = Field(default=None, description="Null from a sidecar of an older version.")
    sidecar: dict[str, str]


class WaitDocument(Document):
    """The result of waiting for an offset."""

    reached: bool
    level: Literal["flushed", "acked", "confirmed"]
    offset: int
    position: int | None = Field(description="The offset that `level` has reached now.")
    epoch: int | None = Field(description="If it differs from the epoch of the write, the bytes may be other ones.")
    boot_id: str | None
    waited_ms: int
    broker: LoopStateDocument


class QueueDocument(Document):
    """One queue: it holds [begin, end)."""

    queue_id: int
    begin: int
    end: int
    last_stored_ms: int | None


class ProofDocument(Document):
    """The proof that the certificate of this port belongs to a server that has the token."""

    proof: str = Field(
        description="HMAC-SHA256 by the first token that may change something; see gantry_spec.sidecar_proof."
    )


class TopicDocument(Document):
    """A topic of this broker, with its queues."""

    name: str
    kind: Literal["user", "retry", "dead-letter", "system"]
    read_queues: int
    write_queues: int
    permission: str
    messages: int
    queues: list[QueueDocument]


class TableDocument(Document):
    """The base of tables: the source and the age of the data."""

    source: Literal["broker", "disk"] = Field(description="`disk`: tables as the broker saved them last, and queue "
                                              "files; up to some seconds behind the broker itself.")  # fmt: skip
    age_ms: int
    reason: str | None = Field(description="Why this is no answer of the broker of the last seconds; null if it is.")


class TopicsDocument(TableDocument):
    """The topics of this broker, by name."""

    topics: list[TopicDocument]
    left_out: int
    system_messages: dict[str, int] | None = Field(
        default=None,
        description="Messages in each of RocketMQ's system topics, e.g. delayed ones; `null`: an older sidecar.",
    )


LAG_S = "Age in seconds of the oldest message that is not consumed; 0 without one, null if its store time is unknown."


class QueueLagDocument(Document):
    """The consume offset and the lag of a group in one queue."""

    topic: str
    queue_id: int
    consumed: int
    end: int
    lag: int
    lag_s: float | None = Field(default=None, description=LAG_S)


class GroupDocument(Document):
    """A consumer group of this broker, with its lag."""

    name: str
    lag: int
    lag_s: float | None = Field(default=None, description=f"{LAG_S} The largest of all queues but those of retries.")
    trend: Literal["grows", "shrinks", "steady"] | None = Field(
        default=None, description="The trend of `lag_s` over the last minutes in the topic where it is the largest."
    )
    is_behind: bool = Field(
        default=False, description="Whether `lag_s` exceeds five minutes and grows: the rule of the alert."
    )
    retry_lag: int
    dead_letters: int
    queues: list[QueueLagDocument]


class GroupsDocument(TableDocument):
    """The consumer groups of this broker, by name."""

    groups: list[GroupDocument]
    left_out: int
