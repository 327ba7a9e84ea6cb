"""The proxy of `gantry console`: its checks and limits, streams, and another sidecar after a failure.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, final

import httpx
import pytest
from aiohttp import web

from gantry_cli.console import backend as backend_module
from gantry_cli.console import loopback_server
from gantry_cli.console.backend import Backend, SidecarAccess
from gantry_cli.console.group_console import GroupConsole
from gantry_cli.console.http import BODY_BYTES_MAX, Answer, Request, SidecarUnavailable, document_answer
from gantry_cli.console.loopback_server import LoopbackServer, is_plain_path
from gantry_testing.http_server import application, http_server

ANSWER_S: Final = 60.0
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@final
class ScriptedSidecars:
    """Sidecars by name, as a ``SidecarSource``; the test chooses their answers, and which of them can be reached."""

    name = "shop/orders"

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        """Why no code can be made beside a sidecar, by its name."""
        self.waits_for: dict[str, threading.Event] = {}
        """What a login at a sidecar waits for, by its name."""
        self.codes = 0
        self.connections: list[str] = []
        self.requests: list[tuple[str, str]] = []
        """Name and path of each request that a sidecar has received."""
        self.hanging: set[str] = set()
        """The sidecars that do not answer probes."""
        self.sessions: dict[str, str] = {}
        """The present session of each sidecar."""

    def names(self) -> list[str]:
        return sorted(self.ports)

    def new_access(self, name: str) -> SidecarAccess:
        if name in self.refused:
            raise SidecarUnavailable(self.refused[name])
        if name in self.waits_for:
            self.waits_for[name].wait(ANSWER_S)
        self.codes += 1
        return SidecarAccess(f"code-{self.codes}", b"")

    def connect(self, name: str) -> socket.socket:
        self.connections.append(name)
        try:
            return socket.create_connection(("127.0.0.1", self.ports[name]), 10)
        except OSError as error:
            raise SidecarUnavailable(error.strerror or "refused") from error

    @asynccontextmanager
    async def running(self, name: str, respond: Respond) -> AsyncIterator[None]:
        """Run a sidecar that exchanges every code, and answers each request with its session by ``respond``."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.requests.append((name, request.path))
            if request.path == "/v1/console/sessions":
                self.sessions[name] = f"session-{name}-{self.codes}"
                return web.json_response({"session": self.sessions[name], "lifetime_s": 60})
            if request.path == "/livez" and name not in self.hanging:
                return web.json_response({})
            if request.path != "/livez" and request.headers.get("Authorization") != f"Bearer {self.sessions.get(name)}":
                return web.json_response({"reason": "unknown token"}, status=401)
            return await respond(request)

        async with http_server(application(answer)) as self.ports[name]:
            yield


async def named(request: web.Request) -> web.Response:
    """Answer with the path, the host, and the names of the headers that have arrived."""
    headers = {"Set-Cookie": "a=b", "Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff"}
    body = {"path": request.path_qs, "host": request.host, "headers": sorted(request.headers)}
    return web.json_response(body, headers=headers)


@asynccontextmanager
async def console_of(source: ScriptedSidecars) -> AsyncIterator[tuple[httpx.AsyncClient, list[str]]]:
    """Serve a console; yields a browser that has logged in, and the reported events."""
    events: list[str] = []
    console = GroupConsole(Backend(source, events.append), source.name)
    await console.start()
    url, _, code = console.new_address().partition("/console/#code=")
    try:
        async with httpx.AsyncClient(base_url=url, timeout=ANSWER_S) as client:
            answer = await client.post("/v1/console/sessions", json={"code": code})
            client.headers["Authorization"] = f"Bearer {answer.json()['session']}"
            yield client, events
    finally:
        await console.close()


