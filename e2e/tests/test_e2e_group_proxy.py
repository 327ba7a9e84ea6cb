"""Groups with gRPC proxies: SDKs lose nothing and see no failed send while proxies and brokers are replaced.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.clients import PodLoad
from gantry_cluster.commands import run, wait_until
from gantry_cluster.errors import ApiRefused, CommandFailed
from gantry_cluster.group_faults import evict
from gantry_cluster.group_secrets import put_secret
from gantry_cluster.groups import CLIENT, HISTORIES, ClientSecrets, Group
from gantry_cluster.namespaces import GROUP, NamespaceFactory
from gantry_cluster.network_policies import enforce
from gantry_cluster.reports import find_object
from gantry_cluster.specs import SMALL, TOPIC

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

CERTIFICATES = "certificates"
PROXY = f"{GROUP}-proxy"
CONSUMERS, OUTSIDERS = "billing", "outsiders"
"""The consumer groups of the application in the cluster and of that outside."""

READY_SECONDS_MAX = 180.0
TOO_MANY_REQUESTS = 429
"""The HTTP status with which an API server refuses an eviction for a disruption budget."""

MORE = 100
"""The acknowledgements that show that the application is served again."""

FAILOVER_SECONDS_MAX = 45.0
"""The limit for the time without an acknowledgement, the same as without proxies: a master's pod that was deleted by
force gives no proof that its process has ended."""


def proxied(**limits: int) -> Object:
    """Return the spec of a small group with TLS and two proxies, which have these limits."""
    proxy = {
        "replicas": 2,
        "service": {"type": "NodePort"},
        "limits": {"clients": 100, "calls": 1_000, "connections": 500} | limits,
    }
    groups = [{"name": CONSUMERS}, {"name": OUTSIDERS}]
    return SMALL | {"access": {"tlsSecret": CERTIFICATES}, "groups": groups, "proxy": proxy}


class Scene:
    """A group with two proxies and TLS, whose proxies are ready, and the authority of its certificates."""

    def __init__(self, namespaces: NamespaceFactory, name: str) -> None:
        self.authority = trustme.CA()
        namespace = namespaces.create(name)
        self.server_name = f"{PROXY}.{name}.svc"
        issued = self.authority.issue_cert(self.server_name)
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        data = {
            "tls.crt": chain,
            "tls.key": issued.private_key_pem.bytes(),
            "ca.crt": self.authority.cert_pem.bytes(),
        }
        put_secret(namespace, CERTIFICATES, data)
        group = Group(namespace, GROUP, ClientSecrets(authority=CERTIFICATES))
        self.group = namespaces.start_group(group, proxied())
        wait_until("ready proxies", self.group.are_proxies_ready, READY_SECONDS_MAX)

    def wait_replaced(self, *pods: str) -> None:
        """Wait until these pods are gone, and all proxies are ready."""
        started = time.monotonic()
        wait_until(f"the end of {pods}", lambda: not {*pods} & {*self.group.proxies()}, READY_SECONDS_MAX)
        wait_until("ready proxies", self.group.are_proxies_ready, READY_SECONDS_MAX)
        print(f"RESULT {len(pods)} proxies replaced in {time.monotonic() - started:.1f} s")

    def delete(self, pod: str, *words: str) -> None:
        """Delete a pod without waiting for its end."""
        place = f"--namespace={self.group.namespace.name}"
        self.group.namespace.cluster.kubectl("delete", "pod", pod, place, "--wait=false", *words)


def test_sdks_lose_nothing_while_proxies_and_brokers_are_replaced(namespaces: NamespaceFactory) -> None:
    """A deleted pod and a rolling update of proxies fail no send; a failover of the brokers only while there is no
    master. Every acknowledged message arrives."""
    scene = Scene(namespaces, "proxied")
    group = scene.group
    with group.start_sdk_application(TOPIC, CONSUMERS) as application:
        calm = application.report(MORE)

        first = group.proxies()
        scene.delete(first[0])
        scene.wait_replaced(first[0])
        deleted = application.report(MORE)

        before = group.proxies()
        group.apply(proxied(clients=120))
        scene.wait_replaced(*before)
        rolled = application.report(MORE)

        epoch, [master], started = group.lease_record()["epoch"], group.masters(), time.monotonic()
        scene.delete(master, "--grace-period=0", "--force")
        wait_until("a newer term", lambda: group.lease_record()["epoch"] > epoch, READY_SECONDS_MAX)
        print(f"RESULT newer term after {time.monotonic() - started:.1f} s")
        failed_over = application.report(MORE)
        group.wait_healthy()

        verdict = application.finish()
    print(f"RESULT {calm} {deleted} {rolled} {failed_over} {verdict}")

    assert [one["failed"] for one in (calm, deleted, rolled)] == [[], [], []]
    assert failed_over["pause"] <= FAILOVER_SECONDS_MAX
    assert verdict["findings"] == []


def test_killed_proxies_fail_sends_and_lose_nothing(namespaces: NamespaceFactory) -> None:
    """The twin: without its grace period and without a second proxy, the application sees failed sends."""
    scene = Scene(namespaces, "proxy-killed")
    group = scene.group
    with group.start_sdk_application(TOPIC, CONSUMERS) as application:
        application.report(MORE)
        pods = group.proxies()
        for pod in pods:
            scene.delete(pod, "--grace-period=0", "--force")
        scene.wait_replaced(*pods)
        killed = application.report(MORE)
        verdict = application.finish()

    assert killed["failures"] > 0
    assert verdict["findings"] == []


def test_proxies_are_evicted_one_at_a_time(namespaces: NamespaceFactory) -> None:
    """The budget admits one eviction, and the next one when its successor is ready. The console shows the proxies."""
    scene = Scene(namespaces, "proxy-evicted")
    group = scene.group
    wait_until("both proxies in the console", lambda: shown_proxies(group) == [True, True], READY_SECONDS_MAX)
    first, second = group.proxies()

    evict(group, first)
    with pytest.raises(ApiRefused) as refusal:
        evict(group, second)
    scene.wait_replaced(first)
    evict(group, second)
    scene.wait_replaced(second)

    assert refusal.value.status == TOO_MANY_REQUESTS
    assert "gRPC" in group_status(group)
    group.apply(proxied() | {"proxy": {"replicas": 0}})
    wait_until("the end of all proxies", lambda: group.proxies() == [], READY_SECONDS_MAX)
    kinds = ("Deployment", "Service", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount")
    wait_until(
        "the end of their objects",
        lambda: [kind for kind in kinds if find_object(group, kind, PROXY) is not None] == [],
        READY_SECONDS_MAX,
    )
    wait_until("no proxy in the console", lambda: shown_proxies(group) == [], READY_SECONDS_MAX)


@pytest.mark.cluster_can(Capability.REACH_NODES, Capability.CUT_NODES)
def test_outsiders_reach_proxies_but_not_their_metrics(namespaces: NamespaceFactory, tmp_path: Path) -> None:
    """With the policy enforced, SDKs inside and outside of the cluster are served, and sidecars read the figures. The
    pod of a client gets no connection to the port for metrics."""
    scene = Scene(namespaces, "proxy-outside")
    group = scene.group
    authority = tmp_path / "ca.crt"
    authority.write_bytes(scene.authority.cert_pem.bytes())
    endpoint = group.read()["status"]["proxy"]["externalEndpoint"]
    metrics = f"{PROXY}-pods.{group.namespace.name}.svc"
    is_open_without = can_connect(group, metrics, 9081)

    with enforce(group, PROXY):
        outside = application_outside(endpoint, authority, scene.server_name)
        with outside as there, group.start_sdk_application(TOPIC, CONSUMERS) as here:
            there.report(MORE)
            here.report(MORE)
            verdicts = [there.finish(), here.finish()]
        wait_until("both proxies in the console", lambda: shown_proxies(group) == [True, True], READY_SECONDS_MAX)
        is_open_within = can_connect(group, metrics, 9081)
    print(f"RESULT {verdicts}")

    assert [one["findings"] for one in verdicts] == [[], []]
    assert (is_open_without, is_open_within) == (True, False)


def application_outside(endpoint: str, authority: Path, server_name: str) -> PodLoad:
    """Return the application of SDKs as a process of this machine, outside of the cluster."""
    program = ("env", f"PYTHONPATH={HISTORIES.parent}", sys.executable, "-m", f"{HISTORIES.name}.proxied")
    names = ("--endpoint", endpoint, "--topic", TOPIC, "--group", OUTSIDERS)
    return PodLoad((*program, *names, "--tls-ca", str(authority), "--tls-name", server_name))


def shown_proxies(group: Group) -> list[bool]:
    """Return which proxies a sidecar shows as ready. The first question starts its polling."""
    place = ("exec", group.masters()[0], f"--namespace={group.namespace.name}", "--container=sidecar", "--")
    answers: dict[str, Any] = json.loads(group.namespace.cluster.kubectl(*place, "gantry", "pod", "get", "/v1/group"))
    [answer] = answers.values()
    return [one["is_reachable"] and one["is_ready"] for one in answer["body"]["proxies"]]


def can_connect(group: Group, host: str, port: int) -> bool:
    """Return whether the client's pod gets a connection."""
    program = f"import socket; socket.create_connection(({host!r}, {port}), timeout=10)"
    try:
        group.namespace.run_python(CLIENT, program)
    except CommandFailed:
        return False
    return True


def group_status(group: Group) -> str:
    """Return what `kubectl gantry status` prints about the group."""
    plugin = Path(sys.executable).with_name("kubectl-gantry")
    place = ("--kubeconfig", group.namespace.cluster.folder.kubeconfig, "-n", group.namespace.name)
    return run(plugin, "status", group.name, *place)
