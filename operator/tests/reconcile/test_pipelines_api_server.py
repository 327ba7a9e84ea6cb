"""Pipelines at a real API server: each rule is violated once, rendered objects are accepted, and rights are minimal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from api_server import ApiServer, path_of
from charts_scene import ROOT
from pipelines_scene import EVERYTHING, REQUIRED_FIELDS, facts, pipeline, rendered, resource
from test_pipelines_objects import pod_templates

from gantry_operator.pipelines.rendering import render
from gantry_spec.pipelines import PIPELINE_KINDS, pipeline_of
from gantry_spec.pipelines.rules import FIXED, RULES
from gantry_spec.pipelines.status import LastRun, PipelineStatus, QueueStatus

pytestmark = pytest.mark.needs_api_server

PLURAL = {kind.name: kind.plural for kind in PIPELINE_KINDS}
ACCOUNT = "system:serviceaccount:gantry-system:gantry-operator"
SAMPLES = sorted((ROOT / "manifests/samples/pipelines").glob("*.yaml"))

BROKEN: list[tuple[str, str, dict[str, Any]]] = [
    ("set either brokerGroups or nameServers", "TopicArchive", {"nameServers": ["ns.example:9876"]}),
    ("which a pod does not have", "TopicArchive", {"transport": "file"}),
    ("destination.pvc.claimName is required", "TopicArchive", {"destination": {}}),
    ("set both, or neither", "TopicArchive", {"checkpoint": {"pvc": {"path": "a"}}}),
    ("engine.cores applies to mode local only", "TopicArchive", {"engine": {"mode": "kubernetes", "cores": 2}}),
    ("another field or Gantry itself controls it", "LogAudit", {"engine": {"sparkConf": {"spark.master": "local[2]"}}}),
    ("must be set with the check archive", "LogAudit", {"checks": ["archive"]}),
    (
        "schemaFile is a file",
        "TopicArchive",
        {"schemas": [{"topics": ["a"], "format": "avro", "schemaFile": "a.avsc"}]},
    ),
]
"""Every rule, by the message of the API server, with a kind and a spec that violates it."""

SCHEMAS: dict[str, Any] = {
    "schemas": [
        {"topics": ["orders"], "columns": [{"name": "amount", "type": "decimal(10,2)", "field": "total"}]},
        {"topics": ["bills.*"], "format": "avro", "schema": '{"type": "record"}', "skipBytes": 5},
    ]
}
"""A TopicArchive with typed columns."""

SHAPES: list[tuple[str, str, dict[str, Any]]] = [
    ("unknown field", "TopicArchive", {"topic": ["a"]}),
    ("engine.mode", "LogAudit", {"engine": {"mode": "yarn"}}),
    ("trigger", "TopicAnalytics", {"trigger": "soon"}),
    ("schedule", "TopicArchive", {"schedule": "sometimes"}),
    ("start", "TopicArchive", {"start": "yesterday"}),
    ("path", "TopicArchive", {"destination": {"pvc": {"claimName": "a", "path": "b c"}}}),
    ("path", "TopicArchive", {"destination": {"pvc": {"claimName": "a", "path": "../b"}}}),
    ("path", "TopicArchive", {"destination": {"pvc": {"claimName": "a", "path": "b/./c"}}}),
    ("brokerGroups", "TopicArchive", {"brokerGroups": ["a", "b"]}),
    ("topics", "TopicArchive", {"schemas": [{"format": "raw"}]}),
    ("name", "TopicArchive", {"schemas": [{"topics": ["a"], "columns": [{"name": "a-b", "type": "int"}]}]}),
]


@pytest.fixture(scope="module")
def server(groups_api: ApiServer) -> ApiServer:
    """The API server that all tests share, with the operator's rights, but not its admission policies."""
    for document in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()):
        if document and not document["kind"].startswith("ValidatingAdmissionPolicy"):
            status, answer = groups_api.apply(path_of(document), document)
            assert status in (200, 201), answer
    return groups_api


def path_of_pipeline(document: dict[str, Any], name: str = "") -> str:
    """Return the API path of all pipelines of a kind, or of one of them."""
    folder = f"/apis/gantry.dev/v1alpha1/namespaces/shop/{PLURAL[document['kind']]}"
    return f"{folder}/{name}" if name else folder