async def test_request_gets_the_session_of_the_sidecar_and_no_more_headers_than_needed() -> None:
    """Cookies and foreign headers reach neither side; the browser never has the sidecar's session."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        answer = await client.get("/v1/topics?shard=1", headers={"Cookie": "x=y", "X-Forwarded-For": "1.2.3.4"})

    assert (answer.status_code, answer.json()["path"]) == (200, "/v1/topics?shard=1")
    assert answer.json()["headers"] == ["Accept", "Authorization", "Host"]
    assert {"set-cookie", "access-control-allow-origin"}.isdisjoint(answer.headers)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert source.sessions["a"] not in answer.text


# -- who may send requests ---------------------------------------------------------------------------------------------


FOREIGN: Final = {
    "name of another site": {"Host": "evil.example:PORT"},
    "other port": {"Host": "127.0.0.1:1"},
    "no port": {"Host": "127.0.0.1"},
    "other origin": {"Origin": "http://evil.example"},
    "other port's origin": {"Origin": "http://127.0.0.1:1"},
    "null origin": {"Origin": "null"},
    "other site": {"Sec-Fetch-Site": "cross-site"},
    "other port's page": {"Sec-Fetch-Site": "same-site"},
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_request_of_another_site_is_refused(headers: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding and requests of other pages get 403, also with a session. The twin has no check, and answers."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        own = {key: value.replace("PORT", str(client.base_url.port)) for key, value in headers.items()}
        refused = await client.get("/v1/status", headers=own)
        monkeypatch.setattr(LoopbackServer, "_refusal", lambda self, request: None)
        twin = await client.get("/v1/status", headers=own)

    assert (refused.status_code, twin.status_code) == (403, 200)


async def test_own_page_is_answered_by_both_names() -> None:
    """The address and `localhost`, with the headers that a browser sends for its own page."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        for name in ("127.0.0.1", "localhost", "LOCALHOST"):
            host = f"{name}:{client.base_url.port}"
            headers = {"Host": host, "Origin": f"http://{host.lower()}", "Sec-Fetch-Site": "same-origin"}
            assert (await client.get("/v1/status", headers=headers)).status_code == 200
        link = await client.get("/", headers={"Sec-Fetch-Site": "same-site"})
    assert (link.status_code, link.headers["location"]) == (307, "/console/")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/livez", "/v1x", "/metrics"])
async def test_only_the_console_and_its_endpoints_are_served(path: str) -> None:
    """Other paths of the sidecar are not reachable through the proxy."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        assert (await client.get(path)).status_code == 404
    assert ("a", path) not in source.requests


@pytest.mark.parametrize(
    "path", ["/console/../v1/x", "/v1/%2e%2e/x", "/v1/%252e%252e/x", "/v1/..%2fx", "/console/..\\x", "/v1/%5c..%5c"]
)
def test_path_with_parent_segments_is_not_plain(path: str) -> None:
    """Not even when it is decoded twice."""
    assert not is_plain_path(path)


@pytest.mark.parametrize("path", ["/", "/console/js/main.js", "/v1/queues/%25DLQ%25billing/0", "/v1/a..b"])
def test_path_of_the_console_is_plain(path: str) -> None:
    """Names may have percent signs and dots."""
    assert is_plain_path(path)


async def raw(port: int, data: bytes) -> bytes:
    """Send bytes to a port, and return everything that it answers until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), ANSWER_S)
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", b"400"),
        (b"OPTIONS /v1/status HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", b"405"),
        (b"GET /v1/../x HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: HOST\r\nX: " + b"x" * 70_000, b"431"),
        (b"POST /v1/x HTTP/1.1\r\nHost: HOST\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000, b"413"),
    ],
    ids=["no HTTP", "no host", "absolute target", "method", "path", "long head", "long body"],
)
async def test_invalid_request_is_refused(request_text: bytes, status: bytes) -> None:
    """Each with its status, and without a request to a sidecar."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        port = client.base_url.port
        assert port is not None
        answer = await raw(port, request_text.replace(b"HOST", f"127.0.0.1:{port}".encode()))
    assert answer.startswith(b"HTTP/1.1 " + status), answer[:200]
    assert source.requests == []


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than the limit is closed at once, and an ended one makes room."""
    monkeypatch.setattr(loopback_server, "CONNECTIONS_MAX", 2)

    async def answer(request: Request) -> Answer:
        return document_answer(200, {})

    server = LoopbackServer(answer)
    await server.start()
    request = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n".encode()
    try:
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        assert await raw(server.port, request) == b""
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(ANSWER_S):
            while not (await raw(server.port, request)).startswith(b"HTTP/1.1 200"):
                pass
    finally:
        await server.close()


