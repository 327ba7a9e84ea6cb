"""`kubectl gantry` and `gantry ... bg/GROUP` against a real API server: status, orders, bundles and refusals.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from api_server import api_server
from kubectl_scene import BEHIND, EPOCH, PODS, SECRET, WROTE, Scene
from scripted_kubelet import Outcome, scripted_kubelet

from gantry_cli.kube import cluster_orders
from gantry_cli.kube.cluster import Cluster
from gantry_cli.kube.documents import ClusterGroupStatus, KubeExplainDocument
from gantry_cli.orders import OrderDocument, add_promotion

pytestmark = pytest.mark.needs_api_server

PATIENCE_S = 200.0
READ_GROUPS = [{"apiGroups": ["gantry.dev"], "resources": ["brokergroups"], "verbs": ["get", "list"]}]
READ_PODS = [*READ_GROUPS, {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["get", "list"]}]
READ_LEASES = [*READ_PODS, {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "list"]}]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("cluster")
    with scripted_kubelet() as kubelet, api_server(folder) as server:
        scene = Scene(server, kubelet, folder)
        scene.prepare()
        yield scene


@pytest.fixture
def scene(cluster: Scene) -> Iterator[Scene]:
    cluster.make_group()
    yield cluster
    cluster.drop_group()


# -- status and explanation --------------------------------------------------------------------------------------------


@pytest.mark.verify
def test_status_shows_the_present_answers_of_sidecars(scene: Scene) -> None:
    """The group's status beside the brokers' present reports, requested inside their pods without a Secret."""
    result = scene.kubectl("status", "orders", "-O", "json")
    assert result.exit_code == 0, f"{result.output} {result.exc_info}"

    status = msgspec.json.decode(result.stdout, type=ClusterGroupStatus, strict=True)
    assert result.exit_code == 0, result.output
    assert [(one.pod, one.role, one.wrote, one.behind_bytes) for one in status.members] == [
        (PODS[0], "MASTER", WROTE, None), (PODS[1], "SLAVE", WROTE - BEHIND, BEHIND),
        (PODS[2], "MASTER", WROTE, None), (PODS[3], "SLAVE", WROTE - BEHIND, BEHIND),
    ]  # fmt: skip
    assert (status.phase, status.ready, status.name_servers, status.left_out) == ("Ready", "2/2", "1/1", [])
    assert [ledger.risk("machine").bytes for ledger in status.ledgers] == [0, 0]  # type: ignore[arg-type]
    assert [event.reason for event in status.events] == ["MasterPromoted"]
    assert sorted(pod for pod, _, _ in scene.kubelet.ran) == sorted(PODS)


def test_status_text_shows_masters_risks_and_orders(scene: Scene) -> None:
    """The text is the same by `gantry status bg/orders`; a pending order is shown."""
    scene.annotate(promote="0=2@tuesday")

    result, other = scene.kubectl("status", "orders"), scene.gantry("status", "bg/orders")

    assert result.exit_code == other.exit_code == 0, result.output + other.output
    for shown in (result.stdout, other.stdout):
        assert "group shop/orders (context admin): Ready, shards 2/2, name servers 1/1" in shown
        assert "orders-0-master-0" in shown and "1000 B" in shown
        assert "shard 0: at risk if orders-0-master-0 lost its process 0 B, machine 0 B" in shown
        assert "annotation: gantry.dev/promote=0=2@tuesday" in shown
        assert "MasterPromoted" in shown and "restarted 1 times" in shown


def test_the_only_group_of_a_namespace_need_not_be_named(scene: Scene) -> None:
    """With one group it is used; with none, the error names other namespaces; with several it lists them."""
    other = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "bills"}, "spec": {}}

    assert scene.kubectl("status", "-O", "json").exit_code == 0
    nothing = scene.kubectl("status", namespace="bank")
    scene.request("POST", "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups", other)
    two = scene.kubectl("status")
    scene.request("DELETE", "/apis/gantry.dev/v1alpha1/namespaces/shop/brokergroups/bills")

    assert nothing.exit_code == 3 and "there are groups in namespace shop" in nothing.stderr
    assert two.exit_code == 2 and "bills, orders" in two.stderr


def test_unavailable_shard_gives_exit_code_1(scene: Scene) -> None:
    """Scripts can test the exit code."""
    scene.set_status(0, "orders-0-master-0", EPOCH, fenced=[0])

    result = scene.kubectl("status", "orders")

    assert result.exit_code == 1 and "Available is False: Fenced" in result.stdout


@pytest.mark.verify
def test_hanging_sidecar_does_not_affect_others(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod without an answer, one that refuses and one that is gone are named, and the rest is shown."""
    monkeypatch.setattr("gantry_cli.kube.sidecars.REQUEST_TIMEOUT_S", 4.0)
    scene.reported_roles = {PODS[1]: None}
    inside = scene.run_inside

    def run(pod: str, container: str, command: list[str]) -> Outcome | None:
        return Outcome(b"", "gantry: the sidecar says no", 1) if pod == PODS[3] else inside(pod, container, command)

    scene.kubelet.run = run
    scene.request("DELETE", f"/api/v1/namespaces/shop/pods/{PODS[2]}?gracePeriodSeconds=0")

    status = msgspec.json.decode(scene.kubectl("status", "orders", "-O", "json").stdout, type=ClusterGroupStatus)

    members = {one.pod: one for one in status.members}
    assert members[PODS[0]].wrote == WROTE
    assert "timed out: no answer of the program in the pod within 4 s" in (members[PODS[1]].fault or "")
    assert members[PODS[2]].phase == "Missing"
    assert "the sidecar says no" in (members[PODS[3]].fault or "")


