"""The custom resource and all rendered objects at a real API server: rules, defaults, edits, subresources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import GROUPS, ApiServer, path_of
from charts_scene import ROOT
from objects_scene import EVERYTHING, archive, facts, group, rendered

from gantry_operator.objects import group_token, secret
from gantry_operator.objects.base import Object
from gantry_spec.manifest.changes import FIXED
from gantry_spec.manifest.group import Spec
from gantry_spec.manifest.reading import group_of, plain_values
from gantry_spec.manifest.rules import RULES

pytestmark = pytest.mark.needs_api_server

OWN_CERTIFICATES: dict[str, Any] = {"certificates": {"issuer": "Operator"}}

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("slaves must be at least inSyncReplicas - 1", {"slaves": 1, "replication": {"inSyncReplicas": 3}}),
    ("mode Sync needs inSyncReplicas of 2", {"replication": {"inSyncReplicas": 1}}),
    ("mode Async waits for no slave", {"replication": {"mode": "Async", "inSyncReplicas": 2}, "slaves": 2}),
    ("mode Async waits for no acknowledgement", {"replication": {"mode": "Async", "ack": "Flushed"}}),
    ("not both", {"nameServers": {"replicas": 1, "addresses": ["a.example:9876"]}}),
    ("segmentSize must be at least 1Mi", {"writeBuffer": {"medium": "HugePages-2Mi", "segmentSize": "3Mi"}}),
    ("at least three files", {"storage": {"size": "2Gi"}}),
    (
        "maxAtRisk cannot be shorter",
        {"slaves": 0, "replication": {"mode": "Async"}, "durability": {"maxAtRisk": "100ms"}},
    ),
    ("switchback moves", {"failover": {"mode": "Disabled", "switchback": True}}),
    ("retention.local and storage.reservedTime", {"retention": {"local": "1h"}, "storage": {"reservedTime": "2h"}}),
    ("retention.server.cache must be", {"retention": {"server": {"cache": "1Ki"}}}),
    ("both name an archive server", {"retention": {"archive": "history"}, "broker": {"archiveSocketPath": "/run/a"}}),
    ("another field or Gantry itself controls it", {"broker": {"brokerRole": "SLAVE"}}),
    ("needs access.external.gateway.name", {"access": {"external": {"type": "Gateway"}}}),
    ("has no effect without access.aclSecret", {"proxy": {"credentialsSecret": "account"}}),
    ("set access.tlsSecret or access.certificates.issuer", {"access": {"tlsSecret": "a", **OWN_CERTIFICATES}}),
    ("is required with issuer CertManager", {"access": {"certificates": {"issuer": "CertManager"}}}),
    ("names has no effect without", {"access": {"certificates": {"names": ["mq.example.com"]}}}),
    ("requiresClientCertificate needs an authority", {"proxy": {"tls": {"requiresClientCertificate": True}}}),
    ("type must be LoadBalancer", {"proxy": {"service": {"loadBalancerClass": "example.com/inner"}}}),
    ("calls must be at least proxy.limits.clients", {"proxy": {"limits": {"calls": 10}}}),
    ("longPoll must be between", {"proxy": {"limits": {"longPoll": "1s"}}}),
    ("invisibleTime must be at least 10s", {"proxy": {"limits": {"invisibleTime": "1s"}}}),
    ("at least 10s longer", {"proxy": {"template": {"terminationGracePeriod": "20s"}}}),
]
"""Every rule that the API server evaluates, by its message, and a spec that violates it."""

SHAPES: list[tuple[str, dict[str, Any]]] = [
    ("unknown field", {"shard": 2}),
    ("shards", {"shards": 0}),
    ("replication.mode", {"replication": {"mode": "sync"}}),
    ("flush.interval", {"flush": {"interval": "soon"}}),
    ("access.certificates.names", {"access": {"certificates": {"issuer": "Operator", "names": ["no name"]}}}),
    ("Duplicate value", {"topics": [{"name": "a"}, {"name": "a"}]}),
]
"""Specs that the schema itself refuses."""


@pytest.fixture
def server(groups_api: ApiServer) -> ApiServer:
    """The API server that all tests share."""
    return groups_api


def document(spec: dict[str, Any] | None, name: str = "orders") -> Object:
    """Return a group as a user writes it."""
    head: Object = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": name}}
    return head | ({} if spec is None else {"spec": spec})


def create(server: ApiServer, spec: dict[str, Any] | None, name: str = "orders") -> tuple[int, Any]:
    """Create a group with a dry run, so that nothing is stored."""
    return server.ask("POST", f"{GROUPS}?dryRun=All&fieldValidation=Strict", document(spec, name))


def test_every_rule_has_a_spec_that_violates_it() -> None:
    """A new rule needs an entry with a spec that it refuses."""
    messages = [rule.message for rule in RULES if rule.cel]

    assert len(messages) == len(BROKEN)
    for part, _ in BROKEN:
        assert any(part in message for message in messages), part


@pytest.mark.verify(quick=5)
@pytest.mark.parametrize(("expected", "spec"), [*BROKEN, *SHAPES], ids=[expected for expected, _ in [*BROKEN, *SHAPES]])
def test_api_server_applies_our_rules(server: ApiServer, expected: str, spec: dict[str, Any]) -> None:
    """Invalid specs are refused with our messages, before anything is stored."""
    status, answer = create(server, spec)

    assert status in (400, 422), answer
    assert expected in answer["message"]


@pytest.mark.parametrize("path", sorted((ROOT / "manifests/samples").glob("*.yaml")), ids=lambda path: path.stem)
def test_samples_are_accepted(server: ApiServer, path: Path) -> None:
    """The API server accepts them as they are."""
    sample = yaml.safe_load(path.read_text())

    status, answer = server.ask("POST", f"{GROUPS}?dryRun=All&fieldValidation=Strict", sample)

    assert status == 201, answer


@pytest.mark.parametrize("spec", [None, {}, {"shards": 2}, EVERYTHING], ids=["none", "empty", "a field", "everything"])
def test_api_server_fills_in_our_defaults(server: ApiServer, spec: dict[str, Any] | None) -> None:
    """The stored spec equals the given one, whichever side adds the defaults."""
    status, answer = create(server, spec)

    assert status == 201, answer
    head = {name: answer[name] for name in ("apiVersion", "kind", "metadata")}
    assert group_of(head | {"spec": answer["spec"]}).spec == group_of(head | {"spec": spec or {}}).spec


@pytest.mark.parametrize(
    ("spec", "is_taken"),
    [
        ({"storage": {"size": "30Gi"}}, True),
        ({"storage": {"size": "20480Mi"}}, True),
        ({"storage": {"size": "10Gi"}}, False),
        ({"storage": {"storageClassName": "other"}}, False),
        ({"writeBuffer": {"segmentSize": "1024Mi"}}, True),
        ({"writeBuffer": {"segmentSize": "512Mi"}}, False),
        ({"slaves": 2, "shards": 3}, True),
        ({"proxy": {"replicas": 2, "service": {"type": "LoadBalancer", "loadBalancerClass": "a/b"}}}, True),
    ],
    ids=["grow", "same in other words", "shrink", "class", "same segment", "other segment", "counts", "proxies"],
)
def test_only_mutable_fields_can_be_edited(server: ApiServer, spec: dict[str, Any], is_taken: bool) -> None:
    """Immutable fields cannot be edited, and a volume only grows; most of TLS is in ``test_edit_api_server``."""
    path = f"{GROUPS}/edited"
    assert server.apply(path, document({}, "edited"))[0] in (200, 201)

    status, answer = server.ask("PATCH", f"{path}?dryRun=All", {"spec": spec}, "application/merge-patch+json")

    assert (status == 200) is is_taken, answer
    if not is_taken:
        assert any(f"{one.path}: {one.reason}" in answer["message"] for one in FIXED)


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [("secret", "cert-manager", True), ("cert-manager", "secret", True), ("secret", "own", False)],
    ids=lambda value: str(value),
)
def test_issuer_can_change_where_the_authority_can_stay(
    server: ApiServer, before: str, after: str, is_taken: bool
) -> None:
    """cert-manager may use the authority of the Secret that it replaces; an authority of the group's own cannot."""
    access: dict[str, Any] = {
        "secret": {"tlsSecret": "mine", "certificates": {"issuer": "None", "issuerRef": {"name": ""}}},
        "cert-manager": {"tlsSecret": "", "certificates": {"issuer": "CertManager", "issuerRef": {"name": "ca"}}},
        "own": {"tlsSecret": "", "certificates": {"issuer": "Operator", "issuerRef": {"name": ""}}},
    }
    name = f"issued-{before}"
    assert server.apply(f"{GROUPS}/{name}", document({"access": access[before]}, name))[0] in (200, 201)

    change = {"spec": {"access": access[after]}}
    status, answer = server.ask("PATCH", f"{GROUPS}/{name}?dryRun=All", change, "application/merge-patch+json")

    assert (status == 200) is is_taken, answer
    if not is_taken:
        assert "pods verify each other by the authority" in answer["message"]


