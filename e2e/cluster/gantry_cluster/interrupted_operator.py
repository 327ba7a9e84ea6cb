"""An operator as a process of this machine, interrupted at its writes to the cluster's API server.

    operator, in the network of a node  --http-->  InterruptingProxy  --https-->  API server
              --> sidecars of pods

The operator has the settings and the permissions of the chart, and reaches pods as one in a pod does. All of its
requests pass the proxy with the operator's own token. The proxy counts the writes that belong to groups, and lets a
fault happen to one of them. A killed operator is replaced by another one at once, as its Deployment does.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Final, final

from gantry_cluster.api import REQUEST_SECONDS_MAX, Object
from gantry_cluster.cluster import Cluster
from gantry_cluster.commands import wait_until
from gantry_cluster.groups import OPERATOR, SYSTEM
from gantry_cluster.kubeconfig import API_PORT
from gantry_cluster.local_operator import chart_environment, chart_kubeconfig
from gantry_cluster.network import HUB_ADDRESS, IPV4, OUTSIDE

LEADS_SECONDS_MAX: Final = 60.0
"""The limit for an operator to lead. After a kill, the Lease of the one before must expire."""

LEADS: Final = "acquired leadership"
"""The line of an operator's log when it leads."""

EVENTS_LATE_S: Final = 2.0
EVENTS_LATE_FOR_S: Final = 8.0
"""How late watch events come, and for how long."""

WRITES: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NOT_COUNTED: Final = (f"/leases/{OPERATOR}", "/events", "/subjectaccessreviews", "/selfsubjectaccessreviews")
"""The ends of the paths of writes that belong to no group's operation: its own Lease, events, questions for rights."""

HOP_HEADERS: Final = frozenset({"connection", "host", "transfer-encoding", "content-length", "accept-encoding"})
"""The headers of one connection, which are not passed on."""


class Fault(StrEnum):
    """How the operator is interrupted at one of its writes."""

    KILLED_BEFORE = "killed before"
    """The operator is killed, and the write is not made."""

    KILLED_AFTER = "killed after"
    """The write is made, and the operator is killed before it knows the answer."""

    ANSWER_LOST = "answer lost"
    """The write is made, and the connection ends without an answer."""

    REPEATED = "made twice"
    """The write is made twice, as by a retry of its connection; the operator gets the second answer."""

    CONFLICT = "409"
    INVALID = "422"
    THROTTLED = "429"
    FAILED = "500"
    """The operator gets this status, and the write is not made."""

    LATE_EVENTS = "late events"
    """Watch events come two seconds late, for eight seconds from the write on."""


KILLING: Final = frozenset({Fault.KILLED_BEFORE, Fault.KILLED_AFTER})
STATUSES: Final = frozenset({Fault.CONFLICT, Fault.INVALID, Fault.THROTTLED, Fault.FAILED})


