"""The chart of the operator, as helm renders it: least rights, restricted pods, strict values."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
import yaml
from charts_scene import GROUP, MONITORING, OPERATOR, documents, helm, refusal, template
from pod_security import broken_rules

from gantry_spec.admission import admission_objects

pytestmark = pytest.mark.needs_helm

POLICY = "ValidatingAdmissionPolicy"
DIGEST = f"sha256:{'ab' * 32}"
PIPELINES = {"topicarchives", "logaudits", "topicanalytics"}
CLUSTER_WIDE = {"nodes", "persistentvolumes", "brokergroups", "brokergroups/status", "brokergroups/scale"}
CLUSTER_WIDE |= PIPELINES | {f"{plural}/status" for plural in PIPELINES}


def named(found: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind, by name."""
    return {one["metadata"]["name"]: one for one in found if one["kind"] == kind}


def rules(found: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return every rule of every role, with the kind of its role."""
    roles = [one for one in found if one["kind"] in ("Role", "ClusterRole")]
    return [(one["kind"], rule) for one in roles for rule in one["rules"]]


@pytest.mark.parametrize("chart", [OPERATOR, GROUP], ids=["operator", "group"])
def test_charts_pass_helm_lint(chart: Any) -> None:
    """`helm lint --strict` passes with the defaults."""
    words = [str(helm()), "lint", "--strict", "--kube-version", "1.34.0", str(chart)]

    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 0, result.stdout


@pytest.mark.verify
def test_rights_have_no_wildcard_and_read_no_secrets() -> None:
    """No kind, verb or group is `*`; the only Secret that the operator reads is its own key, by name."""
    for kind, rule in [*rules(documents(OPERATOR)), *rules(documents(OPERATOR, "--set", "namespaces={a,b}"))]:
        assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not {"impersonate", "escalate"} & set(rule["verbs"])
        if "bind" in rule["verbs"]:  # a driver's binding to the role below, and to no other
            assert (rule["resourceNames"], rule["verbs"]) == (["gantry-operator-executors"], ["bind"])
        if "deletecollection" in rule["verbs"]:
            assert rule["resources"] == ["pods"]
        assert "nonResourceURLs" not in rule
        if "secrets" in rule["resources"]:
            is_own = kind == "Role" and rule.get("resourceNames") == ["gantry-operator-key"]
            assert rule["verbs"] == (["get"] if is_own else ["create"])
            assert rule["resources"] == ["secrets"]


def test_given_namespaces_need_no_cluster_wide_rights() -> None:
    """Only cluster-scoped kinds need cluster-wide rights, and these can be left out, too."""
    found = documents(OPERATOR, "--set", "namespaces={shop,bank}")
    reading_leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list", "watch"]}
    wide = [
        rule for kind, rule in rules(found) if kind == "ClusterRole" and rule != reading_leases
    ]  # that is for people
    bindings = [one["metadata"]["namespace"] for one in found if one["kind"] == "RoleBinding"]

    assert {resource for rule in wide for resource in rule["resources"]} <= CLUSTER_WIDE
    assert sorted(bindings) == ["bank", "gantry-system", "shop"]
    bare = documents(OPERATOR, "--set", "namespaces={shop},rbac.machines=false,rbac.aggregate=false")
    assert not [one for one in bare if one["kind"].startswith("ClusterRole")]


def test_operator_has_the_rights_that_it_grants() -> None:
    """The operator creates Roles for sidecars, and the API server requires the same rights for that."""
    for options in ((), ("--set", "namespaces={shop}")):
        leases = [rule for _, rule in rules(documents(OPERATOR, *options)) if rule["resources"] == ["leases"]]
        assert any({"get", "update"} <= set(rule["verbs"]) and "resourceNames" not in rule for rule in leases)


def test_operator_passes_restricted_pod_security() -> None:
    """So does the pod of `helm test`, and both have limits."""
    found = documents(OPERATOR)
    specs = [
        named(found, "Deployment")["gantry-operator"]["spec"]["template"]["spec"],
        *(p["spec"] for p in named(found, "Pod").values()),
    ]
    specs += [one["spec"] for one in named(documents(GROUP, release="orders"), "Pod").values()]

    assert len(specs) == 3
    for spec in specs:
        assert list(broken_rules(spec)) == []
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"] and container["resources"]["requests"]["cpu"]


def test_two_operators_are_not_drained_at_once() -> None:
    """There is one budget for two or more; a single operator must not block a drain."""
    found = documents(OPERATOR)

    assert named(found, "Deployment")["gantry-operator"]["spec"]["replicas"] == 2
    assert named(found, "PodDisruptionBudget")["gantry-operator"]["spec"]["maxUnavailable"] == 1
    assert not named(documents(OPERATOR, "--set", "replicas=1"), "PodDisruptionBudget")


def test_images_are_pinned_by_digest_if_given() -> None:
    """This holds for the images of the operator and of brokers; `latest` is never used."""
    text = template(OPERATOR, "--set", f"image.digest={DIGEST},brokerImage.digest={DIGEST},brokerImage.repository=a/b")

    assert f"image: gantry-operator@{DIGEST}" in text
    assert f"value: a/b@{DIGEST}" in text
    assert "tag" in refusal(OPERATOR, "--set", "image.tag=latest")


@pytest.mark.verify
def test_crd_is_kept_and_optional() -> None:
    """Uninstalling the operator deletes no group, unless that is requested."""
    crds = named(documents(OPERATOR), "CustomResourceDefinition")

    assert crds["brokergroups.gantry.dev"]["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    gone = named(documents(OPERATOR, "--set", "crds.keep=false"), "CustomResourceDefinition")
    assert "annotations" not in gone["brokergroups.gantry.dev"]["metadata"]
    assert not named(documents(OPERATOR, "--set", "crds.create=false"), "CustomResourceDefinition")


def policies(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the admission policies and their bindings, without their labels, by kind and name."""
    kinds = (POLICY, f"{POLICY}Binding")
    bare = [one | {"metadata": {"name": one["metadata"]["name"]}} for one in found if one["kind"] in kinds]
    return sorted(bare, key=lambda one: (one["kind"], one["metadata"]["name"]))


def test_admission_policies_exempt_the_operator_of_the_release() -> None:
    """They are the generated ones, with the account that the operator has, and hold in the operator's namespaces."""
    release = "gantry-operator"
    named_user = f"system:serviceaccount:gantry-system:{release}"
    assert policies(documents(OPERATOR)) == policies(admission_objects(release, [named_user]))

    settings = "serviceAccount.name=own,namespaces={shop,bank},admission.exemptUsers={velero,https://id.example#a}"
    users = ["system:serviceaccount:gantry-system:own", "velero", "https://id.example#a"]
    made = admission_objects(release, users, ["shop", "bank"])
    assert policies(documents(OPERATOR, "--set", settings)) == policies(made)


def test_admission_policies_are_optional() -> None:
    """Without the value there is none; a definition that need not be kept has no policy."""
    assert policies(documents(OPERATOR, "--set", "admission.enabled=false")) == []
    gone = {one["metadata"]["name"] for one in policies(documents(OPERATOR, "--set", "crds.keep=false"))}
    kept = {one["metadata"]["name"] for one in policies(documents(OPERATOR))}
    assert kept - gone == {"gantry-operator-definition"}


@pytest.mark.verify
def test_optional_kinds_are_rendered_only_where_they_exist() -> None:
    """PodMonitor and PrometheusRule need their CRDs; the dashboard must be enabled."""
    plain = {one["kind"] for one in documents(OPERATOR)}
    known = documents(OPERATOR, *MONITORING, "--set", "monitoring.dashboard=true")

    assert not {"PodMonitor", "PrometheusRule", "ConfigMap"} & plain
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"} <= {one["kind"] for one in known}
    off = documents(OPERATOR, *MONITORING, "--set", "monitoring.podMonitor=false,monitoring.rules=false")
    assert not {"PodMonitor", "PrometheusRule"} & {one["kind"] for one in off}


def test_groups_admit_their_operator() -> None:
    """The labels that the operator is given are on its own pods."""
    deployment = named(documents(OPERATOR), "Deployment")["gantry-operator"]
    template_of = deployment["spec"]["template"]
    [labels_text] = [
        one["value"] for one in template_of["spec"]["containers"][0]["env"] if one["name"] == "GANTRY_OPERATOR_LABELS"
    ]

    wanted = dict(pair.split("=") for pair in labels_text.split(","))
    assert wanted.items() <= template_of["metadata"]["labels"].items()
    assert wanted == deployment["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize(
    "setting",
    [
        "replica=2",
        "image.repo=x",
        "replicas=0",
        "crds.install=true",
        "log.level=loud",
        "image.digest=abc",
        "networkPolicy.prometheusLabels=null",
        "resources.limits.memory=null",
        "namespaces={UPPER}",
        "admission.enabled=yes please",
        "admission.exemptUsers={it's me}",
    ],
)
def test_unknown_and_invalid_values_are_refused(setting: str) -> None:
    """A typing error must not become a default."""
    assert "schema" in refusal(OPERATOR, "--set", setting)


@pytest.mark.parametrize(
    ("spec", "is_taken"),
    [
        ("shards=2", True),
        ("replication.mode=Async,replication.maxLag=64Mi", True),
        ("writeBuffer.medium=HugePages-2Mi,writeBuffer.segmentSize=64Mi", True),
        ("template.affinity.podAffinity.x=y", True),
        ("shard=2", False),
        ("shards=0", False),
        ("replication.mode=async", False),
        ("failover.maxDataLosBytes=0", False),
        ("flush.interval=soon", False),
        ("topics[0].queues=3", False),
    ],
)
def test_group_values_are_checked_by_their_schema(spec: str, is_taken: bool) -> None:
    """Fields, types and bounds of a spec are checked when it is rendered; rules between fields are not."""
    settings = ",".join(f"spec.{one}" for one in spec.split(","))

    assert (refusal(GROUP, "--set", settings) == "") is is_taken


def test_group_follows_from_its_values() -> None:
    """It has the name of the release or its own, the spec as given, and it may be kept."""
    [group] = named(documents(GROUP, "--set", "spec.shards=3", release="orders"), "BrokerGroup").values()
    paused = ("--set-string", "annotations.gantry\\.dev/paused=true")
    kept = documents(GROUP, "--set", "keep=true,name=bills", *paused, release="orders")

    assert (group["metadata"]["name"], group["spec"]) == ("orders", {"shards": 3})
    assert "annotations" not in group["metadata"]
    annotations = named(kept, "BrokerGroup")["bills"]["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep", "gantry.dev/paused": "true"}
    assert "40" in refusal(GROUP, "--set", f"name={'a' * 41}")


def test_every_object_has_labels_and_a_namespace() -> None:
    """All namespaced objects have a namespace, so that `kubectl apply` needs no other flag."""
    for one in documents(OPERATOR, *MONITORING):
        assert one["metadata"]["labels"], one["kind"]
        is_wide = one["kind"].removesuffix("Binding") in ("ClusterRole", "CustomResourceDefinition", POLICY)
        assert ("namespace" in one["metadata"]) is not is_wide, one["kind"]
    assert yaml.safe_load(template(OPERATOR).split("---")[1]) is not None


@pytest.mark.parametrize(
    ("options", "kind", "namespaces"),
    [((), "ClusterRole", [None]), (("--set", "namespaces={shop,bank}"), "Role", ["bank", "shop"])],
    ids=["everywhere", "listed"],
)
def test_chart_has_a_role_for_drivers(options: tuple[str, ...], kind: str, namespaces: list[str | None]) -> None:
    """The operator gets its name; it allows only pods, and can be left out."""
    found = documents(OPERATOR, *options)
    roles = [one for one in found if one["kind"] == kind and one["metadata"]["name"] == "gantry-operator-executors"]
    variables = named(found, "Deployment")["gantry-operator"]["spec"]["template"]["spec"]["containers"][0]["env"]

    assert sorted((one["metadata"].get("namespace") for one in roles), key=str) == namespaces
    assert {resource for one in roles for rule in one["rules"] for resource in rule["resources"]} == {"pods"}
    assert {"name": "GANTRY_EXECUTORS_ROLE", "value": f"{kind}/gantry-operator-executors"} in variables
    off = documents(OPERATOR, *options, "--set", "rbac.executors=false")
    assert "executors" not in yaml.safe_dump([one for one in off if one["kind"] != "CustomResourceDefinition"]).lower()
