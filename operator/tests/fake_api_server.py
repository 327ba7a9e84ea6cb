"""An API server with one Lease, over real HTTP(S), with faults: conflicts, refusals, no answer.

It compares `resourceVersion` as the real one does, counts it up with each write, and records requests and writes.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, final

from gantry_spec.lease import LeaseRecord, Term, Voter
from gantry_spec.lease_annotations import lease_annotations

PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/shop/leases/orders-0"
NAME: Final = "shop/orders-0"
"""The API path of the Lease, and its namespace and name."""

TOKEN: Final = "the-token-of-one-service-account"


def record_with(
    epoch: int, master: int, identity: str, *, duration_ms: int = 15_000, version: str = "", electable: int = 9,
    acks_needed: int = 0,
) -> LeaseRecord:  # fmt: skip
    """Return the record of a completed election: this master, and one electable slave."""
    voters = (Voter(electable, "another-store"),)
    term = Term(epoch=epoch, master=master, identity=identity, electable=voters, acks_needed=acks_needed)
    return LeaseRecord(version=version, epoch=epoch, terms=(term,), duration_ms=duration_ms)


@final
class FakeApiServer:
    """The server. Owned by the test; its handlers run in threads of their own."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.lock: Final = threading.Lock()
        self.revision = 100
        """The `resourceVersion` of the Lease."""

        self.annotations: dict[str, str] = {}
        self.spec: dict[str, Any] = {}
        self.writes: list[dict[str, Any]] = []
        """The documents of all applied PUT requests."""

        self.requests: list[str] = []
        """The methods of all requests."""

        self.status_of_all: int | None = None
        """The answer to every request; None for the normal answers."""
        self.body_of_all: bytes = b"{}"
        """The body of every answer while `status_of_all` is set."""

        self.is_silent = False
        """Whether no request is answered any more."""
        self.applies_and_is_silent = False
        """Whether a PUT is applied, but not answered."""
        self.is_revision_checked = True
        """Whether a PUT with an old `resourceVersion` is refused; a twin (a test without this rule) turns it off."""
        self.on_put: list[Any] = []
        """Functions that are called once, after a PUT is received and before it is applied."""
        self._stop: Final = threading.Event()
        self._server: Final = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url: Final = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread: Final = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def put(self, record: LeaseRecord) -> None:
        """Replace the record, as an operator does."""
        with self.lock:
            self.revision += 1
            self.annotations |= lease_annotations(record)

    def document(self) -> dict[str, Any]:
        """Return the Lease as the API server answers it."""
        metadata = {
            "name": "orders-0", "namespace": "shop", "resourceVersion": str(self.revision), "uid": "u-1",
            "annotations": dict(self.annotations), "labels": {"of": "another-tool"},
        }  # fmt: skip
        return {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": metadata, "spec": dict(self.spec)}

    def close(self) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Suppress the log of requests."""

            def do_GET(self) -> None:
                self._do(b"")

            def do_PUT(self) -> None:
                self._do(self.rfile.read(int(self.headers["Content-Length"])))

            def _do(self, body: bytes) -> None:
                server.requests.append(self.command)
                status, document = server.answer(self.command, self.path, self.headers.get("Authorization"), body)
                if server.is_silent or (server.applies_and_is_silent and self.command == "PUT"):
                    server._stop.wait(60)
                    self.close_connection = True
                    return
                data = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler

    def answer(self, method: str, path: str, shown: str | None, body: bytes) -> tuple[int, dict[str, Any] | bytes]:
        """Return the status and the document of an answer."""
        if self.is_silent:
            return 0, b""
        if self.status_of_all is not None:
            return self.status_of_all, self.body_of_all
        if shown != f"Bearer {TOKEN}":
            return 401, {"kind": "Status"}
        if path != PATH:
            return 404, {"kind": "Status"}
        if method == "GET":
            with self.lock:
                return 200, self.document()
        while self.on_put:
            self.on_put.pop()()
        document = json.loads(body)
        with self.lock:
            if self.is_revision_checked and document["metadata"]["resourceVersion"] != str(self.revision):
                return 409, {"kind": "Status", "reason": "Conflict"}
            self.revision += 1
            self.annotations, self.spec = dict(document["metadata"]["annotations"]), dict(document["spec"])
            self.writes.append(document)
            return 200, self.document()


@contextmanager
def api_server(tls: ssl.SSLContext | None = None) -> Iterator[FakeApiServer]:
    """Run a server until the end of the block."""
    server = FakeApiServer(tls)
    try:
        yield server
    finally:
        server.close()
