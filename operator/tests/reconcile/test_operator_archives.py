"""The archive of a group in the operator's real loop: its server, the condition `ArchiveReady`, and the brokers' pods.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography import x509
from operator_world.cluster import GROUP, NAMESPACE
from operator_world.simulation import SYNC, Simulation, operator_of
from pipelines_scene import ended, resource

from gantry_operator.api import (
    ACCOUNTS,
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    PIPELINES,
    PODS,
    POLICIES,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    Object,
    ObjectRef,
)
from gantry_operator.errors import Unavailable
from gantry_operator.execute import pruner
from gantry_operator.group_archive import pod_problem

NAME = f"{GROUP}-archive-server"
KINDS = (DEPLOYMENTS, SERVICES, CONFIG_MAPS, ACCOUNTS, POLICIES)
NAMED: dict[str, Any] = {"retention": {"archive": "history"}}


def put_archive(simulation: Simulation, *modes: str, **spec: Any) -> None:
    """Create the TopicArchive and its claim, with these access modes."""
    fields = {"brokerGroups": [GROUP], "destination": {"pvc": {"claimName": "history", "path": "orders"}}} | spec
    document = resource(name="history", **fields)
    document["metadata"] |= {"uid": "uid-of-history", "generation": 1}
    simulation.cluster.api.put(document)
    put_claim(simulation, *(modes or ("ReadWriteMany",)))


def put_claim(simulation: Simulation, *modes: str) -> None:
    """Create or change the claim of the archive."""
    head = {"name": "history", "namespace": NAMESPACE}
    spec = {"accessModes": list(modes)}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": head, "spec": spec}
    simulation.cluster.api.put(claim)


def put_pod(simulation: Simulation, node: str, *, of: str = "server", **status: Any) -> None:
    """Create a pod of the server or of the archive's job on a Node."""
    deployment = simulation.cluster.api.found(DEPLOYMENTS, NAMESPACE, NAME)
    assert deployment is not None
    job = {"gantry.dev/pipeline": "history-archive", "app.kubernetes.io/part-of": "gantry"}
    labels = deployment["spec"]["template"]["metadata"]["labels"] if of == "server" else job
    head = {"name": f"{of}-1", "namespace": NAMESPACE, "uid": f"uid-of-{of}", "labels": labels}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": {"nodeName": node}, "status": status}
    simulation.cluster.api.put(pod)


def run_server(simulation: Simulation, ready: int) -> None:
    """Write the status of the Deployment, as its controller does."""
    document = simulation.cluster.api.found(DEPLOYMENTS, NAMESPACE, NAME)
    assert document is not None
    counts = {"readyReplicas": ready, "updatedReplicas": ready}
    document["status"] = counts | {"observedGeneration": document["metadata"]["generation"]}
    simulation.cluster.api.put(document)


async def run_rounds(simulation: Simulation, count: int = 60) -> None:
    """Run enough rounds for everything that happens without a change."""
    for _ in range(count):
        await simulation.step()


def kinds_of_server(simulation: Simulation) -> set[str]:
    """Return the kinds of the existing objects of the server, without its Secret."""
    return {kind.name for kind in (*KINDS, BUDGETS) if simulation.cluster.api.found(kind, NAMESPACE, NAME) is not None}


def deployment_of(simulation: Simulation) -> Object:
    """Return the Deployment of the server."""
    found = simulation.cluster.api.found(DEPLOYMENTS, NAMESPACE, NAME)
    assert found is not None
    return found


def conf_of(pod: Object) -> dict[str, str]:
    """Return the settings with which a broker's pod starts."""
    [broker] = pod["spec"]["containers"]
    text = next(one["value"] for one in broker["env"] if one["name"] == "GANTRY_BROKER_CONF")
    return dict(line.partition("=")[::2] for line in text.splitlines())


def events(simulation: Simulation) -> list[tuple[str, str]]:
    """Return type and reason of the events about the archive."""
    found = simulation.cluster.api.of_kind(EVENTS)
    return [(one["type"], one["reason"]) for one in found if one["reason"].startswith("Archive")]