def create(server: ApiServer, document: dict[str, Any]) -> tuple[int, Any]:
    """Create a pipeline with a dry run, so that nothing is stored."""
    return server.ask("POST", f"{path_of_pipeline(document)}?dryRun=All&fieldValidation=Strict", document)


def test_every_rule_has_a_spec_that_violates_it() -> None:
    """A new rule needs an entry with a spec that it refuses."""
    messages = [rule.message for rule in RULES]
    assert len(messages) == len(BROKEN)
    for part, _, _ in BROKEN:
        assert any(part in message for message in messages), part


@pytest.mark.verify(quick=3)
@pytest.mark.parametrize(("expected", "kind", "spec"), [*BROKEN, *SHAPES], ids=[one[0] for one in [*BROKEN, *SHAPES]])
def test_api_server_applies_our_rules(server: ApiServer, expected: str, kind: str, spec: dict[str, Any]) -> None:
    """Invalid specs are refused with our messages, before anything is stored."""
    status, answer = create(server, resource(kind, **spec))
    assert status in (400, 422), answer
    assert expected in answer["message"]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [*((kind, {}) for kind in REQUIRED_FIELDS), ("TopicArchive", EVERYTHING), ("TopicArchive", SCHEMAS)],
    ids=[*REQUIRED_FIELDS, "everything", "schemas"],
)
def test_api_server_fills_in_our_defaults(server: ApiServer, kind: str, spec: dict[str, Any]) -> None:
    """The stored spec equals the given one, whichever side adds the defaults."""
    written = resource(kind, **spec)
    status, answer = create(server, written)
    assert status == 201, answer
    assert pipeline_of(answer).spec == pipeline_of(written).spec


@pytest.mark.parametrize("path", SAMPLES, ids=[path.stem for path in SAMPLES])
def test_samples_are_accepted(server: ApiServer, path: Path) -> None:
    """The API server and the reader both accept them as they are."""
    for sample in yaml.safe_load_all(path.read_text()):
        if sample["kind"] not in PLURAL:
            continue
        status, answer = create(server, sample)
        assert status == 201, answer
        assert pipeline_of(answer).spec == pipeline_of(sample).spec


@pytest.mark.parametrize(
    ("spec", "is_taken"),
    [
        ({"schedule": "@hourly"}, True),
        ({"suspend": True}, True),
        ({"destination": {"pvc": {"claimName": "other"}}}, False),
        ({"checkpoint": {"pvc": {"claimName": "other"}}}, False),
        ({"layout": {"rowsPerFile": 5000}}, False),
        ({"layout": {"timeZone": "Europe/Berlin"}}, False),
        ({"layout": {"partitionBy": "hour"}}, False),
        ({"layout": {"compression": "snappy"}}, True),
    ],
)
def test_only_mutable_fields_can_be_edited(server: ApiServer, spec: dict[str, Any], is_taken: bool) -> None:
    """Locations, and the fields that file names depend on, are immutable."""
    document = resource(name="edited")
    path = path_of_pipeline(document, "edited")
    assert server.apply(path, document)[0] in (200, 201)

    status, answer = server.ask("PATCH", f"{path}?dryRun=All", {"spec": spec}, "application/merge-patch+json")
    assert (status == 200) is is_taken, answer
    if not is_taken:
        assert any(f"{one.path}: {one.message}" in answer["message"] for one in FIXED)


def test_name_is_limited_by_the_names_of_pods(server: ApiServer) -> None:
    """It has at most forty characters, or the names of pods would be too long."""
    assert create(server, resource(name="a" * 40))[0] == 201
    assert create(server, resource(name="a" * 41))[0] == 422


