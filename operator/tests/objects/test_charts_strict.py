"""The schemas and alerts of the charts beyond the defaults: only parts for pods are open, and alerts fire."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts_scene import GROUP, MONITORING, OPERATOR, documents

OPEN = {
    OPERATOR: {
        *("/global", "/resources/requests", "/resources/limits", "/tolerations/items", "/affinity"),
    },
    GROUP: {
        *("/global", "/spec/resources", "/spec/template/tolerations/items", "/spec/template/affinity"),
        "/spec/template/topologySpreadConstraints/items",
        "/spec/retention/server/resources",
        *("/spec/proxy/resources", "/spec/proxy/template/tolerations/items", "/spec/proxy/template/affinity"),
        "/spec/proxy/template/topologySpreadConstraints/items",
    },
}
"""Helm's own values, and those that are passed to pods, which the API server validates."""


def schema_of(chart: Path) -> dict[str, Any]:
    """Return the schema of the values of a chart."""
    found: dict[str, Any] = json.loads((chart / "values.schema.json").read_text())
    return found


def objects_in(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object in a schema, with its path."""
    if schema.get("type") == "object" or "properties" in schema:
        yield path or "/", schema
    for name, inner in {**schema.get("properties", {}), **schema.get("definitions", {})}.items():
        yield from objects_in(inner, f"{path}/{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from objects_in(schema[name], f"{path}/{name}")


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_schemas_are_closed(chart: Path) -> None:
    """Each object names its fields, or has a schema for all of them; so typing errors are refused at every level."""
    found = {path for path, one in objects_in(schema_of(chart)) if one.get("additionalProperties", True) is True}

    assert found == OPEN[chart]


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_schema_and_defaults_have_the_same_keys(chart: Path) -> None:
    """Every value of the top level has a default, and every default there is in the schema."""
    values = yaml.safe_load((chart / "values.yaml").read_text())

    assert set(schema_of(chart)["properties"]) - {"global"} == set(values)


@pytest.mark.needs_helm
@pytest.mark.parametrize("name", ["gantry-operator", "other"], ids=["usual name", "another name"])
def test_dashboard_is_valid_for_grafana(name: str) -> None:
    """It is checked as it is in the ConfigMap: panels have unique numbers and do not overlap."""
    found = documents(OPERATOR, "--set", "monitoring.dashboard=true", release=name)
    [held] = [one["data"] for one in found if one["kind"] == "ConfigMap"]
    [text] = held.values()
    board = json.loads(text)
    panels = board["panels"]
    places = [panel["gridPos"] for panel in panels]

    assert board["uid"] and board["title"] and board["schemaVersion"] >= 36
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(at["x"] >= 0 and at["x"] + at["w"] <= 24 and at["h"] > 0 for at in places)
    cells = sorted((y, x) for at in places for y in range(at["y"], at["y"] + at["h"])
                   for x in range(at["x"], at["x"] + at["w"]))  # fmt: skip
    assert all(one != other for one, other in pairwise(cells))
    for panel in panels:
        if panel["type"] != "row":
            assert panel["title"] and panel["description"] and panel["targets"], panel["id"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}


# -- alerts about the operator -----------------------------------------------------------------------------------------


def rules_in(folder: Path) -> Path:
    """Write the alerting rules of the chart to a file as Prometheus reads it, and return its path."""
    [rule] = [one for one in documents(OPERATOR, *MONITORING) if one["kind"] == "PrometheusRule"]
    path = folder / "rules.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]))
    return path


def promtool(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run Prometheus' own tool in a folder, and return the result."""
    return subprocess.run(["promtool", *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.needs_helm
@pytest.mark.needs_prometheus
def test_operator_rules_are_valid(tmp_path: Path) -> None:
    """Prometheus accepts the rules of the chart."""
    result = promtool("check", "rules", "--lint-fatal", str(rules_in(tmp_path)), folder=tmp_path)

    assert result.returncode == 0, result.stderr


@pytest.mark.needs_helm
@pytest.mark.needs_prometheus
@pytest.mark.parametrize(
    ("samples", "at", "fires"),
    [
        ("1x60", "10m", False),
        ("0x60", "4m", False),
        ("0x60", "10m", True),
        ("_x60", "10m", True),
        ("1x20 0x40", "9m", False),
        ("1x20 0x40", "11m", True),
    ],
    ids=["up", "down shortly", "down", "never seen", "down since 4 minutes", "down since 6 minutes"],
)
def test_missing_operator_fires_an_alert(samples: str, at: str, fires: bool, tmp_path: Path) -> None:
    """It fires after five minutes, also if Prometheus has never scraped one; other namespaces do not count."""
    rules_in(tmp_path)
    labels = {"severity": "critical", "namespace": "gantry-system"}
    [rule] = yaml.safe_load((tmp_path / "rules.yaml").read_text())["groups"][0]["rules"]
    alert = {"exp_labels": labels, "exp_annotations": rule["annotations"]}
    other = {"series": 'up{namespace="other",container="operator",pod="o"}', "values": "1x60"}
    mine = {"series": 'up{namespace="gantry-system",container="operator",pod="a"}', "values": samples}
    test = {
        "interval": "15s",
        "input_series": [mine, other],
        "alert_rule_test": [{"eval_time": at, "alertname": rule["alert"], "exp_alerts": [alert] if fires else []}],
    }
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(document))

    result = promtool("test", "rules", "test.yaml", folder=tmp_path)

    assert result.returncode == 0, result.stdout + result.stderr
