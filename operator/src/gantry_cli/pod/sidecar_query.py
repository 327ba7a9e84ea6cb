"""Requests one path of the sidecar of this pod, over loopback, with a token that is mounted in the container.

The token is sent only to loopback addresses, never through a proxy or after a redirection: that network is the pod's
own.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gantry_access.tokens import first_token
from gantry_cli.errors import InvalidInput

SIDECAR_PORT: Final = 8080
READ_TOKENS: Final = Path("/etc/gantry/sidecar/read-tokens")
"""The file with the tokens for reading."""
TOKENS: Final = Path("/etc/gantry/sidecar/tokens")
"""The file with the tokens that have every permission."""

ANSWER_TIMEOUT_S: Final = 30.0
REASON_MAX: Final = 300
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Answer(NamedTuple):
    """The sidecar's answer, or the reason why there is none."""

    status: int
    """The HTTP status; 0 for no answer."""
    body: bytes
    reason: str
    """Why there is no usable answer; empty if there is one."""
    certificate_sha256: str = ""
    """The SHA-256 of the certificate that the sidecar presented, in hexadecimal digits; empty without TLS."""

    def as_document(self, content: str = "body") -> dict[str, Any]:
        """Return the answer as a document: its status, with the JSON body in the field that ``content`` names.

        Instead of the body, a failure has the reason. The status is 0 if the body is not JSON.
        """
        try:
            document = msgspec.json.decode(self.body) if self.status == 200 else None
        except msgspec.DecodeError:
            return {"status": 0, "reason": "the answer is not JSON"}
        return {"status": self.status, content: document} if self.status == 200 else {
            "status": self.status, "reason": self.reason
        }  # fmt: skip


def query_sidecar(url: str, path: str, token_file: Path, *, method: str = "GET") -> Answer:
    """Send a request without a body to the sidecar at ``url``, and return its answer or the reason why there is none.

    Raises InvalidInput for an address outside this pod.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or SIDECAR_PORT
    except ValueError as error:
        raise InvalidInput(f"{url} has no valid port: {error}") from error
    if parts.hostname not in LOOPBACK or parts.scheme not in ("http", "https") or not path.startswith("/"):
        raise InvalidInput(
            f"{url}{path} is not a sidecar of this pod", f"use one like http://127.0.0.1:{SIDECAR_PORT}/v1/status"
        )
    token = _first_token(token_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = _once(parts.scheme, (parts.hostname, port), method, path, headers)
    if answer.status == 0 and parts.scheme == "http":  # a sidecar with certificates closes plain-text connections
        over_tls = _once("https", (parts.hostname, port), method, path, headers)
        return over_tls if over_tls.status else answer
    return answer


def _once(scheme: str, address: tuple[str, int], method: str, path: str, headers: dict[str, str]) -> Answer:
    connection = _connection(scheme, *address)
    try:
        connection.request(method, path, headers=headers)
        wire = connection.sock  # an answer that ends the connection takes it away
        certificate = wire.getpeercert(binary_form=True) if isinstance(wire, ssl.SSLSocket) else None
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, b"", f"the sidecar does not answer: {str(error) or type(error).__name__}")
    finally:
        connection.close()
    digest = "" if certificate is None else hashlib.sha256(certificate).hexdigest()
    return Answer(response.status, body, "" if response.status == 200 else _reason(response.status, body), digest)


def _connection(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=ANSWER_TIMEOUT_S)
    # The certificate has the pod's names and not loopback's. Only this pod can listen on its loopback address.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=ANSWER_TIMEOUT_S, context=context)


def _first_token(path: Path) -> str:
    """Return the token for the sidecar; empty without such a file, or if it has no token that a sidecar accepts."""
    try:
        return first_token(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""


def _reason(status: int, body: bytes) -> str:
    try:
        document = msgspec.json.decode(body)
    except msgspec.DecodeError:
        document = None
    reason = document.get("reason") if isinstance(document, dict) else None
    return f"{str(reason or 'refused')[:REASON_MAX]} ({status})"
