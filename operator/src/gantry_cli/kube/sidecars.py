"""Requests to sidecars, made inside their pods by `gantry pod get`, which runs there as with `kubectl exec`.

    this command --- API server --- kubelet --- the sidecar's container: gantry pod get PATH --- the sidecar

A sidecar requires a token, and the token is in a Secret. Other ways are worse: the API server's proxy consumes the
`Authorization` header, network policies block it, and a user who reads the Secret to see a number holds the token that
can move masters. So the request is made where the token is mounted already, and the token never leaves the pod. It
needs the right to run programs in these pods (`pods/exec`), which the editors of a namespace have. Without that right
the commands show the group's status instead, with a note.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar, final

from gantry_cli.kube.api_errors import ApiError, resource_text
from gantry_cli.kube.cluster import ANSWER_BYTES_MAX, Cluster, Object, api_error_from
from gantry_cli.kube.naming import PODS, SIDECAR_CONTAINER

T = TypeVar("T")

PROTOCOL: Final = "v4.channel.k8s.io"
"""The protocol of the web sockets by which programs run in a pod, and ports of a pod are forwarded."""

OUTPUT, ERRORS, OUTCOME = 1, 2, 3
"""The channels of that protocol."""

STATUS: Final = "/v1/status"
ROLE: Final = "/v1/role/now"
BUNDLE: Final = "/v1/bundle"
PARALLEL_REQUESTS: Final = 8
"""How many sidecars are queried at the same time."""

REQUEST_TIMEOUT_S: Final = 10.0
BUNDLE_TIMEOUT_S: Final = 60.0
REASON_MAX: Final = 300
UNKNOWN_COMMAND_FORM: Final = "No such command '{}'"
"""The error of an image of an earlier version, which does not have a command of `gantry pod`."""
UNKNOWN_COMMAND: Final = UNKNOWN_COMMAND_FORM.format("get")
"""The error of an image of an earlier version, which has another name for the command."""


class Answer(NamedTuple):
    """The answer of one sidecar, or the reason why there is none."""

    asked_ms: int
    """When the request was sent, by ``now_ms``."""
    answered_ms: int
    """When the answer arrived, by ``now_ms``."""
    documents: dict[str, Any]
    """The documents by their paths, without those that the sidecar refused."""
    fault: str
    """Why there is no usable answer; empty if there is one."""


@final
class SidecarClient:
    """Requests documents of sidecars for one command, and stops after the first refusal for lack of rights."""

    def __init__(self, cluster: Cluster, *, is_wanted: bool = True) -> None:
        self.refusal_reason = "" if is_wanted else "excluded by --no-exec"
        """Why no sidecar is asked; empty if they are."""
        self._cluster: Final = cluster

    def ask(self, pods: Sequence[Object]) -> dict[str, Answer]:
        """Ask the sidecars of all running pods in parallel. Return the answers by name of pod."""
        running = {pod["metadata"]["name"]: is_running(pod) for pod in pods}
        names = [name for name, runs in running.items() if runs and not self.refusal_reason]
        with ThreadPoolExecutor(PARALLEL_REQUESTS, thread_name_prefix="gantry-exec") as threads:
            found = dict(zip(names, threads.map(self._query, names), strict=True))
        return found

    def _query(self, pod: str) -> Answer:
        asked_ms = now_ms()
        if self.refusal_reason:
            return Answer(asked_ms, asked_ms, {}, "")
        try:
            data = self._get(pod, [STATUS, ROLE], REQUEST_TIMEOUT_S)
            answers = json.loads(data)
            documents = {path: _body_of(one) for path, one in answers.items() if one.get("status") == 200}
            faults = [
                str(one.get("reason") or one.get("status")) for one in answers.values() if one.get("status") != 200
            ]
        except ApiError as error:
            if error.is_forbidden:  # the right is missing for all pods, so it is reported once
                self.refusal_reason = error.short
            return Answer(asked_ms, now_ms(), {}, "" if error.is_forbidden else error.message)
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return Answer(asked_ms, now_ms(), {}, "the output of the program in the pod is not a sidecar's answer")
        return Answer(asked_ms, now_ms(), documents, "" if STATUS in documents else "; ".join(faults)[:REASON_MAX])

    def bundle(self, pod: str) -> bytes:
        """Return a sidecar's own bundle. Raises ``ApiError``."""
        return self._get(pod, ["--raw", BUNDLE], BUNDLE_TIMEOUT_S)

    def _get(self, pod: str, words: Sequence[str], timeout_s: float) -> bytes:
        """Run `gantry pod get`, which an image of an earlier version names `gantry pod ask`. Raises ``ApiError``."""
        try:
            return self.exec(pod, ["gantry", "pod", "get", *words], timeout_s)
        except ApiError as error:
            if UNKNOWN_COMMAND not in error.message:
                raise
        return self.exec(pod, ["gantry", "pod", "ask", *words], timeout_s)

    def exec(self, pod: str, command: Sequence[str], timeout_s: float) -> bytes:
        """Run a program in the sidecar's container, and return its output. Raises ``ApiError``."""
        cluster, what = self._cluster, resource_text(PODS, self._cluster.namespace, "exec")
        query = [("container", SIDECAR_CONTAINER), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]

        def work() -> bytes:
            socket = cluster.socket(PODS.path(cluster.namespace, pod, "exec"), query, PROTOCOL)
            return _read(socket, what, time.monotonic() + timeout_s)

        late = f"no answer of the program in the pod within {timeout_s:g} s"
        return within(timeout_s + 1, f"gantry-exec-{pod}", what, work, late)


