"""The objects of a group's gRPC proxies: apart from those of brokers, restricted, and replaced without a gap.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from charts_scene import ROOT
from objects_scene import EVERYTHING, containers, facts, group, is_selected, of_kind, pods_of, rendered

from gantry_access import AccessMode, AccountFile
from gantry_access.permissions import consume_need, metadata_need, publish_need, read_need
from gantry_operator.objects import ShardFacts, names
from gantry_operator.objects.base import Object
from gantry_operator.objects.proxy import endpoint, proxy_resources, settings_text

NAME = "orders-proxy"
PODS = "orders-proxy-pods"
"""The headless Service of the proxies' pods."""

TWO: dict[str, Any] = {"replicas": 2}
SECURE: dict[str, Any] = {"aclSecret": "accounts", "tlsSecret": "certificates"}
SPECS: dict[str, dict[str, Any]] = {
    "plain": {"proxy": TWO},
    "everything": EVERYTHING,
    "accounts of brokers": {"proxy": TWO, "access": SECURE},
    "own certificate": {"proxy": TWO | {"tls": {"secret": "grpc", "requiresClientCertificate": True}}},
}


def objects_of_proxies(**spec: Any) -> dict[str, Object]:
    """Return the objects of the proxies by kind."""
    found = [one for one in rendered(group(**spec)) if one["metadata"]["name"] == NAME]
    assert len({one["kind"] for one in found}) == len(found)
    return {one["kind"]: one for one in found}


def pod_template(**spec: Any) -> Object:
    """Return the pod template of the proxies."""
    found: Object = objects_of_proxies(**spec)["Deployment"]["spec"]["template"]
    return found


def settings(**spec: Any) -> dict[str, Any]:
    """Return the settings file of the proxies."""
    found: dict[str, Any] = json.loads(objects_of_proxies(**spec)["ConfigMap"]["data"]["proxy.yaml"])
    return found


def secrets_of(template: Object) -> dict[str, tuple[str, set[str]]]:
    """Return the mounted Secrets by volume, with their keys."""
    volumes = [one for one in template["spec"]["volumes"] if "secret" in one]
    return {
        one["name"]: (one["secret"]["secretName"], {item["key"] for item in one["secret"].get("items", [])})
        for one in volumes
    }


def test_group_without_proxies_has_no_object_for_them() -> None:
    """The default is none; removing them leaves the objects of a group that never had any."""
    plain, none = rendered(group()), rendered(group(proxy={"replicas": 0, "port": 443}))

    assert not [one for one in plain if names.PROXY in one["metadata"]["name"]]
    assert json.dumps(plain) == json.dumps(none)
    assert endpoint(group()) == ""


def test_proxies_change_no_object_of_brokers() -> None:
    """Pods of brokers and name servers are not replaced when proxies are added; only monitoring covers them, too."""
    before, after = ({(one["kind"], one["metadata"]["name"]): one for one in rendered(group(proxy=proxy))}
                     for proxy in ({}, TWO))  # fmt: skip

    assert {key for key in before if before[key] != after[key]} == {
        ("PodMonitor", "orders"),
        ("PrometheusRule", "orders"),
    }
    assert {name for _, name in after.keys() - before.keys()} == {NAME, PODS}


def test_proxies_are_replaced_without_a_gap() -> None:
    """A new proxy is ready before an old one stops; evictions take one at a time, and a single one blocks no drain."""
    found = objects_of_proxies(proxy=TWO)
    spec = found["Deployment"]["spec"]

    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1
    assert "PodDisruptionBudget" not in objects_of_proxies(proxy={"replicas": 1})


@pytest.mark.parametrize(("grace", "calls_ms"), [("45s", 35_000), ("2m", 110_000)])
def test_grace_period_is_longer_than_the_drain(grace: str, calls_ms: int) -> None:
    """The time until load balancers know, and that of running calls, end before kubelet kills the process."""
    spec = {"proxy": TWO | {"template": {"terminationGracePeriod": grace}}}
    listen, pod = settings(**spec)["listen"], pod_template(**spec)["spec"]

    assert (listen["drainDelayMs"], listen["graceMs"]) == (5_000, calls_ms)
    assert listen["drainDelayMs"] + listen["graceMs"] + 5_000 == pod["terminationGracePeriodSeconds"] * 1000
    assert listen["graceMs"] >= settings(**spec)["limits"]["pollMsMax"], "a long poll would be cut"


