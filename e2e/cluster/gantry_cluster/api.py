"""A minimal client of the API server: one request, one answer, no cache and no retries.

It deliberately does not use the project's own Kubernetes client: what checks the operator must not share its code.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any

from gantry_cluster.errors import ApiRefused
from gantry_cluster.kubeconfig import API_PORT
from gantry_cluster.network import HUB_ADDRESS
from gantry_cluster.paths import Folder

REQUEST_SECONDS_MAX = 20.0
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
"""Media types of patches: a merge patch, and server-side apply."""

Object = dict[str, Any]
"""A Kubernetes object as its JSON document."""


@dataclass(frozen=True)
class Api:
    """An administrator's client. Every request opens its own connection, so none to a dead server is reused."""

    context: ssl.SSLContext | None = None
    """The TLS context with the client certificate; None if a proxy authenticates the requests."""

    host: str = HUB_ADDRESS
    port: int = API_PORT

    @classmethod
    def of(cls, folder: Folder) -> Api:
        """Return a client for the administrator of the cluster in a folder."""
        context = ssl.create_default_context(cafile=str(folder.keys / "authority.crt"))
        context.load_cert_chain(folder.keys / "administrator.crt", folder.keys / "administrator.key")
        return cls(context)

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection to the API server."""
        return http.client.HTTPSConnection(self.host, self.port, timeout=REQUEST_SECONDS_MAX, context=self.context)

    def request(self, method: str, path: str, body: Object | None = None, media: str = "application/json") -> Object:
        """Send one request and return the answer. Raises ``ApiRefused``; OSError or HTTPException without an answer."""
        connection = self.connection()
        try:
            headers = {"Accept": "application/json", **({"Content-Type": media} if body is not None else {})}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        content: Object
        try:
            content = json.loads(text)
        except ValueError:
            content = {"text": text}
        if answer.status >= 400:
            raise ApiRefused(answer.status, content.get("reason", answer.reason), content.get("message", text))
        return content

    def get(self, path: str) -> Object:
        """Read one object or a list."""
        return self.request("GET", path)

    def items(self, path: str) -> list[Object]:
        """Read the items of a list."""
        return list(self.get(path)["items"])

    def create(self, path: str, body: Object) -> Object:
        """Create an object in a collection."""
        return self.request("POST", path, body)

    def replace(self, path: str, body: Object) -> Object:
        """Replace an object; refused with 409 if its resourceVersion is not the newest."""
        return self.request("PUT", path, body)

    def merge(self, path: str, body: Object) -> Object:
        """Change some fields by a merge patch."""
        return self.request("PATCH", path, body, MERGE)

    def delete(self, path: str, **options: Any) -> Object:
        """Delete an object. Kubernetes decides when it disappears."""
        return self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def is_ready(self) -> bool:
        """Return whether the server reports that it is ready."""
        try:
            self.get("/readyz")
        except (OSError, http.client.HTTPException, ApiRefused):
            return False
        return True