def test_sidecar_of_an_earlier_version_is_asked_by_the_former_command(scene: Scene) -> None:
    """Its image has `gantry pod ask`. After any other failure nothing is tried again."""
    inside, commands = scene.run_inside, []

    def run(pod: str, container: str, command: list[str]) -> Outcome | None:
        commands.append(command[2])
        if pod == PODS[1]:
            return Outcome(b"", "Error: the token is not mounted", 2)
        if command[2] == "get":
            return Outcome(b"", "Error: No such command 'get'.", 2)
        outcome = inside(pod, container, ["gantry", "pod", "get", *command[3:]])
        return None if outcome is None else outcome._replace(output=outcome.output.replace(b'"body":', b'"said":'))

    scene.kubelet.run = run

    status = msgspec.json.decode(scene.kubectl("status", "orders", "-O", "json").stdout, type=ClusterGroupStatus)

    members = {one.pod: one for one in status.members}
    assert members[PODS[0]].wrote == WROTE and "not mounted" in (members[PODS[1]].fault or "")
    assert (commands.count("get"), commands.count("ask")) == (len(members), len(members) - 1)


def test_explain_uses_the_functions_that_decide(scene: Scene) -> None:
    """From the present answers of sidecars: which member would take over, its lag, and the loss."""
    result = scene.kubectl("explain", "orders", "-O", "json")

    document = msgspec.json.decode(result.stdout, type=KubeExplainDocument, strict=True)
    assert result.exit_code == 0, result.output
    assert (document.source, document.left_out) == ("sidecars", [])
    assert document.lines[:2] == [
        "shard 0: if master 1 of epoch 3000 died now, member 2 would take over, and 0 B would be lost at most",
        "  member 2: 1000 B behind",
    ]
    assert [(one.winner, one.loss_at_most) for one in document.outlook] == [(2, 0), (2, 0)]
    assert "member 2 would take over" in scene.gantry("explain", "bg/orders").stdout


def test_missing_rights_are_named_and_the_rest_is_shown(scene: Scene) -> None:
    """Without pods/exec, Leases or pods the status is reduced; it is no error while the group can be read."""
    scene.permit(READ_LEASES)
    looking = scene.kubectl("status", "orders", context="jane")
    explanation = scene.kubectl("explain", "orders", context="jane")
    scene.permit(READ_GROUPS)
    least = msgspec.json.decode(
        scene.kubectl("status", "orders", "-O", "json", context="jane").stdout, type=ClusterGroupStatus
    )

    assert looking.exit_code == 0 and "orders-0-master-0" in looking.stdout
    assert "not shown: the present answers of sidecars: you may not get pods/exec in namespace shop" in looking.stdout
    assert "shard 0: as the operator wrote it" in explanation.stdout
    assert "this is the operator's latest status" in explanation.stdout
    assert (least.phase, least.members) == ("Ready", [])
    assert "pods: you may not list pods in namespace shop" in least.left_out
    assert scene.kubelet.ran == []


