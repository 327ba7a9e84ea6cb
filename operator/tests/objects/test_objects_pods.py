"""The pods of a group: they are restricted and limited, and only the broker mounts what only the broker needs.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from objects_scene import EVERYTHING, broker_sets, containers, facts, group, mounts, of_kind, rendered
from pod_security import broken_rules

from gantry_operator.objects import names
from gantry_operator.objects.base import Object
from gantry_operator.observe.pods import has_tls

SPECS: list[dict[str, Any]] = [
    {},
    EVERYTHING,
    {"slaves": 0, "replication": {"mode": "Async"}, "writeBuffer": {"medium": "Memory"}},
]


WORKLOADS = ("StatefulSet", "Deployment")


def templates(spec: dict[str, Any]) -> list[Object]:
    """Return the templates of all pods of a spec."""
    objects = rendered(group(**spec))
    return [one["spec"]["template"] for kind in WORKLOADS for one in of_kind(objects, kind).values()]


@pytest.fixture(params=SPECS, ids=["defaults", "everything", "alone in memory"])
def each(request: pytest.FixtureRequest) -> list[Object]:
    """Return the templates of several specs."""
    return templates(request.param)


def test_every_pod_passes_restricted_pod_security(each: list[Object]) -> None:
    """A namespace that enforces `restricted` accepts every pod of every group."""
    for template in each:
        assert list(broken_rules(template["spec"])) == []


def keep_capabilities(spec: Object) -> None:
    """Let one container keep its capabilities."""
    spec["containers"][0]["securityContext"]["capabilities"] = {}


def run_as_root(spec: Object) -> None:
    """Let a pod run as root."""
    spec["securityContext"]["runAsUser"] = 0


def host_volume(spec: Object) -> None:
    """Mount a folder of the machine."""
    spec["volumes"].append({"name": "host", "hostPath": {"path": "/"}})


def unconfined(spec: Object) -> None:
    """Remove the profile of a sidecar."""
    spec["initContainers"][0]["securityContext"]["seccompProfile"] = {"type": "Unconfined"}


def escalation(spec: Object) -> None:
    """Remove the ban of privilege escalation, which is allowed by default."""
    del spec["initContainers"][0]["securityContext"]["allowPrivilegeEscalation"]


def unmasked_proc(spec: Object) -> None:
    """Let a container see all of /proc."""
    spec["containers"][0]["securityContext"]["procMount"] = "Unmasked"


def selinux_of_container(spec: Object) -> None:
    """Give a container an SELinux type of its own."""
    spec["containers"][0]["securityContext"]["seLinuxOptions"] = {"type": "spc_t"}


def no_apparmor_of_pod(spec: Object) -> None:
    """Remove the AppArmor profile of a pod."""
    spec["securityContext"]["appArmorProfile"] = {"type": "Unconfined"}


def no_apparmor_of_container(spec: Object) -> None:
    """Remove the AppArmor profile of a sidecar."""
    spec["initContainers"][0]["securityContext"]["appArmorProfile"] = {"type": "Unconfined"}


SPOILERS = [
    keep_capabilities, run_as_root, host_volume, unconfined, escalation, unmasked_proc, selinux_of_container,
    no_apparmor_of_pod, no_apparmor_of_container,
]  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILERS)
def test_checker_detects_unrestricted_pods(spoil: Callable[[Object], None]) -> None:
    """The twin: a pod with one unrestricted setting breaks one rule."""
    spec = copy.deepcopy(templates(EVERYTHING)[1]["spec"])

    spoil(spec)

    assert len(list(broken_rules(spec))) == 1


def test_every_container_is_limited_and_writes_only_to_volumes(each: list[Object]) -> None:
    """Memory has a request and a limit everywhere, and the root file system is read-only."""
    for template in each:
        for container in containers(template).values():
            resources = container["resources"]
            assert resources["limits"]["memory"] and resources["requests"]["memory"] and resources["requests"]["cpu"]
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
        for volume in template["spec"]["volumes"]:
            if volume.get("emptyDir", {}).get("medium") != "HugePages-2Mi":
                assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], volume["name"]


@pytest.mark.parametrize("medium", ["HugePages-2Mi", "Memory"])
def test_only_the_broker_mounts_the_buffers(medium: str) -> None:
    """The sidecar would get SIGBUS: it has no pages of its own, so it never mounts them."""
    for template in templates({"writeBuffer": {"medium": medium, "segmentSize": "64Mi"}})[1:]:
        by_name = containers(template)
        [volume] = [one for one in template["spec"]["volumes"] if one["name"] == "buffers"]

        assert volume["emptyDir"]["medium"] == medium
        assert "buffers" in mounts(by_name["broker"])
        assert "buffers" not in mounts(by_name["sidecar"])
        assert not any(name.startswith("hugepages-") for name in by_name["sidecar"]["resources"]["limits"])
        assert template["spec"]["securityContext"]["fsGroup"] > 0


def test_only_the_sidecar_has_the_tokens() -> None:
    """An attacker who controls a broker can neither renew a Lease nor give orders to other brokers."""
    for template in templates(EVERYTHING):
        assert template["spec"]["automountServiceAccountToken"] is False
        for name, container in containers(template).items():
            assert {"api", "sidecar"} & set(mounts(container)) == ({"api", "sidecar"} if name == "sidecar" else set())
            assert ("replication" in mounts(container)) == (name == "broker")


def test_sidecar_outlives_the_broker_and_does_not_wait_for_it() -> None:
    """It is a native sidecar, and its startup probe depends on itself: kubelet starts the broker only after it."""
    for template in templates({})[1:]:
        [sidecar] = template["spec"]["initContainers"]

        assert sidecar["restartPolicy"] == "Always"
        assert sidecar["startupProbe"]["httpGet"]["path"] == "/livez"
        assert sidecar["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert mounts(sidecar)["data"]["readOnly"] is True


def test_no_probe_of_a_broker_interrupts_a_recovery() -> None:
    """Its container has one probe, of its supervisor's port, and no deadline for the start."""
    for template in templates({})[1:]:
        broker = containers(template)["broker"]

        assert {name for name in broker if name.endswith("Probe")} == {"livenessProbe"}
        assert broker["livenessProbe"]["tcpSocket"]["port"] == names.ALIVE_PORT