def test_name_is_limited_by_the_names_of_pods(server: ApiServer) -> None:
    """It has at most forty characters, or the names of pods would be too long."""
    assert create(server, {}, "a" * 40)[0] == 201
    assert create(server, {}, "a" * 41)[0] == 422


def test_status_and_scale_are_subresources(server: ApiServer) -> None:
    """A write of the status does not change the spec, and `kubectl scale` changes the number of shards."""
    path = f"{GROUPS}/scaled"
    assert server.apply(path, document({}, "scaled"))[0] in (200, 201)
    change = {"spec": {"shards": 9}, "status": {"shards": 1, "selector": "gantry.dev/group=scaled", "phase": "Ready"}}

    status, answer = server.ask("PATCH", f"{path}/status", change, "application/merge-patch+json")
    scaled = server.ask("PATCH", f"{path}/scale", {"spec": {"replicas": 2}}, "application/merge-patch+json")

    assert (status, answer["spec"]["shards"], answer["status"]["phase"]) == (200, 1, "Ready")
    assert scaled[1]["status"]["selector"] == "gantry.dev/group=scaled"
    assert server.ask("GET", path)[1]["spec"]["shards"] == 2


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_rendered_objects_are_accepted(server: ApiServer, spec: dict[str, Any]) -> None:
    """This holds for every object of a group, and a repeated apply changes nothing."""
    one = group(**spec)
    for made in [secret(one, group_token(bytes(32), one)), *rendered(one, facts(archive=archive()))]:
        status, first = server.apply(path_of(made), made)
        assert status in (200, 201), (made["kind"], first)
        _, again = server.apply(path_of(made), made)
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], made["kind"]
        status, answer = server.ask("DELETE", path_of(made))
        assert status == 200, (made["kind"], answer)


