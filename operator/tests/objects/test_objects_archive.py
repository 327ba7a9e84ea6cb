"""The objects of a group's archive server: apart from those of brokers, restricted, with the least that it needs."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from objects_scene import archive, broker_sets, containers, facts, group, is_selected, of_kind, rendered, template_hash
from pipelines_scene import facts as pipeline_facts
from pipelines_scene import pipeline
from pipelines_scene import rendered as rendered_pipeline
from pod_security import broken_rules

from gantry_operator.api import ref_of
from gantry_operator.objects import archive_secret
from gantry_operator.objects.archive_server import server_resources
from gantry_operator.objects.base import Object
from gantry_operator.pipelines.facts import EngineFacts, Problem
from gantry_operator.pipelines.rendering import render as render_pipeline
from gantry_operator.pipelines.serving import archive_facts
from gantry_pipelines.archive.serving.broker_port import PortParameters
from gantry_pipelines.archive.serving.serve_job import ServeJob, ServeSpec
from gantry_pipelines.config import read_config
from gantry_remoting.tls_contexts import client_context, server_context
from gantry_spec.manifest.retention import ArchiveServer
from gantry_spec.pipelines import Pipeline

NAME = "orders-archive-server"
NAMED: dict[str, Any] = {"retention": {"archive": "history"}}
CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def objects_of_server(known: Any = None, **spec: Any) -> dict[str, Object]:
    """Return the objects of the server by kind."""
    found = [one for one in rendered(group(**spec), known) if one["metadata"]["name"] == NAME]
    return {one["kind"]: one for one in found}


def pod_template(known: Any = None, **spec: Any) -> Object:
    """Return the pod template of the server."""
    found: Object = objects_of_server(known, **spec)["Deployment"]["spec"]["template"]
    return found


def document(one: Pipeline) -> dict[str, Any]:
    """Return the resource of an archive, as the API server has it."""
    spec = {"brokerGroups": ["orders"], "destination": {"pvc": {"claimName": "history", "path": "all"}}}
    head = {"name": one.metadata.name, "namespace": "shop", "uid": "uid-of-history"}
    return {"apiVersion": "gantry.dev/v1alpha1", "kind": "TopicArchive", "metadata": head, "spec": spec}


def test_group_without_an_archive_is_rendered_as_before() -> None:
    """An upgrade of the operator replaces no pod of a group that names none."""
    without = {(one["kind"], one["metadata"]["name"]) for one in rendered(group())}

    assert not any("archive" in name for _, name in without)
    assert template_hash(group()) == template_hash(group(retention={"server": {"replicas": 3}}))
    assert template_hash(group(), facts()) == template_hash(group(), facts(archive=archive()))


def test_brokers_do_not_depend_on_the_archive() -> None:
    """Whether it exists, which one it is and where it is stored changes no object of theirs."""
    names = ("history", "another")
    found = [
        {ref_of(one): one for one in rendered(group(retention={"archive": name}), known)}
        for name in names
        for known in (facts(), facts(archive=archive()), facts(archive=archive(claim="x", is_on_one_node=True)))
    ]
    brokers = [{ref: one for ref, one in each.items() if ref.name != NAME} for each in found]

    assert all(each == brokers[0] for each in brokers)
    assert not [ref for ref in found[0] if ref.name == NAME], "an archive that does not exist has no server"


def test_program_accepts_its_settings() -> None:
    """The file is the configuration of `gantry pipeline serve`, with the credentials that are mounted."""
    text = objects_of_server(**NAMED)["ConfigMap"]["data"]["archive.json"]
    destination, parameters = ServeJob().parse(read_config(text, ServeSpec, "TopicArchive"))

    assert destination == "/var/lib/gantry/archive/orders"
    assert parameters.port == PortParameters(
        "::", 10915, "/etc/gantry/archive/secret", "/etc/gantry/archive/tls.crt", "/etc/gantry/archive/tls.key"
    )
    assert (parameters.socket_path, parameters.cache_bytes) == ("", 128 << 20)


def test_server_reads_the_archive_and_nothing_else() -> None:
    """The claim is mounted read-only, the token of its account nowhere, and no key of brokers is in its Secret."""
    template = pod_template(retention={"archive": "history"}, access={"aclSecret": "accounts", "tlsSecret": "brokers"})
    [server] = containers(template).values()
    volumes = {one["name"]: one for one in template["spec"]["volumes"]}
    secrets = {one["secret"]["secretName"] for one in volumes.values() if "secret" in one}

    assert list(broken_rules(template["spec"])) == []
    assert all(one.get("readOnly") for one in server["volumeMounts"] if one["name"] != "tmp")
    assert template["spec"]["automountServiceAccountToken"] is False
    assert objects_of_server(**NAMED)["ServiceAccount"]["automountServiceAccountToken"] is False
    assert secrets == {NAME}
    assert {item["key"] for item in volumes["credentials"]["secret"]["items"]} == {"secret", "tls.crt", "tls.key"}
    assert volumes["archive"]["persistentVolumeClaim"] == {"claimName": "history"}


def test_brokers_alone_reach_the_port() -> None:
    """The policy admits the operator and Prometheus to the page, and lets the server connect nowhere."""
    objects = objects_of_server(**NAMED)
    spec = objects["NetworkPolicy"]["spec"]
    [pods, operators] = spec["ingress"]
    brokers = broker_sets(rendered(group(**NAMED)))["orders-0-master"]["spec"]["template"]["metadata"]["labels"]

    assert [one["port"] for one in pods["ports"]] == [10915]
    assert [one["port"] for one in operators["ports"]] == [8090]
    assert [list(one) for one in pods["from"]] == [["podSelector"]]
    assert is_selected(brokers, pods["from"][0]["podSelector"])
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in spec, "a server may open connections"
    own = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert is_selected(own, spec["podSelector"])
    assert is_selected(own, {"matchLabels": objects["Service"]["spec"]["selector"]})
    others = of_kind(rendered(group(**NAMED)), "NetworkPolicy")
    assert not is_selected(own, others["orders-broker"]["spec"]["podSelector"])


def test_claim_of_one_node_has_one_server_at_a_time() -> None:
    """A new pod on another Node could not mount it before the old one has ended; job and server prefer one Node."""
    spread = objects_of_server(facts(archive=archive()), **NAMED)["Deployment"]["spec"]
    bound = objects_of_server(facts(archive=archive(is_on_one_node=True)), **NAMED)["Deployment"]["spec"]

    assert spread["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert list(spread["template"]["spec"]["affinity"]) == ["podAntiAffinity"]
    assert bound["strategy"] == {"type": "Recreate"}
    assert list(bound["template"]["spec"]["affinity"]) == ["podAffinity"]


def test_job_of_a_served_archive_prefers_the_node_of_the_server() -> None:
    """Its pods stay as they are while no group names it, so that an upgrade restarts no driver."""
    one = pipeline(name="history")
    plain = rendered_pipeline(one)[-1]["spec"]["template"]
    served = render_pipeline(one, _served(one, "orders"))[-1]["spec"]["template"]

    assert "affinity" not in plain["spec"]
    [term] = served["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert is_selected(pod_template(**NAMED)["metadata"]["labels"], term["podAffinityTerm"]["labelSelector"])


def _served(one: Pipeline, name: str) -> Any:
    known = pipeline_facts(one)
    return type(known)(engine=known.engine, source=known.source, served_group=name)


def test_secret_is_the_same_whenever_it_is_created() -> None:
    """A Secret that was deleted is created again without a change for brokers; another group has another one."""
    first, again = (archive_secret(b"k" * 32, group(**NAMED), CREATED) for _ in range(2))
    other = archive_secret(b"k" * 32, group("bills", **NAMED), CREATED)

    assert first == again
    assert not set(first["data"].values()) & set(other["data"].values())
    assert "KEY" not in base64.b64decode(first["data"]["ca.crt"]).decode()
    assert sorted(first["data"]) == ["ca.crt", "secret", "tls.crt", "tls.key"], "the key of the authority is nowhere"


async def test_brokers_accept_the_certificate_of_their_server_only(tmp_path: Path) -> None:
    """With the contexts of both programs, for the host in the settings of brokers; another group's is refused."""
    folders = {}
    for name in ("orders", "bills"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        for key, text in archive_secret(b"k" * 32, group(name, **NAMED), CREATED)["data"].items():
            (folders[name] / key).write_bytes(base64.b64decode(text))
    served = server_context(str(folders["orders"] / "tls.crt"), str(folders["orders"] / "tls.key"))
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=served)
    port = server.sockets[0].getsockname()[1]

    async def connect(authority: str, host: str) -> None:
        context = client_context(str(folders[authority] / "ca.crt"))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
        writer.close()
        await writer.wait_closed()

    async with server:
        await connect("orders", f"{NAME}.shop.svc")
        for authority, host in (("bills", f"{NAME}.shop.svc"), ("orders", "bills-archive-server.shop.svc")):
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(authority, host)


