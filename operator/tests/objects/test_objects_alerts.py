"""Alerts fire for their reasons and not otherwise, as Prometheus' own tool evaluates them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import dashboard
import msgspec
import pytest
import yaml
from charts_scene import ROOT
from objects_scene import facts, group
from test_charts_fresh import known_metrics, metrics_in

from gantry_operator.objects.configuration import startup_conf
from gantry_operator.objects.monitoring import ALERTS, PROXY_ALERTS, monitors, rule_group
from gantry_spec.manifest.errors import ManifestError
from gantry_spec.manifest.parts import Medium

S = 'namespace="shop",gantry_dev_group="orders",gantry_dev_shard="0"'
MIB = 1 << 20
LONG = "x40"
"""Forty more samples of the same value: ten minutes with an interval of 15 s."""


def series(name: str, pod: str, values: str, **labels: str) -> dict[str, str]:
    """Return one input series of promtool."""
    more = "".join(f',{key}="{value}"' for key, value in labels.items())
    return {"series": f'{name}{{{S},pod="{pod}"{more}}}', "values": values}


def master(pod: str, is_master: int) -> dict[str, str]:
    """Return the series of a pod's role."""
    return series("gantry_role", pod, f"{is_master}+0{LONG}", role="master")


ALL_ALERTS = (*ALERTS, *PROXY_ALERTS)
PROXIES = group(proxy={"replicas": 2})
"""A group with proxies, whose rules contain all alerts."""


def of_proxy(name: str, values: str, **labels: str) -> dict[str, str]:
    """Return one input series of a proxy, which is in no shard."""
    more = "".join(f',{key}="{value}"' for key, value in labels.items())
    chosen = f'namespace="shop",gantry_dev_group="orders",pod="orders-proxy-1"{more}'
    return {"series": f"{name}{{{chosen}}}", "values": values}


WELL = [
    of_proxy("up", f"1+0{LONG}", container="proxy"),
    of_proxy("gantry_proxy_ready", f"1+0{LONG}"),
    of_proxy("gantry_proxy_calls_refused_total", f"7+0{LONG}"),
    master("orders-0-master-0", 1),
    master("orders-0-slave-0", 0),
    series("gantry_broker_ready", "orders-0-master-0", f"1+0{LONG}"),
    series("gantry_broker_ready", "orders-0-slave-0", f"1+0{LONG}"),
    series("gantry_broker_loop_running", "orders-0-master-0", f"1+0{LONG}"),
    series("up", "orders-0-master-0", f"1+0{LONG}", container="sidecar"),
    series(
        "gantry_at_risk_bytes", "orders-0-master-0", f"{65 * MIB}+0{LONG}", loss="master"
    ),  # flushed, not replicated
    series("gantry_ledger_at_risk_bytes", "orders-0-master-0", f"{MIB}+0{LONG}", fault="machine"),
    series("gantry_ledger_at_risk_bytes", "orders-0-master-0", f"{65 * MIB}+0{LONG}", fault="disk"),
    series("gantry_slave_behind_bytes", "orders-0-master-0", f"{MIB}+0{LONG}", slave="2"),
    series("gantry_slave_silent_seconds", "orders-0-master-0", f"1+0{LONG}", slave="2"),
    series("gantry_sends_refused", "orders-0-master-0", f"0+0{LONG}"),
    series("gantry_log_lost_bytes", "orders-0-master-0", f"0+0{LONG}", state="missing"),
    series("gantry_damaged_messages", "orders-0-master-0", f"0+0{LONG}"),
    series("gantry_disk_bytes", "orders-0-master-0", f"50+0{LONG}", state="used"),
    series("gantry_disk_bytes", "orders-0-master-0", f"100+0{LONG}", state="total"),
    series("gantry_write_buffers", "orders-0-master-0", f"1+0{LONG}", state="free"),
    series("gantry_write_buffers", "orders-0-master-0", f"3+0{LONG}", state="total"),
    series("gantry_consumer_lag_seconds", "orders-0-master-0", f"4000+0{LONG}", group="billing", topic="t", queue="0"),
    series("gantry_consumer_group_behind", "orders-0-master-0", f"0+0{LONG}", group="billing", topic="t"),
    series("gantry_certificate_ends_timestamp_seconds", "orders-0-master-0", f"{10**9}+0{LONG}"),
]
"""A healthy group; the clock of a test starts at 0."""

