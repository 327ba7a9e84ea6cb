"""The API of ``FakeKubernetes`` over HTTP, for the operator's own client ``KubernetesApi``.

A test can make it answer late, wrongly or not at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, final

from aiohttp import web
from kubernetes.client import Configuration
from operator_world.fake_kubernetes import FakeKubernetes, kind_at

from gantry_operator.api import KINDS, STATUS_MANAGER
from gantry_operator.errors import ApiError
from gantry_operator.kubernetes_api import KubernetesApi, client_of
from gantry_testing.http_server import application, http_server

TOKEN: Final = "the-token-of-the-operator"
"""The token that requests must have."""


@final
class HttpKubernetes:
    """The API server over HTTP. Owned by the event loop."""

    def __init__(self, fake: FakeKubernetes) -> None:
        self.fake: Final = fake
        self.url = ""
        self.delay_s = 0.0
        """How late every answer is."""

        self.raw: tuple[int, bytes] | None = None
        """The status and body of every answer, if set."""

        self.is_breaking = False
        """Whether connections are closed instead of an answer."""

        self.requests: Final[list[tuple[str, str, str]]] = []
        """Method, path with query and content type of every request."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any request of ``KubernetesApi``."""
        self.requests.append((request.method, request.path_qs, request.headers.get("Content-Type", "")))
        await asyncio.sleep(self.delay_s)
        if self.is_breaking:
            assert request.transport is not None, "the connection is already closed"
            request.transport.abort()
        if self.raw is not None:
            return web.Response(status=self.raw[0], body=self.raw[1])
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return failure(401, "who are you?")
        try:
            ref, part = kind_at(request.path, KINDS)
        except KeyError:
            return failure(404, "no such path")
        data = await request.read()
        body: dict[str, Any] = json.loads(data) if data else {}
        try:
            return web.json_response(await self._do(request, ref, part, body))
        except ApiError as error:
            return failure(error.status or 500, error.reason)

    async def _do(self, request: web.Request, ref: Any, part: str, body: dict[str, Any]) -> Any:
        query, kind = request.query, request.headers.get("Content-Type", "")
        match request.method:
            case "GET" if ref.name:
                return await self.fake.get(ref)
            case "GET":
                items = await self.fake.list(ref.kind, ref.namespace, query.get("labelSelector", ""))
                begin, size = int(query.get("continue", "0")), int(query["limit"])
                onward = str(begin + size) if begin + size < len(items) else ""
                return {"items": items[begin : begin + size], "metadata": {"continue": onward}}
            case "POST":
                return await self.fake.create(body)
            case "DELETE":
                uid = body["preconditions"]["uid"]
                await self.fake.delete(ref, uid=uid, grace_s=body.get("gracePeriodSeconds"))
                return {"kind": "Status"}
            case "PATCH" if kind == "application/apply-patch+yaml":
                assert query["force"] == "true" and query["fieldManager"], f"apply without force or manager: {query}"
                if part == "status":
                    assert query["fieldManager"] == STATUS_MANAGER, f"a status by another manager: {query}"
                    return await self.fake.apply_status(ref, body["status"])
                return await self.fake.apply(body)
            case "PATCH" if kind == "application/merge-patch+json":
                return await self.fake.patch(ref, body, subresource=part)
        raise AssertionError(f"unexpected request: {request.method} {kind}")


def failure(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)


@asynccontextmanager
async def http_kubernetes(**options: Any) -> AsyncIterator[tuple[HttpKubernetes, KubernetesApi]]:
    """Start a server, and yield it with a ``KubernetesApi`` that is connected to it."""
    server = HttpKubernetes(FakeKubernetes())
    async with http_server(application(server.answer)) as port:
        settings = Configuration()
        settings.host = server.url = f"http://127.0.0.1:{port}"
        settings.api_key = {"authorization": f"Bearer {TOKEN}"}
        api = KubernetesApi(client_of(settings), **options)
        try:
            yield server, api
        finally:
            api.close()
