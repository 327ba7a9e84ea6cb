"""Asking the sidecars of pods, inside of the pods: `gantry pod ask`, run there as `kubectl exec` would run it.

    this command --- API server --- kubelet --- the sidecar's container: gantry pod ask PATH --- the sidecar

A sidecar answers nobody without a token, and the token is in a Secret. The ways around this are worse: the API server's
proxy takes the `Authorization` header for itself, policies of the network refuse it, and whoever reads the Secret to
look at a number holds what moves masters. So the question goes to where the token is mounted already, and it never
leaves the pod. What it needs is the right to run something in these pods (`pods/exec`), which whoever may edit in a
namespace has. Without it the commands show what stands in the group's status, and say so.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, final

from gantry_cli.kube.cluster import ANSWER_BYTES_MAX, Cluster, Object, refusal_of
from gantry_cli.kube.faults import Refusal, what_of
from gantry_cli.kube.naming import PODS, SIDECAR_CONTAINER

PROTOCOL: Final = "v4.channel.k8s.io"
OUTPUT, ERRORS, OUTCOME = 1, 2, 3
"""Channels of that protocol."""

STATUS: Final = "/v1/status"
ROLE: Final = "/v1/role/now"
BUNDLE: Final = "/v1/bundle"
AT_ONCE: Final = 8
ASK_S: Final = 10.0
PACK_S: Final = 60.0
REASON_MAX: Final = 300


class Answer(NamedTuple):
    """What one sidecar has said, or why it has not."""

    asked_ms: int
    answered_ms: int
    said: dict[str, Any]
    """By what was asked. Documents that it would not give are missing."""
    fault: str


@final
class Inside:
    """Of one command: it remembers whether it may ask at all, and asks nobody again who would refuse."""

    def __init__(self, cluster: Cluster, *, is_wanted: bool = True) -> None:
        self.refused = "" if is_wanted else "they were not to be asked"
        """Why nobody is asked."""
        self._cluster: Final = cluster

    def ask(self, pods: Sequence[Object]) -> dict[str, Answer]:
        """Everybody at the same time, by name of pod."""
        running = {pod["metadata"]["name"]: is_running(pod) for pod in pods}
        names = [name for name, runs in running.items() if runs and not self.refused]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="gantry-inside") as threads:
            found = dict(zip(names, threads.map(self._one, names), strict=True))
        return found

    def _one(self, pod: str) -> Answer:
        asked_ms = now_ms()
        if self.refused:
            return Answer(asked_ms, asked_ms, {}, "")
        try:
            data = self.run(pod, ["gantry", "pod", "ask", STATUS, ROLE], ASK_S)
            said = json.loads(data)
            documents = {path: one["said"] for path, one in said.items() if one.get("status") == 200}
            faults = [str(one.get("reason") or one.get("status")) for one in said.values() if one.get("status") != 200]
        except Refusal as refusal:
            if refusal.is_forbidden:  # one for all: it is said once, and not of each
                self.refused = refusal.short
            return Answer(asked_ms, now_ms(), {}, "" if refusal.is_forbidden else refusal.message)
        except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return Answer(asked_ms, now_ms(), {}, "what came from inside of the pod is no answer of a sidecar")
        return Answer(asked_ms, now_ms(), documents, "" if STATUS in documents else "; ".join(faults)[:REASON_MAX])

    def bundle(self, pod: str) -> bytes:
        """What a sidecar packs. Raises ``Refusal``."""
        return self.run(pod, ["gantry", "pod", "ask", "--raw", BUNDLE], PACK_S)

    def run(self, pod: str, command: Sequence[str], patience_s: float) -> bytes:
        """What a program writes that is run in the sidecar's container. Raises ``Refusal``."""
        cluster, what = self._cluster, what_of(PODS, self._cluster.namespace, "exec")
        query = [("container", SIDECAR_CONTAINER), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        result: list[bytes | BaseException] = []

        def work() -> None:
            try:
                socket = cluster.socket(PODS.path(cluster.namespace, pod, "exec"), query, PROTOCOL)
                result.append(_read(socket, what, time.monotonic() + patience_s))
            except BaseException as error:  # noqa: BLE001  # handed over to whoever waits, who knows what it means
                result.append(error)

        # The socket's package has no deadline for connecting. Whoever hangs in it is left behind, and ends with us.
        thread = threading.Thread(target=work, name=f"gantry-inside-{pod}", daemon=True)
        thread.start()
        thread.join(patience_s + 1)
        if not result:
            raise Refusal("create", what, 0, f"no answer from inside of the pod within {patience_s:g} s")
        if isinstance(result[0], bytes):
            return result[0]
        raise _refusal(what, result[0])


def _read(socket: Any, what: str, deadline: float) -> bytes:
    """Everything that the program writes, if it ends well."""
    output, errors, outcome = bytearray(), bytearray(), bytearray()
    channels = {OUTPUT: output, ERRORS: errors, OUTCOME: outcome}
    try:
        while not outcome:
            socket.settimeout(max(0.1, deadline - time.monotonic()))
            opcode, data = socket.recv_data(control_frame=True)
            if opcode == 0x8:  # it is closed
                break
            if opcode in (0x1, 0x2) and data:
                channels.get(data[0], bytearray()).extend(data[1:])
            if len(output) > ANSWER_BYTES_MAX:
                raise Refusal("create", what, 0, f"the answer is longer than {ANSWER_BYTES_MAX} bytes")
    finally:
        socket.close()
    said = json.loads(outcome) if outcome else {}
    if said.get("status") == "Success":
        return bytes(output)
    reason = errors.decode("utf-8", "replace").strip() or str(said.get("message") or "the connection was closed")
    raise Refusal("create", what, 0, reason[-REASON_MAX:])


def _refusal(what: str, error: BaseException) -> Refusal:
    """From whatever the packages below raise."""
    if isinstance(error, Refusal):
        return error
    status = getattr(error, "status_code", 0)
    if isinstance(status, int) and status:
        body = getattr(error, "resp_body", None) or b""
        return refusal_of("create", what, status, bytes(body))
    if not isinstance(error, Exception):
        raise error
    return Refusal("create", what, 0, f"{str(error) or type(error).__name__}"[:REASON_MAX])


def is_running(pod: Object) -> bool:
    """Whether a program can be run in the sidecar's container."""
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return any(one.get("name") == SIDECAR_CONTAINER and "running" in (one.get("state") or {}) for one in containers)


def now_ms() -> int:
    """On the clock by which looks are compared."""
    return time.monotonic_ns() // 1_000_000
