"""What Prometheus is told: gauges made from the same looks as every other answer, at the moment of the scrape.

Names of the RocketMQ exporter where it has one for the same thing, so that dashboards go on working; its camel-case
labels and a few names that promtool refuses are left out (`docs/sidecar.md` says which). The rest are `gantry_`'s.

The rule it guards is about cardinality: labels are topics and groups of this broker, so many at most, and what was left
out is a number itself. No client address, no message key, no queue is a label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gantry_admin.lease_renewal import LeaseRenewal
from gantry_admin.metrics_rocketmq import rocketmq_metrics
from gantry_admin.sidecar import Sidecar
from gantry_remoting.http_admission import HttpAdmission
from gantry_spec.ledger import Fault, Ledger
from gantry_status import Phase, RefusalReason, Role, Status

INVENTORY_OLD_S: Final = 15.0
"""Topics and groups are asked for again when they are older than that; a scrape itself waits for nobody."""


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One number; no sample while it is not known."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric([], value)
    return family


def labelled(name: str, text: str, label: str, values: Iterable[tuple[str, float | None]]) -> GaugeMetricFamily:
    """One number for each value of a label."""
    family = GaugeMetricFamily(name, text, labels=[label])
    for word, value in values:
        if value is not None:
            family.add_metric([word], value)
    return family


def counter(name: str, text: str, value: int | None) -> CounterMetricFamily:
    """A number that only grows, from 0."""
    family = CounterMetricFamily(name, text)
    family.add_metric([], value or 0)
    return family


@final
class BrokerCollector(Collector):
    """All families of one sidecar. Asked by the event loop."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._sidecar: Final = sidecar

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: what there is depends on the broker."""
        return ()

    def collect(self) -> Iterator[Metric]:
        sidecar = self._sidecar
        yield from self._health()
        reading = sidecar.broker.reading
        if reading is not None:
            yield from positions(reading.status, sidecar.broker.acked())
            yield from stock(reading.status)
            yield from self._risks()
            yield from self._slaves(reading.status)
            if reading.status.role is Role.MASTER:
                yield from ledger_metrics(sidecar.ledgers.last(reading.origin.broker_name))
            shown = sidecar.tables.latest(INVENTORY_OLD_S)
            if shown is not None:
                yield from memory_metrics(shown.inventory.runtime)
            yield from rocketmq_metrics(sidecar, shown)
        if sidecar.lease is not None:
            yield from lease_metrics(sidecar.lease, sidecar.broker.watch.now_ns())
        yield from self._own()

    def _health(self) -> Iterator[Metric]:
        motion, verdict = self._sidecar.broker.motion(), self._sidecar.verdict
        since = None if motion.since_ms is None else motion.since_ms / 1000
        yield gauge("gantry_broker_moving", "Whether the event loop of the broker moves.", motion.state == "moving")
        yield gauge(
            "gantry_broker_ready", "Whether clients should be at this broker, with hysteresis.", verdict.is_good
        )
        yield gauge("gantry_broker_heartbeat_age_seconds", "Since the last publication of the broker.", since)

    def _risks(self) -> Iterator[Metric]:
        risks = self._sidecar.broker.risks()
        yield labelled("gantry_at_risk_bytes", "What would be lost if the named thing broke now.", "loss",
                       ((risk.loss.value, risk.bytes) for risk in risks))  # fmt: skip
        yield labelled("gantry_at_risk_seconds", "Age of the oldest byte that would be lost.", "loss",
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
        yield labelled(
            "gantry_slave_behind_bytes", "How far a slave is behind, as its master sees it.", "slave", behind
        )
        yield labelled("gantry_slave_silent_seconds", "Since a slave was heard of.", "slave", silent)

    def _own(self) -> Iterator[Metric]:
        limits = self._sidecar.limits
        sent = CounterMetricFamily("gantry_sidecar_log_sent_bytes", "Of the log, handed out as ranges.")
        sent.add_metric([], limits.bytes_sent)
        refused = CounterMetricFamily("gantry_sidecar_log_refused", "Ranges refused for want of a place.")
        refused.add_metric([], limits.refused)
        yield sent
        yield refused
        ends_at = None if self._sidecar.certificates is None else self._sidecar.certificates.expires_at
        yield gauge(
            "gantry_sidecar_certificate_ends_timestamp_seconds",
            "When the sidecar's own certificate ends.",
            ends_at,
        )
        yield from http_metrics({"main": self._sidecar.admission, "log": self._sidecar.log_admission})
        yield gauge("gantry_sidecar_log_readers", "Ranges that are being read now.", limits.readers)
        yield gauge("gantry_sidecar_event_streams", "Event streams that are open now.", self._sidecar.streams.taken)


def http_metrics(listeners: Mapping[str, HttpAdmission]) -> Iterator[Metric]:
    """Connections of both listeners, and why some were closed or refused."""
    yield labelled("gantry_sidecar_http_connections", "HTTP connections that are open now.", "listener",
                   ((name, len(admission)) for name, admission in listeners.items()))  # fmt: skip
    closed = CounterMetricFamily(
        "gantry_sidecar_http_closed", "HTTP connections that a limit closed or refused.", labels=["listener", "reason"]
    )
    for name, admission in listeners.items():
        for reason, count in admission.counts.items():
            closed.add_metric([name, reason.value], count)
    yield closed


def positions(status: Status, acked: int | None) -> Iterator[Metric]:
    """The moving offsets."""
    places = (
        ("oldest", status.min_physical), ("wrote", status.wrote), ("committed", status.committed),
        ("flushed", status.flushed), ("acked", acked), ("confirmed", status.confirmed),
    )  # fmt: skip
    yield labelled("gantry_log_position_bytes", "Offsets of the log.", "position", places)
    yield gauge("gantry_epoch", "In which the broker has its role.", status.epoch)
    yield labelled("gantry_role", "1 for the role that the broker has.", "role",
                   ((role.name.lower(), role is status.role) for role in Role))  # fmt: skip
    yield labelled("gantry_phase", "1 for where the broker is in its life.", "phase",
                   ((phase.name.lower(), phase is status.phase) for phase in Phase))  # fmt: skip


def stock(status: Status) -> Iterator[Metric]:
    """What there is of things, and how much of it is used."""
    yield labelled("gantry_write_buffers", "Buffers of the write buffer pool.", "state",
                   (("total", status.pool_buffers_total), ("free", status.pool_buffers_free)))  # fmt: skip
    yield gauge("gantry_write_buffer_crash_safe", "Whether what is only in a buffer survives its process.",
                status.is_crash_safe)  # fmt: skip
    yield labelled("gantry_disk_bytes", "Of the disk that the log lies on.", "state",
                   (("total", status.disk_total_bytes), ("used", status.disk_used_bytes)))  # fmt: skip
    ends_ms = status.certificate_ends_wall_ms
    ends_s = None if ends_ms is None else ends_ms / 1000
    yield gauge(
        "gantry_certificate_ends_timestamp_seconds", "When the first TLS certificate of the broker ends.", ends_s
    )
    yield from integrity(status)
    yield labelled("gantry_log_lost_bytes", "Of the log, that were on the disk and are gone.", "state",
                   (("missing", status.log_missing_bytes or 0),
                    ("accepted", status.log_accepted_loss_bytes or 0)))  # fmt: skip
    yield gauge("gantry_sends_refused", "Whether sends are refused now.", status.is_refusing_sends)
    yield refusals(status.refused_requests)
    yield gauge("gantry_parked_sends", "Sends that wait for the disk or a slave.", status.parked_sends)
    yield gauge("gantry_connections", "Clients that are connected.", status.connections)
    yield gauge("gantry_queues", "Queues that have messages.", status.queues)
    yield gauge("gantry_consume_queues_rebuilding", "Consume queues that are being rebuilt from the log.",
                status.queues_rebuilding or 0)  # fmt: skip
    yield counter("gantry_consume_queue_units_rebuilt", "Units of consume queues that were wrong and were rebuilt.",
                  status.queue_units_rebuilt)  # fmt: skip
    yield counter("gantry_key_index_rebuilds", "Rebuilds of the key index by a running broker.", status.index_rebuilds)
    yield labelled("gantry_recovery_bytes", "Of the log, while it is checked.", "state",
                   (("total", status.recovery_total_bytes), ("done", status.recovery_done_bytes)))  # fmt: skip


def refusals(counts: tuple[int, ...]) -> Metric:
    """Refused requests by reason, with a zero for each that has not been yet."""
    family = CounterMetricFamily(
        "gantry_refused_requests", "Requests that the broker refused since its start.", labels=["reason"]
    )
    for reason in RefusalReason:
        family.add_metric([reason.label], counts[reason] if reason < len(counts) else 0)
    return family


def memory_metrics(runtime: Mapping[str, str]) -> Iterator[Metric]:
    """What peers cost the broker that send without an end or do not read, and whom it has closed, by its own count."""
    for name, key, text in (
        ("gantry_unfinished_frame_bytes", "unfinishedFrameBytes", "Of requests that have not come as a whole."),
        ("gantry_unread_reply_bytes", "unreadReplyBytes", "Of replies that clients have not read, at most."),
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


def integrity(status: Status) -> Iterator[Metric]:
    """What is known of damage to the log; nothing of a broker that does not say it."""
    if status.damaged_records is None:
        return
    yield gauge("gantry_damaged_messages", "Stored messages that are known to be damaged now.", status.damaged_records)
    yield gauge("gantry_damaged_bytes", "Of the log, known to be damaged now.", status.damaged_bytes)
    events = CounterMetricFamily("gantry_damage", "Damaged messages since the broker's start.", labels=["outcome"])
    for outcome, count in (
        ("found", status.damaged_records_found), ("healed", status.healed_records), ("lost", status.lost_records),
    ):  # fmt: skip
        events.add_metric([outcome], count or 0)
    yield events
    scrubbed = CounterMetricFamily("gantry_scrubbed_bytes", "Of the log, read by the scrubber since the start.")
    scrubbed.add_metric([], status.scrubbed_bytes or 0)
    yield scrubbed
    yield gauge("gantry_scrub_position_bytes", "Up to where this pass has scrubbed the log.", status.scrub_position)
    ended_ms = status.scrub_pass_ended_wall_ms
    yield gauge(
        "gantry_scrub_pass_ended_timestamp_seconds",
        "When the scrubber came to the log's end last; none before the first time.",
        ended_ms / 1000 if ended_ms else None,
    )


def ledger_metrics(ledger: Ledger | None) -> Iterator[Metric]:
    """What its shard would lose; told by the sidecar of its master, so that sums count every shard once."""
    risks = [] if ledger is None or not ledger.is_fresh else [(fault.value, ledger.risk(fault)) for fault in Fault]
    yield labelled("gantry_ledger_at_risk_bytes", "Acknowledged, and taken by one fault.", "fault",
                   ((fault, risk.bytes) for fault, risk in risks))  # fmt: skip
    yield labelled("gantry_ledger_at_risk_seconds", "Age of the oldest of these bytes, at most.", "fault",
                   ((fault, None if risk.age_ms is None else risk.age_ms / 1000) for fault, risk in risks))  # fmt: skip


def lease_metrics(renewal: LeaseRenewal, now_ns: int) -> Iterator[Metric]:
    """The shard's Lease."""
    renewed_ms = renewal.shown.renewed_ms
    age_s = None if renewed_ms is None else max(now_ns / 1e9 - renewed_ms / 1e3, 0)
    yield gauge("gantry_lease_age_seconds", "Since the last renewal that was answered had been asked for.", age_s)
    counts = CounterMetricFamily("gantry_lease_renewals", "Attempts to renew the Lease.", labels=["outcome"])
    for outcome, count in (("done", renewal.renewed), ("moved", renewal.moved), ("failed", renewal.failed)):
        counts.add_metric([outcome], count)
    yield counts


@final
class Exposition:
    """The families as text, in the format that the scraper prefers."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._registry: Final = CollectorRegistry()
        self._registry.register(BrokerCollector(sidecar))

    def render(self, accept: str) -> tuple[bytes, str]:
        """(body, content type): OpenMetrics where it is asked for, else Prometheus' own text."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type
