"""`kubectl gantry` with a failing API server: no answer, a late or invalid one, or another server."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import RenderableType

from gantry_cli.kube import cluster_orders, screen
from gantry_cli.kube.cluster import Target, connect
from gantry_cli.kube.group_observer import loop_state_of, shards_of
from gantry_cli.kube.plugin import cli
from gantry_cli.output import console
from gantry_spec.manifest.annotations import FENCE, PROMOTE, RESTORE

Object = dict[str, Any]
Answer = tuple[int, bytes]
UNSERVED: Answer = (404, b"404 page not found\n")
GROUP: Object = {
    "apiVersion": "gantry.dev/v1alpha1", "kind": "BrokerGroup", "spec": {"shards": 1, "slaves": 1},
    "metadata": {"name": "orders", "namespace": "shop", "uid": "u-1", "resourceVersion": "7", "generation": 1},
}  # fmt: skip


@final
class Answering(ThreadingHTTPServer):
    """An HTTP server with the answers of a test, which records its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer: Callable[[str, str, bytes], Answer | None] = lambda method, path, body: UNSERVED
        """Returns status and body for method, path and body; None for no answer."""

        self.asked: list[tuple[str, str]] = []
        """Method and path of each request."""

        self.bodies: list[Object] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Answering

    def do_GET(self) -> None:
        self._do(b"")

    def do_PATCH(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(json.loads(body))
        self._do(body)

    def _do(self, body: bytes) -> None:
        self.server.asked.append((self.command, self.path))
        answer = self.server.answer(self.command, self.path.partition("?")[0], body)
        if answer is None:
            self.connection.close()
            return
        self.send_response(answer[0])
        self.send_header("Content-Length", str(len(answer[1])))
        self.end_headers()
        self.wfile.write(answer[1])

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, to keep the output of tests clean."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering() as made:
        threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
        yield made
        made.shutdown()


def kubeconfig(folder: Path, url: str) -> str:
    """Write a kubeconfig with a token."""
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret-of-jane"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


def kubectl(folder: Path, url: str, *words: str) -> Result:
    """Run `kubectl gantry` with only this API server."""
    return CliRunner().invoke(cli, [words[0], "--kubeconfig", kubeconfig(folder, url), *words[1:]])


def group_with(**changes: Any) -> bytes:
    return json.dumps(GROUP | changes).encode()


def served(path: str) -> Answer:
    """Serve the group, and no other object."""
    if path.endswith("/brokergroups/orders"):
        return 200, group_with()
    return 200, b'{"items": []}'


@pytest.mark.parametrize(
    ("answer", "code", "shown"),
    [
        (UNSERVED, 3, "this cluster has no brokergroups.gantry.dev -- install the operator first"),
        ((200, b"<html>log in</html>"), 1, "check that this is an API server"),
        ((200, b"[1]"), 1, "check that this is an API server"),
        ((500, b'{"kind":"Status","message":"etcd is away"}'), 1, "etcd is away (status 500)"),
        ((401, b""), 1, "authentication at the API server failed (401)"),
        ((403, b'{"kind":"Status","message":"no"}'), 1, "you may not get brokergroups in namespace shop"),
        (None, 1, "no usable answer of the API server"),
    ],
    ids=["no-definition", "a-proxy", "a-list", "broken", "unknown", "forbidden", "hung-up"],
)  # fmt: skip
def test_invalid_answers_are_errors_of_one_line(
    server: Answering, tmp_path: Path, answer: Answer | None, code: int, shown: str
) -> None:
    """The line has the cause and the remedy, and neither a traceback nor the token."""
    server.answer = lambda method, path, body: answer

    result = kubectl(tmp_path, server.url, "status", "orders")

    assert (result.exit_code, shown in result.stderr, result.stderr.count("\n")) == (code, True, 1), result.stderr
    assert "secret-of-jane" not in result.output


def test_refused_connection_is_reported_at_once(tmp_path: Path) -> None:
    """No process listens on the port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        result = kubectl(tmp_path, f"http://127.0.0.1:{taken.getsockname()[1]}", "explain", "orders")

    assert result.exit_code == 1 and "no usable answer of the API server: Connection refused" in result.stderr


def test_group_without_a_status_is_reported(server: Answering, tmp_path: Path) -> None:
    """No values are invented: `status` exits with 1, `explain` with a remedy."""
    server.answer = lambda method, path, body: served(path)

    status = kubectl(tmp_path, server.url, "status", "orders")
    explain = kubectl(tmp_path, server.url, "explain", "orders")

    assert status.exit_code == 1 and "no status yet" in status.stdout
    assert explain.exit_code == 1 and "nothing is known" in explain.stderr


def test_status_of_another_version_is_shown_in_part(server: Answering, tmp_path: Path) -> None:
    """Missing, changed or new fields, and a spec that this version cannot parse, cause no error."""
    strange = {
        "eachShard": [{"number": 0, "new": 1, "decision": None}, "what?"],
        "conditions": {"a": 1},
        "phase": "New",
    }
    spec = {"shards": 1, "invention": True}
    server.answer = lambda method, path, body: (
        (200, group_with(status=strange, spec=spec)) if path.endswith("/orders") else served(path)
    )

    result = kubectl(tmp_path, server.url, "status", "orders", "-O", "json")

    document = json.loads(result.stdout)
    assert (document["phase"], [one["number"] for one in document["shards"]]) == ("New", [0])


def test_former_names_in_a_status_are_read() -> None:
    """An operator or a sidecar of an earlier version wrote them."""
    [shard] = shards_of({"eachShard": [{"number": 0, "durability": {"bound": "disk"}}]})
    assert shard.bottleneck == "disk"
    former = ("moving", "standing still", "gone", "ended")
    for field in ("loop_state", "motion"):
        states = [loop_state_of({field: {"state": state}}) for state in former]
        assert states == ["running", "stalled", "crashed", "ended"]
    assert loop_state_of({}) is None


def test_control_characters_from_the_cluster_are_replaced(server: Answering, tmp_path: Path) -> None:
    """Escape sequences and markup in events, conditions and annotations are shown as text."""
    evil = "\x1b]0;owned\x07[/bold] [red]text[/red] \x1b[2J"
    condition = {"type": "Available", "status": "False", "reason": "NoMaster", "message": evil}
    event = {"reason": "Said", "message": evil, "type": "Normal", "lastTimestamp": "2026-01-01T00:00:00Z"}
    metadata = GROUP["metadata"] | {"annotations": {"gantry.dev/promote": evil}}
    shard = {"number": 0, "master": evil, "decision": {"action": evil, "blockedBy": [evil], "ifMasterDies": [evil]},
             "electionLoss": evil}  # fmt: skip
    status = {"phase": evil, "conditions": [condition], "eachShard": [shard]}

    def answer(method: str, path: str, body: bytes) -> Answer:
        if path.endswith("/events"):
            return 200, json.dumps({"items": [event]}).encode()
        return (200, group_with(status=status, metadata=metadata)) if path.endswith("/orders") else served(path)

    server.answer = answer

    screens = [kubectl(tmp_path, server.url, command, "orders").output for command in ("status", "explain")]
    refused = kubectl(tmp_path, server.url, "promote", "orders", "0", "--timeout", "0.1")

    for text in (*screens, refused.output):
        assert "\x1b" not in text and "\x07" not in text
    assert screens[0].count("[/bold] [red]text[/red]") >= 4
    assert any(line.startswith("shard 0: ") and "]0;owned" in line for line in screens[0].splitlines())
    assert "[/bold] [red]text[/red]" in screens[1]


def test_watch_shows_the_text_of_an_api_error_unchanged(
    server: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that looks like markup does not end the command."""

    answers = iter([(200, group_with()), (500, json.dumps({"kind": "Status", "message": "[/x] is down"}).encode())])
    server.answer = lambda method, path, body: next(answers) if path.endswith("/orders") else served(path)

    def watch_once(render: Callable[[], Iterable[RenderableType]], _: float) -> None:
        for part in render():
            console().print(part)

    monkeypatch.setattr(screen, "watch", watch_once)

    shown = kubectl(tmp_path, server.url, "status", "orders", "--watch")

    assert shown.exit_code == 0 and "status unavailable: " in shown.output and "[/x] is down" in shown.output


def test_wait_survives_an_api_server_outage(server: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order stays pending, and its result is printed when the API server answers again."""
    monkeypatch.setattr(cluster_orders, "POLL_S", 0.01)
    gone: list[Answer | None] = [None, (503, b"{}"), (200, b"<html>"), None]

    def answer(method: str, path: str, body: bytes) -> Answer | None:
        if method == "PATCH":
            server.answer = after
            return 200, group_with()
        return served(path)

    def after(method: str, path: str, body: bytes) -> Answer | None:
        if gone:
            return gone.pop()
        if "/leases/" in path:
            return 403, b"{}"
        shard = {"number": 0, "master": "orders-0-slave-0", "epoch": 4000}
        return 200, group_with(status={"eachShard": [shard]})

    server.answer = answer

    result = kubectl(tmp_path, server.url, "promote", "orders", "0=2")

    assert result.exit_code == 0, result.output
    assert "orders-0-slave-0 is the master in epoch 4000" in result.stdout and gone == []


@pytest.mark.parametrize(
    ("order", "pending", "withdrawal"),
    [
        (("promote", "0"), {}, "gantry.dev/promote- gantry.dev/accept-loss-"),
        (("promote", "0"), {PROMOTE: "1=2@monday,2"}, "gantry.dev/promote=1=2@monday,2 --overwrite"),
        (("restore", "0", "--yes"), {}, "gantry.dev/restore-"),
        (("restore", "0", "--yes"), {RESTORE: "1,2"}, "gantry.dev/restore=1,2 --overwrite"),
    ],
    ids=["promote", "promote-of-several", "restore", "restore-of-several"],
)
def test_withdrawal_keeps_the_orders_of_other_shards(
    server: Answering, tmp_path: Path, order: tuple[str, ...], pending: dict[str, str], withdrawal: str
) -> None:
    """The command that is printed withdraws the order that was given, and no other one."""
    served_now = json.loads(group_with(metadata=GROUP["metadata"] | {"annotations": pending}))

    def answer(method: str, path: str, body: bytes) -> Answer | None:
        if method == "PATCH":
            served_now["metadata"]["annotations"] = pending | json.loads(body)["metadata"]["annotations"]
        return 200, json.dumps(served_now).encode()

    server.answer = answer

    result = kubectl(tmp_path, server.url, order[0], "orders", *order[1:], "--timeout", "0.1")

    assert result.exit_code == 1
    assert f"withdraw it with: kubectl annotate bg/orders -n shop {withdrawal}\n" in result.stderr


def test_removed_order_is_not_called_pending(server: Answering, tmp_path: Path) -> None:
    """The operator has removed the order, and the status does not name a master yet: nothing can be withdrawn."""
    server.answer = lambda method, path, body: served(path) if "/leases/" not in path else (403, b"{}")

    result = kubectl(tmp_path, server.url, "promote", "orders", "0", "--timeout", "0.1")

    assert result.exit_code == 1 and "pending" not in result.stderr
    assert "the order has been removed; see its result with `gantry status bg/orders --namespace shop`" in result.stderr


def test_conflicts_are_retried_a_limited_number_of_times(server: Answering, tmp_path: Path) -> None:
    """Each retry uses the newest version, and the number of retries is limited."""

    def answer(method: str, path: str, body: bytes) -> Answer | None:
        return (409, b'{"kind":"Status","message":"changed"}') if method == "PATCH" else served(path)

    server.answer = answer

    result = kubectl(tmp_path, server.url, "fence", "orders", "0")

    assert result.exit_code == 1 and "changed" in result.stderr
    assert len(server.bodies) == cluster_orders.TRIES
    heads = [body["metadata"] for body in server.bodies]
    assert all(
        (head["uid"], head["resourceVersion"], head["annotations"]) == ("u-1", "7", {FENCE: "0"}) for head in heads
    )


@pytest.mark.parametrize("answer", [None, (504, b"{}")], ids=["hung-up", "timed-out"])
def test_unanswered_order_may_be_pending(server: Answering, tmp_path: Path, answer: Answer | None) -> None:
    """The patch may have been applied before the answer was lost: the error says so, and it is not repeated."""
    server.answer = lambda method, path, body: answer if method == "PATCH" else served(path)

    result = kubectl(tmp_path, server.url, "promote", "orders", "0")

    assert result.exit_code == 1 and "the order may be pending: see `kubectl get bg/orders -n shop" in result.stderr
    assert len(server.bodies) == 1


def test_deleted_group_ends_the_wait(server: Answering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result can never appear."""
    monkeypatch.setattr(cluster_orders, "POLL_S", 0.01)
    absent = b'{"kind":"Status","message":"not found","details":{"name":"orders"}}'
    server.answer = lambda method, path, body: (
        (200, group_with()) if method == "PATCH" else (404, absent) if server.bodies else served(path)
    )

    result = kubectl(tmp_path, server.url, "promote", "orders", "0")

    assert result.exit_code == 3 and "group shop/orders has been deleted" in result.stderr
    assert PROMOTE in server.bodies[0]["metadata"]["annotations"]


def test_secrets_are_never_read(server: Answering, tmp_path: Path) -> None:
    """Not even a bundle of a user who may read them does."""
    server.answer = lambda method, path, body: served(path)

    assert kubectl(tmp_path, server.url, "bundle", "orders", "--to", str(tmp_path / "b.tar.gz")).exit_code == 0
    assert kubectl(tmp_path, server.url, "status", "orders").exit_code == 1

    paths = [path for _, path in server.asked]
    assert len(paths) > 15 and not [path for path in paths if "secret" in path]


# -- the connection to the cluster -------------------------------------------------------------------------------------


@contextmanager
def without_kubernetes() -> Iterator[None]:
    """Hide the package `kubernetes`, as on a broker's machine."""
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "kubernetes"}
    try:
        for name in hidden:
            del sys.modules[name]
        sys.modules["kubernetes"] = None  # type: ignore[assignment]  # what Python takes for "not to be found"
        yield
    finally:
        del sys.modules["kubernetes"]
        sys.modules.update(hidden)


def test_missing_package_is_named(server: Answering, tmp_path: Path) -> None:
    """One line has the command to install it; commands for this machine never need it."""
    with without_kubernetes():
        result = kubectl(tmp_path, server.url, "status", "orders")
        local = CliRunner().invoke(
            __import__("gantry_cli.main", fromlist=["cli"]).cli, ["explain", "--data", str(tmp_path)]
        )

    assert result.exit_code == 1 and "pip install 'gantry-mq[kubernetes]'" in result.stderr
    assert local.exit_code == 3 and "no group runs in" in local.stderr


def test_missing_kubeconfig_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no option, no variable, and no file in the home directory."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    result = CliRunner().invoke(cli, ["status", "orders"])

    assert result.exit_code == 1 and "no kubeconfig found" in result.stderr and "--kubeconfig" in result.stderr


def test_invalid_kubeconfig_is_reported(tmp_path: Path) -> None:
    """The file is not YAML, or is empty."""
    for text in ("{", "apiVersion: v1\nkind: Config\n", "just a word"):
        (tmp_path / "broken").write_text(text)
        result = CliRunner().invoke(cli, ["status", "orders", "--kubeconfig", str(tmp_path / "broken")])
        assert result.exit_code in (1, 3) and result.stderr.startswith("gantry: "), (
            text,
            result.output,
            result.exception,
        )


def test_namespace_comes_from_option_context_or_default(tmp_path: Path) -> None:
    """The order of precedence is that of kubectl."""
    path = kubeconfig(tmp_path, "http://127.0.0.1:1")
    text = Path(path).read_text()

    assert connect(Target(path)).namespace == "shop"
    assert connect(Target(path, namespace="bank")).namespace == "bank"
    Path(path).write_text(text.replace("    namespace: shop\n", ""))
    assert connect(Target(path)).namespace == "default"