CHANGES: dict[str, list[dict[str, str]]] = {
    "GantryProxyDown": [of_proxy("up", f"0+0{LONG}", container="proxy")],
    "GantryProxyNotReady": [of_proxy("gantry_proxy_ready", f"0+0{LONG}")],
    "GantryProxyRefusesCalls": [of_proxy("gantry_proxy_calls_refused_total", f"7+1{LONG}")],
    "GantryNoMaster": [master("orders-0-master-0", 0)],
    "GantryGroupNotObserved": [],
    "GantryTwoMasters": [master("orders-0-slave-0", 1)],
    "GantryBrokerNotReady": [series("gantry_broker_ready", "orders-0-slave-0", f"0+0{LONG}")],
    "GantryBrokerStalled": [series("gantry_broker_loop_running", "orders-0-master-0", f"0+0{LONG}")],
    "GantrySidecarDown": [series("up", "orders-0-master-0", f"0+0{LONG}", container="sidecar")],
    "GantryTooMuchAtRisk": [
        series("gantry_ledger_at_risk_bytes", "orders-0-master-0", f"{65 * MIB}+0{LONG}", fault="machine")
    ],
    "GantrySlaveFarBehind": [
        series("gantry_slave_behind_bytes", "orders-0-master-0", f"{257 * MIB}+0{LONG}", slave="2")
    ],
    "GantrySlaveSilent": [series("gantry_slave_silent_seconds", "orders-0-master-0", f"31+0{LONG}", slave="2")],
    "GantrySendsRefused": [series("gantry_sends_refused", "orders-0-master-0", f"1+0{LONG}")],
    "GantryLogDataMissing": [series("gantry_log_lost_bytes", "orders-0-master-0", f"{MIB}+0{LONG}", state="missing")],
    "GantryMessagesDamaged": [series("gantry_damaged_messages", "orders-0-slave-0", f"2+0{LONG}")],
    "GantryDiskFillsUp": [series("gantry_disk_bytes", "orders-0-master-0", f"81+0{LONG}", state="used")],
    "GantryBufferExhausted": [series("gantry_write_buffers", "orders-0-master-0", f"0+0{LONG}", state="free")],
    "GantryConsumerGroupBehind": [
        series("gantry_consumer_group_behind", "orders-0-master-0", f"1+0{LONG}", group="billing", topic="t")
    ],
    "GantryCertificateEnds": [
        series("gantry_certificate_ends_timestamp_seconds", "orders-0-master-0", f"{6 * 86400}+0x300")
    ],
}
"""The changed series with which an alert should fire."""


def with_changes(name: str) -> list[dict[str, str]]:
    """Return the inputs of a group with one problem."""
    if name == "GantryGroupNotObserved":
        return [{"series": 'gantry_role{namespace="shop",gantry_dev_group="bills",pod="x"}', "values": f"1+0{LONG}"}]
    changed = {one["series"]: one for one in [*WELL, *CHANGES[name]]}
    return list(changed.values())


def fired(folder: Path, inputs: list[dict[str, str]], at: str = "10m") -> set[str]:
    """Return which alerts fire in promtool: those for which the expectation of silence fails."""
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [rule_group(PROXIES)]}))
    expected = [{"eval_time": at, "alertname": alert.name, "exp_alerts": []} for alert in ALL_ALERTS]
    test: dict[str, Any] = {"interval": "15s", "input_series": inputs, "alert_rule_test": expected}
    document = {"rule_files": ["rules.yaml"], "evaluation_interval": "15s", "tests": [test]}
    (folder / "test.yaml").write_text(yaml.safe_dump(document))
    words = ["promtool", "test", "rules", "test.yaml"]
    result = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    found = set(re.findall(r"alertname: (\w+), time:", result.stderr))
    assert bool(found) == (result.returncode != 0), result.stderr
    return found