def test_no_exec_runs_no_program_in_pods(scene: Scene) -> None:
    """The twin without --no-exec asks all sidecars."""
    left = scene.kubectl("status", "orders", "--no-exec")
    assert scene.kubelet.ran == [] and "excluded by --no-exec" in left.stdout

    scene.kubectl("status", "orders")
    assert len(scene.kubelet.ran) == len(PODS)


# -- orders ------------------------------------------------------------------------------------------------------------


def obey(scene: Scene, member: int, epoch: int, answered: threading.Event | None = None) -> None:
    """Act as the operator: write the Lease, remove the order, write the status; the twin writes it late."""
    deadline = time.monotonic() + PATIENCE_S
    while "gantry.dev/promote" not in scene.annotations():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    scene.record_master(0, member, epoch)
    scene.annotate(promote=None, accept_loss=None)
    if answered is None:
        time.sleep(0.7)  # the status comes last: a command that reads the old one reports no change
    else:
        assert answered.wait(PATIENCE_S)
    scene.set_status(0, "orders-0-slave-0" if member == 2 else "orders-0-master-0", epoch)


def test_promote_waits_until_the_status_names_the_new_master(scene: Scene) -> None:
    """The removal of the annotation is not enough: the status may still name the old master."""
    with scene.meanwhile(lambda: obey(scene, 2, 4_000)):
        result = scene.kubectl("promote", "orders", "0=2", "-O", "json")

    document = msgspec.json.decode(result.stdout, type=OrderDocument, strict=True)
    assert result.exit_code == 0, result.output
    assert (document.master, document.epoch, document.is_done) == ("orders-0-slave-0", 4_000, True)
    assert (document.before_master, document.before_epoch) == ("orders-0-master-0", EPOCH)


@pytest.mark.verify
def test_outdated_status_would_be_used_without_the_lease(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: a command that reads the status right after the removal names the wrong master."""
    monkeypatch.setattr(cluster_orders.OrderWaiter, "_status_test", lambda self, epoch: lambda document: True)

    answered = threading.Event()
    with scene.meanwhile(lambda: obey(scene, 2, 4_000, answered)):
        result = scene.kubectl("promote", "orders", "0", "-O", "json")
        answered.set()

    assert msgspec.json.decode(result.stdout, type=OrderDocument).master == "orders-0-master-0"


@pytest.mark.verify
def test_promote_reports_another_master(scene: Scene) -> None:
    """A removed order is not necessarily an executed one."""
    with scene.meanwhile(lambda: obey(scene, 1, 5_000)):
        result = scene.kubectl("promote", "orders", "0=2")

    assert result.exit_code == 1
    assert "the order was removed, but orders-0-master-0 is the master in epoch 5000" in result.stderr


@pytest.mark.verify
def test_order_that_times_out_stays_pending_with_its_reason(scene: Scene) -> None:
    """The reason is the operator's. A new order for the shard replaces it."""
    scene.set_status(0, "orders-0-master-0", EPOCH, blockedBy=["member 2 lacks 1000 bytes"])

    result = scene.kubectl("promote", "orders", "0", "--timeout", "1")
    first = scene.annotations()["gantry.dev/promote"]
    again = scene.gantry("promote", "bg/orders", "0=2", "--timeout", "0", "--accept-loss", "64Mi")

    assert result.exit_code == 1
    assert (
        "timed out after 1 s: shard 0: waiting: member 2 lacks 1000 bytes -- the order stays pending" in result.stderr
    )
    assert "; withdraw it with: kubectl annotate bg/orders " in result.stderr
    assert first.startswith("0@")
    assert again.exit_code == 0 and "order given" in again.stdout
    found = scene.annotations()
    assert found["gantry.dev/promote"].startswith("0=2@") and "," not in found["gantry.dev/promote"]
    assert found["gantry.dev/accept-loss"] == "64Mi"


def test_orders_for_several_shards_coexist(scene: Scene) -> None:
    """Neither removes the other; an order that accepts another loss must wait."""
    scene.annotate(promote="1=2@monday", accept_loss="0")

    assert scene.kubectl("promote", "orders", "0", "--timeout", "0").exit_code == 0
    refused = scene.kubectl("promote", "orders", "0", "--timeout", "0", "--accept-loss", "any")

    assert scene.annotations()["gantry.dev/promote"].startswith("1=2@monday,0@")
    assert refused.exit_code == 1 and "a pending order for shard 1 accepts a loss of 0" in refused.stderr


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (("promote", "orders", "7"), 3, "shard 7 not found -- the shards are 0, 1"),
        (("promote", "orders", "0=9"), 3, "member 9 not found"),
        (("promote", "orders", "first"), 2, "invalid shard"),
        (("promote", "orders", "0", "1"), 2, "unexpected arguments"),
        (("promote", "orders", "0", "--accept-loss", "much"), 1, "gantry.dev/accept-loss"),
        (("fence", "orders", "5"), 3, "shard 5 not found"),
        (("fence", "orders", "all"), 2, "invalid shard"),
        (("fence", "orders", "0", "--lift"), 3, "shard 0 is not fenced"),
        (("status", "pods/orders"), 2, "is not the name of a group"),
    ],
)
def test_invalid_orders_are_refused(scene: Scene, words: tuple[str, ...], code: int, shown: str) -> None:
    """Nothing is changed in the cluster."""
    result = scene.kubectl(*words)

    assert result.exit_code == code and shown in result.output
    assert not [name for name in scene.annotations() if name.startswith("gantry.dev/")]


