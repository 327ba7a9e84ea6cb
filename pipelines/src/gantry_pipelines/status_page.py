"""The HTTP status page of a run, for the operator, kubelet and Prometheus.

    GET /v1/pipeline   the run's current document, as in its termination message
    GET /livez         200 while the run is active; 503 if it has been idle for longer than the limit
    GET /readyz        200 while the run does its work; 503 before, while it is hindered, and when it stops
    GET /metrics       the metrics that are registered with `prometheus_client` in this process, if it is installed

The page is read-only and shows counts and offsets, never a message. It has no authentication: the pod's NetworkPolicy
restricts which clients may connect.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, cast, final

from gantry_pipelines.reporting import Reporter
from gantry_remoting.addresses import listening_socket

STATUS_PORT: Final = 8090
"""The default port of the page."""

TIMEOUT_SECONDS: Final = 10
"""How long a connection may be idle, in seconds."""

CONNECTIONS_MAX: Final = 32
"""Open connections at most, each with a thread. Above that the oldest is closed, so that incomplete requests cannot
block kubelet, Prometheus and the operator, which need one connection each."""

BACKLOG: Final = 16
"""Connections that wait to be accepted, at most."""


@final
class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, reporter: Reporter, idle_seconds_max: float) -> None:
        super().__init__(listening.getsockname(), _StatusHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.reporter: Final = reporter
        self.idle_seconds_max: Final = idle_seconds_max
        self._lock: Final = threading.Lock()
        self._open: Final[dict[socket.socket, None]] = {}
        """Open connections, the oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                # The thread of the oldest connection then reads the end of the stream and closes the socket.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a connection: a disconnecting peer is normal, and standard error is the log."""


@final
class _StatusHandler(BaseHTTPRequestHandler):
    timeout = TIMEOUT_SECONDS
    server_version = "gantry-pipeline"
    sys_version = ""

    def do_GET(self) -> None:
        server = cast(_Server, self.server)
        path = self.path.partition("?")[0]
        if path == "/v1/pipeline":
            self._answer(200, json.dumps(server.reporter.document(), default=str), "application/json")
        elif path == "/livez":
            idle_s = server.reporter.idle_seconds
            is_alive = idle_s <= server.idle_seconds_max
            self._answer(200 if is_alive else 503, f"idle for {idle_s:.0f} s\n", "text/plain")
        elif path == "/readyz":
            is_ready = server.reporter.is_ready
            self._answer(200 if is_ready else 503, "ready\n" if is_ready else "not ready\n", "text/plain")
        elif path == "/metrics":
            self._answer(200, _metrics(), "text/plain; version=0.0.4")
        else:
            self._answer(404, "not found; paths are /v1/pipeline, /livez, /readyz and /metrics\n", "text/plain")

    def _answer(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: probes come every few seconds."""


def _metrics() -> str:
    try:
        from prometheus_client import generate_latest
    except ImportError:
        return ""
    return generate_latest().decode()


@contextlib.contextmanager
def serve_status_page(reporter: Reporter, host: str, port: int, idle_seconds_max: float) -> Iterator[int]:
    """Serve the status page inside of the `with` block; yields the port, a free one if `port` is 0.

    The host `::` stands for all addresses, of IPv4 too.
    """
    server = _Server(listening_socket(host, port, backlog=BACKLOG), reporter, idle_seconds_max)
    thread = threading.Thread(target=server.serve_forever, name="pipeline-page", daemon=True)
    thread.start()
    try:
        yield int(server.socket.getsockname()[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