def within(timeout_s: float, name: str, what: str, work: Callable[[], T], late: str) -> T:
    """Return the result of ``work`` with a web socket. Raises ``ApiError``, after ``timeout_s`` with the text ``late``.

    The package of the socket has no timeout for connecting. A thread that hangs in it is abandoned.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as error:  # noqa: BLE001  # passed to the waiting thread, which interprets it
            errors.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    if result:
        return result[0]
    if errors:
        raise _api_error_of(what, errors[0])
    raise ApiError("create", what, 0, f"timed out: {late}")


def _body_of(answer: dict[str, Any]) -> Any:
    """Return the content of an answer, which `gantry pod ask` of an earlier version names ``said``."""
    return answer["body"] if "body" in answer else answer["said"]


def _read(socket: Any, what: str, deadline: float) -> bytes:
    """Return everything that the program writes. Raises ``ApiError`` unless it ends successfully."""
    output, errors, outcome = bytearray(), bytearray(), bytearray()
    channels = {OUTPUT: output, ERRORS: errors, OUTCOME: outcome}
    try:
        while not outcome:
            socket.settimeout(max(0.1, deadline - time.monotonic()))
            opcode, data = socket.recv_data(control_frame=True)
            if opcode == 0x8:  # the peer closes the connection
                break
            if opcode in (0x1, 0x2) and data:
                channels.get(data[0], bytearray()).extend(data[1:])
            if len(output) > ANSWER_BYTES_MAX:
                raise ApiError("create", what, 0, f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    finally:
        socket.close()
    document = json.loads(outcome) if outcome else {}
    if document.get("status") == "Success":
        return bytes(output)
    reason = errors.decode("utf-8", "replace").strip() or str(document.get("message") or "the connection was closed")
    raise ApiError("create", what, 0, reason[-REASON_MAX:])


def _api_error_of(what: str, error: BaseException) -> ApiError:
    """Return the error for an exception of the web socket or of the requests over it."""
    if isinstance(error, ApiError):
        return error
    status = getattr(error, "status_code", 0)
    if isinstance(status, int) and status:
        body = getattr(error, "resp_body", None) or b""
        return api_error_from("create", what, status, bytes(body))
    if not isinstance(error, Exception):
        raise error
    return ApiError("create", what, 0, f"{str(error) or type(error).__name__}"[:REASON_MAX])


def is_running(pod: Object) -> bool:
    """Return whether the sidecar's container runs, so that a program can run in it."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return any(one.get("name") == SIDECAR_CONTAINER and "running" in (one.get("state") or {}) for one in containers)


def now_ms() -> int:
    """Return the time of the clock of observations."""
    return time.monotonic_ns() // 1_000_000