@pytest.mark.parametrize("kind", sorted(REQUIRED_FIELDS))
def test_status_is_a_subresource_with_all_fields(server: ApiServer, kind: str) -> None:
    """Every field is in the CRD; the operator can write the status, but not the spec."""
    document = resource(kind, "reported")
    path = path_of_pipeline(document, "reported")
    assert server.apply(path, document)[0] in (200, 201)
    run = LastRun(start="2026-01-01T00:00:00Z", rows=7, facts={"report": "/r"}, exit_code=1, reason="R", message="m")
    status = PipelineStatus(
        phase="Running", last_run=run, queues=[QueueStatus(topic="t", broker="b", queue=1)], queues_total=9
    )
    written = {name: document[name] for name in ("apiVersion", "kind")} | {
        "metadata": {"name": "reported", "namespace": "shop"},
        "status": msgspec.to_builtins(status),
    }

    code, answer = server.apply(f"{path}/status", written, user=ACCOUNT)
    assert (code, msgspec.convert(answer["status"], PipelineStatus)) == (200, status)
    assert server.apply(path, document | {"spec": document["spec"] | {"suspend": True}}, user=ACCOUNT)[0] == 403


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("TopicArchive", {}),
        ("TopicArchive", {"schedule": "*/10 * * * *"}),
        ("TopicArchive", EVERYTHING),
        ("LogAudit", {}),
        ("TopicAnalytics", {"engine": {"mode": "kubernetes"}}),
    ],
    ids=["continuous", "schedule", "everything", "once", "spread"],
)
def test_operator_may_create_all_objects_of_a_pipeline(server: ApiServer, kind: str, spec: dict[str, Any]) -> None:
    """Each object is created with the rights of the chart; a repeated apply changes nothing."""
    for made in rendered(pipeline(kind, **spec)):
        status, first = server.apply(path_of(made), made, user=ACCOUNT)
        assert status in (200, 201), (made["kind"], first)
        _, again = server.apply(path_of(made), made, user=ACCOUNT)
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], made["kind"]


def test_operator_can_bind_only_the_executors_role(server: ApiServer) -> None:
    """A binding of a driver's account to a greater role is refused, and the operator itself may create no pods."""
    one = pipeline(engine={"mode": "kubernetes"})
    [binding] = [made for made in rendered(one) if made["kind"] == "RoleBinding"]
    binding["roleRef"]["name"] = "cluster-admin"
    binding["metadata"]["name"] = "greater"

    status, answer = server.apply(path_of(binding), binding, user=ACCOUNT)
    assert status == 403, answer
    assert server.ask("POST", "/api/v1/namespaces/shop/pods?dryRun=All", {}, user=ACCOUNT)[0] == 403


@pytest.mark.parametrize("kind", sorted(REQUIRED_FIELDS))
@pytest.mark.parametrize("mode", ["local", "kubernetes"])
def test_pods_pass_restricted_pod_security(server: ApiServer, kind: str, mode: str) -> None:
    """They are made from the templates as controllers and Spark do it; a pod with more privileges is refused."""
    one = pipeline(kind, engine={"mode": mode})
    for name, template in pod_templates(render(one, facts(one))).items():
        spec = template["spec"]
        spec["containers"][0].setdefault("image", "example.com/pipelines:1")
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | {"name": name}, "spec": spec}
        status, answer = server.ask("POST", "/api/v1/namespaces/shop/pods?dryRun=All", pod)
        assert status == 201, answer
        spec["containers"][0]["securityContext"] = {}
        status, answer = server.ask("POST", "/api/v1/namespaces/shop/pods?dryRun=All", pod)
        assert status == 403 and "PodSecurity" in answer["message"]


@pytest.mark.parametrize(
    ("method", "path", "is_allowed"),
    [
        ("GET", "/api/v1/namespaces/shop/pods", True),
        ("POST", "/api/v1/namespaces/shop/pods?dryRun=All", True),
        ("DELETE", "/api/v1/namespaces/shop/pods?labelSelector=spark-app-selector%3Dx&dryRun=All", True),
        ("GET", "/api/v1/namespaces/shop/secrets", False),
        ("GET", "/api/v1/namespaces/shop/configmaps", False),
        ("DELETE", "/api/v1/namespaces/shop/persistentvolumeclaims/data-prod-0-master-0", False),
        ("POST", "/api/v1/namespaces/shop/pods/prod-0-master-0/exec", False),
        ("GET", "/api/v1/namespaces/gantry-system/pods", False),
    ],
)
def test_driver_may_only_manage_pods(server: ApiServer, method: str, path: str, is_allowed: bool) -> None:
    """It may read, create and delete pods in its own namespace; no Secrets, no claims, nothing in other namespaces."""
    for made in rendered(pipeline(engine={"mode": "kubernetes"})):
        if made["kind"] in ("ServiceAccount", "RoleBinding"):
            assert server.apply(path_of(made), made)[0] in (200, 201)
    driver = "system:serviceaccount:shop:orders-archive"
    security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    own = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec = {"securityContext": security, "containers": [{"name": "a", "image": "a", "securityContext": own}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "executor"}, "spec": spec}

    status, answer = server.ask(method, path, pod if method == "POST" else None, user=driver)
    assert (status in (200, 201)) is is_allowed, answer
    assert is_allowed or status == 403
