"""What Prometheus' operator is told, where there is one: whom to ask, and what is worth an alert.

Both kinds are somebody else's, so they are rendered only when the cluster knows them. Sidecars want a token: the one
that may look and not order, from the group's Secret.
"""

from __future__ import annotations

from gantry_operator.objects import names
from gantry_operator.objects.alerts import OFTEN_S, rule_group
from gantry_operator.objects.base import Object, labels, made, selector
from gantry_operator.objects.facts import Facts
from gantry_spec.manifest.group import BrokerGroup

API = "monitoring.coreos.com/v1"


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
