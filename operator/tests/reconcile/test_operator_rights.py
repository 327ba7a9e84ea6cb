"""The operator with the rights of its chart and no others, at a real API server: what it can do, and what it cannot.

What the charts make is tried first, with other values than their defaults.

It is also ended here as kubelet ends it: it stops at once, and gives the Lease back, so that the next one leads.
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
from api_server import ApiServer, api_server
from charts_scene import GROUP as CHART_OF_GROUPS
from charts_scene import OPERATOR, ROOT, documents
from objects_scene import EVERYTHING, facts, group
from test_crd_api_server import path_of

from gantry_operator.objects import group_token, render, secret

pytestmark = pytest.mark.needs_api_server

SYSTEM = "gantry-system"
ACCOUNT = f"system:serviceaccount:{SYSTEM}:gantry-operator"
NOBODY = f"system:serviceaccount:{SYSTEM}:default"
GROUP = "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups/orders"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/gantry-operator"
SETS = "/apis/apps/v1/namespaces/shop/statefulsets?labelSelector=gantry.dev/group%3Dorders"
TWO_TRIES_S = 4.0
END_S_MAX = 4.0
"""Kopf waits five for whatever hangs, so a shorter end says that nothing did. One of some ends has to be."""
ENDS_MAX = 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """With the definition and the manifests of the operator, but for its pods, which nobody runs here."""
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
def test_everything_that_the_operators_chart_makes_is_taken(server: ApiServer, settings: str) -> None:
    """Field by field by the API server's own schemas, and its pods where only restricted ones are."""
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
def test_every_sample_can_be_given_to_the_chart_of_groups(server: ApiServer, sample: Path, tmp_path: Path) -> None:
    """The chart makes of its spec the same group, which the API server takes."""
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
def test_the_operator_may_make_everything_that_a_group_has(server: ApiServer, spec: dict[str, Any]) -> None:
    """Each object, under its own account: also Roles, which nobody may give who has not what they give."""
    one = group("made", **spec)
    made = [secret(one, group_token(bytes(32), one)), *render(one, facts())]
    assert {"Role", "RoleBinding", "StatefulSet", "NetworkPolicy"} <= {document["kind"] for document in made}

    for document in made:
        path, kind = path_of(document), document["kind"]
        status, answer = server.apply(path, document, is_dry=True, user=NOBODY)
        assert status == 403, (kind, answer)
        if kind == "Secret":  # made once, and never touched again
            status, answer = server.ask("POST", path.rpartition("/")[0] + "?dryRun=All", document, user=ACCOUNT)
        else:
            status, answer = server.apply(path, document, user=ACCOUNT)  # a binding wants its Role to be there
        assert status in (200, 201), (kind, answer)


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
        ("POST", "/apis/apps/v1/namespaces/shop/deployments"),
        ("DELETE", "/api/v1/namespaces/shop"),
        ("DELETE", "/api/v1/nodes/a"),
        ("DELETE", GROUP),
        ("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/brokergroups.gantry.dev"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ],
)
def test_the_operator_may_not_do_what_it_never_does(server: ApiServer, method: str, path: str) -> None:
    """It reads no Secret of anybody, and of whole clusters it changes nothing."""
    status, answer = server.ask(method, path, {} if method in ("POST", "PATCH") else None, user=ACCOUNT)

    assert status == 403, answer


def test_the_operator_gives_nobody_more_than_it_has(server: ApiServer) -> None:
    """A Role that reads Secrets is refused, since the operator reads none."""
    head = {"name": "orders-0", "namespace": "shop"}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": head, "rules": [rule]}

    status, answer = server.apply(path_of(role), role, user=ACCOUNT)

    assert status == 403, answer
    assert "not currently held" in answer["message"]


# -- a process ---------------------------------------------------------------------------------------------------------


class Operator:
    """One process of it, whose log is a file."""

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

    def has_said(self, text: str) -> bool:
        """In its log."""
        assert self.process.poll() is None, self.log.read_text()[-3000:]
        return text in self.log.read_text()


Started = Callable[[str], Operator]


@pytest.fixture
def started(server: ApiServer, tmp_path: Path) -> Iterator[Started]:
    """Starts one that is gone after the test."""
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
    """Until it is so, or the test has failed."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def holder(server: ApiServer) -> str:
    """Whose Lease it is."""
    status, answer = server.ask("GET", LEASE)
    return str(answer["spec"].get("holderIdentity") or "") if status == 200 else ""


def ended(operator: Operator) -> float:
    """Told to by kubelet; in how many seconds. Everything was in order, and its Lease is given back."""
    began = time.monotonic()
    operator.process.terminate()
    code = operator.process.wait(timeout=180)
    took_s = time.monotonic() - began

    said = operator.log.read_text()
    assert code == 0, said[-3000:]
    assert "released leadership" in said
    assert "(403)" not in said and "orbidden" not in said, said[-3000:]
    return took_s


@pytest.mark.verify
def test_an_operator_that_is_told_to_end_leaves_its_place_at_once(server: ApiServer, started: Started) -> None:
    """Nothing is refused to it while it makes a group; the next one leads long before the Lease would have run out."""
    first = started("first")
    wait_for("the first one leads", lambda: first.has_said("acquired leadership"))
    second = started("second")
    wait_for("the second one looks", lambda: second.has_said("another operator is the leader"))
    document = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "orders"}, "spec": {}}
    assert server.apply(GROUP, document)[0] == 201
    wait_for("its StatefulSets are there", lambda: len(server.ask("GET", SETS)[1]["items"]) == 3)
    wait_for("the group has a status", lambda: "conditions" in server.ask("GET", GROUP)[1].get("status", {}))
    assert holder(server).startswith("first")

    took_s = ended(first)
    assert not holder(server).startswith("first"), "it has not waited for the end of its Lease"
    wait_for("the second one leads", lambda: holder(server).startswith("second"))
    for number in range(1, ENDS_MAX):
        if took_s < END_S_MAX:
            break
        wait_for("it looks after the group", lambda: second.has_said("acquired leadership"))  # noqa: B023
        leader, second = second, started(f"second-{number}")
        took_s = ended(leader)
        wait_for("the next one leads", lambda: holder(server).startswith(f"second-{number}"))  # noqa: B023
    assert took_s < END_S_MAX
    second.process.kill()  # the twin gives nothing back, and its place stays taken
    second.process.wait()
    third = started("third")
    wait_for("the third one looks", lambda: third.has_said("another operator is the leader"))
    until = time.monotonic() + TWO_TRIES_S
    while time.monotonic() < until:
        assert holder(server).startswith("second")
        time.sleep(0.1)
    third.process.terminate()
    assert third.process.wait(timeout=180) == 0, "one that only waits ends in order, too"