def test_users_template_cannot_override_our_settings() -> None:
    """The user's labels, annotations and rules are added; reserved ones cannot be overwritten."""
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]},
    }
    spec = EVERYTHING | {"template": EVERYTHING["template"] | {"affinity": affinity}}

    for name, one in broker_sets(rendered(group(**spec))).items():
        template = one["spec"]["template"]
        metadata, pod = template["metadata"], template["spec"]
        assert metadata["labels"]["example.com/team"] == metadata["annotations"]["example.com/team"] == "orders"
        assert metadata["labels"]["app.kubernetes.io/name"] == "gantry"
        assert names.ROLE_LABEL not in metadata["labels"]
        assert metadata["annotations"][names.TEMPLATE_ANNOTATION] != "mine"
        assert pod["nodeSelector"] == {"disk": "fast"} and pod["priorityClassName"] == "high"
        assert pod["runtimeClassName"] == "sandboxed"
        assert pod["affinity"]["nodeAffinity"] == affinity["nodeAffinity"]
        terms = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert [term["topologyKey"] for term in terms] == ["kubernetes.io/hostname", "rack"], name


def test_brokers_of_one_shard_never_share_a_machine() -> None:
    """The rule selects exactly the pods of its own shard, in both StatefulSets; zones are preferred only."""
    for name, one in broker_sets(rendered(group(shards=2, slaves=2))).items():
        pod = one["spec"]["template"]["spec"]
        [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        [zone] = pod["topologySpreadConstraints"]

        assert term["labelSelector"]["matchLabels"] == {
            "gantry.dev/group": "orders",
            "app.kubernetes.io/component": "broker",
            "gantry.dev/shard": name.split("-")[1],
        }
        assert zone["whenUnsatisfiable"] == "ScheduleAnyway"


def test_broker_has_time_to_drain_before_it_is_killed() -> None:
    """Its own shutdown deadline is within the pod's grace period."""
    for grace, wanted in (("2m", 60_000), ("30s", 20_000), ("5s", 1_000)):
        spec = {"template": {"terminationGracePeriod": grace}}
        template = templates(spec)[1]
        [conf] = [one["value"] for one in containers(template)["broker"]["env"] if one["name"] == "GANTRY_BROKER_CONF"]

        assert f"shutdownTimeout={wanted}\n" in conf
        assert wanted < template["spec"]["terminationGracePeriodSeconds"] * 1000


def test_pods_have_image_and_pull_settings() -> None:
    """The group's own image takes precedence over the operator's; pull secrets are passed on."""
    known = facts(pull_secrets=("registry",), pull_policy="Always")
    for one in broker_sets(rendered(group(image="example.com/other:1"), known)).values():
        pod = one["spec"]["template"]["spec"]
        made = containers(one["spec"]["template"]).values()
        assert {(c["image"], c["imagePullPolicy"]) for c in made} == {("example.com/other:1", "Always")}
        assert pod["imagePullSecrets"] == [{"name": "registry"}]


def test_broker_knows_the_uid_of_its_pod() -> None:
    """A pod of the same name has another memory, and its broker must not assume that nothing was lost."""
    for home in broker_sets(rendered(group())).values():
        variables = {one["name"]: one for one in containers(home["spec"]["template"])["broker"]["env"]}
        assert variables["POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"


@pytest.mark.parametrize("secret", ["", "orders-tls"], ids=["plain", "tls"])
def test_sidecars_with_certificates_use_tls_for_all(secret: str) -> None:
    """kubelet, peers, Prometheus and the operator follow from one field; the operator reads it from the pod itself."""
    objects = rendered(group(access={"tlsSecret": secret} if secret else {}), facts(has_pod_monitor=True))
    template = next(iter(broker_sets(objects).values()))["spec"]["template"]
    sidecar = containers(template)["sidecar"]
    probes = [sidecar[name]["httpGet"].get("scheme") for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    peers = of_kind(objects, "ConfigMap")["orders-0"]["data"]["peers"]
    endpoint = of_kind(objects, "PodMonitor")["orders"]["spec"]["podMetricsEndpoints"][0]

    assert has_tls({"spec": template["spec"]}) is bool(secret)
    assert probes == (["HTTPS"] * 3 if secret else [None] * 3)
    assert all(line.startswith("https://" if secret else "http://") for line in peers.splitlines())
    assert endpoint.get("scheme") == ("https" if secret else None)
    if secret:
        assert "--peer-verify" in sidecar["args"] and "/etc/gantry/certificates/ca.crt" in sidecar["args"]


def test_upgrade_of_the_operator_replaces_no_pod() -> None:
    """The hashes of templates of specs without newer fields are those of the operator before.

    If a pod has to change, so do these hashes. An upgrade of the operator then rolls all groups: the changelog must say
    so.
    """
    plain: dict[str, Any] = {}
    secure: dict[str, Any] = {
        "access": {"tlsSecret": "certificates", "aclSecret": "accounts"},
        "proxy": {"replicas": 1},
    }
    found = [
        {
            name: one["spec"]["template"]["metadata"]["annotations"]["gantry.dev/template"]
            for kind in WORKLOADS
            for name, one in of_kind(rendered(group(**spec)), kind).items()
        }
        for spec in (plain, secure)
    ]

    assert found == [
        {
            "orders-nameserver": "24e8828418665203",
            "orders-0-master": "1c2aa32267214139",
            "orders-0-slave": "1c2aa32267214139",
        },
        {
            "orders-nameserver": "5f75850e21dd6ca7",
            "orders-0-master": "1327ea5c22ab3372",
            "orders-0-slave": "1327ea5c22ab3372",
            "orders-proxy": "947e36e3b8d46b93",
        },
    ]
