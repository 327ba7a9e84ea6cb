"""The Grafana dashboard of broker groups, from a table: what is looked at, by which expression, in which unit.

Rows go from what matters most, who is the master and what would be lost, to what explains it. Every expression asks for
one group of one namespace, chosen above. A test compares the metrics with those that sidecars have (docs/sidecar.md).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

S = 'namespace="$namespace",gantry_dev_group="$group"'
COLUMNS = 24
HEIGHT = 7


class Panel(NamedTuple):
    """One picture."""

    title: str
    expression: str
    legend: str
    unit: str
    text: str


ROWS: dict[str, tuple[Panel, ...]] = {
    "Safe?": (
        Panel(
            "Masters",
            f'max by (gantry_dev_shard, pod) (gantry_role{{{S},role="master"}} == 1)',
            "shard {{gantry_dev_shard}}: {{pod}}",
            "none",
            "One line for each shard, always.",
        ),
        Panel(
            "At risk if the master's machine is lost",
            f'gantry_at_risk_bytes{{{S},loss="master"}}',
            "{{pod}}",
            "bytes",
            "What no other broker has yet.",
        ),
        Panel(
            "At risk in a power cut",
            f'gantry_at_risk_bytes{{{S},loss="machine"}}',
            "{{pod}}",
            "bytes",
            "What is not on its disk yet.",
        ),
    ),
    "Replication": (
        Panel(
            "Slaves behind",
            f"gantry_slave_behind_bytes{{{S}}}",
            "{{pod}} slave {{slave}}",
            "bytes",
            "As masters see it.",
        ),
        Panel(
            "Slaves silent",
            f"gantry_slave_silent_seconds{{{S}}}",
            "{{pod}} slave {{slave}}",
            "s",
            "Since they were heard of.",
        ),
        Panel(
            "Epoch",
            f"max by (gantry_dev_shard) (gantry_epoch{{{S}}})",
            "shard {{gantry_dev_shard}}",
            "none",
            "Each promotion is a step.",
        ),
    ),
    "Work": (
        Panel("Messages in", f"sum by (pod) (rocketmq_broker_tps{{{S}}})", "{{pod}}", "ops", "Per second."),
        Panel("Messages out", f"sum by (pod) (rocketmq_broker_qps{{{S}}})", "{{pod}}", "ops", "Per second."),
        Panel(
            "Lag of consumers",
            f"sum by (group) (rocketmq_group_diff{{{S}}})",
            "{{group}}",
            "short",
            "Messages that wait.",
        ),
        Panel("Connections", f"gantry_connections{{{S}}}", "{{pod}}", "short", "Of clients."),
        Panel("Sends that wait", f"gantry_parked_sends{{{S}}}", "{{pod}}", "short", "For the disk or a slave."),
        Panel("Sends refused", f"gantry_sends_refused{{{S}}}", "{{pod}}", "none", "1 while a broker takes nothing."),
        Panel(
            "Refused requests",
            f"sum by (pod, reason) (rate(gantry_refused_requests_total{{{S}}}[5m]))",
            "{{pod}} {{reason}}",
            "ops",
            "Per second, by reason.",
        ),
    ),
    "Stock": (
        Panel(
            "Disk",
            f'gantry_disk_bytes{{{S},state="used"}} / ignoring (state) gantry_disk_bytes{{{S},state="total"}}',
            "{{pod}}",
            "percentunit",
            "Sends are refused at 90 percent.",
        ),
        Panel(
            "Free write buffers",
            f'gantry_write_buffers{{{S},state="free"}}',
            "{{pod}}",
            "short",
            "0: senders are asked to come again.",
        ),
        Panel(
            "Recovery",
            f"gantry_recovery_bytes{{{S}}}",
            "{{pod}} {{state}}",
            "bytes",
            "Of the log, while it is checked.",
        ),
    ),
}


def dashboard() -> dict[str, Any]:
    """The whole document."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(
            {"type": "row", "title": title, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": y}, "id": len(panels) + 1}
        )
        y += 1
        for number, panel in enumerate(row):
            width = COLUMNS // 3
            place = {"h": HEIGHT, "w": width, "x": number % 3 * width, "y": y + number // 3 * HEIGHT}
            panels.append(_panel(panel, place, len(panels) + 1))
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
    """Every expression in it, with a value for each variable."""
    found = [panel.expression for row in ROWS.values() for panel in row]
    return [text.replace("$namespace", "shop").replace("$group", "orders") for text in found]


def dashboard_text() -> str:
    """As the file has it."""
    return json.dumps(dashboard(), indent=2) + "\n"


def _panel(panel: Panel, place: dict[str, int], number: int) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "id": number,
        "title": panel.title,
        "description": panel.text,
        "datasource": {"type": "prometheus", "uid": "$datasource"},
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": panel.expression, "legendFormat": panel.legend}],
    }


def _variables() -> list[dict[str, Any]]:
    source = {"type": "prometheus", "uid": "$datasource"}
    queries = {
        "namespace": "label_values(gantry_epoch, namespace)",
        "group": 'label_values(gantry_epoch{namespace="$namespace"}, gantry_dev_group)',
    }
    asked = [
        {"name": name, "type": "query", "datasource": source, "query": query, "refresh": 2}
        for name, query in queries.items()
    ]
    return [{"name": "datasource", "type": "datasource", "query": "prometheus"}, *asked]
