"""The operator with exactly the rights of its chart, at a real API server: what it can and cannot do.

The rendered charts are tried first, also with values other than their defaults.

The operator is also stopped as kubelet does it: it ends at once, and releases the Lease for the next leader.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_server import ApiServer, api_server, path_of
from charts_scene import GROUP as CHART_OF_GROUPS
from charts_scene import OPERATOR, ROOT, documents
from objects_scene import EVERYTHING, facts, group

from gantry_operator.objects import group_token, render, secret

pytestmark = pytest.mark.needs_api_server

SYSTEM = "gantry-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:gantry-operator"
OTHER_USER = f"system:serviceaccount:{SYSTEM}:default"
GROUP = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups/orders"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/gantry-operator"
SETS = "/apis/apps/v1/namespaces/shop/statefulsets?labelSelector=gantry.dev/group%3Dorders"
TWO_TRIES_S = 4.0
END_S_MAX = 4.0
"""Kopf waits five seconds for hanging tasks, so a shorter shutdown proves that none hung. One of `ENDS_MAX`
shutdowns must be shorter."""

ENDS_MAX = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Start an API server with the CRDs and the manifests of the operator, except its pods."""
    with api_server(tmp_path_factory.mktemp("api")) as made:
        documents = [yaml.safe_load((ROOT / "manifests/crd.yaml").read_text())]
        documents += list(yaml.safe_load_all((ROOT / "manifests/crd-pipelines.yaml").read_text()))
        documents += [one for one in yaml.safe_load_all((ROOT / "manifests/operator.yaml").read_text()) if one]
        documents.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        for document in documents:
            status, answer = made.apply(path_of(document), document)
            assert status in (200, 201), answer
        for plural in ("brokergroups", "topicarchives", "logaudits", "topicanalytics"):
            while made.ask("GET", f"/apis/gantry.dev/v1alpha1/{plural}")[0] != 200:
                time.sleep(0.05)
        yield made


# -- what the charts make ----------------------------------------------------------------------------------------------


@pytest.mark.verify
@pytest.mark.needs_helm
@pytest.mark.parametrize(
    "settings",
    [
        "",
        "replicas=1,rbac.machines=false,rbac.aggregate=false,networkPolicy.enabled=false",
        "namespaces={shop},monitoring.dashboard=true,commonLabels.team=a,podAnnotations.a=b,priorityClassName=high",
        f"image.digest=sha256:{'ab' * 32},imagePullSecrets={{mine}},nodeSelector.disk=fast,log.level=debug",
        "tolerations[0].key=dedicated,tolerations[0].operator=Exists",
        "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
        ".matchExpressions[0].key=a,affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
        ".nodeSelectorTerms[0].matchExpressions[0].operator=Exists",
    ],
    ids=["defaults", "least", "listed", "pulled", "tolerant", "somewhere"],
)
def test_objects_of_the_operators_chart_are_accepted(server: ApiServer, settings: str) -> None:
    """The API server's own schemas accept every field, and a restricted namespace accepts its pods."""
    found = documents(OPERATOR, *(("--set", settings) if settings else ()))
    assert {"Deployment", "Pod"} <= {one["kind"] for one in found}

    for made in found:
        status, answer = server.apply(path_of(made), made, is_dry=True)
        assert status in (200, 201), (made["kind"], answer)
        if made["kind"] == "Deployment":
            spec = made["spec"]["template"]["spec"] | {"priorityClassName": ""}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
            status, answer = server.ask("POST", f"/api/v1/namespaces/{SYSTEM}/pods?dryRun=All", pod)
            assert status == 201, answer


@pytest.mark.needs_helm
@pytest.mark.parametrize("sample", sorted((ROOT / "manifests/samples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_sample_spec_works_with_the_group_chart(server: ApiServer, sample: Path, tmp_path: Path) -> None:
    """The chart renders the same group from its spec, and the API server accepts it."""
    spec = yaml.safe_load(sample.read_text()).get("spec") or {}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"spec": spec}))
    found = documents(
        CHART_OF_GROUPS, "--namespace", "shop", "--values", str(tmp_path / "values.yaml"), release="orders"
    )
    [made] = [one for one in found if one["kind"] == "BrokerGroup"]

    assert made.get("spec", {}) == spec
    status, answer = server.apply(path_of(made), made, is_dry=True)
    assert status in (200, 201), answer


