"""The Prometheus metrics, made at the moment of the scrape from the same observations as every other answer.

Metrics that the RocketMQ exporter has too use its names, so that dashboards keep working; its camel-case labels and a
few names that promtool refuses are left out (`docs/sidecar.md` lists them). All others are named `gantry_*`.

The invariant is a bounded cardinality: of topics and groups, which have labels, only a maximum is included, and the
number of those left out is a metric itself, and so it is of the queues of the lag. All other labels have few values. No
client address or message key is a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gantry_admin.lease_renewal import LeaseRenewal
from gantry_admin.metrics_lag import lag_metrics
from gantry_admin.metrics_rocketmq import rocketmq_metrics
from gantry_admin.sidecar import Sidecar
from gantry_remoting.http_admission import HttpAdmission
from gantry_spec.ledger import Fault, Ledger
from gantry_status import Phase, RefusalReason, Role, Status

INVENTORY_OLD_S: Final = 15.0
"""The age at which topics and groups are requested again in the background; a scrape itself never waits."""


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """Return a gauge with one sample; without a sample if the value is unknown."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def labelled_gauge(name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
    """Return a gauge with one sample for each value of a label; unknown values have no sample."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for label_value, value in values:
        if value is not None:
            family.add_metric([label_value], value)
    return family


def counter(name: str, text: str, value: int | None) -> CounterMetricFamily:
    """Return a counter with one sample; 0 if the value is unknown."""
    family = CounterMetricFamily(name, text)
    family.add_metric([], value or 0)
    return family


@final
class BrokerCollector(Collector):
    """The collector of all metrics of one sidecar. Owned by the event loop."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar: Final = sidecar

    def describe(self) -> Iterable[Metric]:
        """Return no metrics in advance, because they depend on the broker."""
        return ()

    def collect(self) -> Iterator[Metric]:
        sidecar = self._sidecar
        yield from self._health()
        reading = sidecar.broker.reading
        if reading is not None:
            yield from position_metrics(reading.status, sidecar.broker.acked())
            yield from resource_metrics(reading.status)
            yield from self._risks()
            yield from self._slaves(reading.status)
            if reading.status.role is Role.MASTER:
                yield from ledger_metrics(sidecar.ledgers.last(reading.origin.broker_name))
            snapshot = sidecar.inventory.latest(INVENTORY_OLD_S)
            if snapshot is not None:
                yield from memory_metrics(snapshot.inventory.runtime)
                yield from pop_metrics(snapshot.inventory.runtime)
                if reading.status.role is Role.MASTER:
                    yield from lag_metrics(snapshot.inventory, sidecar.lag)
            yield from rocketmq_metrics(sidecar, snapshot)
        if sidecar.lease is not None:
            yield from lease_metrics(sidecar.lease, sidecar.broker.watch.now_ns())
        yield from self._sidecar_metrics()

    def _health(self) -> Iterator[Metric]:
        loop_state, verdict = self._sidecar.broker.loop_state(), self._sidecar.verdict
        since = None if loop_state.since_ms is None else loop_state.since_ms / 1000
        yield gauge(
            "gantry_broker_loop_running", "Whether the event loop of the broker runs.", loop_state.state == "running"
        )
        yield gauge("gantry_broker_ready", "Whether the broker is ready for clients, with hysteresis.", verdict.is_good)
        yield gauge("gantry_broker_heartbeat_age_seconds", "Seconds since the broker last published its state.", since)

    def _risks(self) -> Iterator[Metric]:
        risks = self._sidecar.broker.risks()
        yield labelled_gauge("gantry_at_risk_bytes", "Bytes that would be lost in this failure now.", "loss",
                       ((risk.loss.value, risk.bytes) for risk in risks))  # fmt: skip
        yield labelled_gauge("gantry_at_risk_seconds", "Age of the oldest byte that would be lost, at most.", "loss",
                       ((risk.loss.value, risk.seconds) for risk in risks))  # fmt: skip

    def _slaves(self, status: Status) -> Iterator[Metric]:
        now_ns = self._sidecar.broker.watch.now_ns()
        behind = [
            (str(slave.slave_id), None if slave.received is None or status.wrote is None
             else float(max(status.wrote - slave.received, 0)))
            for slave in status.slaves
        ]  # fmt: skip
        silent = [
            (str(slave.slave_id), None if slave.last_seen_boottime_ns is None
             else max(now_ns - slave.last_seen_boottime_ns, 0) / 1e9)
            for slave in status.slaves
        ]  # fmt: skip
        yield labelled_gauge(
            "gantry_slave_behind_bytes", "Replication lag of a slave, as its master reports it.", "slave", behind
        )
        yield labelled_gauge(
            "gantry_slave_silent_seconds", "Seconds since the last message of a slave.", "slave", silent
        )

    def _sidecar_metrics(self) -> Iterator[Metric]:
        limits = self._sidecar.limits
        sent = CounterMetricFamily("gantry_sidecar_log_sent_bytes", "Bytes of the log sent as ranges.")
        sent.add_metric([], limits.bytes_sent)
        refused = CounterMetricFamily("gantry_sidecar_log_refused", "Ranges refused because of the limit of readers.")
        refused.add_metric([], limits.refused)
        yield sent
        yield refused
        ends_at = None if self._sidecar.certificates is None else self._sidecar.certificates.expires_at
        yield gauge(
            "gantry_sidecar_certificate_ends_timestamp_seconds",
            "When the sidecar's own certificate expires.",
            ends_at,
        )
        yield from http_metrics({"main": self._sidecar.admission, "log": self._sidecar.log_admission})
        yield gauge("gantry_sidecar_log_readers", "Ranges that are being read now.", limits.readers)
        yield gauge("gantry_sidecar_event_streams", "Event streams that are open now.", self._sidecar.streams.in_use)