def test_fence_waits_for_the_status_of_the_shard(scene: Scene) -> None:
    """It is added to other fences or removed from them, and done when the status of this shard shows it."""
    scene.annotate(fence="1")
    scene.set_status(0, "orders-0-master-0", EPOCH, fenced=[1])

    shown_at: list[float] = []

    def until(text: str | None, fenced: list[int]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while scene.annotations().get("gantry.dev/fence") != text:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.7)
        shown_at.append(time.monotonic())
        scene.set_status(0, "orders-0-master-0", EPOCH, fenced=fenced)

    with scene.meanwhile(lambda: until("0,1", [0, 1])):
        fenced = scene.gantry("fence", "bg/orders", "0")
        ended_at = time.monotonic()
    assert shown_at[0] < ended_at, "the command did not wait for the status"
    assert scene.annotations()["gantry.dev/fence"] == "0,1"
    with scene.meanwhile(lambda: until("1", [1])):
        lifted = scene.kubectl("fence", "orders", "0", "--lift", "-O", "json")

    assert fenced.exit_code == 0 and "shard 0 is fenced: it takes no sends, and keeps its master" in fenced.stdout
    assert lifted.exit_code == 0, lifted.output
    assert msgspec.json.decode(lifted.stdout, type=OrderDocument).message == "shard 0 is not fenced any more"
    assert scene.annotations()["gantry.dev/fence"] == "1"


@pytest.mark.verify
def test_restore_accepts_a_loss_only_with_confirmation(scene: Scene) -> None:
    """It shows what the operator waits for, and gives an order only with --yes; a shard with a master needs none."""
    refused = scene.kubectl("restore", "orders", "0", "--yes")
    scene.set_status(0, "", 0, blockedBy=["the shard is restored from its volumes, and data may be missing: member 2"])
    careful = scene.gantry("restore", "bg/orders", "0")
    before = scene.annotations()

    def begin() -> None:
        deadline = time.monotonic() + PATIENCE_S
        while scene.annotations().get("gantry.dev/restore") != "0":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        scene.record_master(0, 2, 7_000)
        scene.annotate(restore=None)
        time.sleep(0.7)
        scene.set_status(0, "orders-0-slave-0", 7_000)

    with scene.meanwhile(begin):
        result = scene.kubectl("restore", "orders", "0", "--yes", "-O", "json")

    assert refused.exit_code == 1 and "there is nothing to restore" in refused.stderr
    assert careful.exit_code == 1 and "data may be missing: member 2 -- confirm with --yes" in careful.stderr
    assert not [name for name in before if name.startswith("gantry.dev/")]
    document = msgspec.json.decode(result.stdout, type=OrderDocument, strict=True)
    assert (document.master, document.epoch, document.before_master) == ("orders-0-slave-0", 7_000, "")


