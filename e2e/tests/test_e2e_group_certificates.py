"""Groups whose certificates are issued for them: by their own pods, and by cert-manager, for which a stand-in issues.

Kubernetes updates a Secret or a ConfigMap in running pods with a delay of up to about a minute.
"""

from __future__ import annotations

import json
from typing import Final

import pytest
import trustme
from gantry_cluster.api import Object
from gantry_cluster.capabilities import Capability
from gantry_cluster.cert_manager import certificate_kind, issue, refuse
from gantry_cluster.cluster import Cluster, condition_status
from gantry_cluster.commands import wait_until
from gantry_cluster.group_life import pod_runs
from gantry_cluster.group_secrets import read_served_certificates, wait_all
from gantry_cluster.groups import CLIENT, ClientSecrets, Group
from gantry_cluster.namespaces import GROUP, NamespaceFactory
from gantry_cluster.specs import SMALL
from gantry_cluster.trial import run_fault_under_load

pytestmark = [pytest.mark.slow, pytest.mark.cluster_can(Capability.RUN_GROUPS)]

POD_SECONDS_MAX: Final = 30.0
"""The limit of the interruption of clients if the master's pod is deleted."""

TAKEN_SECONDS_MAX: Final = 150.0
"""The limit from an edit until every server has another certificate."""

REPORTED_SECONDS_MAX: Final = 30.0
OWN: Final[Object] = SMALL | {"access": {"certificates": {"issuer": "Operator"}}, "proxy": {"replicas": 1}}
ISSUED: Final[Object] = SMALL | {
    "access": {"certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}}},
}
CERTIFICATE: Final = f"{GROUP}-certificates"

VERIFY: Final = """
import json, socket, ssl, sys
wanted = json.loads(sys.argv[1])
context = ssl.create_default_context(cafile=wanted["authority"])
found = {}
for host, port in wanted["places"]:
    try:
        with socket.create_connection((host, port), 10) as plain, \\
                context.wrap_socket(plain, server_hostname=host) as channel:
            names = [value for _, value in channel.getpeercert()["subjectAltName"]]
            found[host] = "named" if wanted["name"] in names else "verified"
    except ssl.SSLError as error:
        found[host] = str(error)
print(json.dumps(found))
"""
"""Prints for each host whether its certificate is for that host, and whether it has one more name, too."""


def places(group: Group) -> list[tuple[str, int]]:
    """Return the names and addresses by which clients reach the servers of a group."""
    namespace = group.namespace
    suffix = f"{namespace.name}.svc"
    found = [(f"{group.name}-0.{suffix}", 10911), (f"{group.name}-proxy.{suffix}", 8081)]
    services = {one["metadata"]["name"]: one["spec"]["clusterIP"] for one in namespace.cluster.api.items(
        namespace.path("services")
    )}  # fmt: skip
    for pod in group.brokers():
        home = pod.rpartition("-")[0]
        body = namespace.read_pod(pod) or {}
        found += [(f"{pod}.{home}.{suffix}", 8080), (services[pod], 10911), (body["status"]["podIP"], 8080)]
    return found + [(f"{pod}.{group.name}-nameserver.{suffix}", 9876) for pod in group.name_servers()]


def verify(group: Group, name: str = "") -> dict[str, str]:
    """Return how a strict client in the cluster finds each certificate."""
    wanted = {"authority": f"/entry/{GROUP}-authority/ca.crt", "places": places(group), "name": name}
    words = ("exec", CLIENT, f"--namespace={group.namespace.name}", "--", "python", "-c", VERIFY, json.dumps(wanted))
    answers: dict[str, str] = json.loads(group.namespace.cluster.kubectl(*words))
    return answers


def test_pods_issue_certificates_that_strict_clients_verify(namespaces: NamespaceFactory) -> None:
    """By every name and address, under load, and another name is added without a restart."""
    namespace = namespaces.create("own-authority")
    group = namespaces.start_group(
        Group(namespace, GROUP, ClientSecrets(authority=f"{GROUP}-authority")), OWN
    )  # fmt: skip
    wait_until("the proxy", group.are_proxies_ready, TAKEN_SECONDS_MAX)
    first = verify(group)
    assert set(first.values()) == {"verified"}, first
    [master] = group.masters()

    outcome = run_fault_under_load(
        group, "pod with its own certificate deleted", lambda: print(f"back in {group.replace_pod(master):.1f} s")
    )
    outcome.check_limits(POD_SECONDS_MAX)
    before = pod_runs(group)
    spec = OWN | {"access": {"certificates": {"issuer": "Operator", "names": ["mq.example.com"]}}}
    group.apply(spec)
    took = wait_all(
        "the name in every certificate",
        lambda: set(verify(group, "mq.example.com").values()) == {"named"},
        TAKEN_SECONDS_MAX,
    )
    print(f"RESULT every server has the name after {took:.0f} s, at most {TAKEN_SECONDS_MAX:.0f}")
    assert pod_runs(group) == before, "a pod was replaced, or a container restarted"


def test_cert_manager_issues_and_renews_without_a_restart(
    operator_cluster: Cluster, namespaces: NamespaceFactory
) -> None:
    """Pods wait for the first certificate, and the status has the reason; a renewed one is loaded while they run."""
    authority = trustme.CA()
    with certificate_kind(operator_cluster):
        namespace = namespaces.create("cert-manager-issues")
        group = Group(namespace, GROUP, ClientSecrets(authority=CERTIFICATE))
        group.apply(ISSUED)
        refuse(namespace, CERTIFICATE, 'Issuer "ca" not found')
        wait_until(
            "the reason in the status", lambda: 'Issuer "ca" not found' in str(group.read()["status"]),
            REPORTED_SECONDS_MAX,
        )  # fmt: skip
        first = issue(namespace, CERTIFICATE, authority)
        group = namespaces.start_group(group, ISSUED)
        pods = [*group.brokers(), *group.name_servers()]
        assert read_served_certificates(group) == {pod: {first} for pod in pods}
        wait_until(
            "the condition", lambda: condition_status(group.read(), "CertificatesReady") == "True", REPORTED_SECONDS_MAX
        )
        before = pod_runs(group)

        def renew() -> None:
            wanted = {pod: {second} for pod in pods}
            took = wait_all(
                "the renewed certificate", lambda: read_served_certificates(group) == wanted, TAKEN_SECONDS_MAX
            )
            print(f"RESULT every server shows the renewed certificate after {took:.0f} s")

        second = issue(namespace, CERTIFICATE, authority)
        run_fault_under_load(group, "certificate renewed", renew).check_limits(POD_SECONDS_MAX)
        assert pod_runs(group) == before, "a pod was replaced, or a container restarted"
        namespaces.delete_all()
