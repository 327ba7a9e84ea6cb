"""`gantry console` for groups in a cluster: a real API server, a kubelet that forwards ports, and real sidecars.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import trustme
from admin_scene import NO_TLS, Child, SidecarChild, wait_for, write_token_files
from api_server import api_server
from click.testing import CliRunner
from kubectl_scene import PODS, Scene
from scripted_kubelet import Outcome, scripted_kubelet

from gantry_cli.console.http import SidecarUnavailable
from gantry_cli.kube.cluster import Target, connect
from gantry_cli.kube.console_groups import ClusterDirectory, access_from
from gantry_cli.pod.commands import console_code
from gantry_testing.certificates import Party

pytestmark = pytest.mark.needs_api_server

FIRST, SECOND = PODS[0], PODS[1]
ANSWER_S: Final = 60.0
READ: Final = [
    {"apiGroups": ["gantry.dev"], "resources": ["brokergroups"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
]
EXEC: Final = [*READ, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}]
EVERYTHING: Final = [*EXEC, {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]}]


class Sidecars:
    """Real sidecars of the pods of shard 0, each with a certificate of its own, behind the scripted kubelet."""

    def __init__(self, scene: Scene, folder: Path, stack: ExitStack) -> None:
        self.tokens = write_token_files(folder)
        self.by_pod: dict[str, SidecarChild] = {}
        for pod in (FIRST, SECOND):
            party = Party(folder / pod, trustme.CA(), pod)
            tls = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
            made = SidecarChild(folder / pod, *self.tokens, *tls)
            stack.callback(made.child.end)
            self.by_pod[pod] = made
        self.forwarded: dict[str, str] = {}
        """The pod whose sidecar answers behind a port of another pod, if it is not its own one."""
        self.folder = folder
        scene.kubelet.run = self.run
        scene.kubelet.forward = self.forward

    def run(self, pod: str, container: str, command: list[str]) -> Outcome | None:
        """Run the real command of the sidecar's container, with this pod's port and token files."""
        assert (container, command[:3]) == ("sidecar", ["gantry", "pod", "console-code"]), command
        sidecar = self.by_pod.get(pod)
        if sidecar is None or sidecar.child.process.poll() is not None:
            return Outcome(b"", "gantry: the sidecar does not answer", 1)
        name = "tokens" if "--may-change" in command else "read-tokens"
        words = ["--url", f"http://{sidecar.address}", "--token-file", str(self.folder / name), *command[3:]]
        result = CliRunner().invoke(console_code, words)
        return Outcome(result.stdout_bytes, result.stderr, result.exit_code)

    def forward(self, pod: str, port: int) -> tuple[str, int] | None:
        assert port == 8080
        sidecar = self.by_pod.get(self.forwarded.get(pod, pod))
        if sidecar is None or sidecar.child.process.poll() is not None:
            return None
        host, _, number = sidecar.address.rpartition(":")
        return host, int(number)


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


@pytest.fixture
def sidecars(scene: Scene, tmp_path: Path) -> Iterator[Sidecars]:
    with ExitStack() as stack:
        yield Sidecars(scene, tmp_path, stack)


class Browser:
    """A browser that has opened the printed address."""

    def __init__(self, address: str) -> None:
        self.url, _, self.code = address.strip().partition("/console/#code=")
        answer = httpx.post(f"{self.url}/v1/console/sessions", json={"code": self.code}, timeout=ANSWER_S)
        assert answer.status_code == 200, answer.text
        self.headers = {"Authorization": f"Bearer {answer.json()['session']}"}

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers | headers, timeout=ANSWER_S, verify=NO_TLS)


def start(scene: Scene, stack: ExitStack, *words: str, context: str = "admin") -> Child:
    """Run `gantry console` until it has printed its address."""
    where = ["--kubeconfig", str(scene.kubeconfig), "--context", context]
    child = Child("gantry_cli", ["console", *words, *where], "http://127.0.0.1:")
    stack.callback(child.end)
    return child


@pytest.mark.verify
def test_console_survives_the_loss_of_its_pod(scene: Scene, sidecars: Sidecars) -> None:
    """A login works once. Pages, documents and events come from a pod; when it goes away, another one takes over."""
    with ExitStack() as stack:
        child = start(scene, stack, "bg/orders", "--namespace", "shop")
        browser = Browser(child.line)
        again = httpx.post(f"{browser.url}/v1/console/sessions", json={"code": browser.code}, timeout=ANSWER_S)
        assert again.status_code == 401 and "gantry console" in again.json()["reason"]
        assert "Gantry console" in browser.get("/console/").text
        assert browser.get("/v1/status").status_code == 200
        assert httpx.get(f"{browser.url}/v1/status", timeout=ANSWER_S).status_code == 401
        assert f"shop/orders: served by {FIRST}" in child.log

        with httpx.stream("GET", f"{browser.url}/v1/events", headers=browser.headers, timeout=ANSWER_S) as events:
            pieces = events.iter_raw()
            assert b"event: " in next(pieces)
            sidecars.by_pod[FIRST].child.end()
            with pytest.raises(httpx.RemoteProtocolError):
                for _ in pieces:
                    pass

        assert browser.get("/v1/status").status_code == 200
        assert f"{FIRST} is not reachable any more" in child.log
        assert f"shop/orders: served by {SECOND}" in child.log
        assert all(secret not in child.log + child.line for secret in ("the-token-that-may",))


@pytest.mark.verify
def test_port_with_another_certificate_is_refused(scene: Scene, sidecars: Sidecars) -> None:
    """A server that answers in a pod's place gets no request, and the next pod is used. Its twin is the real port."""
    sidecars.forwarded = {FIRST: SECOND}
    with ExitStack() as stack:
        child = start(scene, stack, "bg/orders", "--namespace", "shop")
        assert f"served by {SECOND}" in child.log

    sidecars.forwarded = {FIRST: SECOND, SECOND: FIRST}
    refused = scene.gantry("console", "bg/orders")
    assert refused.exit_code == 1
    assert "the port presents another certificate than the sidecar in the pod" in refused.stderr