@pytest.mark.parametrize("compares", [True, False], ids=["compared", "twin"])
def test_concurrent_order_is_not_overwritten(scene: Scene, monkeypatch: pytest.MonkeyPatch, compares: bool) -> None:
    """An order between reading and writing stays, since the patch is for the version that was read."""
    if not compares:
        patch = Cluster.patch

        def careless(self: Cluster, kind: Any, name: str, change: Any) -> Any:
            return patch(self, kind, name, {"metadata": {"annotations": change["metadata"]["annotations"]}})

        monkeypatch.setattr(Cluster, "patch", careless)
    real, others = add_promotion, ["1=2@faster"]

    def slow(*arguments: Any) -> Any:
        change = real(*arguments)
        if others:
            scene.annotate(promote=others.pop(), accept_loss="0")
        return change

    monkeypatch.setattr(cluster_orders, "add_promotion", slow)

    assert scene.kubectl("promote", "orders", "0", "--timeout", "0").exit_code == 0
    assert scene.annotations()["gantry.dev/promote"].startswith("1=2@faster,0@" if compares else "0@")


# -- bundle ------------------------------------------------------------------------------------------------------------


def files_in_bundle(path: Path) -> dict[str, bytes]:
    """Return the files in a diagnostics bundle by name."""
    with tarfile.open(path) as archive:
        return {one.name.removeprefix("gantry-bundle/"): archive.extractfile(one).read()  # type: ignore[union-attr]
                for one in archive.getmembers()}  # fmt: skip


def test_cluster_bundle_has_everything_but_secrets(scene: Scene, tmp_path: Path) -> None:
    """It has objects, events, present and previous logs, sidecars' bundles and the operator; secrets are redacted."""
    scene.kubelet.log = lambda pod, container, is_previous: (
        f"{'before' if is_previous else 'now'} {container}\nAuthorization: Bearer {SECRET}\ntoken={SECRET}\n"
    )
    file = tmp_path / "orders.tar.gz"

    result = scene.kubectl("bundle", "orders", "--to", str(file))

    assert result.exit_code == 0 and str(file) in result.stdout, result.output
    found = files_in_bundle(file)
    assert {"group.yaml", "status.json", "events.yaml", "versions.json", "objects/configmaps/orders-0.yaml",
            "objects/leases/orders-0.yaml", "operator/pods/gantry-operator-1.yaml", "nodes/machine-1.yaml",
            "operator/logs/gantry-operator-1/operator.log"} <= set(found)  # fmt: skip
    for pod in PODS:
        assert found[f"logs/{pod}/broker.log"].startswith(b"now broker")
        assert found[f"logs/{pod}/broker.previous.log"].startswith(b"before broker")
        assert found[f"logs/{pod}/sidecar.log"].startswith(b"now sidecar")
        assert found[f"sidecars/{pod}.tar.gz"].endswith(bytes(range(256)))
    assert "MasterPromoted" in found["events.yaml"].decode()
    assert "fileReservedTime=72" in found["objects/configmaps/orders-0.yaml"].decode()
    assert not [name for name, data in found.items() if SECRET.encode() in data or "secret" in name]
    assert json.loads(found["versions.json"])["api_server"]["major"] == "1"
    assert [line for line in found["left-out.txt"].decode().splitlines() if "monitor" in line] == []


