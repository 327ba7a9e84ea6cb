"""The interface as a whole: documented, guarded, bounded, and nothing found by a machine that tries everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from admin_scene import ROOT, TOKEN, broker_beside, sidecar_beside, token_files
from fastapi.routing import APIRoute

from gantry_admin.__main__ import parser, settings_of
from gantry_admin.app import make_app
from gantry_admin.guard import Scope
from gantry_admin.metrics import BrokerCollector
from gantry_admin.routes import log, messages, observe, probes, role, status, tables
from gantry_admin.sidecar import Sidecar

MODULES = (probes, status, tables, messages, role, log, observe)
PAGE = ROOT / "docs/sidecar.md"


def routes() -> list[APIRoute]:
    return [route for module in MODULES for route in module.router.routes if isinstance(route, APIRoute)]


def scopes_of(route: APIRoute) -> set[Scope]:
    """What an endpoint asks of its callers, as far as it says so."""
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
    options = [name for action in parser()._actions for name in action.option_strings if name.startswith("--")]

    assert [name for name in options if f"`{name}" not in text and name != "--help"] == []


async def test_every_metric_is_in_the_docs(tmp_path: Path) -> None:
    """Each family by its name."""
    text = PAGE.read_text()
    with broker_beside(tmp_path), sidecar_beside(tmp_path) as child:
        names = {line.split()[2] for line in child.get("/metrics").text.splitlines() if line.startswith("# TYPE")}

    assert len(names) > 20
    assert sorted(name for name in names if f"`{name}" not in text) == []
    assert BrokerCollector.__doc__


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{sorted(route.methods or ())[0]} {route.path}")
def test_no_endpoint_answers_without_saying_who_may_ask(route: APIRoute) -> None:
    """Each has one scope; whatever is no GET needs the one that may change."""
    scopes = scopes_of(route)

    assert len(scopes) == 1
    assert (scopes == {Scope.CHANGE}) == (route.methods != {"GET"})


def test_an_endpoint_without_a_scope_is_caught() -> None:
    """The twin: one that was added without a guard has none of the scopes."""

    async def bare() -> None:
        return None

    assert scopes_of(APIRoute("/bare", bare)) == set()


@pytest.mark.parametrize(("option", "status"), [([], 404), (["--openapi"], 200)], ids=["off", "on"])
@pytest.mark.parametrize("path", ["/openapi.json", "/docs"])
async def test_the_openapi_page_is_off_unless_asked_for(option: list[str], status: int, path: str) -> None:
    """By default neither the document nor a page of it is served; the page has no script and nothing from elsewhere."""
    base = ["--page", "p", "--control", "c", "--store", "s"]
    app = make_app(Sidecar(settings_of(parser().parse_args([*base, *option]))))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        answer = await client.get(path)

    assert answer.status_code == status
    assert "<script" not in answer.text and "https://" not in answer.text


@pytest.mark.parametrize("state", ["moving", "gone"])
def test_schemathesis_finds_nothing(tmp_path: Path, state: str) -> None:
    """Made-up requests from the OpenAPI document: no 5xx that is not documented, no answer that is not as it says."""
    tokens = token_files(tmp_path / "tokens")
    with broker_beside(tmp_path / "store") as broker:
        broker.send(20)
        with sidecar_beside(tmp_path / "store", *tokens, "--openapi") as sidecar:
            if state == "gone":
                broker.child.process.kill()
                broker.child.process.wait(30)
            done = subprocess.run(
                [
                    sys.executable, "-m", "schemathesis.cli", "--config-file", str(write_config(tmp_path)),
                    "run", f"{sidecar.url}/openapi.json", "--header", f"Authorization: Bearer {TOKEN}", "--no-color",
                    "--exclude-path", "/v1/events", "--exclude-path", "/v1/durability/wait", "--max-examples", "8",
                    "--seed", "6", "--phases", "examples,coverage,fuzzing", "--request-timeout", "60",
                    "--suppress-health-check", "all",
                ],
                capture_output=True, text=True, timeout=900, cwd=tmp_path,
            )  # fmt: skip

    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def write_config(folder: Path) -> Path:
    """Which refusals are right for a request that is formally right: a log that does not reach there has 416."""
    path = folder / "schemathesis.toml"
    path.write_text(
        "[checks]\n"
        'not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "502", "503", "504"]\n'
        "positive_data_acceptance.expected-statuses = "
        '["2xx", "400", "401", "403", "404", "409", "410", "412", "416", "429", "502", "503", "504"]\n'
    )
    return path
