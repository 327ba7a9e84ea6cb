"""What a run answers while it works, over HTTP, for the operator, for kubelet and for Prometheus.

    GET /v1/pipeline   the run's document, as in its last words, at this moment
    GET /livez         200 while something moves; 503 when nothing has for longer than it may
    GET /metrics       what the lag listener and Spark's metrics registered here

It shows counts and offsets and no message, has no order to give, and is read by anybody who may reach the pod's port:
a NetworkPolicy says who that is.
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

PORT: Final = 8090
TIMEOUT_SECONDS: Final = 10
CONNECTIONS_MAX: Final = 32
"""Each has a thread for as long as its request lasts; one more, and the oldest is closed. kubelet, Prometheus and the
operator need one each, and a half request is no way to take theirs."""


@final
class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 16

    def __init__(self, address: tuple[str, int], reporter: Reporter, silence_seconds_max: float) -> None:
        super().__init__(address, _Page)
        self.reporter: Final = reporter
        self.silence_seconds_max: Final = silence_seconds_max
        self._lock: Final = threading.Lock()
        self._open: Final[dict[socket.socket, None]] = {}
        """Oldest first."""

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a peer that goes away is no news, and standard error is the log."""


@final
class _Page(BaseHTTPRequestHandler):
    timeout = TIMEOUT_SECONDS
    server_version = "gantry-pipeline"
    sys_version = ""

    def do_GET(self) -> None:
        server = cast(_Server, self.server)
        path = self.path.partition("?")[0]
        if path == "/v1/pipeline":
            self._answer(200, json.dumps(server.reporter.document(), default=str), "application/json")
        elif path == "/livez":
            silent = server.reporter.silent_seconds
            is_alive = silent <= server.silence_seconds_max
            self._answer(200 if is_alive else 503, f"nothing has moved for {silent:.0f} s\n", "text/plain")
        elif path == "/metrics":
            self._answer(200, _metrics(), "text/plain; version=0.0.4")
        else:
            self._answer(404, "there are /v1/pipeline, /livez and /metrics\n", "text/plain")

    def _answer(self, code: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: probes come every few seconds."""


def _metrics() -> str:
    try:
        from prometheus_client import generate_latest
    except ImportError:
        return ""
    return generate_latest().decode()


@contextlib.contextmanager
def serving(reporter: Reporter, host: str, port: int, silence_seconds_max: float) -> Iterator[int]:
    """Answer for as long as this lasts; gives the port, which for 0 is a free one."""
    server = _Server((host, port), reporter, silence_seconds_max)
    thread = threading.Thread(target=server.serve_forever, name="pipeline-page", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
