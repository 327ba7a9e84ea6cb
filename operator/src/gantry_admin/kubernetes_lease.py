"""The shard's Lease in Kubernetes: `coordination.k8s.io/v1`, by plain HTTPS, with a token of this container alone.

    GET  .../leases/NAME                     -> the whole Lease; the record is in its annotations
    PUT  .../leases/NAME, resourceVersion=N  -> the same with another renewTime, or 409 if it is N no more

No client library: these are two requests, and a library would bring its own threads, caches and retries into the one
place where it must be known when a request was sent, and that it was sent once. Neither follows a redirection, which
would show the token to somebody else. The token is read again for each request, since kubelet replaces it.

All that it needs of the cluster is `get` and `update` of this one Lease by its name.
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
from gantry_admin.lease_keeper import KeptLease, LeaseMoved, LeaseUnavailable
from gantry_admin.settings import LeaseSettings
from gantry_remoting.settings import ClientTlsSettings
from gantry_remoting.small_file import read_small_file
from gantry_spec.lease_annotations import BadRecord, lease_seconds, lease_time, record_of

MESSAGE_MAX: Final = 200


@final
class KubernetesLease:
    """A ``LeaseKeeper``. Owned by the event loop."""

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
        return f"<KubernetesLease {self._name}>"

    async def read(self, *, timeout_s: float) -> KeptLease:
        return self._kept(await self._ask("GET", b"", timeout_s))

    async def renew(self, kept: KeptLease, holder: str, *, timeout_s: float) -> KeptLease:
        document = kept.document | {"spec": dict(kept.document["spec"])}
        assert kept.record is not None, "only what names somebody is renewed"
        _renewed(document, holder, kept.record.duration_ms, self._wall())
        after = self._kept(await self._ask("PUT", json.dumps(document).encode(), timeout_s))
        if after.record != kept.record:
            raise LeaseMoved
        return after

    async def _ask(self, method: str, body: bytes, timeout_s: float) -> HttpAnswer:
        try:
            async with asyncio.timeout(timeout_s):
                token = await asyncio.to_thread(_authorization, self._token_file)
                context = await self._certificates.fresh()
                headers = {"Authorization": token, "Accept": "application/json", "Content-Type": "application/json"}
                answer = await http_request(self._server, method, self._path, headers, body, context)
        except TimeoutError:
            raise LeaseUnavailable(f"the API server has not answered within {timeout_s:g} s") from None
        except (OSError, BadAnswer) as error:
            raise LeaseUnavailable(f"the API server was not reached: {str(error)[:MESSAGE_MAX]}") from error
        if answer.status == 409:
            raise LeaseMoved
        if answer.status != 200:
            raise LeaseUnavailable(_refusal(self._name, answer))
        return answer

    def _kept(self, answer: HttpAnswer) -> KeptLease:
        try:
            document = json.loads(answer.body)
            revision = document["metadata"]["resourceVersion"]
            annotations = document["metadata"].get("annotations") or {}
            is_lease = document["kind"] == "Lease" and isinstance(document.setdefault("spec", {}), dict)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise LeaseUnavailable("the API server has answered something that is no Lease") from error
        if not is_lease or not isinstance(revision, str) or not isinstance(annotations, dict):
            raise LeaseUnavailable("the API server has answered something that is no Lease")
        try:
            record = record_of({key: value for key, value in annotations.items() if isinstance(value, str)})
        except BadRecord as error:
            raise LeaseUnavailable(f"what stands in the Lease {self._name} is no record: {error}") from error
        return KeptLease(record=record, revision=revision, document=document)


def _authorization(token_file: Path) -> str:
    """The header that proves who we are; blocks. Raises ``LeaseUnavailable``, without what is in the file."""
    try:
        data = read_small_file(str(token_file)).strip()
    except OSError as error:
        raise LeaseUnavailable(f"cannot read {token_file}: {error.strerror}") from error
    if not data or not data.isascii() or not data.decode("ascii").isprintable() or b" " in data:
        raise LeaseUnavailable(f"there is no token in {token_file}")
    return f"Bearer {data.decode('ascii')}"


def _renewed(document: dict[str, Any], holder: str, duration_ms: int, at: datetime) -> None:
    """In place: what a renewal changes, and nothing of the record."""
    spec = document["spec"]
    moment = lease_time(at)
    if spec.get("holderIdentity") != holder:
        transitions = spec.get("leaseTransitions")
        spec |= {"acquireTime": moment, "leaseTransitions": (transitions if isinstance(transitions, int) else 0) + 1}
    spec |= {"holderIdentity": holder, "renewTime": moment, "leaseDurationSeconds": lease_seconds(duration_ms)}


def _refusal(name: str, answer: HttpAnswer) -> str:
    words = {
        401: "the API server does not know our token",
        403: "our token may not do this: it needs get and update of this one Lease",
        404: f"there is no Lease {name}",
    }
    return f"{words.get(answer.status, 'the API server refuses')} ({answer.status})"
