"""The port to Kubernetes over the `kubernetes` package: a few threads, one deadline per call, and no retries.

The package blocks, and a blocked event loop would stop all loops, probes and Leases at once. So each call runs in one
of a few threads, and the deadline of a call includes the wait for a thread. Retries inside the package are off: they
would repeat changes that may have been made, without the caller's knowledge. Callers read again, and then retry.

``may_write`` keeps a process that may have lost its leadership from changing anything.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar, final
from urllib.parse import quote

import urllib3
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.client.exceptions import ApiException

from gantry_operator.api import CRON_JOBS, FIELD_MANAGER, JOBS, STATUS_MANAGER, Kept, Kind, Object, ObjectRef, ref_of
from gantry_operator.errors import (
    ApiError,
    Cause,
    Conflict,
    Forbidden,
    InvalidObject,
    NamespaceTerminating,
    NotFound,
    NotLeader,
    SettingsError,
    Unavailable,
)

THREADS: Final = 8
"""The number of threads in which calls run."""

TIMEOUT_S: Final = 10.0
"""The deadline of a call, with the wait for a thread, in seconds."""

CONNECT_S: Final = 3.0
"""The part of the deadline in which the connection must be established."""

LIST_LIMIT: Final = 500
"""The largest number of objects in one page of a list."""
MESSAGE_MAX: Final = 500
"""The most characters of an error text that are kept."""

TERMINATING: Final = "NamespaceTerminating"
"""The cause in a 403 answer that comes from the deletion of the namespace, and not from missing rights."""

T = TypeVar("T")
CallObserver = Callable[[str, str, int, float], None]
"""Called after every call with its verb, plural, status (0 for no answer) and seconds."""


class Request(NamedTuple):
    """One call to the API server."""

    verb: str
    """The verb of Kubernetes, such as ``list``, for metrics."""

    method: str
    """The method of HTTP, such as ``GET``."""

    path: str
    kind: Kind
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"

    @property
    def what(self) -> str:
        """The verb and the path as text, for errors."""
        return f"{self.verb} {self.path}"


@final
class KubernetesApi:
    """The API server, called in threads. Owned by the event loop; ``close`` ends its threads."""

    def __init__(
        self,
        client: ApiClient,
        *,
        timeout_s: float = TIMEOUT_S,
        threads: int = THREADS,
        on_call: CallObserver | None = None,
        may_write: Callable[[], bool] = lambda: True,
    ) -> None:
        self.may_write = may_write
        self._client: Final = client
        self._timeout_s: Final = timeout_s
        self._on_call: Final = on_call
        self._threads: Final = ThreadPoolExecutor(threads, thread_name_prefix="gantry-kubernetes")
        self._pending_calls: Final[set[Future[tuple[int, bytes]]]] = set()

    def __repr__(self) -> str:
        return f"<KubernetesApi {self._client.configuration.host}>"

    def close(self) -> None:
        """Close the client and its threads, without waiting for pending calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no call is pending. Return False if one is still pending after ``timeout_s``.

        A call whose caller was cancelled or timed out is still pending until it has ended in its thread.
        """
        waits = [asyncio.wrap_future(future) for future in self._pending_calls.copy()]
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.gather(*waits, return_exceptions=True)
        except TimeoutError:
            return False
        return True

    # -- the verbs -----------------------------------------------------------------------------------------------------

    async def get(self, ref: ObjectRef) -> Object:
        return await self._call(Request("get", "GET", _path(ref), ref.kind))

    async def list(self, kind: Kind, namespace: str = "", labels: str = "") -> list[Object]:
        found: list[Object] = []
        async for page in self._pages(kind, namespace, labels):
            found += page
        return found

    async def scan(self, kind: Kind, keep: Callable[[Object], T | None]) -> Kept[T]:
        found: list[T] = []
        async for page in self._pages(kind):
            kept = map(keep, page)
            found += [one for one in kept if one is not None]
        return found

    async def _pages(self, kind: Kind, namespace: str = "", labels: str = "") -> AsyncIterator[Kept[Object]]:
        """Yield the objects of a list, in pages of ``LIST_LIMIT``."""
        continue_token = ""
        while True:
            query = [("limit", str(LIST_LIMIT))]
            query += [("labelSelector", labels)] if labels else []
            query += [("continue", continue_token)] if continue_token else []
            answer = await self._call(Request("list", "GET", kind.path(namespace), kind, tuple(query)))
            yield [{"apiVersion": kind.api_version, "kind": kind.name} | item for item in answer.get("items") or []]
            continue_token = (answer.get("metadata") or {}).get("continue") or ""
            if not continue_token:
                return

    async def apply(self, document: Object) -> Object:
        ref = ref_of(document)
        return await self._apply(_path(ref), ref.kind, document, FIELD_MANAGER)

    async def apply_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> Object:
        document = {
            "apiVersion": ref.kind.api_version,
            "kind": ref.kind.name,
            "metadata": {"name": ref.name, "namespace": ref.namespace},
            "status": dict(status),
        }
        return await self._apply(_path(ref, "status"), ref.kind, document, STATUS_MANAGER)

    async def patch(
        self, ref: ObjectRef, change: Mapping[str, Any], *, uid: str = "", revision: str = "", subresource: str = ""
    ) -> Object:
        body = with_preconditions(change, uid, revision)
        content_type = "application/merge-patch+json"
        query = (("fieldManager", FIELD_MANAGER),)
        path = _path(ref, subresource)
        return await self._call(Request("patch", "PATCH", path, ref.kind, query, body, content_type))

    async def create(self, document: Object) -> Object:
        ref = ref_of(document)
        query = (("fieldManager", FIELD_MANAGER),)
        return await self._call(Request("create", "POST", ref.kind.path(ref.namespace), ref.kind, query, document))

    async def delete(self, ref: ObjectRef, *, uid: str, grace_s: int | None = None, is_orphaning: bool = False) -> None:
        assert uid, "nothing is deleted by its name alone"
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        if is_orphaning:
            body["propagationPolicy"] = "Orphan"
        elif ref.kind in (JOBS, CRON_JOBS):  # by default the API server would not delete their pods
            body["propagationPolicy"] = "Background"
        try:
            await self._call(Request("delete", "DELETE", _path(ref), ref.kind, (), body))
        except NotFound:
            return

    async def _apply(self, path: str, kind: Kind, document: Mapping[str, Any], manager: str) -> Object:
        query = (("fieldManager", manager), ("force", "true"))
        return await self._call(Request("apply", "PATCH", path, kind, query, document, "application/apply-patch+yaml"))

    # -- one call ------------------------------------------------------------------------------------------------------

    async def _call(self, request: Request) -> Object:
        """Send a request and return the answer's document. Raises leaves of ``ApiError``."""
        if request.method != "GET" and not self.may_write():
            raise NotLeader(request.what, "this process may have lost leadership")
        started_s, status = time.monotonic(), 0
        try:
            future = self._threads.submit(self._send_blocking, request)
            self._pending_calls.add(future)
            future.add_done_callback(self._pending_calls.discard)
            async with asyncio.timeout(self._timeout_s):
                status, data = await asyncio.wrap_future(future)
        except TimeoutError:
            raise Unavailable(request.what, f"no answer within {self._timeout_s:g} s") from None
        except (ApiException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise Unavailable(request.what, f"{type(error).__name__}: {str(error)[:MESSAGE_MAX]}") from error
        finally:
            if self._on_call is not None:
                self._on_call(request.verb, request.kind.plural, status, time.monotonic() - started_s)
        return _parse_answer(request, status, data)

    def _send_blocking(self, request: Request) -> tuple[int, bytes]:
        """Send a request and read its answer, in a thread of the pool."""
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
    """Load the connection to the cluster from a kubeconfig, or from the pod. Blocks. Raises ``SettingsError``."""
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
        raise SettingsError(f"no connection to a cluster is configured: {error}") from error
    return settings


def client_of(settings: Configuration) -> ApiClient:
    """Return a client that never retries or redirects a request."""
    settings.retries = urllib3.Retry(0, redirect=0)
    settings.client_go_retries = False
    settings.connection_pool_maxsize = THREADS
    client = ApiClient(settings)
    client.user_agent = "gantry-operator"
    return client


def with_preconditions(change: Mapping[str, Any], uid: str, revision: str) -> Object:
    """Add uid and resourceVersion to a patch: the API server refuses it if the object has others."""
    metadata = dict(change.get("metadata") or {})
    metadata |= {"uid": uid} if uid else {}
    metadata |= {"resourceVersion": revision} if revision else {}
    return dict(change) | ({"metadata": metadata} if metadata else {})


def _path(ref: ObjectRef, subresource: str = "") -> str:
    return ref.kind.path(quote(ref.namespace, safe=""), quote(ref.name, safe=""), subresource)


def _parse_answer(request: Request, status: int, data: bytes) -> Object:
    try:
        document = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        text = f"the answer ({status}) is not JSON"
        if status == HTTPStatus.NOT_FOUND:
            text = f"the API server has no {request.kind.plural} of {request.kind.api_version}"
        raise Unavailable(request.what, text, status) from error
    if 200 <= status < 300 and isinstance(document, dict):
        return document
    reason = str(document.get("message", "")) if isinstance(document, dict) else ""
    causes = _causes(document)
    raise _error_of(status, causes)(request.what, f"{reason[:MESSAGE_MAX]} ({status})", status, causes)


def _error_of(status: int, causes: Sequence[Cause]) -> type[ApiError]:
    if status in (401, 403):
        return NamespaceTerminating if any(one.reason == TERMINATING for one in causes) else Forbidden
    if status == 404:
        return NotFound
    if status == 409:
        return Conflict
    is_temporary = status in (410, 429)  # 410: the rest of a list that was begun too long ago cannot be read any more
    return InvalidObject if 400 <= status < 500 and not is_temporary else Unavailable


def _causes(document: object) -> list[Cause]:
    """Return the causes in an error answer; an answer of any other form has none."""
    details = document.get("details") if isinstance(document, dict) else None
    causes = details.get("causes") if isinstance(details, dict) else None
    if not isinstance(causes, list):
        return []
    return [Cause(str(one.get("reason", "")), str(one.get("field", ""))) for one in causes if isinstance(one, dict)]
