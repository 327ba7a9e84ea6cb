"""The objects of a pipeline: its pods, their configuration, their rights, and the connections that they accept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from objects_scene import EVERYTHING as GROUP_WITH_EVERYTHING
from objects_scene import group as broker_group
from objects_scene import is_selected, of_kind
from objects_scene import rendered as rendered_group
from pipelines_scene import EVERYTHING, REQUIRED_FIELDS, ROLE, facts, pipeline, rendered
from pod_security import broken_rules

from gantry_operator.api import ref_of
from gantry_operator.objects import names
from gantry_operator.objects.base import hash_of
from gantry_operator.pipelines.configuration import pipeline_text
from gantry_operator.pipelines.rendering import job_name, render
from gantry_spec.pipelines.parts import Volume

KINDS = sorted(REQUIRED_FIELDS)
IN_KUBERNETES: dict[str, Any] = {"engine": {"mode": "kubernetes"}}


def configuration_of(objects: Any) -> dict[str, Any]:
    """Return the configuration that the driver reads."""
    [found] = of_kind(objects, "ConfigMap").values()
    document: dict[str, Any] = json.loads(found["data"]["pipeline.json"])
    return document


def pod_templates(objects: Any) -> dict[str, dict[str, Any]]:
    """Return the template of the driver, and that of the executors if there are any."""
    workload = objects[-1]["spec"]
    found = {"driver": workload.get("jobTemplate", {"spec": workload})["spec"]["template"]}
    [config] = of_kind(objects, "ConfigMap").values()
    if "executor.json" in config["data"]:
        found["executor"] = json.loads(config["data"]["executor.json"])
    return found


@pytest.mark.parametrize(
    ("kind", "spec", "workload"),
    [
        ("TopicArchive", {}, "StatefulSet"),
        ("TopicArchive", {"schedule": "*/10 * * * *"}, "CronJob"),
        ("TopicAnalytics", {}, "StatefulSet"),
        ("LogAudit", {}, "Job"),
        ("LogAudit", {"schedule": "@daily"}, "CronJob"),
    ],
)
def test_workload_follows_from_the_schedule(kind: str, spec: dict[str, Any], workload: str) -> None:
    """A schedule makes a CronJob; without it, a continuous pipeline has a StatefulSet, and an audit a Job."""
    assert rendered(pipeline(kind, **spec))[-1]["kind"] == workload


def test_workloads_never_run_a_second_driver() -> None:
    """There are no two runs at a time, and no new pod before the last one of a Job has ended."""
    cron = rendered(pipeline(schedule="* * * * *"))[-1]["spec"]
    job = cron["jobTemplate"]["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert (job["podReplacementPolicy"], job["parallelism"], job["completions"]) == ("Failed", 1, 1)
    assert rendered(pipeline())[-1]["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("kind", "schedule", "path"),
    [("TopicArchive", "", "replicas"), ("TopicArchive", "* * * * *", "suspend"), ("LogAudit", "", "suspend")],
)
def test_suspended_workloads_start_nothing(kind: str, schedule: str, path: str) -> None:
    """A CronJob and a Job are suspended, and a continuous pipeline has no pod."""
    body = rendered(pipeline(kind, schedule=schedule, suspend=True))[-1]["spec"]
    assert body[path] == (0 if path == "replicas" else True)


def test_final_exit_codes_end_a_job() -> None:
    """An invalid configuration, a missing object, lost messages and an audit's finding are not retried."""

    def codes(kind: str) -> list[int]:
        rules = rendered(pipeline(kind, schedule="@daily"))[-1]["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]
        found: list[int] = rules["rules"][0]["onExitCodes"]["values"]
        return found

    assert codes("TopicArchive") == [2, 3, 5]
    assert codes("LogAudit") == [1, 2, 3, 5]


def test_job_of_an_audit_follows_from_its_spec() -> None:
    """Results for another spec do not count; suspending the audit keeps its Job."""
    one = pipeline("LogAudit")
    assert job_name(one) == job_name(pipeline("LogAudit", suspend=True))
    assert job_name(one) != job_name(pipeline("LogAudit", checks=["index"]))


def test_upgrade_of_the_operator_restarts_no_pipeline() -> None:
    """A field that is new in the spec changes neither the name of a Job nor the configuration, where it is not set.

    Another name would run an audit again that is done, and an older image refuses an unknown field.
    """
    audit, archive = pipeline("LogAudit"), pipeline("TopicArchive")
    assert job_name(audit) == "orders-audit-3c874030"
    assert hash_of(pipeline_text(audit, facts(audit))) == "72ca0febe6bcd089"
    assert hash_of(pipeline_text(archive, facts(archive))) == "9f827cb34c4a6220"
    sandboxed: dict[str, Any] = {"engine": {"podTemplate": {"runtimeClassName": "sandboxed"}}}
    assert job_name(pipeline("LogAudit", **sandboxed)) != job_name(audit), "a value that is set counts"


def test_template_of_executors_does_not_depend_on_order_of_keys() -> None:
    """Equal specs give the same text for any order of their keys."""

    def template(selector: dict[str, str]) -> str:
        engine = {"mode": "kubernetes", "podTemplate": {"nodeSelector": selector}}
        [config] = of_kind(rendered(pipeline(engine=engine)), "ConfigMap").values()
        text: str = config["data"]["executor.json"]
        return text

    assert template({"disk": "ssd", "zone": "a"}) == template({"zone": "a", "disk": "ssd"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [{}, IN_KUBERNETES], ids=["local", "kubernetes"])
def test_every_pod_passes_restricted_pod_security(kind: str, mode: dict[str, Any]) -> None:
    """In addition it has a read-only root, no automatic token, and limits."""
    for name, template in pod_templates(rendered(pipeline(kind, **mode))).items():
        spec = template["spec"]
        assert list(broken_rules(spec)) == [], name
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsUser"] == 185
        [container] = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        if name == "driver":
            assert container["resources"]["limits"]["memory"] == "2Gi"


def test_only_a_driver_with_executors_has_rights_and_a_token() -> None:
    """In mode local there are none; in mode kubernetes only the driver has them, and the token is valid for an hour."""
    local, spread = rendered(pipeline()), rendered(pipeline(**IN_KUBERNETES))

    assert not of_kind(local, "RoleBinding") and not of_kind(local, "Role")
    assert "serviceAccountToken" not in json.dumps(local)
    [binding] = of_kind(spread, "RoleBinding").values()
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ROLE
    assert [one["name"] for one in binding["subjects"]] == ["orders-archive"]
    templates = pod_templates(spread)
    assert "serviceAccountToken" in json.dumps(templates["driver"])
    assert '"expirationSeconds": 3600' in json.dumps(templates["driver"])
    assert "serviceAccountToken" not in json.dumps(templates["executor"])
    assert templates["driver"]["spec"]["serviceAccountName"] == "orders-archive"


def test_configuration_is_the_spec_with_settings_for_the_pods() -> None:
    """It has name servers, sidecars and key files of the group, and mounted folders, but no secrets."""
    document = configuration_of(rendered(pipeline(**EVERYTHING), **GROUP_WITH_EVERYTHING))
    pod_settings = document.pop("runtime")

    assert document["topics"]["include"] == ["orders.*"]
    assert pod_settings["nameServers"][0] == "prod-nameserver-0.prod-nameserver.shop.svc:9876"
    assert len(pod_settings["sidecars"]) == 6
    assert pod_settings["sidecars"][0] == "https://prod-0-master-0.prod-0-master.shop.svc:8080"
    assert pod_settings["destination"] == "/var/lib/gantry/destination/prod/orders"
    assert pod_settings["checkpoint"] == "/var/lib/gantry/checkpoint/orders"
    assert pod_settings["once"] is True
    assert {pod_settings["accessFile"], pod_settings["caFile"], *pod_settings["tokenFiles"].values()} == {
        "/etc/gantry/credentials/credentials",
        "/etc/gantry/authority/ca.crt",
        "/etc/gantry/group/read-token",
    }


def test_only_secrets_for_reading_are_mounted() -> None:
    """A token that gives orders, or a private key, is never mounted."""
    for template in pod_templates(rendered(pipeline(**IN_KUBERNETES), **GROUP_WITH_EVERYTHING)).values():
        secrets = {one["secret"]["secretName"]: one["secret"] for one in template["spec"]["volumes"] if "secret" in one}
        keys = {name: [item["key"] for item in one["items"]] for name, one in secrets.items()}
        assert keys == {"prod-sidecar": ["read-token"], "accounts": ["credentials"], "certificates": ["ca.crt"]}


def test_own_credentials_take_precedence_over_the_groups() -> None:
    """A pipeline may use another account than the group's own."""
    one = pipeline(access={"credentialsSecret": "mine", "tlsSecret": "authority"})
    volumes = pod_templates(rendered(one, **GROUP_WITH_EVERYTHING))["driver"]["spec"]["volumes"]
    assert {"mine", "authority"} <= {one["secret"]["secretName"] for one in volumes if "secret" in one}


def test_driver_and_executors_mount_the_same_claims() -> None:
    """A worker writes where the driver reads; a claim that is used twice is one volume."""
    same = {"pvc": {"claimName": "archive", "path": "state"}}
    found = pod_templates(rendered(pipeline(**IN_KUBERNETES, checkpoint=same)))

    def claims(template: dict[str, Any]) -> dict[str, str]:
        volumes = {
            one["name"]: one["persistentVolumeClaim"]["claimName"]
            for one in template["spec"]["volumes"]
            if "persistentVolumeClaim" in one
        }
        mounts = template["spec"]["containers"][0]["volumeMounts"]
        return {one["mountPath"]: volumes[one["name"]] for one in mounts if one["name"] in volumes}

    wanted = {"/var/lib/gantry/destination": "archive", "/var/lib/gantry/checkpoint": "archive"}
    assert claims(found["driver"]) == claims(found["executor"]) == wanted


def test_spark_recognizes_the_scratch_volume() -> None:
    """It does so by the name; else an executor's pod would get a second volume at the same path, and be refused."""
    for template in pod_templates(rendered(pipeline(**IN_KUBERNETES))).values():
        [main] = template["spec"]["containers"]
        [scratch] = [one for one in main["volumeMounts"] if one["mountPath"] == "/var/lib/spark"]
        assert scratch["name"].startswith("spark-local-dir-")
        assert scratch["name"] in {one["name"] for one in template["spec"]["volumes"]}
        assert {one["value"] for one in main["env"] if one["name"] == "SPARK_LOCAL_DIRS"} <= {"/var/lib/spark"}


def test_audit_mounts_its_archive_read_only() -> None:
    """The archive is the claim of a TopicArchive."""
    one = pipeline("LogAudit", checks=["archive"], archive="orders")
    found = render(one, facts(one, archive=Volume(claim_name="archive", path="prod")))

    assert configuration_of(found)["runtime"]["archive"] == "/var/lib/gantry/archive/prod"
    mounts = pod_templates(found)["driver"]["spec"]["containers"][0]["volumeMounts"]
    assert [one["readOnly"] for one in mounts if one["mountPath"] == "/var/lib/gantry/archive"] == [True]


def test_executors_reach_the_driver_by_a_fixed_name_and_ports() -> None:
    """The Service exists, selects only the driver, and has the ports of Spark's settings."""
    found = rendered(pipeline(**EVERYTHING))
    conf, templates = configuration_of(found)["runtime"]["sparkConf"], pod_templates(found)
    [service] = of_kind(found, "Service").values()
    ports = {one["port"] for one in service["spec"]["ports"]}

    assert conf["spark.driver.host"] == f"{service['metadata']['name']}.shop.svc"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false", (
        "executors would get the address that the driver listens on"
    )
    assert {int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])} <= ports
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    selector = {"matchLabels": service["spec"]["selector"]}
    assert is_selected(templates["driver"]["metadata"]["labels"], selector)
    assert not is_selected(templates["executor"]["metadata"]["labels"], selector)


