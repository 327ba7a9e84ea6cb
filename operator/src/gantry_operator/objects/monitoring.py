"""What Prometheus scrapes, and its alerts: by the metrics of sidecars, and only what a person can act on.

Every rule says what it means for messages, and where to look. ``docs/alerts.md`` has a paragraph for each. The rules of
one group name that group, so two groups of a cluster never speak for each other.

Metrics come through a PodMonitor, which adds ``gantry_dev_group``, ``gantry_dev_shard`` and ``gantry_dev_role``. Both
kinds are rendered only where the cluster has them. Sidecars want a token: the one for reading, from the group's Secret.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, made, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup

API: Final = "monitoring.coreos.com/v1"
OFTEN_S: Final = "15s"


class Alert(NamedTuple):
    """One of them. ``{s}`` in its expression stands for the selector of the group."""

    name: str
    expression: str
    after: str
    severity: str
    summary: str
    text: str


ALERTS: Final = (
    Alert(
        "GantryNoMaster",
        'max by (namespace, gantry_dev_group, gantry_dev_shard) (gantry_role{{{s},role="master"}}) < 1',
        "1m",
        "critical",
        "Shard {{ $labels.gantry_dev_shard }} of {{ $labels.gantry_dev_group }} has no master",
        "Nobody takes messages for this shard. status.decision of the group says what a promotion waits for.",
    ),
    Alert(
        "GantryGroupUnseen",
        "absent(gantry_role{{{s}}})",
        "10m",
        "critical",
        "Nothing is heard of the group {{ $labels.gantry_dev_group }}",
        "No sidecar answers Prometheus: there are no pods, or a policy or a token keeps it out.",
    ),
    Alert(
        "GantryTwoMasters",
        "count by (namespace, gantry_dev_group, gantry_dev_shard) ("
        'gantry_role{{{s},role="master"}} == 1 and on (namespace, pod) gantry_broker_ready{{{s}}} == 1) > 1',
        "1m",
        "critical",
        "Shard {{ $labels.gantry_dev_shard }} of {{ $labels.gantry_dev_group }} has two masters that are ready",
        "Only one can acknowledge. Look at the epochs: the older one should have been fenced.",
    ),
    Alert(
        "GantryBrokerNotReady",
        "gantry_broker_ready{{{s}}} == 0",
        "5m",
        "warning",
        "{{ $labels.pod }} is not ready",
        "The sidecar's /readyz says why: recovering, too far behind, without its master, or without a role.",
    ),
    Alert(
        "GantryBrokerStandsStill",
        "gantry_broker_moving{{{s}}} == 0",
        "1m",
        "critical",
        "{{ $labels.pod }} does nothing any more",
        "Its event loop has published nothing: it is stopped, gone, or waits for something that does not come.",
    ),
    Alert(
        "GantrySidecarDown",
        'up{{{s},container="sidecar"}} == 0',
        "5m",
        "warning",
        "The sidecar of {{ $labels.pod }} does not answer",
        "Its broker goes on, but nobody sees it, and the Lease of its shard is not renewed.",
    ),
    Alert(
        "GantryTooMuchAtRisk",
        'gantry_at_risk_bytes{{{s},loss="master"}} > {at_risk}',
        "2m",
        "warning",
        "{{ $labels.pod }} has {{ $value | humanize1024 }}B that no other broker has",
        "More than spec.durability.maxAtRiskBytes would be lost with this machine. Rolls and drains wait meanwhile.",
    ),
    Alert(
        "GantrySlaveFarBehind",
        "gantry_slave_behind_bytes{{{s}}} > {max_lag}",
        "5m",
        "warning",
        "Slave {{ $labels.slave }} of {{ $labels.pod }} is {{ $value | humanize1024 }}B behind",
        "It is beyond spec.replication.maxLag: not waited for, not read from, and no candidate without loss.",
    ),
    Alert(
        "GantrySlaveSilent",
        "gantry_slave_silent_seconds{{{s}}} > 30",
        "1m",
        "warning",
        "{{ $labels.pod }} has not heard of slave {{ $labels.slave }} for {{ $value | humanizeDuration }}",
        "With too few slaves a sync group answers 11, and an async one has its messages in one place only.",
    ),
    Alert(
        "GantrySendsRefused",
        'gantry_sends_refused{{{s}}} == 1 and on (namespace, pod) gantry_role{{{s},role="master"}} == 1',
        "1m",
        "critical",
        "{{ $labels.pod }} refuses messages",
        "Its disk is nearly full, or it is drained or fenced. Reads go on.",
    ),
    Alert(
        "GantryLogDataMissing",
        'gantry_log_lost_bytes{{{s},state="missing"}} > 0',
        "1m",
        "critical",
        "{{ $labels.pod }} has lost {{ $value | humanize1024 }}B of its log",
        "They were on its disk. As a master it takes no sends, and delayed messages and transactions wait. Bring the"
        " volume back, let it follow a master that has them, or accept the loss with gantry ha accept-loss.",
    ),
    Alert(
        "GantryMessagesDamaged",
        "gantry_damaged_messages{{{s}}} > 0",
        "1m",
        "critical",
        "{{ $labels.pod }} has {{ $value }} damaged messages",
        "They do not match their checksums, and are not served. A member of the group that has them heals them while it"
        " is connected. Damage that comes back means a disk that fails.",
    ),
    Alert(
        "GantryDiskFillsUp",
        'gantry_disk_bytes{{{s},state="used"}} / ignoring (state) gantry_disk_bytes{{{s},state="total"}} > 0.8',
        "10m",
        "warning",
        "The disk of {{ $labels.pod }} is {{ $value | humanizePercentage }} full",
        "At 90 percent messages are refused. Grow spec.storage.size, or lower spec.storage.reservedTime.",
    ),
    Alert(
        "GantryBufferExhausted",
        'gantry_write_buffers{{{s},state="free"}} == 0 and ignoring (state) '
        'gantry_write_buffers{{{s},state="total"}} > 0',
        "2m",
        "warning",
        "{{ $labels.pod }} has no free write buffer",
        "The disk is slower than what comes in; senders are asked to come again.",
    ),
    Alert(
        "GantryBufferNotCrashSafe",
        "gantry_write_buffer_crash_safe{{{s}}} == 0"
        ' and on (namespace, pod) gantry_write_buffers{{{s},state="total"}} > 0',
        "5m",
        "warning",
        "What is in the write buffer of {{ $labels.pod }} does not survive a crash of the broker",
        "The buffers lie in anonymous memory, since their volume could not be used. The broker's log says why.",
    ),
    Alert(
        "GantryCertificateEnds",
        "gantry_certificate_ends_timestamp_seconds{{{s}}} - time() < 7 * 86400",
        "1h",
        "warning",
        "A certificate of {{ $labels.pod }} ends in {{ $value | humanizeDuration }}",
        "Renew the Secret spec.access.tlsSecret; brokers take it without a restart.",
    ),
)


def rule_group(group: BrokerGroup) -> Object:
    """The rules of one group."""
    return {"name": f"gantry-{group.metadata.name}", "interval": OFTEN_S, "rules": [_rule(group, a) for a in ALERTS]}


def _rule(group: BrokerGroup, alert: Alert) -> Object:
    chosen = f'namespace="{group.metadata.namespace}",gantry_dev_group="{group.metadata.name}"'
    expression = alert.expression.format(
        s=chosen,
        at_risk=int(group.spec.durability.max_at_risk_bytes),
        max_lag=int(group.spec.replication.max_lag),
    )
    return {
        "alert": alert.name,
        "expr": expression,
        "for": alert.after,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.text},
    }


def monitors(group: BrokerGroup, facts: Facts) -> list[Object]:
    """As many as the cluster knows."""
    name, marked = group.metadata.name, labels(group, names.BROKER)
    found = []
    if facts.has_pod_monitor:
        found.append(made(group, (API, "PodMonitor"), name, marked, {"spec": _pod_monitor(group)}))
    if facts.has_prometheus_rule:
        found.append(made(group, (API, "PrometheusRule"), name, marked, {"spec": {"groups": [rule_group(group)]}}))
    return found


def _pod_monitor(group: BrokerGroup) -> Object:
    token = {"name": names.secret_name(group.metadata.name), "key": "read-token"}
    endpoint: Object = {
        "port": "http",
        "path": "/metrics",
        "interval": OFTEN_S,
        "authorization": {"type": "Bearer", "credentials": token},
    }
    if group.spec.access.tls_secret:
        # Addresses of pods are in no certificate. What is shown is the token that may look at metrics.
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    return {
        "selector": {"matchLabels": selector(group, names.BROKER)},
        "podTargetLabels": [names.GROUP_LABEL, names.SHARD_LABEL, names.ROLE_LABEL],
        "podMetricsEndpoints": [endpoint],
    }