def test_probes_use_the_port_without_accounts() -> None:
    """The process is restarted only if it is blocked; a proxy that is not ready gets no new clients."""
    container = containers(pod_template(**EVERYTHING))[names.PROXY]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}

    assert container["args"] == ["proxy", "--config", "/etc/gantry/proxy/proxy.yaml"]
    assert ports == {"grpc": 8081, "metrics": 9081}
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {one["port"] for one in paths.values()} == {9081}
    assert [one["path"] for one in paths.values()] == ["/livez", "/livez", "/readyz"]
    assert settings(**EVERYTHING)["listen"]["httpAddress"].endswith(":9081")


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_file_in_the_settings_is_mounted(spec: dict[str, Any]) -> None:
    """Each path names a key of a Secret that is mounted there, so that a proxy does not start without it."""
    template = pod_template(**spec)
    folders = {one["mountPath"]: one["name"] for one in containers(template)[names.PROXY]["volumeMounts"]}
    keys = {name: found for name, (_, found) in secrets_of(template).items()}
    paths = re.findall(r'"(/etc/\S+)"', settings_text(group(**spec)))

    assert all(path.rpartition("/")[2] in keys[folders[path.rpartition("/")[0]]] for path in paths), paths
    assert bool(paths) is (spec != SPECS["plain"])
    assert {one["name"] for one in template["spec"]["volumes"]} == set(folders.values())


def test_proxy_has_no_secret_of_brokers_that_it_does_not_need() -> None:
    """With an account and a certificate of its own, it can read neither the brokers' account nor their key."""
    shared = secrets_of(pod_template(proxy=TWO, access=SECURE))
    own = {"credentialsSecret": "proxy-account", "tls": {"secret": "grpc"}}
    apart = secrets_of(pod_template(proxy=TWO | own, access=SECURE))

    assert shared == {
        "accounts": ("accounts", {"plain_acl.yml", "credentials"}),
        "authority": ("certificates", {"ca.crt"}),
        "certificates": ("certificates", {"tls.crt", "tls.key"}),
    }
    assert apart == {
        "accounts": ("accounts", {"plain_acl.yml"}),
        "account": ("proxy-account", {"credentials"}),
        "authority": ("certificates", {"ca.crt"}),
        "certificates": ("grpc", {"tls.crt", "tls.key"}),
    }
    assert settings(proxy=TWO | own, access=SECURE)["access"] == {
        "accountsFile": "/etc/gantry/accounts/plain_acl.yml",
        "credentialsFile": "/etc/gantry/account/credentials",
    }


def test_group_with_tls_has_no_proxies_with_plain_text() -> None:
    """Without a certificate of their own, they use that of the brokers, and connect to brokers by TLS in any case."""
    assert settings(proxy=TWO, access={"tlsSecret": "certificates"})["tls"] == {
        "certificate": "/etc/gantry/certificates/tls.crt",
        "key": "/etc/gantry/certificates/tls.key",
        "brokerAuthority": "/etc/gantry/authority/ca.crt",
        "checksBrokerHostName": False,
    }
    assert settings(proxy=TWO)["tls"] == {}
    assert "clientAuthority" in settings(**SPECS["own certificate"])["tls"]


def test_proxy_signs_as_its_brokers_require() -> None:
    """Brokers with strict signatures refuse others."""
    strict = settings(proxy=TWO, access=SECURE, broker={"aclMode": "STRICT"})["access"]

    assert strict["signature"] == "strict"
    assert "signature" not in settings(proxy=TWO, access=SECURE)["access"]


def test_service_account_of_proxies_has_no_rights() -> None:
    """No Role names it, and no token is mounted."""
    objects = rendered(group(**EVERYTHING))
    subjects = [one["name"] for binding in of_kind(objects, "RoleBinding").values() for one in binding["subjects"]]
    pod = pod_template(**EVERYTHING)["spec"]

    assert NAME in of_kind(objects, "ServiceAccount") and NAME not in subjects
    assert pod["serviceAccountName"] == NAME and pod["automountServiceAccountToken"] is False
    assert not any("serviceAccountToken" in str(volume) for volume in pod["volumes"])