def test_bundle_has_no_secret_of_a_failed_program(scene: Scene, tmp_path: Path) -> None:
    """The status, and the list of what is left out, contain what the program in a pod wrote to standard error."""
    scene.kubelet.run = lambda pod, container, command: Outcome(b"", f"Error: token={SECRET} is refused", 2)
    file = tmp_path / "orders.tar.gz"

    assert scene.kubectl("bundle", "orders", "--to", str(file)).exit_code == 0

    found = files_in_bundle(file)
    assert all(b"is refused" in found[name] for name in ("status.json", "left-out.txt"))
    assert [name for name, data in found.items() if SECRET.encode() in data] == []


def test_cluster_bundle_has_the_newest_lines_of_a_long_log(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log that is longer than allowed, the oldest lines are left out, and no line is cut."""
    monkeypatch.setattr("gantry_cli.kube.cluster_bundle.LOG_BYTES_MAX", 20_000)
    lines = [f"line {number} {'x' * 100}\n" for number in range(500)]
    scene.kubelet.log = lambda pod, container, is_previous: "".join(lines)
    file = tmp_path / "orders.tar.gz"

    assert scene.kubectl("bundle", "orders", "--to", str(file)).exit_code == 0

    log = files_in_bundle(file)[f"logs/{PODS[0]}/broker.log"].decode()
    assert 19_000 < len(log) <= 20_000
    assert log.splitlines(keepends=True) == lines[-log.count("\n") :]


@pytest.mark.verify
def test_bundle_without_redaction_would_contain_secrets(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of `test_cluster_bundle_has_everything_but_secrets`: without redaction a secret is found."""
    monkeypatch.setattr("gantry_cli.kube.cluster_bundle.redact_object", lambda value: value)
    file = tmp_path / "orders.tar.gz"

    assert scene.kubectl("bundle", "orders", "--to", str(file)).exit_code == 0

    assert [name for name, data in files_in_bundle(file).items() if SECRET.encode() in data] == [
        "objects/configmaps/orders-0.yaml"
    ]


def test_cluster_bundle_names_missing_rights(scene: Scene, tmp_path: Path) -> None:
    """It contains everything that the user may read."""
    scene.permit(READ_GROUPS)
    file = tmp_path / "orders.tar.gz"

    result = scene.kubectl("bundle", "orders", "--to", str(file), context="jane")

    found = files_in_bundle(file)
    assert result.exit_code == 0
    assert yaml.safe_load(found["group.yaml"])["metadata"]["name"] == "orders"
    left_out = found["left-out.txt"].decode()
    assert "pods: you may not list pods in namespace shop" in left_out
    assert "the operator's pods: you may not list pods in namespace gantry-system" in left_out


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_not_found_errors_suggest_what_exists(scene: Scene) -> None:
    """Suggestions for a similar name, another namespace, another context, another kubeconfig."""
    near = scene.kubectl("status", "oders")
    other_namespace = scene.kubectl("status", "orders", namespace="bank")
    context = scene.kubectl("status", "orders", context="jan")
    missing = scene.folder / "nowhere"
    file = scene.kubectl("status", "orders", "--kubeconfig", str(missing))

    assert near.exit_code == 3 and "group oders not found in namespace shop -- did you mean orders?" in near.stderr
    assert other_namespace.exit_code == 3
    assert "it exists in namespace shop: name it with --namespace" in other_namespace.stderr
    assert (
        context.exit_code == 3
        and "context 'jan' not found" in context.stderr
        and "did you mean jane?" in context.stderr
    )
    assert file.exit_code == 3 and f"no kubeconfig found at {missing}" in file.stderr


def test_forbidden_requests_name_verb_and_kind(scene: Scene) -> None:
    """For reading, for orders, and for a user whom the cluster does not know."""
    scene.permit([])
    read = scene.kubectl("status", "orders", context="jane")
    scene.permit(READ_PODS)
    order = scene.kubectl("promote", "orders", "0", context="jane")
    unknown = scene.kubectl("status", "orders", context="stranger")

    assert read.exit_code == 1 and "you may not get brokergroups in namespace shop" in read.stderr
    assert order.exit_code == 1 and "you may not patch brokergroups in namespace shop" in order.stderr
    assert unknown.exit_code == 1 and "authentication at the API server failed (401)" in unknown.stderr
    assert not [name for name in scene.annotations() if name.startswith("gantry.dev/")]