@pytest.mark.parametrize("mode", [{}, IN_KUBERNETES], ids=["local", "kubernetes"])
def test_group_admits_the_pods_of_its_pipelines(mode: dict[str, Any]) -> None:
    """It does so by label, to the sidecars' ports; pods of other groups are not admitted."""
    policy = of_kind(rendered_group(broker_group("prod")), "NetworkPolicy")["prod-broker"]
    rules = [
        (source["podSelector"], {port["port"] for port in rule["ports"]})
        for rule in policy["spec"]["ingress"]
        for source in rule.get("from", [])
        if set(source) == {"podSelector"}
    ]

    def reached(labels: dict[str, str]) -> set[int]:
        return {port for selector, ports in rules if is_selected(labels, selector) for port in ports}

    for template in pod_templates(rendered(pipeline(**mode))).values():
        assert reached(template["metadata"]["labels"]) == {names.SIDECAR_PORT, names.LOG_PORT}
        assert names.GROUP_LABEL not in template["metadata"]["labels"]
    for one in (pipeline(brokerGroups=[], nameServers=["ns:1"]), pipeline(brokerGroups=["another"])):
        other = pod_templates(rendered(one))["driver"]
        assert reached(other["metadata"]["labels"]) == set(), one.spec.broker_groups


def test_pods_of_a_pipeline_admit_only_operator_prometheus_and_themselves() -> None:
    """The page is for the operator and Prometheus; Spark's ports are for driver and executors of this pipeline."""
    found = rendered(pipeline(**IN_KUBERNETES))
    [policy] = of_kind(found, "NetworkPolicy").values()
    page, spark = policy["spec"]["ingress"]

    assert {port["port"] for port in page["ports"]} == {8090} and len(page["from"]) == 2
    assert {port["port"] for port in spark["ports"]} == {7078, 7079}
    [within] = spark["from"]
    for template in pod_templates(found).values():
        labels = template["metadata"]["labels"]
        assert is_selected(labels, within["podSelector"]) and is_selected(labels, policy["spec"]["podSelector"])