# -- rights ------------------------------------------------------------------------------------------------------------


@pytest.mark.verify(quick=1)
@pytest.mark.parametrize("spec", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_operator_may_create_all_objects_of_a_group(server: ApiServer, spec: dict[str, Any]) -> None:
    """Each object is created under the operator's account, including Roles, which need the same rights."""
    one = group("made", **spec)
    made = [secret(one, group_token(bytes(32), one)), *render(one, facts())]
    wanted = {"Role", "RoleBinding", "StatefulSet", "NetworkPolicy", *(["Deployment"] if spec else [])}
    assert wanted <= {document["kind"] for document in made}

    for document in made:
        path, kind = path_of(document), document["kind"]
        status, answer = server.apply(path, document, is_dry=True, user=OTHER_USER)
        assert status == 403, (kind, answer)
        if kind == "Secret":  # made once, and never touched again
            status, answer = server.ask("POST", path.rpartition("/")[0] + "?dryRun=All", document, user=ACCOUNT)
        else:
            status, answer = server.apply(path, document, user=ACCOUNT)  # a RoleBinding needs its Role to exist
        assert status in (200, 201), (kind, answer)


def test_operator_may_resize_pods(server: ApiServer) -> None:
    """The right is one to a part of pods: without it the API server would not even say that the pod is missing."""
    path = "/api/v1/namespaces/shop/pods/missing/resize"
    answers = [
        server.ask("PATCH", path, {"spec": {}}, "application/merge-patch+json", user=user)[0]
        for user in (ACCOUNT, OTHER_USER)
    ]

    assert answers == [404, 403]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/namespaces/shop/secrets/orders-sidecar"),
        ("GET", "/api/v1/namespaces/gantry-system/secrets/another"),
        ("PATCH", "/api/v1/namespaces/shop/secrets/orders-sidecar"),
        ("DELETE", "/api/v1/namespaces/shop/secrets/orders-sidecar"),
        ("POST", "/api/v1/namespaces/shop/pods"),
        ("POST", "/api/v1/namespaces/shop/pods/orders-0-master-0/exec"),
        ("POST", "/apis/apps/v1/namespaces/shop/daemonsets"),
        ("GET", "/apis/apps/v1/namespaces/shop/deployments/orders-proxy"),
        ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/orders-proxy/scale"),
        ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/orders-proxy/status"),
        ("DELETE", "/api/v1/namespaces/shop"),
        ("DELETE", "/api/v1/nodes/a"),
        ("DELETE", GROUP),
        ("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ],
)
def test_operator_has_no_unneeded_rights(server: ApiServer, method: str, path: str) -> None:
    """It reads no Secret but its own key, creates no pods or cluster roles, and deletes no node or CRD."""
    status, answer = server.ask(method, path, {} if method in ("POST", "PATCH") else None, user=ACCOUNT)

    assert status == 403, answer


def test_operator_cannot_grant_more_rights_than_it_has(server: ApiServer) -> None:
    """A Role that reads Secrets is refused, because the operator cannot read any in that namespace."""
    head = {"name": "orders-0", "namespace": "shop"}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": head, "rules": [rule]}

    status, answer = server.apply(path_of(role), role, user=ACCOUNT)

    assert status == 403, answer
    assert "not currently held" in answer["message"]


# -- admission policies ------------------------------------------------------------------------------------------------


def guarded_objects() -> list[dict[str, Any]]:
    """Return a StatefulSet that deletes its claims, a claim, and the Lease of a shard."""
    one = group("guarded", storage={"retain": "Never"})
    made = next(one for one in render(one, facts()) if one["metadata"]["name"] == "guarded-0-slave"
                and one["kind"] == "StatefulSet")  # fmt: skip
    [template] = made["spec"]["volumeClaimTemplates"]
    head = template["metadata"] | {"name": "data-guarded-0-slave-0", "namespace": "shop"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}}
    lease_head = {"name": "guarded-0", "namespace": "shop", "labels": made["metadata"]["labels"]}
    return [made, template | {"metadata": head}, lease | {"metadata": lease_head}]