def test_account_in_the_manual_may_act_for_all_clients(tmp_path: Path) -> None:
    """A proxy with this account can send to, receive from and look up every topic, and is no administrator."""
    page = (ROOT / "docs/kubernetes-proxy.md").read_text()
    [block] = re.findall(r"   ```yaml\n(   - accessKey: .*?)   ```", page, re.DOTALL)
    (tmp_path / "plain_acl.yml").write_text(f"accounts:\n{block}")
    file = AccountFile(str(tmp_path / "plain_acl.yml"), AccessMode.V1)
    file.load()

    [account] = file.accounts.by_key.values()

    needs = [
        publish_need("any"),
        read_need("any"),
        metadata_need("any"),
        consume_need("any"),
        publish_need("%RETRY%any"),
    ]
    assert all(map(account.has_permission, needs)) and not account.is_admin


def test_edit_of_a_setting_replaces_the_pods() -> None:
    """A proxy reads its settings only when it starts, so the template has their hash; the Service's port needs none."""
    first, second = (pod_template(proxy=TWO | {"limits": {"connections": count}}) for count in (10, 20))
    moved = pod_template(proxy=TWO | {"limits": {"connections": 10}, "port": 443})

    hashes = [one["metadata"]["annotations"]["gantry.dev/configuration"] for one in (first, second)]
    assert hashes[0] != hashes[1] and first["spec"] == second["spec"], "nothing but the hash would replace the pods"
    assert moved == first


def test_service_leads_to_proxies_that_are_ready() -> None:
    """It has the port of the spec, and the one of the pod behind it."""
    service = {"type": "LoadBalancer", "loadBalancerClass": "a/b", "loadBalancerSourceRanges": ["10.0.0.0/8"]}
    one = objects_of_proxies(proxy=TWO | {"port": 443, "service": service | {"annotations": {"a": "b"}}})["Service"]

    [port] = one["spec"]["ports"]
    assert (port["port"], port["targetPort"], port["appProtocol"]) == (443, 8081, "grpc")
    assert "publishNotReadyAddresses" not in one["spec"], "a proxy that stops would get new clients"
    assert {name: one["spec"][name] for name in service} == service
    assert one["metadata"]["annotations"] == {"a": "b"}
    plain = objects_of_proxies(proxy=TWO)["Service"]["spec"]
    assert plain["type"] == "ClusterIP" and "externalTrafficPolicy" not in plain


def test_sidecars_find_all_pods_of_proxies_by_one_name() -> None:
    """The second Service has no address of its own, so its name leads to every pod, also to one that is not ready."""
    one = of_kind(rendered(group(proxy=TWO)), "Service")[PODS]["spec"]

    assert (one["clusterIP"], one["publishNotReadyAddresses"]) == ("None", True)
    assert [port["port"] for port in one["ports"]] == [names.PROXY_HTTP_PORT]
    assert PODS not in of_kind(rendered(group()), "Service")


def test_selectors_of_proxies_and_brokers_never_overlap() -> None:
    """No Service, budget or policy of brokers selects a proxy, and none of proxies a broker, in any role."""
    objects = rendered(group(**EVERYTHING))
    own = pod_template(**EVERYTHING)["metadata"]["labels"]
    others = [labels | {names.ROLE_LABEL: role} for _, labels, _ in pods_of(objects) for role in ("master", "slave")]
    selectors = {
        (one["kind"], one["metadata"]["name"]): selector
        for one in objects
        for key in ("selector", "podSelector")
        if isinstance(selector := one.get("spec", {}).get(key), dict)
    }
    assert len(selectors) > 20
    for (kind, name), selector in selectors.items():
        if kind == "PodMonitor":  # the only object for both
            continue
        labels = selector.get("matchLabels", selector)
        chosen = {"matchLabels": labels}
        is_own = name in (NAME, PODS)
        assert is_selected(own, chosen) is is_own, (kind, name)
        assert not (is_own and any(is_selected(one, chosen) for one in others)), (kind, name)
    assert is_selected(own, {"matchLabels": {names.GROUP_LABEL: "orders"}}), "the twin: a selector by group overlaps"


def test_proxies_prefer_different_machines_and_zones() -> None:
    """The user's own rules are added. None of ours is required: more proxies than machines may run."""
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    mine = {"podAntiAffinity": {key: [{"weight": 1}]}, "nodeAffinity": {"a": "b"}}
    spread = {"topologyKey": "rack"}
    template = {"affinity": mine, "topologySpreadConstraints": [spread]}
    pod = pod_template(proxy=TWO | {"template": template})["spec"]

    ours, given = pod["affinity"]["podAntiAffinity"][key]
    assert ours["podAffinityTerm"]["topologyKey"] == "kubernetes.io/hostname" and given == {"weight": 1}
    assert pod["affinity"]["nodeAffinity"] == {"a": "b"}
    assert [one["topologyKey"] for one in pod["topologySpreadConstraints"]] == ["topology.kubernetes.io/zone", "rack"]