def test_users_template_cannot_override_reserved_names() -> None:
    """Labels and annotations with the operator's or Spark's prefixes are left out."""
    for name, template in pod_templates(rendered(pipeline(**EVERYTHING))).items():
        metadata, spec = template["metadata"], template["spec"]
        assert metadata["labels"]["example.com/team"] == metadata["annotations"]["example.com/team"] == "orders"
        assert metadata["labels"]["gantry.dev/pipeline"] == "orders-archive"
        assert "spark-role" not in metadata["labels"]
        assert metadata["annotations"].get("gantry.dev/template", "") != "mine"
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "fast"}, "low"), name
        assert spec["runtimeClassName"] == "sandboxed"


def test_template_hash_includes_the_configuration() -> None:
    """An edit, or a larger group, restarts a continuous pipeline; the same spec never does."""

    def mark(*, shards: int = 1, **spec: Any) -> str:
        metadata = pod_templates(rendered(pipeline(**spec), shards=shards))["driver"]["metadata"]
        found: str = metadata["annotations"]["gantry.dev/template"]
        return found

    assert mark() == mark()
    assert len({mark(), mark(shards=2), mark(trigger="10s"), mark(columns=["body"])}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_has_an_owner_and_a_unique_name(kind: str) -> None:
    """Kubernetes deletes all objects with the resource, without a finalizer."""
    found = rendered(pipeline(kind, **IN_KUBERNETES))
    for one in found:
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == (kind, "uid-of-orders", False)
        assert "finalizers" not in one["metadata"]
    assert len({ref_of(one) for one in found}) == len(found)