def test_policies_of_the_manifests_refuse_people_and_not_the_operator(server: ApiServer) -> None:
    """The operator deletes what it manages with its own account and rights; an administrator gets the remedy."""
    record = {"metadata": {"annotations": {"gantry.dev/record": "{}"}}}
    for made in guarded_objects():
        path = path_of(made)
        assert server.apply(path, made)[0] in (200, 201)
        wait_for("the policies", lambda: server.ask("DELETE", f"{path}?dryRun=All")[0] != 200)  # noqa: B023
        status, answer = server.ask("DELETE", path)
        assert (status, "gantry.dev/allow-deletion" in answer["message"]) == (403, True), answer
        if made["kind"] == "Lease":
            answers = [server.ask("PATCH", path, record, "application/merge-patch+json", user=one)
                       for one in ("", ACCOUNT)]  # fmt: skip
            assert [one[0] for one in answers] == [403, 200], answers
        status, answer = server.ask("DELETE", path, user=ACCOUNT)
        assert status in (200, 202), answer


# -- a process ---------------------------------------------------------------------------------------------------------


class Operator:
    """An operator process, whose log is a file."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self.log = log
        words = ["--image", "gantry:test", "--kubeconfig", str(kubeconfig), "--listen", "127.0.0.1:0"]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gantry_operator", *words, "--namespace", SYSTEM],
                env={**os.environ, "POD_NAME": log.stem},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def has_logged(self, text: str) -> bool:
        """Return whether the log contains this text."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return text in self.log.read_text()


Started = Callable[[str], Operator]


@pytest.fixture
def started(server: ApiServer, tmp_path: Path) -> Iterator[Started]:
    """Return a function that starts operators, which are stopped after the test."""
    made: list[Operator] = []
    kubeconfig = server.kubeconfig(tmp_path, SYSTEM, "gantry-operator")

    def start(name: str) -> Operator:
        made.append(Operator(kubeconfig, tmp_path / f"{name}.log"))
        return made[-1]

    yield start
    for one in made:
        one.process.kill()
        one.process.wait()


def wait_for(what: str, condition: Callable[[], bool], seconds: float = 180) -> None:
    """Wait until the condition holds, or fail the test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def holder(server: ApiServer) -> str:
    """Return the holder of the leader Lease."""
    status, answer = server.ask("GET", LEASE)
    return str(answer["spec"].get("holderIdentity") or "") if status == 200 else ""


def ended(operator: Operator) -> float:
    """Stop an operator as kubelet does; return the seconds it took. It must end in order, with its Lease released."""
    began = time.monotonic()
    operator.process.terminate()
    code = operator.process.wait(timeout=180)
    took_s = time.monotonic() - began

    log_text = operator.log.read_text()
    assert code == 0, log_text[-3000:]
    assert "released leadership" in log_text
    assert "(403)" not in log_text and "orbidden" not in log_text, log_text[-3000:]
    return took_s


@pytest.mark.verify
def test_stopped_operator_releases_its_lease_at_once(server: ApiServer, started: Started) -> None:
    """No call is refused while it creates a group; the next operator leads long before the Lease would expire."""
    first = started("first")
    wait_for("the first one leads", lambda: first.has_logged("acquired leadership"))
    second = started("second")
    wait_for("the second one waits", lambda: second.has_logged("another operator is the leader"))
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}, "spec": {}}
    assert server.apply(GROUP, document)[0] == 201
    wait_for("its StatefulSets are there", lambda: len(server.ask("GET", SETS)[1]["items"]) == 3)
    wait_for("the group has a status", lambda: "conditions" in server.ask("GET", GROUP)[1].get("status", {}))
    assert holder(server).startswith("first")

    took_s = ended(first)
    assert not holder(server).startswith("first"), "the stopped leader still holds its Lease"
    wait_for("the second one leads", lambda: holder(server).startswith("second"))
    for number in range(1, ENDS_MAX):
        if took_s < END_S_MAX:
            break
        wait_for("the second one is the leader", lambda: second.has_logged("acquired leadership"))  # noqa: B023
        leader, second = second, started(f"second-{number}")
        took_s = ended(leader)
        wait_for("the next one leads", lambda: holder(server).startswith(f"second-{number}"))  # noqa: B023
    assert took_s < END_S_MAX
    second.process.kill()  # in contrast, a killed operator does not release its Lease
    second.process.wait()
    third = started("third")
    wait_for("the third one waits", lambda: third.has_logged("another operator is the leader"))
    until = time.monotonic() + TWO_TRIES_S
    while time.monotonic() < until:
        assert holder(server).startswith("second")
        time.sleep(0.1)
    third.process.terminate()
    assert third.process.wait(timeout=180) == 0, "a waiting candidate did not end in order"
