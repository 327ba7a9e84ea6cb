"""The certificates of a group in the operator's real loop: its own authority, and what cert-manager reports.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import base64
from typing import Any

from operator_world.cluster import GROUP, NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of

from gantry_operator.api import CERTIFICATES, CONFIG_MAPS, DEPLOYMENTS, EVENTS, SECRETS, Object
from gantry_operator.errors import NotFound, Unavailable
from gantry_operator.group_certificates import IDLE_MS, certificate_condition

OWN: dict[str, Any] = SYNC | {"access": {"certificates": {"issuer": "Operator"}}}
ISSUED: dict[str, Any] = SYNC | {"access": {"certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}}}}
NAME = f"{GROUP}-certificates"


def secret_of(simulation: Simulation) -> dict[str, str]:
    """Return the files in the Secret of the authority."""
    found = simulation.cluster.api.found(SECRETS, NAMESPACE, f"{GROUP}-authority")
    assert found is not None
    return {name: base64.b64decode(text).decode() for name, text in found["data"].items()}


def report(simulation: Simulation, *conditions: dict[str, str]) -> None:
    """Write the status of the Certificate, as cert-manager does."""
    document = simulation.cluster.api.found(CERTIFICATES, NAMESPACE, NAME)
    assert document is not None
    document["status"] = {"conditions": list(conditions)}
    simulation.cluster.api.put(document)


def reads(simulation: Simulation) -> int:
    """Return how often the Certificate was read."""
    return sum(verb == "get" and ref.kind == CERTIFICATES for verb, ref in simulation.cluster.api.calls)


def events(simulation: Simulation) -> list[str]:
    """Return the reasons of events about certificates."""
    found = [one["reason"] for one in simulation.cluster.api.of_kind(EVENTS)]
    return [reason for reason in found if reason.startswith("Certificates")]


READY = {"type": "Ready", "status": "True", "reason": "Ready"}


async def test_group_gets_an_authority_that_the_operator_never_reads() -> None:
    """Secret and ConfigMap have the same certificate, and the Secret is created, not read, listed or changed."""
    simulation = await Simulation(OWN).run_until_healthy()
    public = simulation.cluster.api.found(CONFIG_MAPS, NAMESPACE, f"{GROUP}-authority")

    assert public is not None
    assert public["data"]["ca.crt"] == secret_of(simulation)["ca.crt"]
    assert "PRIVATE KEY" in secret_of(simulation)["ca.key"]
    assert {verb for verb, ref in simulation.cluster.api.calls if ref.kind == SECRETS} == {"create"}
    assert simulation.condition("CertificatesReady") == ("", "", "")


async def test_next_operator_creates_the_same_authority_again() -> None:
    """Someone deleted the Secret: pods and clients see no difference."""
    simulation = await Simulation(OWN).run_until_healthy()
    before = secret_of(simulation)
    [place] = [
        one for one in simulation.cluster.api.objects if one.name == f"{GROUP}-authority" and one.kind == SECRETS
    ]
    simulation.cluster.api.remove(place)
    simulation.loop = operator_of(simulation.cluster)
    await simulation.run_until(
        lambda: simulation.cluster.api.found(SECRETS, NAMESPACE, f"{GROUP}-authority") is not None, "it is made again"
    )

    assert secret_of(simulation) == before


async def test_group_without_certificates_gets_no_authority() -> None:
    """The twin: nothing is created, and nothing is read."""
    simulation = await Simulation(SYNC).run_until_healthy()

    assert simulation.cluster.api.found(SECRETS, NAMESPACE, f"{GROUP}-authority") is None
    assert simulation.cluster.api.found(CONFIG_MAPS, NAMESPACE, f"{GROUP}-authority") is None
    assert simulation.cluster.api.of_kind(CERTIFICATES) == []
    assert reads(simulation) == 0


async def test_status_says_what_cert_manager_waits_for() -> None:
    """First nothing is reported, then a reason, then the certificate is there: two events."""
    simulation = await Simulation(ISSUED).run_until_healthy()
    assert simulation.condition("CertificatesReady")[:2] == ("False", "Waiting")
    assert "does the issuer exist" in simulation.condition("CertificatesReady")[2]

    report(simulation, {"type": "Ready", "status": "False", "message": 'Issuer "ca" not found'})
    await simulation.run_until(
        lambda: simulation.condition("CertificatesReady")[1] == "NotIssued", "the reason is reported", 30
    )
    assert simulation.condition("CertificatesReady")[2] == f'Certificate {NAME}: Issuer "ca" not found'

    report(simulation, READY)
    await simulation.run_until(lambda: simulation.condition("CertificatesReady")[0] == "True", "it is issued", 30)
    assert sorted(set(events(simulation))) == ["CertificatesNotReady", "CertificatesReady"]


async def test_certificate_at_rest_is_read_every_ten_minutes() -> None:
    """A group that runs costs almost no calls; a failed renewal is still reported, hours before it matters."""
    simulation = await Simulation(ISSUED).run_until_healthy()
    report(simulation, READY)
    await simulation.run_until(lambda: simulation.condition("CertificatesReady")[0] == "True", "it is issued", 30)
    before = reads(simulation)

    for _ in range(IDLE_MS * 2 // 10_000):
        await simulation.step(10_000)

    assert 1 <= reads(simulation) - before <= 3
    report(simulation, {"type": "Ready", "status": "False", "message": "it has expired"})
    await simulation.run_until(
        lambda: "it has expired" in simulation.condition("CertificatesReady")[2], "the failure is reported", 620
    )


async def test_missing_certificate_asks_for_cert_manager() -> None:
    """Without cert-manager the API server knows no such kind, so the object never exists."""
    simulation = await Simulation(ISSUED).run_until_healthy()
    real = simulation.cluster.api.get

    async def get(ref: Any) -> Object:
        if ref.kind == CERTIFICATES:
            raise Unavailable("get", "the API server has no certificates of cert-manager.io/v1", 404)
        return await real(ref)

    simulation.cluster.api.get = get  # type: ignore[method-assign]
    await simulation.run_until(
        lambda: simulation.condition("CertificatesReady")[1] == "Missing", "the absence is reported", 30
    )
    assert simulation.condition("CertificatesReady")[2].endswith("is cert-manager installed?")


async def test_unreadable_certificate_is_unknown() -> None:
    """An error of the API server says nothing about the certificate, and stops nothing else."""
    simulation = await Simulation(ISSUED).run_until_healthy()
    real = simulation.cluster.api.get

    async def get(ref: Any) -> Object:
        if ref.kind == CERTIFICATES:
            raise Unavailable("get", "too busy", 503)
        return await real(ref)

    simulation.cluster.api.get = get  # type: ignore[method-assign]
    await simulation.run_until(lambda: simulation.condition("CertificatesReady")[0] == "Unknown", "it is unknown", 30)
    assert "too busy" in simulation.condition("CertificatesReady")[2]
    assert simulation.is_healthy()


def test_failure_of_the_last_attempt_is_the_reason() -> None:
    """cert-manager reports why issuing failed in another condition than that it is not ready."""
    conditions = [
        {"type": "Ready", "status": "False", "message": "Issuing certificate as Secret does not exist"},
        {"type": "Issuing", "status": "False", "message": "the issuer denied the request"},
    ]
    found = certificate_condition({"metadata": {"name": NAME}, "status": {"conditions": conditions}})

    assert (found.is_true, found.reason) == (False, "NotIssued")
    assert found.message == f"Certificate {NAME}: the issuer denied the request"


async def test_certificate_is_deleted_when_a_secret_replaces_it() -> None:
    """cert-manager would renew it for ever. The Secret that it wrote stays, since pods may still mount it."""
    simulation = await Simulation(ISSUED).run_until_healthy()
    assert simulation.cluster.api.found(CERTIFICATES, NAMESPACE, NAME) is not None

    simulation.cluster.edit(access={"tlsSecret": NAME})
    await simulation.run_until(
        lambda: simulation.cluster.api.found(CERTIFICATES, NAMESPACE, NAME) is None, "it is deleted", 60
    )


async def test_cluster_without_cert_manager_prunes_everything_else() -> None:
    """The kind cannot be listed there, and that is no reason to keep other objects."""
    simulation = await Simulation(SYNC | {"proxy": {"replicas": 1}}).run_until_healthy()
    real = simulation.cluster.api.list

    async def list_kind(kind: Any, namespace: str = "", labels: str = "") -> list[Object]:
        if kind == CERTIFICATES:
            raise NotFound("list", "the server could not find the requested resource", 404)
        return await real(kind, namespace, labels)

    simulation.cluster.api.list = list_kind  # type: ignore[method-assign]
    simulation.cluster.edit(proxy={"replicas": 0})
    await simulation.run_until(
        lambda: simulation.cluster.api.found(DEPLOYMENTS, NAMESPACE, f"{GROUP}-proxy") is None, "they are deleted", 60
    )


async def test_name_server_that_waits_for_a_deleted_authority_gets_it() -> None:
    """Brokers run, so only the pod of the name server shows that a Secret may be missing."""
    simulation = await Simulation(OWN).run_until_healthy()
    [place] = [
        one for one in simulation.cluster.api.objects if one.name == f"{GROUP}-authority" and one.kind == SECRETS
    ]
    simulation.cluster.api.remove(place)
    own_labels = {"gantry.dev/group": GROUP, "app.kubernetes.io/component": "nameserver"}
    head = {"name": f"{GROUP}-nameserver-0", "namespace": NAMESPACE, "labels": own_labels}
    waiting = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {"nodeName": "node-1"}}
    simulation.cluster.api.put(waiting | {"status": {"phase": "Pending"}})

    await simulation.run_until(
        lambda: simulation.cluster.api.found(SECRETS, NAMESPACE, f"{GROUP}-authority") is not None, "it is made", 30
    )