@final
class InterruptingProxy(ThreadingHTTPServer):
    """Forwards requests to the API server, counts writes, and lets a planned fault happen. Requests have threads."""

    daemon_threads = True

    def __init__(self, cluster: Cluster) -> None:
        super().__init__((IPV4.address(OUTSIDE), 0), _Handler)
        self.tls: Final = ssl.create_default_context(cafile=str(cluster.folder.keys / "authority.crt"))
        self.killed: Final = threading.Event()
        """Set when the operator has to be replaced."""

        self.kill: Final[list[subprocess.Popen[bytes]]] = []
        """The present process of the operator, which a fault kills."""

        self._lock: Final = threading.Lock()
        self._writes: list[str] = []
        self._planned: dict[int, Fault] = {}
        self._late_until = 0.0

    @property
    def url(self) -> str:
        """The address for the operator's kubeconfig."""
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    @property
    def writes(self) -> list[str]:
        """The writes since the last plan, each as its method and path."""
        with self._lock:
            return [*self._writes]

    def plan(self, fault: Fault | None, number: int = 0) -> None:
        """Count from zero again, and let a fault happen to the write with this number, from 1 on."""
        with self._lock:
            self._writes, self._late_until = [], 0.0
            self._planned = {} if fault is None else {number: fault}

    @property
    def is_over(self) -> bool:
        """Whether the planned fault has happened."""
        with self._lock:
            return not self._planned

    def take(self, method: str, path: str) -> Fault | None:
        """Count a write, and return the fault that happens to it, if one does."""
        with self._lock:
            self._writes.append(f"{method} {path.partition('?')[0]}")
            fault = self._planned.pop(len(self._writes), None)
            if fault is Fault.LATE_EVENTS:
                self._late_until = time.monotonic() + EVENTS_LATE_FOR_S
                return None
            return fault

    def delay_events(self) -> None:
        """Wait as long as watch events are late now."""
        with self._lock:
            is_late = time.monotonic() < self._late_until
        if is_late:
            time.sleep(EVENTS_LATE_S)

    def kill_operator(self) -> None:
        """Kill the present operator, whose request is being handled."""
        for process in self.kill:
            process.kill()
        self.killed.set()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a request whose client was killed or whose API server is away: both are what tests do."""


@final
class _Handler(BaseHTTPRequestHandler):
    """One connection of the operator."""

    protocol_version = "HTTP/1.1"
    server: InterruptingProxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        is_counted = self.command in WRITES and not path.endswith(NOT_COUNTED)
        fault = self.server.take(self.command, path) if is_counted else None
        if fault in STATUSES:
            self._refuse(int(fault))
        elif fault is Fault.KILLED_BEFORE:
            self._kill()
        elif fault is None:
            self._relay(body)
        else:
            answer = self._ask(body)
            if fault is Fault.REPEATED:
                answer = self._ask(body)
                self._answer(*answer)
            elif fault is Fault.KILLED_AFTER:
                self._kill()
            else:
                self.close_connection = True  # without an answer

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Print no line for each request."""

    def _kill(self) -> None:
        self.server.kill_operator()
        self.close_connection = True

    def _refuse(self, status: int) -> None:
        text = f"injected ({status})"
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": text, "code": status}
        self._answer(status, {"Content-Type": "application/json"}, json.dumps(document).encode())

    def _connect(self, *, is_endless: bool) -> http.client.HTTPSConnection:
        seconds = None if is_endless else REQUEST_SECONDS_MAX
        return http.client.HTTPSConnection(HUB_ADDRESS, API_PORT, timeout=seconds, context=self.server.tls)

    def _request(self, connection: http.client.HTTPSConnection, body: bytes) -> http.client.HTTPResponse:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
        connection.request(self.command, self.path, body or None, headers)
        return connection.getresponse()

    def _ask(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Make a request to its end, and return status, headers and content."""
        connection = self._connect(is_endless=False)
        try:
            answer = self._request(connection, body)
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _relay(self, body: bytes) -> None:
        """Make a request and pass its answer on; that of a watch piece by piece, until one side ends it."""
        if "watch=true" not in self.path.lower():
            self._answer(*self._ask(body))
            return
        connection = self._connect(is_endless=True)
        try:
            answer = self._request(connection, body)
            self._begin(answer.status, dict(answer.getheaders()), {"Transfer-Encoding": "chunked"})
            while piece := answer.read1(1 << 16):
                self.server.delay_events()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self._begin(status, headers, {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _begin(self, status: int, headers: dict[str, str], own: dict[str, str]) -> None:
        self.send_response_only(status)
        kept = {name: value for name, value in headers.items() if name.lower() not in HOP_HEADERS}
        for name, value in (kept | own).items():
            self.send_header(name, value)
        self.end_headers()


@final
class InterruptedOperator:
    """The operator's present process. A context; entered while the installed operators are scaled down."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.proxy: Final = InterruptingProxy(cluster)
        self._cluster: Final = cluster
        self._folder: Final = folder
        self._kubeconfig: Final = chart_kubeconfig(cluster, folder / "operator.kubeconfig")
        _set_server(self._kubeconfig, self.proxy.url)
        self._words: Final = [
            *(sys.executable, "-m", "gantry_operator", "--kubeconfig", str(self._kubeconfig)),
            *("--namespace", SYSTEM, "--namespaces", namespace, "--listen", "127.0.0.1:0"),
        ]
        self._environment: Final = {**os.environ, **chart_environment(cluster)}
        self._ended: Final = threading.Event()
        self._threads: Final = [
            threading.Thread(target=self.proxy.serve_forever, name="gantry-interrupting-proxy"),
            threading.Thread(target=self._replace_killed, name="gantry-operator-replacements"),
        ]
        self.starts = 0
        """How many processes were started."""

    def __enter__(self) -> InterruptedOperator:
        self._start_process()
        for thread in self._threads:
            thread.start()
        self.wait_for_leader()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self.proxy.killed.set()
        self._threads[1].join()
        for process in self.proxy.kill:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEADS_SECONDS_MAX)
            process.kill()
            process.wait()
        self.proxy.shutdown()
        self._threads[0].join()
        self.proxy.server_close()

    def wait_for_leader(self) -> None:
        """Wait until the present process leads; the Lease of a killed one names that until it expires."""
        log = self._log(self.starts)
        wait_until("a leading operator", lambda: LEADS in log.read_text(errors="replace"), LEADS_SECONDS_MAX)

    @property
    def log(self) -> str:
        """The log of all processes, the newest last."""
        return "".join(self._log(number).read_text(errors="replace") for number in range(1, self.starts + 1))

    def _log(self, number: int) -> Path:
        return self._folder / f"operator-{number}.log"

    def _start_process(self) -> None:
        number = self.starts + 1
        node = self._cluster.machines[self._cluster.nodes[0]]
        enter = ["nsenter", "--target", str(node.init.pid), "--net", "--"]
        with self._log(number).open("wb") as output:
            process = subprocess.Popen([*enter, *self._words], env=self._environment, stdout=output, stderr=output)
        self.proxy.kill[:] = [process]
        self.starts = number

    def _replace_killed(self) -> None:
        while True:
            self.proxy.killed.wait()
            self.proxy.killed.clear()
            if self._ended.is_set():
                return
            self.proxy.kill[0].wait()
            self._start_process()


def _set_server(kubeconfig: Path, url: str) -> None:
    """Let a kubeconfig lead to another address of the API server, without TLS."""
    found: Object = json.loads(kubeconfig.read_text())
    for one in found["clusters"]:
        one["cluster"] = {"server": url}
    kubeconfig.write_text(json.dumps(found))


@contextmanager
def interrupted(operator: InterruptedOperator, fault: Fault | None, number: int = 0) -> Iterator[None]:
    """Let a fault happen to the write with this number of the context, and check in the end that it did."""
    operator.proxy.plan(fault, number)
    yield
    writes = operator.proxy.writes
    assert operator.proxy.is_over, f"the operator made only {len(writes)} writes: {writes}"
    operator.proxy.plan(None)