async def test_server_is_created_and_reported() -> None:
    """It serves what the TopicArchive has, and the condition is true when a pod can read it."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation)
    await simulation.run_until_healthy()
    await run_rounds(simulation, 8)

    assert kinds_of_server(simulation) == {kind.name for kind in KINDS}
    assert simulation.condition("ArchiveReady")[:2] == ("False", "ServerStarting")
    config_map = simulation.cluster.api.found(CONFIG_MAPS, NAMESPACE, NAME)
    assert config_map is not None
    settings = json.loads(config_map["data"]["archive.json"])
    assert settings["runtime"] == {"destination": "/var/lib/gantry/archive/orders"}
    assert settings["brokerGroups"] == [GROUP]
    run_server(simulation, 1)
    await run_rounds(simulation, 8)
    assert simulation.condition("ArchiveReady")[:2] == ("True", "ServerReady")
    assert events(simulation) == [("Normal", "ArchiveNotReady"), ("Normal", "ArchiveReady")]


async def test_brokers_get_address_authority_and_secret() -> None:
    """Their pods depend on the Secret alone, which exists before them, and never on the archive's volume."""
    simulation = Simulation(SYNC | NAMED)
    await simulation.run_until_healthy()
    secret = simulation.cluster.api.found(SECRETS, NAMESPACE, NAME)
    assert secret is not None
    files = {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}
    certificate = x509.load_pem_x509_certificate(files["tls.crt"].encode())
    authority = x509.load_pem_x509_certificate(files["ca.crt"].encode())
    hosts = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    certificate.verify_directly_issued_by(authority)
    assert f"{NAME}.{NAMESPACE}.svc" in hosts.get_values_for_type(x509.DNSName)
    assert len(files["secret"]) == 64
    assert {verb for verb, ref in simulation.cluster.api.calls if ref.kind == SECRETS} == {"create"}
    for document in simulation.cluster.api.of_kind(STATEFUL_SETS):
        template = document["spec"]["template"]
        conf, volumes = conf_of(template), {one["name"]: one for one in template["spec"]["volumes"]}
        assert conf["archiveAddress"] == f"{NAME}.{NAMESPACE}.svc:10915"
        assert {conf["archiveSecretPath"], conf["archiveTlsTrustCertPath"]} == {
            "/etc/gantry/archive/secret", "/etc/gantry/archive/ca.crt",
        }  # fmt: skip
        assert [item["key"] for item in volumes["archive"]["secret"]["items"]] == ["ca.crt", "secret"]
        assert not any("persistentVolumeClaim" in one for one in volumes.values())