@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_pods_pass_restricted_pod_security(server: ApiServer, spec: dict[str, Any]) -> None:
    """They are made from the templates as a controller does it; a pod with more privileges is refused."""
    for made in rendered(group(**spec), facts(archive=archive())):
        if made["kind"] not in ("StatefulSet", "Deployment"):
            continue
        pod_spec = made["spec"]["template"]["spec"]
        claims = [
            {"name": claim["metadata"]["name"], "persistentVolumeClaim": {"claimName": "x"}}
            for claim in made["spec"].get("volumeClaimTemplates", [])
        ]
        classes = {"priorityClassName": "", "runtimeClassName": None}  # neither exists here
        body = pod_spec | {"volumes": [*pod_spec["volumes"], *claims]} | classes
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{made['metadata']['name']}-0"}, "spec": body}

        status, answer = server.ask("POST", "/api/v1/namespaces/shop/pods?dryRun=All", pod)
        assert status == 201, answer["message"]
        body["containers"][0]["securityContext"] = {}
        status, answer = server.ask("POST", "/api/v1/namespaces/shop/pods?dryRun=All", pod)
        assert status == 403 and "PodSecurity" in answer["message"]


def test_manifests_of_the_operator_are_accepted(server: ApiServer) -> None:
    """They are sent one by one, as `kubectl apply` does. Nothing is stored: the admission policies would stay."""
    for made in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()):
        if made:
            status, answer = server.apply(path_of(made), made, is_dry=True)
            assert status in (200, 201), answer


def test_default_of_the_whole_spec_is_ours() -> None:
    """It is in the CRD as a whole, because rules are evaluated on it before defaults are added."""
    definition = yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    ours = plain_values(Spec())
    ours["nameServers"].pop("replicas")
    for name in ("inSyncReplicas", "ack"):
        ours["replication"].pop(name)
    for name in ("local", "archive"):
        ours["retention"].pop(name)

    assert schema["default"] == ours