@pytest.mark.parametrize(
    ("given", "memory", "limit"),
    [
        ({}, "1Gi", "1Gi"),
        ({"limits": {"memory": "2Gi"}}, "2Gi", "2Gi"),
        ({"requests": {"memory": "2Gi"}}, "2Gi", "2Gi"),
    ],
    ids=["computed", "limit", "request"],
)
def test_memory_follows_from_the_cache_unless_it_is_set(given: dict[str, Any], memory: str, limit: str) -> None:
    """Request and limit are equal, so that the server is not evicted for what it was promised."""
    found = server_resources(ArchiveServer(resources=given))

    assert (found["requests"]["memory"], found["limits"]["memory"]) == (memory, limit)
    assert server_resources(ArchiveServer(resources={"limits": "much"})) == {"limits": "much"}


@pytest.mark.parametrize(
    ("claim", "is_on_one_node"),
    [
        (None, True),
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, True),
        ({"spec": {"accessModes": ["ReadWriteMany"]}}, False),
        ({"spec": {"accessModes": ["ReadWriteMany"]}, "status": {"accessModes": ["ReadWriteOnce"]}}, True),
    ],
    ids=["unknown", "once", "many", "bound once"],
)
def test_access_modes_decide_where_the_server_runs(claim: Any, is_on_one_node: bool) -> None:
    """Those of the bound volume count; without any the safe assumption is one Node."""
    found = archive_facts(group(**NAMED), EngineFacts(image="i"), document(pipeline(name="history")), claim)

    assert not isinstance(found, Problem)
    assert (found.claim, found.path, found.is_on_one_node) == ("history", "all", is_on_one_node)
    assert json.loads(json.dumps(found.spec))["brokerGroups"] == ["orders"]


def test_archive_without_an_image_is_a_problem() -> None:
    """As for the archive's own job."""
    found = archive_facts(group(**NAMED), EngineFacts(), document(pipeline(name="history")), None)

    assert isinstance(found, Problem)
    assert found.reason == "ImageMissing"