async def test_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has a time limit, which single bytes do not extend."""
    monkeypatch.setattr(loopback_server, "REQUEST_TIMEOUT_S", 0.05)
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        assert client.base_url.port is not None
        assert await raw(client.base_url.port, b"GET /console/ HT") == b""


# -- streams -----------------------------------------------------------------------------------------------------------


@final
class EventStream:
    """An endpoint that sends an event, and then waits until the test or the other side ends it."""

    def __init__(self) -> None:
        self.began: Final = asyncio.Event()
        self.over: Final = asyncio.Event()
        self.break_off: Final = asyncio.Event()

    async def respond(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: status\ndata: 1\n\n")
        self.began.set()
        while not self.break_off.is_set() and request.transport is not None:  # None: the proxy has closed it
            with suppress(TimeoutError):
                await asyncio.wait_for(self.break_off.wait(), 0.02)
        if request.transport is not None:
            request.transport.abort()
        self.over.set()
        return response


async def test_stream_arrives_piece_by_piece_and_ends_at_the_sidecar_with_the_browser() -> None:
    """The first event is there before the stream ends. When the browser goes away, the sidecar's connection ends."""
    source, stream = ScriptedSidecars(), EventStream()
    async with source.running("a", stream.respond), console_of(source) as (client, _):
        async with client.stream("GET", "/v1/events") as answer:
            first = await anext(answer.aiter_raw())
            assert first == b"event: status\ndata: 1\n\n" and not stream.over.is_set()
        async with asyncio.timeout(ANSWER_S):
            await stream.over.wait()
    assert not stream.break_off.is_set()


async def test_stream_that_breaks_off_at_the_sidecar_is_no_complete_answer() -> None:
    """The browser gets an error, so that it never takes a part for the whole."""
    source, stream = ScriptedSidecars(), EventStream()
    async with (
        source.running("a", stream.respond),
        console_of(source) as (client, _),
        client.stream("GET", "/v1/events") as answer,
    ):
        pieces = answer.aiter_raw()
        await anext(pieces)
        stream.break_off.set()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)


async def test_reader_that_stops_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sidecar is not read faster than the browser, and after a time limit the connection is closed."""
    monkeypatch.setattr(loopback_server, "WRITE_TIMEOUT_S", 0.2)
    source = ScriptedSidecars()
    sent, over = 0, asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65_536)
                sent += 65_536
        except OSError:
            over.set()
            raise

    async with source.running("a", endless), console_of(source) as (client, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
        head = f"GET /v1/x HTTP/1.1\r\nHost: 127.0.0.1:{client.base_url.port}\r\n"
        writer.write(f"{head}Authorization: {client.headers['Authorization']}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(ANSWER_S):
            await over.wait()
        writer.close()
    assert sent < 64 << 20, "what the sockets of both connections hold, and no more"


# -- another sidecar ---------------------------------------------------------------------------------------------------


async def test_sidecar_that_ends_is_replaced_and_the_page_stays_logged_in() -> None:
    """The browser's session is this program's, so another sidecar answers the next request, and that is reported."""
    source = ScriptedSidecars()
    async with source.running("b", named), console_of(source) as (client, events):
        async with source.running("a", named):
            assert (await client.get("/v1/status")).status_code == 200
        assert (await client.get("/v1/status")).status_code == 200

    assert [name for name, path in source.requests if path == "/v1/status"] == ["a", "b"]
    assert [event.partition(":")[2].split(":")[0].strip() for event in events] == [
        "served by a", "a is not reachable any more", "served by b",
    ]  # fmt: skip


async def test_sidecar_that_has_forgotten_the_session_gets_a_new_login() -> None:
    """A restarted sidecar answers 401, and has executed nothing: so also an order is sent again."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        assert (await client.get("/v1/status")).status_code == 200
        source.sessions.clear()
        assert (await client.post("/v1/role/flush", json={})).status_code == 200
    assert source.codes == 2


async def test_order_without_an_answer_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been executed. A request that changes nothing is sent to the next sidecar: the twin."""
    source = ScriptedSidecars()

    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with source.running("a", cut), source.running("b", named), console_of(source) as (client, _):
        order = await client.post("/v1/role/flush", json={})
        await client.get("/v1/status")
        source.sessions.clear()
    assert (order.status_code, [path for _, path in source.requests].count("/v1/role/flush")) == (504, 1)
    assert "may have been executed" in order.json()["reason"]
    assert ("b", "/v1/status") in source.requests

    twin = ScriptedSidecars()
    async with twin.running("a", cut), twin.running("b", named), console_of(twin) as (client, _):
        assert (await client.get("/v1/status")).status_code == 200
    assert [name for name, path in twin.requests if path == "/v1/status"] == ["a", "b"]


async def test_sidecar_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod whose machine has failed closes no connection: it is checked after a while. Its requests are sent again."""
    monkeypatch.setattr(backend_module, "CHECK_AFTER_S", 0.05)
    monkeypatch.setattr(backend_module, "PROBE_TIMEOUT_S", 0.3)
    source, never = ScriptedSidecars(), asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    source.hanging.add("a")
    async with source.running("a", hang), source.running("b", named), console_of(source) as (client, events):
        assert (await client.get("/v1/status")).status_code == 200
        never.set()
    assert "a is not reachable any more: timed out" in events[1]