@pytest.mark.verify
def test_missing_right_is_named(scene: Scene, sidecars: Sidecars) -> None:
    """Each right that is missing, and the page with all of them; with all, the console works."""
    scene.permit(READ)
    no_exec = scene.kubectl("console", "orders", context="jane")
    scene.permit(EXEC)
    no_forward = scene.kubectl("console", "orders", context="jane")
    scene.permit(EVERYTHING)
    with ExitStack() as stack:
        child = start(scene, stack, "bg/orders", "--namespace", "shop", "--read-only", context="jane")
        browser = Browser(child.line)
        refused = httpx.post(f"{browser.url}/v1/role/flush", headers=browser.headers, timeout=ANSWER_S)

    assert no_exec.exit_code == 1 and "pods/exec in namespace shop" in no_exec.stderr
    assert no_forward.exit_code == 1 and "pods/portforward in namespace shop" in no_forward.stderr
    assert "docs/kubectl.md" in no_exec.stderr and "docs/kubectl.md" in no_forward.stderr
    assert (refused.status_code, refused.json()["reason"]) == (403, "this token is read-only")


def test_image_without_the_command_is_named(scene: Scene) -> None:
    """The error names the remedy, and is not that of click."""
    scene.kubelet.run = lambda pod, container, command: Outcome(b"", "Error: No such command 'console-code'.", 2)
    result = scene.kubectl("console", "orders")
    assert result.exit_code == 1
    assert "its image is of a version without `gantry pod console-code`" in result.stderr


@pytest.mark.parametrize(
    "output",
    [b"", b"[]", b'{"code": "x"}', b'{"code": "", "certificate_sha256": ""}', b'{"code":"c","certificate_sha256":"00"}',
     json.dumps({"code": "c\n", "certificate_sha256": "z" * 64}).encode(), b"[" * 100_000],
    ids=["empty", "list", "no digest", "no code", "short digest", "no hex", "deep"],
)  # fmt: skip
def test_unusable_output_of_the_pod_is_refused(output: bytes) -> None:
    """The output of a program in a pod is validated before it is used."""
    with pytest.raises(SidecarUnavailable):
        access_from(output)


