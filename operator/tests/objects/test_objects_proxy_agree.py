"""The proxy accepts the rendered settings: they are checked with its own parser."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from charts_scene import ROOT
from objects_scene import EVERYTHING, group
from test_charts_fresh import metrics_in

from gantry_operator.objects import names
from gantry_operator.objects.proxy import BASE_BYTES, CALL_BYTES, CLIENT_BYTES, proxy_resources, settings_text
from gantry_proxy import settings as proxy_settings
from gantry_remoting.setting_kinds import SettingsError
from gantry_spec.manifest.proxy import ProxyLimits

TWO: dict[str, Any] = {"proxy": {"replicas": 2}}
SECURE = {"access": {"aclSecret": "accounts", "tlsSecret": "certificates"}}
SPECS: dict[str, dict[str, Any]] = {
    "defaults": TWO,
    "everything": EVERYTHING,
    "secure": TWO | SECURE | {"broker": {"aclMode": "STRICT"}},
    "client certificates": {"proxy": {"replicas": 1, "tls": {"secret": "grpc", "requiresClientCertificate": True}}},
    "small": {"proxy": {"replicas": 1, "limits": {"clients": 1, "calls": 1, "longPoll": "5s", "invisibleTime": "10s"}}},
    "large": {"proxy": {"replicas": 1, "limits": {"messageSize": "64Mi", "calls": 1_000_000}}},
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_proxy_accepts_its_settings(spec: dict[str, Any]) -> None:
    """Every key exists, and no settings contradict each other; ports are those of the pod."""
    text = settings_text(group(**spec))

    settings = proxy_settings.parse_settings(json.loads(text))

    assert settings.listen.address.endswith(f":{names.PROXY_PORT}")
    assert settings.listen.http_address.endswith(f":{names.PROXY_HTTP_PORT}")
    assert all(server.endswith(":9876") for server in settings.name_servers)


def test_proxy_refuses_other_settings() -> None:
    """The twin: the parser would find a key that the proxy does not have."""
    document = json.loads(settings_text(group(**TWO)))
    document["limits"]["novelty"] = 1

    with pytest.raises(SettingsError, match="novelty"):
        proxy_settings.parse_settings(document)


def test_defaults_of_limits_are_those_of_the_proxy() -> None:
    """Only the limits that a pod's memory follows from are lower, and the largest request is the proxy's own."""
    rendered = proxy_settings.parse_settings(json.loads(settings_text(group(**TWO)))).limits

    own = dataclasses.asdict(proxy_settings.ProxySettings().limits)
    ours = dataclasses.asdict(rendered)
    assert {name for name in own if own[name] != ours[name]} == {"clients_max", "calls_max", "connections_max"}
    assert all(ours[name] <= own[name] for name in ours)


def test_memory_of_clients_and_calls_is_that_of_the_proxy() -> None:
    """The proxy's settings state what an idle client and a long poll cost, and the memory of a pod follows from it."""
    source = " ".join(inspect.getsource(type(proxy_settings.ProxySettings().limits)).split())

    assert f"Plan for {CLIENT_BYTES >> 10} KiB for an idle one" in source
    assert f"a long poll costs about {CALL_BYTES >> 10} KiB" in source
    least = ProxyLimits().clients * CLIENT_BYTES + ProxyLimits().calls * CALL_BYTES
    assert proxy_resources(group(**TWO).spec)["limits"]["memory"] == f"{-(-(least + BASE_BYTES) // (1 << 20))}Mi"


def test_manual_names_all_metrics_of_the_proxy() -> None:
    """Alerts and the dashboard use only metrics of the manual."""
    folder = Path(inspect.getfile(proxy_settings)).parent
    names_in_code = {
        name for path in folder.glob("*.py") for name in re.findall(r'"(gantry_proxy_[a-z_]+)"', path.read_text())
    }

    page = (ROOT / "docs/kubernetes-proxy.md").read_text()
    assert names_in_code and names_in_code == metrics_in(page)
