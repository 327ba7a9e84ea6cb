"""Brokers and sidecars accept the rendered configuration: it is checked with their own parsers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from objects_scene import EVERYTHING, broker_sets, containers, group, of_kind, rendered

from gantry_admin.__main__ import parser
from gantry_broker.server.core.live_settings import CHANGEABLE, check_changeable
from gantry_broker.setting_keys import broker_settings, parse_properties_file
from gantry_cli.pod.member import merge_conf
from gantry_operator.objects import configuration, names
from gantry_operator.objects.base import Object

SPECS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "async": {"replication": {"mode": "Async"}, "slaves": 0, "flush": {"mode": "Sync"}},
    "small files": {"writeBuffer": {"medium": "Memory", "segmentSize": "1Mi"}},
}


def variables(container: Object) -> dict[str, str]:
    """Return the environment variables of a container that have a plain value."""
    return {one["name"]: one["value"] for one in container["env"] if "value" in one}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_broker_accepts_its_configuration(spec: dict[str, Any]) -> None:
    """Every key exists, no settings contradict each other, and the broker waits for its role."""
    objects = rendered(group(**spec))
    for name, one in broker_sets(objects).items():
        conf = variables(containers(one["spec"]["template"])["broker"])["GANTRY_BROKER_CONF"]
        live = of_kind(objects, "ConfigMap")[name.rpartition("-")[0]]["data"]["live.conf"]
        own = {"brokerId": "2", "brokerIP1": "10.0.0.1", "brokerMasterIP": "10.0.0.2"}

        settings = broker_settings(parse_properties_file(merge_conf(conf, own)))

        assert settings.ha.role_at_start.value == "UNASSIGNED"
        assert (settings.listen_port, settings.fast_listen_port) == (names.BROKER_PORT, names.FAST_PORT)
        assert settings.ha_listen_port == names.REPLICATION_PORT
        assert settings.ha.secret_path
        assert settings.live_settings_path == f"{configuration.CONFIGURATION}/live.conf"
        check_changeable(parse_properties_file(live))
        assert not set(parse_properties_file(conf)) & set(parse_properties_file(live))


def test_live_keys_are_those_that_a_running_broker_reloads() -> None:
    """Another key here would never take effect; live keys that are missing here need a restart on purpose."""
    assert configuration.LIVE_KEYS <= CHANGEABLE
    assert {"maxMessageSize", "shutdownTimeout"} == CHANGEABLE - configuration.LIVE_KEYS


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_sidecar_accepts_its_options(spec: dict[str, Any]) -> None:
    """Its own parser accepts the arguments after `gantry pod sidecar --`; ports and files are those of the pod."""
    for one in broker_sets(rendered(group(**spec))).values():
        container = containers(one["spec"]["template"])["sidecar"]
        pod, kind, dashes, *arguments = container["args"]
        assert (pod, kind, dashes) == ("pod", "sidecar", "--")

        options = parser().parse_args(arguments)

        assert options.listen.endswith(f":{names.SIDECAR_PORT}")
        folders = [mount["mountPath"] for mount in container["volumeMounts"]]
        for path in (options.page, options.control, options.store, options.token_file, options.read_token_file):
            assert any(str(path).startswith(f"{folder}/") for folder in folders), path


def test_every_path_in_a_configuration_is_mounted() -> None:
    """No file is expected where no volume is mounted."""
    for one in of_kind(rendered(group(**EVERYTHING)), "StatefulSet").values():
        for container in one["spec"]["template"]["spec"]["containers"]:
            folders = [mount["mountPath"] for mount in container["volumeMounts"]]
            text = "\n".join(variables(container).values())
            for path in re.findall(r"=(/\S+)", text):
                assert any(f"{path}/".startswith(f"{folder}/") for folder in folders), path
