"""The port to Kubernetes over the `kubernetes` package: a few threads, one deadline a call, and no retries of its own.

That package blocks, and a blocked event loop would stop every group, its probes and its Lease at once. So each call
runs in one of a few threads, and whoever waits for a thread waits within his deadline. A retry inside the package would
do again what may have been done, behind the back of whoever has to know: they are off, and whoever calls looks again.

With ``may_write`` nothing is changed any more by a process that may have lost its leadership.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple, final
from urllib.parse import quote

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from gantry_operator.api import CRON_JOBS, FIELD_MANAGER, JOBS, STATUS_MANAGER, Kind, Object, Place, place_of
from gantry_operator.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotLeader,
    Refused,
    SettingsError,
    Terminating,
    Unavailable,
)

THREADS: Final = 8
TIMEOUT_S: Final = 10.0
CONNECT_S: Final = 3.0
LIST_LIMIT: Final = 500
"""Objects in one answer to a list."""
MESSAGE_MAX: Final = 500
TERMINATING: Final = "NamespaceTerminating"
"""The cause that stands in a 403 which is nobody's lack of rights."""

Noted = Callable[[str, str, int, float], None]
"""Told of every call: verb, plural, status (0 for none) and seconds."""


class Request(NamedTuple):
    """One call."""

    verb: str
    method: str
    path: str
    kind: Kind
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"

    @property
    def what(self) -> str:
        return f"{self.verb} {self.path}"


