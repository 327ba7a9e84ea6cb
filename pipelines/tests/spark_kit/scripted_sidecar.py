"""A sidecar that returns scripted responses in turn, for situations that are rare with a real one."""

from __future__ import annotations

import http.server
import threading
from types import TracebackType
from typing import Self, final

from pyspark_rocketmq.settings import ReadSettings
from pyspark_rocketmq.transport.sidecar import Sidecar

Scripted = tuple[int, dict[str, str], bytes]
"""Status, headers, body; with a Content-Length that is longer than the body the response is truncated."""


@final
class ScriptedSidecar:
    """A scripted sidecar, used in a `with` block."""

    def __init__(self, *answers: Scripted) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Path and headers of each request."""
        self._clients: list[Sidecar] = []
        left = list(answers)
        requests = self.requests

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
                status, headers, body = left.pop(0) if left else (500, {}, b"")
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
                if int(headers.get("Content-Length", len(body))) > len(body):
                    self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def client(self, **more: object) -> Sidecar:
        """Return a client of this sidecar."""
        settings = ReadSettings(name_servers="127.0.0.1:1", token="secret-token", **more)  # type: ignore[arg-type]
        self._clients.append(Sidecar(self.url, settings))
        return self._clients[-1]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(30)
