"""The same API in memory, over real HTTP: for the real port. Answers late, not at all, or with nonsense when told."""

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


@final
class HttpKubernetes:
    """Owned by the event loop."""

    def __init__(self, fake: FakeKubernetes) -> None:
        self.fake: Final = fake
        self.url = ""
        self.delay_s = 0.0
        self.raw: tuple[int, bytes] | None = None
        """Answer everything with this."""

        self.is_breaking = False
        """Close the connection instead of an answer."""

        self.requests: Final[list[tuple[str, str, str]]] = []
        """Method, path with query, content type."""

    async def answer(self, request: web.Request) -> web.Response:
        """Of anything."""
        self.requests.append((request.method, request.path_qs, request.headers.get("Content-Type", "")))
        await asyncio.sleep(self.delay_s)
        if self.is_breaking:
            assert request.transport is not None, "it is connected"
            request.transport.abort()
        if self.raw is not None:
            return web.Response(status=self.raw[0], body=self.raw[1])
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return failure(401, "who are you?")
        try:
            place, part = kind_at(request.path, KINDS)
        except KeyError:
            return failure(404, "no such path")
        data = await request.read()
        body: dict[str, Any] = json.loads(data) if data else {}
        try:
            return web.json_response(await self._do(request, place, part, body))
        except ApiError as error:
            return failure(error.status or 500, error.reason)

    async def _do(self, request: web.Request, place: Any, part: str, body: dict[str, Any]) -> Any:
        query, kind = request.query, request.headers.get("Content-Type", "")
        match request.method:
            case "GET" if place.name:
                return await self.fake.get(place)
            case "GET":
                items = await self.fake.list(place.kind, place.namespace, query.get("labelSelector", ""))
                begin, size = int(query.get("continue", "0")), int(query["limit"])
                onward = str(begin + size) if begin + size < len(items) else ""
                return {"items": items[begin : begin + size], "metadata": {"continue": onward}}
            case "POST":
                return await self.fake.create(body)
            case "DELETE":
                uid = body["preconditions"]["uid"]
                await self.fake.delete(place, uid=uid, grace_s=body.get("gracePeriodSeconds"))
                return {"kind": "Status"}
            case "PATCH" if kind == "application/apply-patch+yaml":
                assert query["force"] == "true" and query["fieldManager"], "as it is meant"
                if part == "status":
                    assert query["fieldManager"] == STATUS_MANAGER, "another manager"
                    return await self.fake.apply_status(place, body["status"])
                return await self.fake.apply(body)
            case "PATCH" if kind == "application/merge-patch+json":
                return await self.fake.patch(place, body, part=part)
        raise AssertionError(f"nobody sends {request.method} {kind}")


def failure(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)


@asynccontextmanager
async def http_kubernetes(**options: Any) -> AsyncIterator[tuple[HttpKubernetes, KubernetesApi]]:
    """A server, and the real port to it."""
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
