"""One question to the sidecar of this pod, over loopback, with the token that is mounted beside it.

The token goes to 127.0.0.1 only, through no proxy and behind no redirection: this network is the pod's own.
"""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from gantry_access.tokens import first_token
from gantry_cli.errors import Mistyped

SIDECAR_PORT: Final = 8080
READ_TOKENS: Final = Path("/etc/gantry/sidecar/read-tokens")
ANSWER_S: Final = 30.0
REASON_MAX: Final = 300
LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")


class Answer(NamedTuple):
    """What came."""

    status: int
    """Of HTTP; 0 for no answer."""
    body: bytes
    reason: str

    def as_document(self) -> dict[str, Any]:
        """For a program: the status, and what was said or why nothing was."""
        try:
            said = msgspec.json.decode(self.body) if self.status == 200 else None
        except msgspec.DecodeError:
            return {"status": 0, "reason": "the answer is no JSON"}
        return {"status": self.status, "said": said} if self.status == 200 else {
            "status": self.status, "reason": self.reason
        }  # fmt: skip


def asked(url: str, path: str, token_file: Path) -> Answer:
    """Never raises for what the sidecar does. Raises Mistyped for an address that is not this pod's own."""
    parts = urlsplit(url)
    if parts.hostname not in LOOPBACK or parts.scheme not in ("http", "https") or not path.startswith("/"):
        raise Mistyped(
            f"{url}{path} is no sidecar of this pod", f"it is like http://127.0.0.1:{SIDECAR_PORT}/v1/status"
        )
    token = _first_token(token_file)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = _once(parts.scheme, (parts.hostname, parts.port or SIDECAR_PORT), path, headers)
    if answer.status == 0 and parts.scheme == "http":  # a sidecar with certificates hangs up on whoever speaks plainly
        over_tls = _once("https", (parts.hostname, parts.port or SIDECAR_PORT), path, headers)
        return over_tls if over_tls.status else answer
    return answer


def _once(scheme: str, address: tuple[str, int], path: str, headers: dict[str, str]) -> Answer:
    connection = _connection(scheme, *address)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, b"", f"the sidecar does not answer: {str(error) or type(error).__name__}")
    finally:
        connection.close()
    return Answer(response.status, body, "" if response.status == 200 else _reason(response.status, body))


def _connection(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    # Its certificate has the pod's names, and not that of loopback, where nobody but this pod listens.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=context)


def _first_token(path: Path) -> str:
    """Return the token to show to the sidecar; none if there is no such file, or none that a sidecar would take."""
    try:
        return first_token(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""


def _reason(status: int, body: bytes) -> str:
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        said = None
    reason = said.get("reason") if isinstance(said, dict) else None
    return f"{str(reason or 'refused')[:REASON_MAX]} ({status})"