@pytest.mark.parametrize(
    ("resources", "requests", "limits"),
    [
        ({}, {"cpu": "100m", "memory": "873Mi"}, {"memory": "873Mi"}),
        ({"limits": {"memory": "1Gi"}}, {"cpu": "100m", "memory": "1Gi"}, {"memory": "1Gi"}),
        ({"requests": {"memory": "1Gi", "cpu": 2}}, {"memory": "1Gi", "cpu": 2}, {"memory": "1Gi"}),
    ],
    ids=["from the limits", "limit", "request"],
)
def test_memory_of_a_proxy_follows_from_its_limits(resources: Any, requests: Any, limits: Any) -> None:
    """Clients and calls up to the limits fit into it; what the user sets has precedence."""
    assert proxy_resources(group(proxy=TWO | {"resources": resources}).spec) == {"requests": requests, "limits": limits}


def test_invalid_resources_of_proxies_do_not_affect_brokers() -> None:
    """The group is rendered, and the API server refuses the Deployment alone, with its own message."""
    spec = group(proxy=TWO | {"resources": {"limits": "much"}})

    assert of_kind(rendered(spec), "Deployment")[NAME]["spec"]["template"]["spec"]["containers"][0]["resources"] == {
        "limits": "much"
    }


def test_hibernated_group_has_no_running_proxy() -> None:
    """Its objects stay, so that its address does; until the brokers have stopped, proxies run."""

    def replicas(*sizes: int) -> int:
        shard = ShardFacts(number=0, replicas=(sizes[0], sizes[1]))
        known = facts(is_hibernated=True, shards=(shard,))
        found: int = of_kind(rendered(group(proxy=TWO), known), "Deployment")[NAME]["spec"]["replicas"]
        return found

    assert (replicas(1, 1), replicas(0, 0)) == (2, 0)


def test_egress_of_proxies_is_limited_to_the_group() -> None:
    """They reach brokers, name servers and DNS. With other name servers the addresses are unknown, so all are open."""
    policy = objects_of_proxies(proxy=TWO)["NetworkPolicy"]["spec"]
    other = objects_of_proxies(proxy=TWO, nameServers={"addresses": ["ns.example:9876"]})["NetworkPolicy"]["spec"]

    ports = [{one["port"] for one in rule["ports"]} for rule in policy["egress"]]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert ports == [{10911, 10909}, {9876}, {53, 5353}]
    assert [bool(rule.get("to")) for rule in policy["egress"]] == [True, True, False]
    pods = {labels[names.COMPONENT_LABEL]: labels for _, labels, _ in pods_of(rendered(group()))}
    for rule, component in zip(policy["egress"], ("broker", "nameserver"), strict=False):
        assert [name for name, labels in pods.items() if is_selected(labels, rule["to"][0]["podSelector"])] == [
            component
        ]
    assert other["policyTypes"] == ["Ingress"] and "egress" not in other


def test_prometheus_scrapes_proxies_by_their_own_port() -> None:
    """One monitor selects brokers and proxies; each endpoint is used for the pods that have its port."""
    without = of_kind(rendered(group()), "PodMonitor")["orders"]["spec"]
    spec = of_kind(rendered(group(proxy=TWO, access={"tlsSecret": "certificates"})), "PodMonitor")["orders"]["spec"]

    assert [one["port"] for one in spec["podMetricsEndpoints"]] == ["http", "metrics"]
    assert spec["podMetricsEndpoints"][1].keys() == {"port", "path", "interval"}, "its port has neither TLS nor tokens"
    [components] = spec["selector"]["matchExpressions"]
    assert components["values"] == ["broker", "proxy"]
    assert spec["selector"]["matchLabels"] == {"gantry.dev/group": "orders"}
    assert [one["port"] for one in without["podMetricsEndpoints"]] == ["http"]
    broker = [port["name"] for home in of_kind(rendered(group()), "StatefulSet").values()
              for one in containers(home["spec"]["template"]).values() for port in one["ports"]]  # fmt: skip
    assert "metrics" not in broker
