"""The shard's Lease in Kubernetes: `coordination.k8s.io/v1` over HTTPS, with the token of this container only.

    GET  .../leases/NAME                     -> the whole Lease; the record is in its annotations
    PUT  .../leases/NAME, resourceVersion=N  -> the same record with another renewTime, and its holder and duration; or
                                                409 if the version is not N any more

No client library is used: there are two requests, and a library would bring threads, caches and retries to the one
place that must know when a request was sent, and that it was sent once. No redirection is followed, because it would
send the token to another server. The token is read again for each request, because kubelet replaces it.

It needs only the permissions `get` and `update` on this one Lease by its name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import quote, urlsplit

from gantry_admin.errors import SettingsError
from gantry_admin.http_request import BadAnswer, HttpAnswer, http_request
from gantry_admin.lease_client import LeaseConflict, LeaseSnapshot, LeaseUnavailable
from gantry_admin.settings import LeaseSettings
from gantry_remoting.settings import ClientTlsSettings
from gantry_remoting.small_file import read_small_file
from gantry_spec.lease_annotations import InvalidLeaseRecord, lease_seconds, lease_time, record_of

MESSAGE_MAX: Final = 200
"""The most characters of the API server's text that are kept."""


@final
class KubernetesLeaseClient:
    """A ``LeaseClient`` for the Kubernetes API. Owned by the event loop."""

    def __init__(self, settings: LeaseSettings, *, wall: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Raises ``SettingsError`` for files that cannot be used."""
        namespace, _, name = settings.name.partition("/")
        self._server: Final = urlsplit(settings.server)
        self._path: Final = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{quote(name)}"
        self._name: Final = settings.name
        self._wall: Final = wall
        self._token_file: Final = settings.token_file
        authority = str(settings.ca) if self._server.scheme == "https" else None
        self._certificates: Final = ClientTlsSettings(authority_file=authority, names=("--lease-ca", "", "")).source(
            "the Lease"
        )
        try:
            self._certificates.load()
            _authorization(self._token_file)
        except OSError as error:
            raise SettingsError(str(error)) from error
        except LeaseUnavailable as error:
            raise SettingsError(f"--lease-token-file: {error}") from error

    def __repr__(self) -> str:
        return f"<KubernetesLeaseClient {self._name}>"

    async def read(self, *, timeout_s: float) -> LeaseSnapshot:
        return self._parse(await self._ask("GET", b"", timeout_s))

    async def renew(self, lease: LeaseSnapshot, holder: str, *, timeout_s: float) -> LeaseSnapshot:
        document = lease.document | {"spec": dict(lease.document["spec"])}
        assert lease.record is not None, "only a record that names this broker is renewed"
        _set_renewed(document, holder, lease.record.duration_ms, self._wall())
        after = self._parse(await self._ask("PUT", json.dumps(document).encode(), timeout_s))
        if after.record != lease.record:
            raise LeaseConflict
        return after

    async def _ask(self, method: str, body: bytes, timeout_s: float) -> HttpAnswer:
        """Send one request for the Lease. Raises ``LeaseUnavailable`` without an answer."""
        try:
            async with asyncio.timeout(timeout_s):
                token = await asyncio.to_thread(_authorization, self._token_file)
                context = await self._certificates.load_current()
                headers = {"Authorization": token, "Accept": "application/json", "Content-Type": "application/json"}
                answer = await http_request(self._server, method, self._path, headers, body, context)
        except TimeoutError:
            raise LeaseUnavailable(f"the API server did not answer within {timeout_s:g} s") from None
        except (OSError, BadAnswer) as error:
            raise LeaseUnavailable(f"the request to the API server failed: {str(error)[:MESSAGE_MAX]}") from error
        if answer.status == 409:
            raise LeaseConflict
        if answer.status != 200:
            raise LeaseUnavailable(_refusal(self._name, answer))
        return answer

    def _parse(self, answer: HttpAnswer) -> LeaseSnapshot:
        """Return the Lease in an answer. Raises ``LeaseUnavailable`` for any other answer."""
        try:
            document = json.loads(answer.body)
            revision = document["metadata"]["resourceVersion"]
            annotations = document["metadata"].get("annotations") or {}
            is_lease = document["kind"] == "Lease" and isinstance(document.setdefault("spec", {}), dict)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LeaseUnavailable("the API server's answer is not a Lease") from error
        if not is_lease or not isinstance(revision, str) or not isinstance(annotations, dict):
            raise LeaseUnavailable("the API server's answer is not a Lease")
        try:
            record = record_of({key: value for key, value in annotations.items() if isinstance(value, str)})
        except InvalidLeaseRecord as error:
            raise LeaseUnavailable(f"the Lease {self._name} has no valid record: {error}") from error
        return LeaseSnapshot(record=record, revision=revision, document=document)


def _authorization(token_file: Path) -> str:
    """Return the Authorization header; blocks. Raises ``LeaseUnavailable``, without the content of the file."""
    try:
        data = read_small_file(str(token_file)).strip()
    except OSError as error:
        raise LeaseUnavailable(f"cannot read {token_file}: {error.strerror}") from error
    if not data or not data.isascii() or not data.decode("ascii").isprintable() or b" " in data:
        raise LeaseUnavailable(f"{token_file} contains no token")
    return f"Bearer {data.decode('ascii')}"


def _set_renewed(document: dict[str, Any], holder: str, duration_ms: int, at: datetime) -> None:
    """Set the fields that a renewal changes in place, and leave the record unchanged."""
    spec = document["spec"]
    moment = lease_time(at)
    if spec.get("holderIdentity") != holder:
        transitions = spec.get("leaseTransitions")
        spec |= {"acquireTime": moment, "leaseTransitions": (transitions if isinstance(transitions, int) else 0) + 1}
    spec |= {"holderIdentity": holder, "renewTime": moment, "leaseDurationSeconds": lease_seconds(duration_ms)}


def _refusal(name: str, answer: HttpAnswer) -> str:
    reasons = {
        401: "the API server does not accept the sidecar's token",
        403: "the sidecar's token is not permitted: it needs get and update on this Lease",
        404: f"Lease {name} not found",
    }
    return f"{reasons.get(answer.status, 'the API server refused the request')} ({answer.status})"
