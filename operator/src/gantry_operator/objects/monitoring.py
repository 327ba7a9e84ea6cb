"""The PodMonitor and the alerts of a group: they use the metrics of sidecars, and every alert can be acted on.

Every alert describes the effect on messages, and the next step. ``docs/alerts.md`` has a paragraph for each. The rules
of a group select that group, so the metrics of one group never trigger alerts of another. Those of proxies are part of
a group that has proxies.

Metrics are scraped through a PodMonitor, which adds ``gantry_dev_group``, ``gantry_dev_shard`` and
``gantry_dev_role``. Both kinds are rendered only where the cluster has them. Sidecars require a token: Prometheus uses
the token for reading from the group's Secret.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gantry_operator.objects import names
from gantry_operator.objects.base import Object, labels, make_object, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup

API: Final = "monitoring.coreos.com/v1"
SCRAPE_INTERVAL: Final = "15s"
NOT_OBSERVED: Final = "GantryGroupNotObserved"
"""The alert for a group without metrics, which a hibernated group does not have."""


class Alert(NamedTuple):
    """An alerting rule. ``{s}`` in its expression stands for the selector of the group."""

    name: str
    expression: str
    for_duration: str
    """How long the expression must hold before the alert fires."""

    severity: str
    summary: str
    description: str


ALERTS: Final = (
    Alert(
        "GantryNoMaster",
        'max by (namespace, gantry_dev_group, gantry_dev_shard) (gantry_role{{{s},role="master"}}) < 1',
        "1m",
        "critical",
        "Shard {{ $labels.gantry_dev_shard }} of {{ $labels.gantry_dev_group }} has no master",
        "No broker accepts messages for this shard. status.eachShard[].decision.blockedBy of the group shows what a"
        " promotion waits for.",
    ),
    Alert(
        NOT_OBSERVED,
        "absent(gantry_role{{{s}}})",
        "10m",
        "critical",
        "There are no metrics of the group {{ $labels.gantry_dev_group }}",
        "No sidecar answers Prometheus: the group has no pods, or a network policy or token blocks the scrape.",
    ),
    Alert(
        "GantryTwoMasters",
        "count by (namespace, gantry_dev_group, gantry_dev_shard) ("
        'gantry_role{{{s},role="master"}} == 1 and on (namespace, pod) gantry_broker_ready{{{s}}} == 1) > 1',
        "1m",
        "critical",
        "Shard {{ $labels.gantry_dev_shard }} of {{ $labels.gantry_dev_group }} has two masters that are ready",
        "Only one can acknowledge messages. Compare the epochs: the master of the older one has lost its slaves and its"
        " Lease. If it keeps the role, it has not received the newer epoch: check its network.",
    ),
    Alert(
        "GantryBrokerNotReady",
        "gantry_broker_ready{{{s}}} == 0",
        "5m",
        "warning",
        "{{ $labels.pod }} is not ready",
        "The sidecar's /readyz gives the reason: recovering, too far behind, without its master, or without a role.",
    ),
    Alert(
        "GantryBrokerStalled",
        "gantry_broker_loop_running{{{s}}} == 0",
        "1m",
        "critical",
        "The broker of {{ $labels.pod }} makes no progress",
        "The broker's event loop does not update the status page: the process is stopped or has ended, or the loop is"
        " blocked.",
    ),
    Alert(
        "GantrySidecarDown",
        'up{{{s},container="sidecar"}} == 0',
        "5m",
        "warning",
        "The sidecar of {{ $labels.pod }} does not answer",
        "The broker continues to serve, but is not monitored. If it is the master, the Lease of its shard is not"
        " renewed.",
    ),
    Alert(
        "GantryTooMuchAtRisk",
        'gantry_ledger_at_risk_bytes{{{s},fault="machine"}} > {at_risk}',
        "2m",
        "warning",
        "{{ $labels.pod }} has {{ $value | humanize1024 }}B that are neither flushed nor replicated",
        "A power failure of this machine would lose more than spec.durability.maxAtRiskBytes. Rolling restarts of"
        " slaves wait.",
    ),
    Alert(
        "GantrySlaveFarBehind",
        "gantry_slave_behind_bytes{{{s}}} > {max_lag}",
        "5m",
        "warning",
        "Slave {{ $labels.slave }} of {{ $labels.pod }} is {{ $value | humanize1024 }}B behind",
        "The lag exceeds spec.replication.maxLag: sends do not wait for the slave, its pod is not ready, and it cannot"
        " be promoted without loss.",
    ),
    Alert(
        "GantrySlaveSilent",
        "gantry_slave_silent_seconds{{{s}}} > 30",
        "1m",
        "warning",
        "{{ $labels.pod }} got no report from slave {{ $labels.slave }} for {{ $value | humanizeDuration }}",
        "With too few slaves a sync group answers sends with code 11; an async group has one copy of its messages.",
    ),
    Alert(
        "GantrySendsRefused",
        'gantry_sends_refused{{{s}}} == 1 and on (namespace, pod) gantry_role{{{s},role="master"}} == 1',
        "1m",
        "critical",
        "{{ $labels.pod }} refuses messages",
        "The master's disk is nearly full or has failed, log data is missing, or the master is drained or fenced."
        " Consumers can still read.",
    ),
    Alert(
        "GantryLogDataMissing",
        'gantry_log_lost_bytes{{{s},state="missing"}} > 0',
        "1m",
        "critical",
        "{{ $labels.pod }} has lost {{ $value | humanize1024 }}B of its log",
        "The bytes were on the broker's disk. As a master the broker refuses sends, and delayed messages and"
        " transactions wait. Restore the volume, let the broker follow a master that has the data, or accept the loss"
        " with gantry ha accept-loss.",
    ),
    Alert(
        "GantryMessagesDamaged",
        "gantry_damaged_messages{{{s}}} > 0",
        "1m",
        "critical",
        "{{ $labels.pod }} has {{ $value }} damaged messages",
        "The messages do not match their checksums, and are not served. They are repaired from a connected member of"
        " the group that has intact copies. Repeated damage means a failing disk.",
    ),
    Alert(
        "GantryDiskFillsUp",
        'gantry_disk_bytes{{{s},state="used"}} / ignoring (state) gantry_disk_bytes{{{s},state="total"}} > 0.8',
        "10m",
        "warning",
        "The disk of {{ $labels.pod }} is {{ $value | humanizePercentage }} full",
        "At 90 percent sends are refused. Increase spec.storage.size, or decrease spec.storage.reservedTime.",
    ),
    Alert(
        "GantryBufferExhausted",
        'gantry_write_buffers{{{s},state="free"}} == 0 and ignoring (state) '
        'gantry_write_buffers{{{s},state="total"}} > 0',
        "2m",
        "warning",
        "{{ $labels.pod }} has no free write buffer",
        "The disk is slower than the incoming messages; producers are asked to retry.",
    ),
    Alert(
        "GantryConsumerGroupBehind",
        "max by (namespace, gantry_dev_group, gantry_dev_shard, group, topic) ("
        "gantry_consumer_group_behind{{{s}}}) == 1",
        "2m",
        "warning",
        "Consumer group {{ $labels.group }} falls behind in topic {{ $labels.topic }}",
        "Its oldest message has waited for more than five minutes, and the wait grows: its consumers are stopped, fail,"
        " or are slower than the producers.",
    ),
    Alert(
        "GantryCertificateEnds",
        "gantry_certificate_ends_timestamp_seconds{{{s}}} - time() < 7 * 86400",
        "1h",
        "warning",
        "A certificate of {{ $labels.pod }} expires in {{ $value | humanizeDuration }}",
        "Renew the Secret spec.access.tlsSecret, or find out why the issuer does not; pods load it without a restart.",
    ),
)


PROXY_ALERTS: Final = (
    Alert(
        "GantryProxyDown",
        'up{{{s},container="proxy"}} == 0',
        "5m",
        "warning",
        "The proxy {{ $labels.pod }} does not answer",
        "Its clients use other proxies of the group. Read its log: the process is blocked, or does not start.",
    ),
    Alert(
        "GantryProxyNotReady",
        "gantry_proxy_ready{{{s}}} == 0",
        "5m",
        "warning",
        "The proxy {{ $labels.pod }} is not ready",
        "It gets no new clients. The proxy's /readyz gives the reason, for example that no name server has answered.",
    ),
    Alert(
        "GantryProxyRefusesCalls",
        "rate(gantry_proxy_calls_refused_total{{{s}}}[5m]) > 0",
        "5m",
        "warning",
        "The proxy {{ $labels.pod }} refuses {{ $value | humanize }} calls a second",
        "More calls run than spec.proxy.limits.calls allows. Increase spec.proxy.replicas, or the limit.",
    ),
)
"""The alerts of a group with proxies."""


def rule_group(group: BrokerGroup, *, is_hibernated: bool = False) -> Object:
    """Return the alerting rules of one group. A hibernated group has no pods, and so no metrics."""
    alerts = [alert for alert in ALERTS if not (is_hibernated and alert.name == NOT_OBSERVED)]
    alerts += PROXY_ALERTS if group.spec.proxy.replicas else ()
    rules = [_rule(group, alert) for alert in alerts]
    return {"name": f"gantry-{group.metadata.name}", "interval": SCRAPE_INTERVAL, "rules": rules}


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
        "for": alert.for_duration,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description},
    }


def monitors(group: BrokerGroup, facts: Facts) -> list[Object]:
    """Return the PodMonitor and the PrometheusRule, as far as the cluster has these kinds."""
    name, own_labels = group.metadata.name, labels(group, names.BROKER)
    found = []
    if facts.has_pod_monitor:
        found.append(make_object(group, (API, "PodMonitor"), name, own_labels, {"spec": _pod_monitor(group)}))
    if facts.has_prometheus_rule:
        rules = {"groups": [rule_group(group, is_hibernated=facts.is_hibernated)]}
        found.append(make_object(group, (API, "PrometheusRule"), name, own_labels, {"spec": rules}))
    return found


def _pod_monitor(group: BrokerGroup) -> Object:
    token = {"name": names.secret_name(group.metadata.name), "key": "read-token"}
    endpoint: Object = {
        "port": "http",
        "path": "/metrics",
        "interval": SCRAPE_INTERVAL,
        "authorization": {"type": "Bearer", "credentials": token},
    }
    if group.spec.access.has_tls:
        # A certificate need not contain the addresses of pods. The token that is sent can only read metrics.
        endpoint |= {"scheme": "https", "tlsConfig": {"insecureSkipVerify": True}}
    endpoints, chosen = [endpoint], selector(group, names.BROKER)
    if not group.spec.proxy.replicas:
        return _monitor({"matchLabels": chosen}, endpoints)
    # An endpoint is used for the pods that have a port of its name.
    endpoints.append({"port": names.PROXY_HTTP_PORT_NAME, "path": "/metrics", "interval": SCRAPE_INTERVAL})
    components = {
        "key": names.COMPONENT_LABEL,
        "operator": "In",
        "values": [chosen.pop(names.COMPONENT_LABEL), names.PROXY],
    }
    return _monitor({"matchLabels": chosen, "matchExpressions": [components]}, endpoints)


def _monitor(pods: Object, endpoints: list[Object]) -> Object:
    return {
        "selector": pods,
        "podTargetLabels": [names.GROUP_LABEL, names.SHARD_LABEL, names.ROLE_LABEL],
        "podMetricsEndpoints": endpoints,
    }