def http_metrics(listeners: Mapping[str, HttpAdmission]) -> Iterator[Metric]:
    """Yield the metrics of both listeners' connections, and of those that a limit closed or refused."""
    yield labelled_gauge("gantry_sidecar_http_connections", "HTTP connections that are open now.", "listener",
                   ((name, len(admission)) for name, admission in listeners.items()))  # fmt: skip
    closed = CounterMetricFamily(
        "gantry_sidecar_http_closed", "HTTP connections that a limit closed or refused.", labels=["listener", "reason"]
    )
    for name, admission in listeners.items():
        for reason, count in admission.counts.items():
            closed.add_metric([name, reason.value], count)
    yield closed


def position_metrics(status: Status, acked: int | None) -> Iterator[Metric]:
    """Yield the log positions, the epoch, the role and the phase."""
    positions = (
        ("oldest", status.min_physical), ("wrote", status.wrote), ("committed", status.committed),
        ("flushed", status.flushed), ("acked", acked), ("confirmed", status.confirmed),
    )  # fmt: skip
    yield labelled_gauge("gantry_log_position_bytes", "Offsets of the log.", "position", positions)
    yield gauge("gantry_epoch", "Epoch of the broker's role.", status.epoch)
    yield labelled_gauge("gantry_role", "1 for the role that the broker has.", "role",
                   ((role.name.lower(), role is status.role) for role in Role))  # fmt: skip
    yield labelled_gauge("gantry_phase", "1 for the phase of the broker's process.", "phase",
                   ((phase.name.lower(), phase is status.phase) for phase in Phase))  # fmt: skip