def test_list_shows_all_groups_that_the_user_may_read(scene: Scene) -> None:
    """Name, masters, conditions that are not good and the data at risk, of one namespace or of all."""
    other: Any = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "bills"}, "spec": {}}
    scene.request("POST", "/apis/gantry.dev/v1alpha1/namespaces/bank/brokergroups", other)
    scene.set_status(0, "orders-0-master-0", 3_000, fenced=[1])
    try:
        shop = connect(Target(str(scene.kubeconfig), None, "shop"))
        [orders] = ClusterDirectory(shop, "shop", is_read_only=False).read()
        everywhere = ClusterDirectory(shop, "", is_read_only=False).read()
    finally:
        scene.request("DELETE", "/apis/gantry.dev/v1alpha1/namespaces/bank/brokergroups/bills")

    assert sorted(one.id for one in everywhere) == ["bank/bills", "shop/orders"]
    assert (orders.phase, orders.ready, orders.observed_ms) == ("Ready", "2/2", 1_767_225_600_000)
    assert [(one.number, one.master, one.at_risk, one.fence) for one in orders.shards] == [
        (0, "orders-0-master-0", "64Ki", ""), (1, "orders-1-master-0", "64Ki", "Fenced"),
    ]  # fmt: skip
    assert [(one.type, one.status) for one in orders.conditions] == [("Available", "False"), ("Fenced", "True")]


@pytest.mark.verify
def test_list_opens_consoles_whose_sessions_do_not_mix(scene: Scene, sidecars: Sidecars) -> None:
    """Each group has a port of its own; a session of one page is refused by the other, and a fault is shown."""
    other: Any = {"apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "metadata": {"name": "bills"}, "spec": {}}
    scene.request("POST", "/apis/gantry.dev/v1alpha1/namespaces/bank/brokergroups", other)
    with ExitStack() as stack:
        stack.callback(scene.request, "DELETE", "/apis/gantry.dev/v1alpha1/namespaces/bank/brokergroups/bills")
        child = start(scene, stack, "--all-namespaces")
        base, _, code = child.line.strip().partition("/#code=")
        session = httpx.post(f"{base}/v1/console/sessions", json={"code": code}, timeout=ANSWER_S).json()["session"]
        page = httpx.Client(base_url=base, headers={"Authorization": f"Bearer {session}"}, timeout=ANSWER_S)
        stack.callback(page.close)

        opened = page.post("/v1/broker-groups/open", json={"id": "shop/orders"})
        failed = page.post("/v1/broker-groups/open", json={"id": "bank/bills"})
        unknown = page.post("/v1/broker-groups/open", json={"id": "bank/others"})
        browser = Browser(opened.json()["address"])
        groups = {one["id"]: one for one in page.get("/v1/broker-groups").json()["groups"]}

        assert browser.url != base and browser.get("/v1/status").status_code == 200
        assert (failed.status_code, unknown.status_code) == (502, 404)
        assert groups["bank/bills"]["fault"] == failed.json()["reason"] == "no sidecar of the group runs"
        assert page.get(f"{browser.url}/v1/status").status_code == 401
        assert httpx.get(f"{base}/v1/broker-groups", headers=browser.headers, timeout=ANSWER_S).status_code == 401
        assert json.dumps({"group": "shop/orders", "url": f"{base}/"}) in browser.get("/console/js/server.js").text


def test_forwarded_port_ends_with_either_side(scene: Scene, sidecars: Sidecars) -> None:
    """The web socket ends with the connection of this program, and the other way round."""
    shop = connect(Target(str(scene.kubeconfig), None, "shop"))
    source = ClusterDirectory(shop, "shop", is_read_only=True).sidecars(
        ClusterDirectory(shop, "shop", is_read_only=True).read()[0]
    )
    near = source.connect(FIRST)
    wait_for(lambda: len(scene.kubelet.forwards) == 1, "the port is forwarded")
    near.close()
    wait_for(lambda: not scene.kubelet.forwards, "the web socket is closed")

    with source.connect(FIRST) as second:
        second.settimeout(ANSWER_S)
        wait_for(lambda: len(scene.kubelet.forwards) == 1, "the port is forwarded again")
        scene.kubelet.cut_forwards(FIRST)
        assert second.recv(1) == b""