async def test_long_answer_of_a_sidecar_that_answers_probes_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the twin of a sidecar that hangs: the same request, and no other sidecar is chosen."""
    monkeypatch.setattr(backend_module, "CHECK_AFTER_S", 0.05)
    source, checked = ScriptedSidecars(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        while ("a", "/livez") not in source.requests:
            with suppress(TimeoutError):
                await asyncio.wait_for(checked.wait(), 0.02)
        return web.json_response({})

    async with source.running("a", slow), source.running("b", named), console_of(source) as (client, events):
        assert (await client.get("/v1/status")).status_code == 200
    assert events == ["shop/orders: served by a"]


async def test_choice_of_a_sidecar_outlives_the_request_that_began_it() -> None:
    """A page gives up after 8 s, and a sidecar may take longer to be reached: the next request gets the result."""
    source, release = ScriptedSidecars(), threading.Event()
    source.waits_for["a"] = release
    async with source.running("a", named), console_of(source) as (client, _):
        with pytest.raises(httpx.ReadTimeout):
            await client.get("/v1/status", timeout=0.2)
        release.set()
        assert (await client.get("/v1/status")).status_code == 200
    assert source.codes == 1


async def test_no_sidecar_gives_the_reason_and_is_not_tried_for_each_request() -> None:
    """A page sends many requests a second; the group is asked once in two seconds."""
    source = ScriptedSidecars()
    source.ports["a"] = 1
    source.refused["a"] = "you may not create pods/exec in namespace shop"
    async with console_of(source) as (client, events):
        answers = [await client.get("/v1/status") for _ in range(5)]

    assert {one.status_code for one in answers} == {502}
    assert "you may not create pods/exec in namespace shop" in answers[-1].json()["reason"]
    assert len(events) == 1


async def test_idle_connections_are_used_again() -> None:
    """A page loads dozens of files: each would need a port-forward and a TLS handshake otherwise."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        for number in range(8):
            assert (await client.get(f"/v1/{number}")).status_code == 200
    assert len(source.connections) <= 2, "one for the login, and one for all requests"


# -- logging in --------------------------------------------------------------------------------------------------------


async def test_code_works_once_and_only_its_session_is_accepted() -> None:
    """Without a session, with another one, and with a used code there is no answer of a sidecar."""
    source = ScriptedSidecars()
    async with source.running("a", named), console_of(source) as (client, _):
        without = await client.get("/v1/status", headers={"Authorization": ""})
        wrong = await client.get("/v1/status", headers={"Authorization": "Bearer session-x"})
        bodies = [b"", b"[]", b'{"code": 1}', b'{"code": "' + b"x" * 300 + b'"}', b'{"code": "x"}', b"[" * 60_000]
        codes = [await client.post("/v1/console/sessions", content=body) for body in bodies]
    assert (without.status_code, wrong.status_code) == (401, 401)
    assert [one.status_code for one in codes] == [422, 422, 422, 422, 401, 422]
    assert source.requests == []


def test_limit_of_bodies_is_that_of_the_sidecar() -> None:
    """A longer body would be refused by the sidecar, after it had crossed the network."""
    from gantry_admin.app import BODY_BYTES_MAX as SIDECAR_BYTES_MAX

    assert BODY_BYTES_MAX == SIDECAR_BYTES_MAX


@pytest.mark.parametrize("document", [{}, {"session": 1}, [], {"session": "\u2028"}], ids=str)
async def test_invalid_answer_to_the_login_is_refused(document: object) -> None:
    """A sidecar's answer is validated; its text never becomes a header."""
    source = ScriptedSidecars()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=json.dumps(document), content_type="application/json")

    async with http_server(application(answer)) as source.ports["a"], console_of(source) as (client, _):
        found = await client.get("/v1/status")
    assert found.status_code == 502