@final
class KubernetesApi:
    """Owned by the event loop; ``close`` ends its threads."""

    def __init__(
        self,
        client: ApiClient,
        *,
        timeout_s: float = TIMEOUT_S,
        threads: int = THREADS,
        noted: Noted | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.may_write = may_write
        self._client: Final = client
        self._timeout_s: Final = timeout_s
        self._noted: Final = noted
        self._threads: Final = ThreadPoolExecutor(threads, thread_name_prefix="gantry-kubernetes")
        self._under_way: Final[set[Future[tuple[int, bytes]]]] = set()

    def __repr__(self) -> str:
        return f"<KubernetesApi {self._client.configuration.host}>"

    def close(self) -> None:
        """Wait for nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def settled(self, timeout_s: float) -> bool:
        """Whether nothing is under way any more; waits so long for it. A call goes on though nobody waits for it."""
        waits = [asyncio.wrap_future(future) for future in self._under_way.copy()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*waits, return_exceptions=True)
        except TimeoutError:
            return False
        return True

    # -- the verbs -----------------------------------------------------------------------------------------------------

    async def get(self, place: Place) -> Object:
        return await self._call(Request("get", "GET", _path(place), place.kind))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        found: list[Object] = []
        onward = ""
        while True:
            query = [("limit", str(LIST_LIMIT))]
            query += [("labelSelector", labels)] if labels else []
            query += [("continue", onward)] if onward else []
            answer = await self._call(Request("list", "GET", kind.path(namespace), kind, tuple(query)))
            for item in answer.get("items") or []:
                found.append({"apiVersion": kind.api_version, "kind": kind.name} | item)
            onward = (answer.get("metadata") or {}).get("continue") or ""
            if not onward:
                return found

    async def apply(self, document: Object) -> Object:
        place = place_of(document)
        return await self._apply(_path(place), place.kind, document, FIELD_MANAGER)

    async def apply_status(self, place: Place, status: Mapping[str, Any]) -> Object:
        document = {
            "apiVersion": place.kind.api_version,
            "kind": place.kind.name,
            "metadata": {"name": place.name, "namespace": place.namespace},
            "status": dict(status),
        }
        return await self._apply(_path(place, "status"), place.kind, document, STATUS_MANAGER)

    async def patch(
        self, place: Place, change: Mapping[str, Any], *, uid: str = "", revision: str = "", part: str = ""
    ) -> Object:
        body = with_preconditions(change, uid, revision)
        kind = "application/merge-patch+json"
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._call(Request("patch", "PATCH", _path(place, part), place.kind, query, body, kind))

    async def create(self, document: Object) -> Object:
        place = place_of(document)
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._call(
            Request("create", "POST", place.kind.path(place.namespace), place.kind, query, document)
        )

    async def delete(self, place: Place, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        assert uid, "nothing is deleted by its name alone"
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if is_orphaning:
            body["propagationPolicy"] = "Orphan"
        elif place.kind in (JOBS, CRON_JOBS):  # whose pods the API server would leave alone
            body["propagationPolicy"] = "Background"
        try:
            await self._call(Request("delete", "DELETE", _path(place), place.kind, (), body))
        except Gone:
            return

    async def _apply(self, path: str, kind: Kind, document: Mapping[str, Any], manager: str) -> Object:
        query = (("fieldManager", manager), ("force", "true"))
        return await self._call(Request("apply", "PATCH", path, kind, query, document, "application/apply-patch+yaml"))

    # -- one call ------------------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Object:
        if request.method != "GET" and not self.may_write():
            raise NotLeader(request.what, "this process may be the leader no more")
        began, status = time.monotonic(), 0
        try:
            future = self._threads.submit(self._blocking, request)
            self._under_way.add(future)
            future.add_done_callback(self._under_way.discard)
            async with asyncio.timeout(self._timeout_s):
                status, data = await asyncio.wrap_future(future)
        except TimeoutError:
            raise Unavailable(request.what, f"no answer within {self._timeout_s:g} s") from None
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unavailable(request.what, f"{type(error).__name__}: {str(error)[:MESSAGE_MAX]}") from error
        finally:
            if self._noted is not None:
                self._noted(request.verb, request.kind.plural, status, time.monotonic() - began)
        return _answer(request, status, data)

    def _blocking(self, request: Request) -> tuple[int, bytes]:
        """In a thread of ours."""
        headers = {"Accept": "application/json", "Content-Type": request.content_type}
        parts = self._client.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query),
            header_params=headers,
            body=None if request.body is None else dict(request.body),
            auth_settings=["BearerToken"],
        )
        timeout = (min(CONNECT_S, self._timeout_s), self._timeout_s)
        response = self._client.call_api(*parts, _request_timeout=timeout)
        return int(response.status), bytes(response.read() or b"")


def configuration(kubeconfig: str | None = None, context: str | None = None) -> Configuration:
    """From a kubeconfig, or from inside of a pod. Blocks. Raises ``SettingsError``."""
    settings = Configuration()
    try:
        if kubeconfig is None and context is None:
            try:
                config.load_incluster_config(client_configuration=settings)
            except config.ConfigException:
                config.load_kube_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise SettingsError(f"there is no way to a cluster: {error}") from error
    return settings


def client_of(settings: Configuration) -> ApiClient:
    """With everything off that would do something again."""
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.client_go_retries = False
    settings.connection_pool_maxsize = THREADS
    client = ApiClient(settings)
    client.user_agent = "gantry-operator"
    return client


def with_preconditions(change: Mapping[str, Any], uid: str, revision: str) -> Object:
    """The API server compares what a patch says of uid and resourceVersion with what the object has."""
    metadata = dict(change.get("metadata") or {})
    metadata |= {"uid": uid} if uid else {}
    metadata |= {"resourceVersion": revision} if revision else {}
    return dict(change) | ({"metadata": metadata} if metadata else {})


def _path(place: Place, part: str = "") -> str:
    return place.kind.path(quote(place.namespace, safe=""), quote(place.name, safe=""), part)


def _answer(request: Request, status: int, data: bytes) -> Object:
    try:
        document = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise Unavailable(request.what, f"the answer ({status}) is no JSON", status) from error
    if 200 <= status < 300 and isinstance(document, dict):
        return document
    reason = str(document.get("message", "")) if isinstance(document, dict) else ""
    raise _error_of(status, document)(request.what, f"{reason[:MESSAGE_MAX]} ({status})", status)


def _error_of(status: int, document: object) -> type[ApiError]:
    if status in (401, 403):
        return Terminating if TERMINATING in _causes(document) else Forbidden
    if status in (404, 410):
        return Gone
    if status == 409:
        return Conflict
    return Refused if 400 <= status < 500 and status != 429 else Unavailable


def _causes(document: object) -> set[str]:
    """What an answer gives as its causes; whatever else it is has none."""
    details = document.get("details") if isinstance(document, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    return {str(one.get("reason")) for one in causes if isinstance(one, dict)} if isinstance(causes, list) else set()
