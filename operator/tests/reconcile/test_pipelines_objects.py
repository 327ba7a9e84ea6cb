"""What exists in a cluster for a pipeline: its pods, what they are told, what they may, and who may come to them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from objects_scene import EVERYTHING as GROUP_WITH_EVERYTHING
from objects_scene import group as broker_group
from objects_scene import is_selected, of_kind
from objects_scene import rendered as rendered_group
from pipelines_scene import EVERYTHING, LEAST, ROLE, facts, pipeline, rendered
from pod_security import broken_rules

from gantry_operator.api import place_of
from gantry_operator.objects import names
from gantry_operator.pipelines.rendering import job_name, render
from gantry_spec.pipelines.parts import Volume

KINDS = sorted(LEAST)
IN_KUBERNETES: dict[str, Any] = {"engine": {"mode": "kubernetes"}}


def told(objects: Any) -> dict[str, Any]:
    """What the driver reads."""
    [found] = of_kind(objects, "ConfigMap").values()
    document: dict[str, Any] = json.loads(found["data"]["pipeline.json"])
    return document


def pod_templates(objects: Any) -> dict[str, dict[str, Any]]:
    """The driver's, and the executors' if there are any."""
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
def test_what_it_runs_as_follows_from_its_schedule(kind: str, spec: dict[str, Any], workload: str) -> None:
    """With one a CronJob; without, what goes on is one pod that never has a twin, and an audit is done once."""
    assert rendered(pipeline(kind, **spec))[-1]["kind"] == workload


def test_there_is_never_a_second_driver_by_our_own_doing() -> None:
    """No two runs at a time, and no pod before the last one of the same Job has ended."""
    cron = rendered(pipeline(schedule="* * * * *"))[-1]["spec"]
    job = cron["jobTemplate"]["spec"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert (job["podReplacementPolicy"], job["parallelism"], job["completions"]) == ("Failed", 1, 1)
    assert rendered(pipeline())[-1]["spec"]["replicas"] == 1


@pytest.mark.parametrize(
    ("kind", "schedule", "path"),
    [("TopicArchive", "", "replicas"), ("TopicArchive", "* * * * *", "suspend"), ("LogAudit", "", "suspend")],
)
def test_what_is_suspended_begins_nothing(kind: str, schedule: str, path: str) -> None:
    """A CronJob and a Job are suspended, and what goes on has no pod."""
    body = rendered(pipeline(kind, schedule=schedule, suspend=True))[-1]["spec"]
    assert body[path] == (0 if path == "replicas" else True)


def test_exit_codes_that_another_try_cannot_mend_end_a_job() -> None:
    """A wrong configuration and lost messages are not tried again, and an audit's finding is found once."""

    def codes(kind: str) -> list[int]:
        rules = rendered(pipeline(kind, schedule="@daily"))[-1]["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]
        found: list[int] = rules["rules"][0]["onExitCodes"]["values"]
        return found

    assert codes("TopicArchive") == [2, 3, 5]
    assert codes("LogAudit") == [1, 2, 3, 5]


def test_another_audit_is_another_job_and_suspending_one_is_not() -> None:
    """What was compared by another spec says nothing about this one."""
    one = pipeline("LogAudit")
    assert job_name(one) == job_name(pipeline("LogAudit", suspend=True))
    assert job_name(one) != job_name(pipeline("LogAudit", checks=["index"]))


def test_template_of_executors_does_not_depend_on_order_of_keys() -> None:
    """Equal specs give one text, in whatever order their keys were written."""

    def template(selector: dict[str, str]) -> str:
        engine = {"mode": "kubernetes", "podTemplate": {"nodeSelector": selector}}
        [config] = of_kind(rendered(pipeline(engine=engine)), "ConfigMap").values()
        text: str = config["data"]["executor.json"]
        return text

    assert template({"disk": "ssd", "zone": "a"}) == template({"zone": "a", "disk": "ssd"})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", [{}, IN_KUBERNETES], ids=["local", "kubernetes"])
def test_every_pod_is_restricted(kind: str, mode: dict[str, Any]) -> None:
    """Pod security's strictest level, a read-only root, no token by itself, limits."""
    for name, template in pod_templates(rendered(pipeline(kind, **mode))).items():
        spec = template["spec"]
        assert list(broken_rules(spec)) == [], name
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsUser"] == 185
        [container] = spec["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        if name == "driver":
            assert container["resources"]["limits"]["memory"] == "2Gi"


def test_only_a_driver_that_makes_executors_has_a_right_and_a_token() -> None:
    """In mode local there is neither; in mode kubernetes both are the driver's alone, and last an hour."""
    local, spread = rendered(pipeline()), rendered(pipeline(**IN_KUBERNETES))

    assert not of_kind(local, "RoleBinding") and not of_kind(local, "Role")
    assert "serviceAccountToken" not in json.dumps(local)
    [binding] = of_kind(spread, "RoleBinding").values()
    assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == ROLE
    assert [one["name"] for one in binding["subjects"]] == ["orders-archive"]
    templates = pod_templates(spread)
    assert "serviceAccountToken" in json.dumps(templates["driver"])
    assert "serviceAccountToken" not in json.dumps(templates["executor"])
    assert templates["driver"]["spec"]["serviceAccountName"] == "orders-archive"


def test_the_configuration_is_the_spec_and_what_is_so_in_its_pods() -> None:
    """Name servers, sidecars and keys of the group, folders where claims are mounted, and nothing that is secret."""
    document = told(rendered(pipeline(**EVERYTHING), **GROUP_WITH_EVERYTHING))
    here = document.pop("here")

    assert document["topics"]["include"] == ["orders.*"]
    assert here["nameServers"][0] == "prod-nameserver-0.prod-nameserver.shop.svc:9876"
    assert len(here["sidecars"]) == 6
    assert here["sidecars"][0] == "https://prod-0-master-0.prod-0-master.shop.svc:8080"
    assert here["destination"] == "/var/lib/gantry/destination/prod/orders"
    assert here["checkpoint"] == "/var/lib/gantry/checkpoint/orders"
    assert here["once"] is True
    assert {here["accessFile"], here["caFile"], *here["tokenFiles"].values()} == {
        "/etc/gantry/credentials/credentials",
        "/etc/gantry/authority/ca.crt",
        "/etc/gantry/group/read-token",
    }


def test_of_a_groups_secrets_only_what_reads_is_mounted() -> None:
    """Never a token that gives orders, and never a private key."""
    for template in pod_templates(rendered(pipeline(**IN_KUBERNETES), **GROUP_WITH_EVERYTHING)).values():
        secrets = {one["secret"]["secretName"]: one["secret"] for one in template["spec"]["volumes"] if "secret" in one}
        keys = {name: [item["key"] for item in one["items"]] for name, one in secrets.items()}
        assert keys == {"prod-sidecar": ["read-token"], "accounts": ["credentials"], "certificates": ["ca.crt"]}


def test_own_credentials_go_before_the_groups() -> None:
    """A pipeline may be somebody else than the group's own account."""
    one = pipeline(access={"credentialsSecret": "mine", "tlsSecret": "authority"})
    volumes = pod_templates(rendered(one, **GROUP_WITH_EVERYTHING))["driver"]["spec"]["volumes"]
    assert {"mine", "authority"} <= {one["secret"]["secretName"] for one in volumes if "secret" in one}


def test_driver_and_executors_see_the_same_claims_in_the_same_places() -> None:
    """A worker writes where the driver looks; one claim that is meant twice is one volume."""
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


def test_spark_finds_the_room_for_scratch_that_its_pods_have() -> None:
    """By the volume's name: an executor's pod would otherwise get a second one at the same place, and be refused."""
    for template in pod_templates(rendered(pipeline(**IN_KUBERNETES))).values():
        [main] = template["spec"]["containers"]
        [scratch] = [one for one in main["volumeMounts"] if one["mountPath"] == "/var/lib/spark"]
        assert scratch["name"].startswith("spark-local-dir-")
        assert scratch["name"] in {one["name"] for one in template["spec"]["volumes"]}
        assert {one["value"] for one in main["env"] if one["name"] == "SPARK_LOCAL_DIRS"} <= {"/var/lib/spark"}


def test_an_audit_reads_the_archive_that_it_compares_and_writes_nothing_there() -> None:
    """The claim of a TopicArchive is mounted for reading."""
    one = pipeline("LogAudit", checks=["archive"], archive="orders")
    found = render(one, facts(one, archive=Volume(claim_name="archive", path="prod")))

    assert told(found)["here"]["archive"] == "/var/lib/gantry/archive/prod"
    mounts = pod_templates(found)["driver"]["spec"]["containers"][0]["volumeMounts"]
    assert [one["readOnly"] for one in mounts if one["mountPath"] == "/var/lib/gantry/archive"] == [True]


def test_executors_reach_their_driver_by_a_name_and_ports_that_never_change() -> None:
    """The Service exists, selects the driver and nobody else, and has the ports that Spark is told."""
    found = rendered(pipeline(**EVERYTHING))
    conf, templates = told(found)["here"]["sparkConf"], pod_templates(found)
    [service] = of_kind(found, "Service").values()
    ports = {one["port"] for one in service["spec"]["ports"]}

    assert conf["spark.driver.host"] == f"{service['metadata']['name']}.shop.svc"
    assert conf["spark.kubernetes.executor.useDriverPodIP"] == "false", "or they get the address it listens on"
    assert {int(conf["spark.driver.port"]), int(conf["spark.driver.blockManager.port"])} <= ports
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    selector = {"matchLabels": service["spec"]["selector"]}
    assert is_selected(templates["driver"]["metadata"]["labels"], selector)
    assert not is_selected(templates["executor"]["metadata"]["labels"], selector)


@pytest.mark.parametrize("mode", [{}, IN_KUBERNETES], ids=["local", "kubernetes"])
def test_pods_of_a_pipeline_are_let_in_by_the_group_that_they_read(mode: dict[str, Any]) -> None:
    """By label, to the sidecars' ports; those of another group, and of no group, are not."""
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
    other = pod_templates(rendered(pipeline(brokerGroups=[], nameServers=["ns:1"])))["driver"]
    assert reached(other["metadata"]["labels"]) == set()


def test_nobody_comes_to_a_pipelines_pods_but_the_operator_prometheus_and_themselves() -> None:
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


def test_what_users_put_into_pods_is_there_and_takes_nothing_of_ours_away() -> None:
    """Labels and annotations by our names, and Spark's, are left out."""
    for name, template in pod_templates(rendered(pipeline(**EVERYTHING))).items():
        metadata, spec = template["metadata"], template["spec"]
        assert metadata["labels"]["example.com/team"] == metadata["annotations"]["example.com/team"] == "orders"
        assert metadata["labels"]["gantry.dev/pipeline"] == "orders-archive"
        assert "spark-role" not in metadata["labels"]
        assert metadata["annotations"].get("gantry.dev/template", "") != "mine"
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"disk": "fast"}, "low"), name


def test_whatever_a_driver_is_told_is_in_its_templates_hash() -> None:
    """An edit, or a group that has grown, starts what goes on anew; the same spec never does."""

    def mark(*, shards: int = 1, **spec: Any) -> str:
        metadata = pod_templates(rendered(pipeline(**spec), shards=shards))["driver"]["metadata"]
        found: str = metadata["annotations"]["gantry.dev/template"]
        return found

    assert mark() == mark()
    assert len({mark(), mark(shards=2), mark(trigger="10s"), mark(columns=["body"])}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_everything_is_owned_by_its_pipeline_and_named_once(kind: str) -> None:
    """Kubernetes deletes all of it with the resource, without a finalizer."""
    found = rendered(pipeline(kind, **IN_KUBERNETES))
    for one in found:
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["blockOwnerDeletion"]) == (kind, "uid-of-orders", False)
        assert "finalizers" not in one["metadata"]
    assert len({place_of(one) for one in found}) == len(found)
