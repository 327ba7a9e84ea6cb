"""The Grafana dashboard of broker groups, generated from a table of panels with their expressions and units.

The first row shows the masters and the data at risk, the following rows the details. Every expression selects one group
of one namespace by variables. A test checks that sidecars export the metrics (docs/sidecar.md).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

S = 'namespace="$namespace",gantry_dev_group="$group"'
"""The label selector of every expression; short, because the expressions are long."""

COLUMNS = 24
"""The width of the dashboard, in Grafana's grid."""

HEIGHT = 7
"""The height of a panel, in rows of that grid."""


class Panel(NamedTuple):
    """One panel of the dashboard."""

    title: str
    expression: str
    legend: str
    """The name of a series, with its labels in {{}}."""

    unit: str
    """Grafana's name of the unit, such as `bytes`."""

    text: str
    """The description that is shown beside the title."""


ROWS: dict[str, tuple[Panel, ...]] = {
    "Durability": (
        Panel(
            "Masters",
            f'max by (gantry_dev_shard, pod) (gantry_role{{{S},role="master"}} == 1)',
            "shard {{gantry_dev_shard}}: {{pod}}",
            "none",
            "The pod of the master of each shard.",
        ),
        Panel(
            "Data at risk on loss of the master's machine",
            f'gantry_at_risk_bytes{{{S},loss="master"}}',
            "{{pod}}",
            "bytes",
            "Data that no other broker has yet.",
        ),
        Panel(
            "Data at risk in a power failure",
            f'gantry_at_risk_bytes{{{S},loss="machine"}}',
            "{{pod}}",
            "bytes",
            "Data that is not flushed yet.",
        ),
    ),
    "Replication": (
        Panel(
            "Replication lag",
            f"gantry_slave_behind_bytes{{{S}}}",
            "{{pod}} slave {{slave}}",
            "bytes",
            "Lag of each slave, as measured by its master.",
        ),
        Panel(
            "Slave last seen",
            f"gantry_slave_silent_seconds{{{S}}}",
            "{{pod}} slave {{slave}}",
            "s",
            "Time since the last acknowledgement of each slave.",
        ),
        Panel(
            "Epoch",
            f"max by (gantry_dev_shard) (gantry_epoch{{{S}}})",
            "shard {{gantry_dev_shard}}",
            "none",
            "Increases with each promotion.",
        ),
    ),
    "Work": (
        Panel("Messages in", f"sum by (pod) (rocketmq_broker_tps{{{S}}})", "{{pod}}", "ops", "Per second."),
        Panel("Messages out", f"sum by (pod) (rocketmq_broker_qps{{{S}}})", "{{pod}}", "ops", "Per second."),
        Panel("Connections", f"gantry_connections{{{S}}}", "{{pod}}", "short", "Client connections."),
        Panel("Held sends", f"gantry_held_sends{{{S}}}", "{{pod}}", "short", "Sends that wait for a flush or a slave."),
        Panel("Sends refused", f"gantry_sends_refused{{{S}}}", "{{pod}}", "none", "1 while a broker refuses sends."),
        Panel(
            "Refused requests",
            f"sum by (pod, reason) (rate(gantry_refused_requests_total{{{S}}}[5m]))",
            "{{pod}} {{reason}}",
            "ops",
            "Per second, by reason.",
        ),
    ),
    "Consumers": (
        Panel(
            "Oldest waiting message",
            f"max by (group, topic) (gantry_consumer_lag_seconds{{{S}}})",
            "{{group}} {{topic}}",
            "s",
            "For how long the oldest message that a group has not consumed has waited.",
        ),
        Panel(
            "Waiting messages",
            f"sum by (group, topic) (gantry_consumer_lag_messages{{{S}}})",
            "{{group}} {{topic}}",
            "short",
            "Messages that a group has not consumed, in all shards.",
        ),
        Panel(
            "Groups that are behind",
            f"max by (group, topic) (gantry_consumer_group_behind{{{S}}}) == 1",
            "{{group}} {{topic}}",
            "none",
            "The oldest message waits for more than five minutes, and its wait grows.",
        ),
    ),
    "Proxies": (
        Panel(
            "Calls",
            f"sum by (pod, method) (rate(gantry_proxy_calls_total{{{S}}}[5m]))",
            "{{pod}} {{method}}",
            "ops",
            "Ended calls of gRPC clients per second.",
        ),
        Panel(
            "Failed calls",
            f'sum by (pod, code) (rate(gantry_proxy_calls_total{{{S},code!="OK"}}[5m]))',
            "{{pod}} {{code}}",
            "ops",
            "Per second, by status code. A receive without a message is MESSAGE_NOT_FOUND.",
        ),
        Panel("Clients", f"gantry_proxy_clients{{{S}}}", "{{pod}}", "short", "Connected gRPC clients."),
        Panel(
            "Messages in flight",
            f"gantry_proxy_messages_in_flight{{{S}}}",
            "{{pod}}",
            "short",
            "Messages whose invisible time the proxy renews.",
        ),
    ),
    "Resources": (
        Panel(
            "Disk",
            f'gantry_disk_bytes{{{S},state="used"}} / ignoring (state) gantry_disk_bytes{{{S},state="total"}}',
            "{{pod}}",
            "percentunit",
            "Sends are refused at 90 percent usage.",
        ),
        Panel(
            "Free write buffers",
            f'gantry_write_buffers{{{S},state="free"}}',
            "{{pod}}",
            "short",
            "At 0, sends are refused and clients retry.",
        ),
        Panel(
            "Recovery",
            f"gantry_recovery_bytes{{{S}}}",
            "{{pod}} {{state}}",
            "bytes",
            "Progress of reading the log at start.",
        ),
    ),
}
"""The panels of each row, by the row's title."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as a document."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"type": "row", "title": title, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}, "id": len(panels) + 1}
        )
        y += 1
        for number, panel in enumerate(row):
            width = COLUMNS // 3
            grid_position = {"h": HEIGHT, "w": width, "x": number % 3 * width, "y": y + number // 3 * HEIGHT}
            panels.append(_panel(panel, grid_position, len(panels) + 1))
        y += -(-len(row) // 3) * HEIGHT
    return {
        "title": "Gantry broker group",
        "uid": "gantry-group",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["gantry", "rocketmq"],
        "templating": {"list": _variables()},
        "panels": panels,
    }


def expressions() -> list[str]:
    """Return all expressions, with a value for each variable."""
    found = [panel.expression for row in ROWS.values() for panel in row]
    return [text.replace("$namespace", "shop").replace("$group", "orders") for text in found]


def dashboard_text() -> str:
    """Return the text of the dashboard file."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _panel(panel: Panel, grid_position: dict[str, int], number: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": grid_position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "$datasource"}
    queries = {
        "namespace": "label_values(gantry_epoch, namespace)",
        "group": 'label_values(gantry_epoch{namespace="$namespace"}, gantry_dev_group)',
    }
    queried = [
        {"name": name, "type": "query", "datasource": source, "query": query, "refresh": 2}
        for name, query in queries.items()
    ]
    return [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *queried]