def resource_metrics(status: Status) -> Iterator[Metric]:
    """Yield the use of buffers, disk, connections and queues."""
    yield labelled_gauge("gantry_write_buffers", "Buffers of the write buffer pool.", "state",
                   (("total", status.pool_buffers_total), ("free", status.pool_buffers_free)))  # fmt: skip
    yield gauge("gantry_write_buffer_crash_safe", "Whether the write buffer survives a process crash.",
                status.is_crash_safe)  # fmt: skip
    yield labelled_gauge("gantry_disk_bytes", "Size and used bytes of the disk with the log.", "state",
                   (("total", status.disk_total_bytes), ("used", status.disk_used_bytes)))  # fmt: skip
    ends_ms = status.certificate_ends_wall_ms
    ends_s = None if ends_ms is None else ends_ms / 1000
    yield gauge(
        "gantry_certificate_ends_timestamp_seconds", "When the first TLS certificate of the broker expires.", ends_s
    )
    yield from integrity_metrics(status)
    yield labelled_gauge("gantry_log_lost_bytes", "Bytes of the log that were on disk and are lost.", "state",
                   (("missing", status.log_missing_bytes or 0),
                    ("accepted", status.log_accepted_loss_bytes or 0)))  # fmt: skip
    yield gauge("gantry_sends_refused", "Whether sends are refused now.", status.is_refusing_sends)
    yield refusals(status.refused_requests)
    yield gauge("gantry_held_sends", "Sends that wait for the disk or a slave.", status.held_sends)
    yield gauge("gantry_connections", "Connected clients.", status.connections)
    yield gauge("gantry_queues", "Queues that have messages.", status.queues)
    yield gauge("gantry_consume_queues_rebuilding", "Consume queues that are being rebuilt from the log.",
                status.queues_rebuilding or 0)  # fmt: skip
    yield counter("gantry_consume_queue_units_rebuilt", "Units of consume queues that were wrong and were rebuilt.",
                  status.queue_units_rebuilt)  # fmt: skip
    yield counter("gantry_key_index_rebuilds", "Rebuilds of the key index by a running broker.", status.index_rebuilds)
    yield labelled_gauge("gantry_recovery_bytes", "Bytes of the log to check in recovery.", "state",
                   (("total", status.recovery_total_bytes), ("done", status.recovery_done_bytes)))  # fmt: skip


def refusals(counts: tuple[int, ...]) -> Metric:
    """Return the refused requests by reason, with a zero for each reason that has not occurred."""
    family = CounterMetricFamily(
        "gantry_refused_requests", "Requests that the broker refused since its start.", labels=["reason"]
    )
    for reason in RefusalReason:
        family.add_metric([reason.label], counts[reason] if reason < len(counts) else 0)
    return family