@pytest.mark.needs_prometheus
def test_rules_are_valid(tmp_path: Path) -> None:
    """Prometheus accepts them, and every expression of the dashboard."""
    queries = [{"record": f"look:{number}", "expr": text} for number, text in enumerate(dashboard.expressions())]
    groups = [rule_group(PROXIES), {"name": "dashboard", "rules": queries}]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))

    result = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", "rules.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert f"{len(ALL_ALERTS) + len(queries)} rules found" in result.stdout


@pytest.mark.needs_prometheus
def test_healthy_group_fires_no_alert(tmp_path: Path) -> None:
    """A problem of another group does not fire one either."""
    other = [{**one, "series": one["series"].replace('"orders"', '"bills"')} for one in CHANGES["GantrySendsRefused"]]

    assert fired(tmp_path, [*WELL, *other]) == set()


@pytest.mark.verify(quick=12)
@pytest.mark.needs_prometheus
@pytest.mark.parametrize("name", sorted(CHANGES))
def test_alert_fires_for_its_reason(name: str, tmp_path: Path) -> None:
    """With one problem in a healthy group its alert fires, and no other one that does not apply."""
    found = fired(tmp_path, with_changes(name), at="65m" if name == "GantryCertificateEnds" else "10m")

    assert name in found
    if name != "GantryCertificateEnds":  # an hour later the rest has no samples any more
        assert found <= {name, "GantrySendsRefused"}, f"alerts fire without their reason: {found}"


def test_a_hibernated_group_has_no_alert_for_absent_metrics() -> None:
    """No pod runs, so that there are no metrics; the other alerts need some."""
    known = facts(has_prometheus_rule=True)

    def alerts(is_hibernated: bool) -> list[str]:
        hibernated = msgspec.structs.replace(known, is_hibernated=is_hibernated)
        [rule] = [one for one in monitors(group(), hibernated) if one["kind"] == "PrometheusRule"]
        return [one["alert"] for one in rule["spec"]["groups"][0]["rules"]]

    assert set(alerts(is_hibernated=False)) - set(alerts(is_hibernated=True)) == {"GantryGroupNotObserved"}


def test_every_alert_is_tested_and_documented() -> None:
    """It has a row in the table above, a paragraph in docs/alerts.md, and uses existing metrics."""
    names = [alert.name for alert in ALL_ALERTS]
    page = (ROOT / "docs/alerts.md").read_text()
    known = known_metrics()

    assert len(set(names)) == len(names)
    assert set(names) == set(CHANGES)
    assert re.findall(r"^## (Gantry\w+)$", page, re.MULTILINE) == [*names, "GantryOperatorAbsent"]
    for alert in ALL_ALERTS:
        assert metrics_in(alert.expression) <= known, alert.name


def test_alerts_of_proxies_are_those_of_groups_that_have_some() -> None:
    """A group without proxies has no rule about them."""

    def alerts(**spec: Any) -> list[str]:
        return [rule["alert"] for rule in rule_group(group(**spec))["rules"]]

    assert set(alerts(proxy={"replicas": 1})) - set(alerts()) == {alert.name for alert in PROXY_ALERTS}


def test_write_buffers_of_a_group_need_no_alert() -> None:
    """They are never in anonymous memory, in which a crash of the broker loses them.

    Every medium has a directory, whose key a group cannot set; a broker refuses to start with an unusable one.
    """
    for medium in Medium:
        conf = startup_conf(group(writeBuffer={"medium": str(medium)}), 0)
        assert ("transientStorePoolEnable=true" in conf) is ("transientStorePoolPath=/" in conf) is (medium != "Off")
    for key in ("transientStorePoolEnable", "transientStorePoolPath"):
        with pytest.raises(ManifestError, match=key):
            group(broker={key: ""})
    assert not any("gantry_write_buffer_crash_safe" in alert.expression for alert in ALERTS)


def test_alert_of_data_at_risk_names_what_waits() -> None:
    """Only restarts of slaves wait for the data at risk: a drain of the master reduces it."""
    description = next(alert.description for alert in ALERTS if alert.name == "GantryTooMuchAtRisk")
    paragraph = (ROOT / "docs/alerts.md").read_text().partition("## GantryTooMuchAtRisk")[2].partition("\n## ")[0]

    for text in (description, paragraph):
        assert "Rolling restarts of slaves wait." in text and "drain" not in text