async def test_archive_that_is_named_later_rolls_the_brokers_once() -> None:
    """As another start setting does. The Secret is created before the first pod is replaced."""
    simulation = await Simulation(SYNC).run_until_healthy()
    put_archive(simulation)
    before = {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
    simulation.cluster.api.calls.clear()
    simulation.cluster.edit(**NAMED)
    await simulation.run_until(
        lambda: sum("archiveAddress" in conf_of(pod) for pod in simulation.cluster.pods()) == 2,
        "brokers have the address",
    )
    await simulation.run_until_healthy()

    verbs = [(verb, ref.kind) for verb, ref in simulation.cluster.api.calls]
    assert verbs.index(("create", SECRETS)) < verbs.index(("delete", PODS))
    assert not before & {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
    after = {pod["metadata"]["uid"] for pod in simulation.cluster.pods()}
    simulation.cluster.edit(retention={"archive": "another"})
    await run_rounds(simulation)
    assert {pod["metadata"]["uid"] for pod in simulation.cluster.pods()} == after, "another archive rolls the brokers"


async def test_removed_archive_leaves_no_object_but_the_secret() -> None:
    """Pods of brokers that still run with it could not start again without; it is deleted with the group."""
    simulation = await Simulation(SYNC).run_until_healthy()
    before = {ref for ref in simulation.cluster.api.objects if ref.kind not in (EVENTS, CLAIMS, *PIPELINES)}
    put_archive(simulation)
    simulation.cluster.edit(retention={"archive": "history", "server": {"replicas": 2}})
    await run_rounds(simulation)
    assert kinds_of_server(simulation) == {kind.name for kind in (*KINDS, BUDGETS)}

    simulation.cluster.edit(retention={})
    await simulation.run_until(
        lambda: not any("archiveAddress" in conf_of(pod) for pod in simulation.cluster.pods()), "brokers have none"
    )
    await run_rounds(simulation)

    after = {ref for ref in simulation.cluster.api.objects if ref.kind not in (EVENTS, CLAIMS, *PIPELINES)}
    assert after - before == {ObjectRef(SECRETS, NAMESPACE, NAME)}
    assert simulation.condition("ArchiveReady") == ("", "", "")


async def test_without_pruning_the_server_would_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: without this component the pods run on, although the spec names no archive."""
    monkeypatch.setitem(pruner.COMPONENTS_OF_KIND, DEPLOYMENTS, frozenset({"proxy"}))
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation)
    await simulation.run_until_healthy()
    simulation.cluster.edit(retention={})
    await run_rounds(simulation)

    assert kinds_of_server(simulation) == {"Deployment"}


@pytest.mark.parametrize(
    ("fields", "modes", "reason", "text"),
    [
        ({"brokerGroups": ["another"]}, (), "ArchiveOfAnotherGroup", 'archives BrokerGroup "another", not this group'),
        ({"brokerGroups": []}, (), "ArchiveInvalid", "set either brokerGroups or nameServers"),
        ({}, ("ReadWriteOncePod",), "VolumeNotShareable", "claim history is ReadWriteOncePod"),
    ],
    ids=["another group", "invalid", "one pod"],
)
async def test_archive_without_a_server_is_reported(
    fields: dict[str, Any], modes: tuple[str, ...], reason: str, text: str
) -> None:
    """The condition has the reason, an event repeats it, and brokers serve what their logs have."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation, *modes, **fields)
    await simulation.run_until_healthy()
    await run_rounds(simulation, 8)

    assert simulation.condition("ArchiveReady")[:2] == ("False", reason)
    assert text in simulation.condition("ArchiveReady")[2]
    assert kinds_of_server(simulation) == set()
    assert events(simulation) == [("Warning", "ArchiveNotReady")]


async def test_archive_that_does_not_exist_yet_is_found_when_it_is_created() -> None:
    """The order in which a group and its archive are created does not matter."""
    simulation = await Simulation(SYNC | NAMED).run_until_healthy()
    await run_rounds(simulation, 8)
    assert simulation.condition("ArchiveReady") == (
        "False", "ArchiveNotFound", 'TopicArchive "history" not found in this namespace'
    )  # fmt: skip
    assert simulation.condition("Reconciling")[:2] == ("True", "Waiting")

    put_archive(simulation)
    await run_rounds(simulation, 8)
    run_server(simulation, 1)
    await run_rounds(simulation, 8)
    assert simulation.condition("ArchiveReady")[:2] == ("True", "ServerReady")
    assert simulation.condition("Reconciling") == ("", "", "")


async def test_operator_without_pipelines_reports_that() -> None:
    """Nothing else of the group is affected."""
    simulation = Simulation(SYNC | NAMED)
    simulation.loop = operator_of(simulation.cluster, has_pipelines=False)
    await simulation.run_until_healthy()

    assert simulation.condition("ArchiveReady")[:2] == ("False", "PipelinesUnavailable")


async def test_server_on_another_node_than_the_job_is_explained() -> None:
    """A claim with ReadWriteOnce is mounted on one Node: the pods prefer the same, and the condition says if they
    could not get it."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation, "ReadWriteOnce")
    await simulation.run_until_healthy()
    deployment = deployment_of(simulation)["spec"]
    preferred, _ = deployment["template"]["spec"]["affinity"]["podAffinity"].popitem()[1]
    assert preferred["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"gantry.dev/pipeline": "history-archive"}
    assert deployment["strategy"] == {"type": "Recreate"}

    put_pod(simulation, "node-0", of="job", phase="Running")
    put_pod(simulation, "node-1", phase="Pending")
    await run_rounds(simulation, 8)
    status, reason, text = simulation.condition("ArchiveReady")
    assert (status, reason) == ("False", "VolumeOnAnotherNode")
    assert "job-1 has it on node-0, and server-1 is on node-1" in text
    put_pod(simulation, "node-0", phase="Pending")
    await run_rounds(simulation, 8)
    assert simulation.condition("ArchiveReady")[1] == "ServerStarting"


async def test_running_server_that_cannot_read_is_explained() -> None:
    """Its own report has the reason, which is requested beside the rounds of the group."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation)
    await simulation.run_until_healthy()
    text = "cannot read the manifest: there is no archive in /var/lib/gantry/archive/orders"
    simulation.cluster.reports["10.0.0.9"] = {"warning": {"reason": "CannotRead", "text": text}}
    put_pod(simulation, "node-0", phase="Running", podIP="10.0.0.9")
    await run_rounds(simulation, 60)

    assert simulation.condition("ArchiveReady") == ("False", "CannotRead", text)


async def test_claim_that_cannot_be_read_keeps_what_is_known() -> None:
    """A failure of the API server neither deletes the server nor changes how it is replaced."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation)
    await simulation.run_until_healthy()
    before = deployment_of(simulation)["spec"]
    simulation.cluster.api.fault_of = lambda verb, ref: (
        Unavailable(str(ref), "timeout", 504) if verb == "get" and ref.kind is CLAIMS else None
    )
    await run_rounds(simulation, 200)
    found = [deployment_of(simulation)["spec"]]
    simulation.loop = operator_of(simulation.cluster)
    await run_rounds(simulation)

    assert before["strategy"]["type"] == "RollingUpdate"
    assert [*found, deployment_of(simulation)["spec"]] == [before, before], "also by an operator that never read it"


async def test_hibernated_group_has_no_server_pods() -> None:
    """The objects stay, and so does the archive."""
    simulation = Simulation(SYNC | NAMED)
    put_archive(simulation)
    await simulation.run_until_healthy()
    simulation.cluster.annotate(hibernate="true")
    await simulation.run_until(lambda: deployment_of(simulation)["spec"]["replicas"] == 0, "the server is stopped")
    await run_rounds(simulation, 8)

    assert simulation.condition("ArchiveReady")[1] == "Hibernated"


def test_end_of_a_server_is_in_the_message() -> None:
    """The first words are those of Kubernetes, the rest is the program's own reason."""
    report = json.dumps({"v": 1, "job": "serve", "text": "serving.listen: '1' is not an address"})
    container = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended(2, text=report)}
    pod = {"metadata": {"name": "server-1"}, "status": {"containerStatuses": [container]}}

    assert pod_problem(pod) == "server-1: CrashLoopBackOff: serving.listen: '1' is not an address"