def memory_metrics(runtime: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the broker's memory for incomplete requests and unread replies, and the connections that it has closed."""
    for name, key, text in (
        ("gantry_unfinished_frame_bytes", "unfinishedFrameBytes", "Bytes of incomplete requests held in memory."),
        ("gantry_unread_reply_bytes", "unreadReplyBytes", "Bytes of replies that clients have not read, at most."),
    ):
        value = runtime.get(key, "")
        yield gauge(name, text, float(value) if value.isdecimal() else None)
    closed = CounterMetricFamily(
        "gantry_connections_closed", "Connections of clients that the broker has closed.", labels=["reason"]
    )
    for word in runtime.get("connectionsClosed", "").split():
        reason, _, count = word.partition("=")
        if count.isdecimal():
            closed.add_metric([reason], int(count))
    yield closed


_POP_GAUGES: Final = (
    ("gantry_pop_inflight_messages", "popInflightMessages", 1, "Messages that are popped and not acked."),
    ("gantry_pop_checkpoints", "popOpenCheckpoints", 1, "Pops with messages that are not acked."),
    ("gantry_pop_revive_lag_seconds", "popReviveLagMillis", 1_000,
     "For how long messages whose invisible time is over have waited for their redelivery."),
    ("gantry_pop_unflushed_offsets", "popUnflushedOffsets", 1, "Ends of pops that wait for a flush to be committed."),
)  # fmt: skip
"""Names, keys of the runtime table, divisors and texts of gauges of pop consumption."""

_POP_OUTCOMES: Final = (
    ("popped", "popMessages"), ("acked", "popAckedMessages"), ("redelivered", "popRedeliveredMessages"),
    ("dead_letter", "popDeadLetters"), ("expired", "popExpiredMessages"),
)  # fmt: skip
"""The outcomes by which popped messages are counted, and their keys in the runtime table."""


def pop_metrics(runtime: Mapping[str, str]) -> Iterator[Metric]:
    """Yield the state and the counters of pop consumption; no samples for a broker without them."""
    for name, key, divisor, text in _POP_GAUGES:
        value = runtime.get(key, "")
        yield gauge(name, text, int(value) / divisor if value.isdecimal() else None)
    family = CounterMetricFamily("gantry_pop_messages", "Messages by pop consumption.", labels=["outcome"])
    for outcome, key in _POP_OUTCOMES:
        value = runtime.get(key, "")
        if value.isdecimal():
            family.add_metric([outcome], int(value))
    yield family


def integrity_metrics(status: Status) -> Iterator[Metric]:
    """Yield the known damage to the log; no samples for a broker of an older version."""
    if status.damaged_records is None:
        return
    yield gauge("gantry_damaged_messages", "Stored messages that are known to be damaged now.", status.damaged_records)
    yield gauge("gantry_damaged_bytes", "Bytes of the log that are known to be damaged now.", status.damaged_bytes)
    events = CounterMetricFamily("gantry_damage", "Damaged messages since the broker's start.", labels=["outcome"])
    for outcome, count in (
        ("found", status.damaged_records_found), ("healed", status.healed_records), ("lost", status.lost_records),
    ):  # fmt: skip
        events.add_metric([outcome], count or 0)
    yield events
    scrubbed = CounterMetricFamily("gantry_scrubbed_bytes", "Bytes of the log read by the scrubber since the start.")
    scrubbed.add_metric([], status.scrubbed_bytes or 0)
    yield scrubbed
    yield gauge(
        "gantry_scrub_position_bytes",
        "Offset up to which the current pass has scrubbed the log.",
        status.scrub_position,
    )
    ended_ms = status.scrub_pass_ended_wall_ms
    yield gauge(
        "gantry_scrub_pass_ended_timestamp_seconds",
        "When the scrubber last completed a pass; none before the first.",
        ended_ms / 1000 if ended_ms else None,
    )


def ledger_metrics(ledger: Ledger | None) -> Iterator[Metric]:
    """Yield the data that the shard would lose. Only the master's sidecar has it, so sums count each shard once."""
    risks = [] if ledger is None or not ledger.is_fresh else [(fault.value, ledger.risk(fault)) for fault in Fault]
    yield labelled_gauge("gantry_ledger_at_risk_bytes", "Acknowledged bytes that one fault would destroy.", "fault",
                   ((fault, risk.bytes) for fault, risk in risks))  # fmt: skip
    yield labelled_gauge("gantry_ledger_at_risk_seconds", "Age of the oldest of these bytes, at most.", "fault",
                   ((fault, None if risk.age_ms is None else risk.age_ms / 1000) for fault, risk in risks))  # fmt: skip


def lease_metrics(renewal: LeaseRenewal, now_ns: int) -> Iterator[Metric]:
    """Yield the metrics of the Lease's renewal."""
    renewed_ms = renewal.status.renewed_ms
    age_s = None if renewed_ms is None else max(now_ns / 1e9 - renewed_ms / 1e3, 0)
    yield gauge("gantry_lease_age_seconds", "Seconds since the last successful renewal was sent.", age_s)
    counts = CounterMetricFamily("gantry_lease_renewals", "Attempts to renew the Lease.", labels=["outcome"])
    for outcome, count in (("done", renewal.renewed), ("conflict", renewal.conflicts), ("failed", renewal.failed)):
        counts.add_metric([outcome], count)
    yield counts


@final
class Exposition:
    """The metrics as text, in the format that the scraper prefers."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._registry: Final = CollectorRegistry()
        self._registry.register(BrokerCollector(sidecar))

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return (body, content type): OpenMetrics if it is accepted, else the Prometheus text format."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
