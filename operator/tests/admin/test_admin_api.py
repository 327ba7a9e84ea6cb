"""The HTTP interface as a whole: endpoints are documented, guarded and limited; generated requests find no fault.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from admin_scene import ROOT, TOKEN, SidecarChild, broker_process, sidecar_process, write_token_files
from fastapi import APIRouter, FastAPI
from fastapi.requests import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gantry_admin.__main__ import parser, settings_of
from gantry_admin.app import SECURITY_HEADERS, make_app
from gantry_admin.guard import Scope
from gantry_admin.metrics import BrokerCollector
from gantry_admin.sidecar import Sidecar
from gantry_testing.local import wait_until

PAGE = ROOT / "docs/sidecar.md"
BROKER = ["--page", "p", "--control", "c", "--store", "s"]
PUBLIC = {"/openapi.json", "/docs", "/"}
"""Say nothing of the broker: the first two only with --openapi, the last only leads to the page."""


def app_with(*options: str) -> FastAPI:
    """The application as it is served."""
    return make_app(Sidecar(settings_of(parser().parse_args([*BROKER, *options]))))


def everything_in(found: Iterable[BaseRoute]) -> list[BaseRoute]:
    """All that answers, however deep it was included."""
    leaves: list[BaseRoute] = []
    for route in found:
        included = getattr(route, "original_router", None)
        leaves += [route] if included is None else everything_in(included.routes)
    return leaves


@functools.cache
def everything() -> tuple[BaseRoute, ...]:
    """All that the whole application answers."""

    async def make() -> FastAPI:
        return app_with("--openapi")

    return tuple(everything_in(asyncio.run(make()).routes))


def routes() -> list[APIRoute]:
    """Return all endpoints that must declare a scope: all but the public ones."""
    return [route for route in everything() if isinstance(route, APIRoute) and route.path not in PUBLIC]


def scopes_of(route: APIRoute) -> set[Scope]:
    """Return the scopes that an endpoint declares."""
    found: set[Scope] = set()
    waiting = [route.dependant]
    while waiting:
        dependant = waiting.pop()
        scope = getattr(dependant.call, "scope", None)
        if isinstance(scope, Scope):
            found.add(scope)
        waiting += dependant.dependencies
    return found


def test_every_endpoint_is_in_the_docs() -> None:
    """Each path with its method is named in docs/sidecar.md."""
    text = PAGE.read_text()
    missing = [
        f"{method} {route.path}"
        for route in routes() for method in sorted(route.methods or ())
        if f"`{method} {route.path}" not in text
    ]  # fmt: skip

    assert len(routes()) > 20
    assert missing == []


def test_every_option_is_in_the_docs() -> None:
    """Each option of `gantry sidecar` is named in docs/sidecar.md."""
    text = PAGE.read_text()
    shown = [action for action in parser()._actions if action.help is not argparse.SUPPRESS]
    options = [name for action in shown for name in action.option_strings if name.startswith("--")]

    assert [name for name in options if f"`{name}" not in text and name != "--help"] == []


async def test_every_metric_is_in_the_docs(tmp_path: Path) -> None:
    """Each family of metrics is named in docs/sidecar.md."""
    text = PAGE.read_text()
    with broker_process(tmp_path), sidecar_process(tmp_path) as child:
        names = {line.split()[2] for line in child.get("/metrics").text.splitlines() if line.startswith("# TYPE")}

    assert len(names) > 20
    assert sorted(name for name in names if f"`{name}" not in text) == []
    assert BrokerCollector.__doc__


@pytest.mark.parametrize(
    ("path", "is_measured", "asked"),
    [
        ("", False, "/v1/status?rates=false"),
        ("/v1/status?rates=false", False, "/v1/status?rates=false"),
        ("/v1/status", True, "/v1/status?rates=false"),
        ("/v1/group", True, "/v1/status"),
    ],
    ids=["none", "without rates", "status", "group"],
)
async def test_rates_are_measured_only_while_a_client_reads_them(path: str, is_measured: bool, asked: str) -> None:
    """A client's request starts the polling of the broker. The sidecar's own updates and its peers' polls do not."""
    requests: list[str] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append((await reader.readline()).decode().split()[1])
        writer.close()

    async with await asyncio.start_server(record, "127.0.0.1", 0) as peer:
        url = f"http://127.0.0.1:{peer.sockets[0].getsockname()[1]}"
        sidecar = Sidecar(settings_of(parser().parse_args([*BROKER, "--peer", url])))
        sidecar.group()  # as once a second, for the ledgers
        if path:
            transport = httpx.ASGITransport(make_app(sidecar), client=("127.0.0.1", 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get(path)).status_code == 200
        polling = asyncio.create_task(sidecar.peers.run())
        await wait_until(lambda: bool(requests))
        polling.cancel()

    assert sidecar.rates.is_requested is is_measured
    assert requests[0] == asked


OTHER_SCOPES = {
    "/v1/console/codes": {Scope.READ},
    "/v1/console/sessions": {Scope.PROBE},
    "/v1/resend-preview": {Scope.READ},
}
"""A token that may read gets a code with its own permissions; a page gets a session for the code, without a token. A
preview has its selection in a body, and changes nothing."""


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{sorted(route.methods or ())[0]} {route.path}")
def test_every_endpoint_declares_its_scope(route: APIRoute) -> None:
    """Each has one scope; all but GET requests, the preview of a resend and the login need that to change."""
    scopes = scopes_of(route)

    assert len(scopes) == 1, "give it `needs(...)`"
    assert scopes == OTHER_SCOPES.get(route.path, scopes)
    assert (scopes == {Scope.CHANGE}) == (route.methods != {"GET"} and route.path not in OTHER_SCOPES)


def test_only_known_routes_are_served() -> None:
    """Besides the endpoints only the files of the console are served."""
    others = [route for route in everything() if not isinstance(route, APIRoute)]

    assert {getattr(route, "path", repr(route)) for route in others} <= {"/console"}
    assert all(isinstance(route, Mount) and isinstance(route.app, StaticFiles) for route in others)


def url_of(route: APIRoute) -> str:
    """Some URL of it, with values where it has names."""
    return re.sub(r"{[^}]+}", "0", route.path)


@pytest.mark.parametrize(("options", "status"), [((), 401), (("--open-reads",), 401)], ids=["tokens", "open reads"])
async def test_every_endpoint_refuses_requests_without_credentials(
    tmp_path: Path, options: tuple[str, ...], status: int
) -> None:
    """Every endpoint answers 401 before it reports what is wrong with the request, except those of the scope PROBE.

    With --open-reads this holds for each endpoint of the scope CHANGE.
    """
    app = app_with(*write_token_files(tmp_path), *options)
    answers = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        for route in routes():
            if scopes_of(route) & ({Scope.PROBE} | ({Scope.VIEW, Scope.READ} if options else set())):
                continue
            for method in route.methods or ():
                answers[f"{method} {route.path}"] = (await client.request(method, url_of(route))).status_code

    assert len(answers) >= 6
    assert {name: code for name, code in answers.items() if code != status} == {}


def test_endpoint_without_a_scope_is_detected() -> None:
    """The twin: an endpoint that is added without a guard has no scope."""

    async def bare() -> None:
        return None

    assert scopes_of(APIRoute("/bare", bare)) == set()


def test_endpoint_of_a_nested_router_is_found() -> None:
    """The twin: an endpoint in a router of a router is among the checked ones."""
    inner, outer, app = APIRouter(), APIRouter(), FastAPI(openapi_url=None)

    async def bare() -> None:
        return None

    inner.add_api_route("/bare", bare)
    outer.include_router(inner, prefix="/v1")
    app.include_router(outer)

    [found] = [route for route in everything_in(app.routes) if isinstance(route, APIRoute)]
    assert found.path.endswith("/bare")


@pytest.mark.parametrize(("option", "status"), [([], 404), (["--openapi"], 200)], ids=["off", "on"])
@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_openapi_page_is_off_by_default(option: list[str], status: int, path: str) -> None:
    """By default neither the document nor its page is served; the page has no script and no external resources."""
    app = app_with(*option)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        answer = await client.get(path)

    assert answer.status_code == status
    assert "<script" not in answer.text and "https://" not in answer.text


def orders_obeyed(sidecar: SidecarChild) -> int:
    """How many orders the broker has obeyed, by the audit lines of its sidecar; codes for the console are none."""
    lines = [line for line in sidecar.child.log.splitlines() if '"outcome":"http 200"' in line]
    return sum('"what":"console ' not in line for line in lines)


@pytest.mark.verify
@pytest.mark.parametrize(
    "made_up",
    [pytest.param((8, "examples,coverage,fuzzing"), marks=pytest.mark.slow, id="all"), pytest.param(None, id="some")],
)
@pytest.mark.parametrize(("state", "token"), [("running", TOKEN), ("crashed", TOKEN), ("running", None)],
                         ids=["a broker", "a broker that crashed", "no token"])  # fmt: skip
def test_schemathesis_finds_no_violation(
    tmp_path: Path, state: str, token: str | None, made_up: tuple[int, str] | None
) -> None:
    """Generated requests to all endpoints: no undocumented 5xx, and every answer is as the OpenAPI document has it.

    A real broker executes the orders among them; without a token none reaches it. The case `some` generates at most
    two requests for each endpoint, and covers the limits of parameters only where the broker obeys.
    """
    obeys = state == "running" and token is not None
    examples, phases = made_up or (2, "examples,coverage,fuzzing" if obeys else "examples,fuzzing")
    tokens = write_token_files(tmp_path / "tokens")
    with broker_process(tmp_path / "store") as broker:
        broker.send(20)
        with sidecar_process(tmp_path / "store", *tokens, "--openapi") as sidecar:
            sidecar.wait_ready()
            if state == "crashed":
                broker.child.process.kill()
                broker.child.process.wait(30)
            shown = [] if token is None else ["--header", f"Authorization: Bearer {token}"]
            done = subprocess.run(
                [
                    sys.executable, "-m", "schemathesis.cli", "--config-file", str(write_config(tmp_path)),
                    "run", f"{sidecar.url}/openapi.json", *shown, "--no-color",
                    "--max-examples", str(examples), "--seed", "6", "--phases", phases,
                    "--request-timeout", "60", "--suppress-health-check", "all",
                ],
                capture_output=True, text=True, timeout=900, cwd=tmp_path,
            )  # fmt: skip
            obeyed = orders_obeyed(sidecar)

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert (obeyed > 0) == obeys, f"{obeyed} orders were obeyed"


def write_config(folder: Path) -> Path:
    """Write the statuses that may refuse a valid request, such as 416 for an offset that a log does not reach, or an
    invalid one, such as 413 for a body that is too long.

    The parameters keep requests from waiting for long and from listening forever.
    """
    path = folder / "schemathesis.toml"
    path.write_text(
        "[checks]\n"
        'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "502", "503", "504"]\n'
        "positive_data_acceptance.expected-statuses = "
        '["2xx", "400", "401", "403", "404", "409", "410", "412", "416", "429", "502", "503", "504"]\n'
        "negative_data_rejection.expected-statuses = "
        '["400", "401", "403", "404", "405", "409", "413", "415", "422", "429", "5xx"]\n'
        '[[operations]]\ninclude-path = "/v1/durability/wait"\nparameters = { "query.timeout_ms" = 20 }\n'
        '[[operations]]\ninclude-path = "/v1/events"\nparameters = { "query.limit" = 1 }\n'
        '[[operations]]\ninclude-path = "/v1/tail"\nparameters = { "query.limit" = 1 }\n'
        '[[operations]]\ninclude-path = "/v1/search"\nparameters = { "query.deadline_s" = 1 }\n'
    )
    return path


@pytest.mark.parametrize("path", ["/v1/broken", "/console/broken"])
async def test_an_internal_error_has_the_security_headers(path: str) -> None:
    """They are those of every other answer of that path, and the text names nothing of the exception."""
    app = app_with()

    async def broken(request: Request) -> Response:
        raise RuntimeError("secret")

    app.router.routes.insert(0, Route(path, broken))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        failed, missing = await client.get(path), await client.get(f"{path}-not")

    assert (failed.status_code, missing.status_code) == (500, 404)
    assert failed.json() == {"reason": "internal error; see the log of the sidecar"}
    names = {*SECURITY_HEADERS, *(("Cache-Control",) if path.startswith("/console") else ())}
    assert {name: failed.headers.get(name) for name in names} == {name: missing.headers.get(name) for name in names}
    assert failed.headers["X-Content-Type-Options"] == "nosniff"
