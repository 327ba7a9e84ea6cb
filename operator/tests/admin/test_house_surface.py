"""Every command, option and endpoint is in the docs.

commands.md is generated from the code, so it has every command even if no page explains it. So each command must be on
a page that people write, and only its options on commands.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from admin_scene import app_of, endpoints

from gantry_admin import log_listener
from gantry_cli.kube.plugin import cli as plugin
from gantry_cli.main import cli
from gantry_testing.tree import ROOT

DOCS = ROOT / "docs"
GENERATED = {"commands.md", "logs.md", "settings.md"}
"""Pages that `make format` writes as a whole."""
SERVERS = {
    "gantry nameserver": "nameserver.md",
    "gantry broker": "operations.md",
    "gantry sidecar": "sidecar.md",
    "gantry pipeline": "pipelines.md",
}
"""Servers and jobs that parse their own options, and the pages that have these options."""
OWN_HELP = {"--help", "-h"}


def leaves(command: click.Command, words: str = "gantry") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something by itself, with the words that call it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        assert inner is not None
        if not inner.hidden:
            yield from leaves(inner, f"{words} {name}")


EVERY_COMMAND = [*leaves(cli), *leaves(plugin, "kubectl gantry")]


def written_by_hand() -> str:
    """Return all pages but the generated ones, without the tables of fields that are generated into a page."""
    pages = [page.read_text() for page in sorted(DOCS.glob("*.md")) if page.name not in GENERATED]
    return re.sub(r"<!-- fields:.*?<!-- end: fields -->", "", "\n".join(pages), flags=re.DOTALL)


def unexplained(commands: list[str], text: str) -> list[str]:
    """Commands that no page speaks of."""
    return [words for words in commands if not re.search(rf"\b{re.escape(words)}\b", text)]


def options_of(command: click.Command) -> set[str]:
    """Return the options that can be typed after a command."""
    return {
        word
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for word in parameter.opts
    }


def lacking(options: Mapping[str, set[str]], page: str) -> list[str]:
    """Options that their command's section of commands.md does not have."""
    sections = dict(re.findall(r"^## `([^`]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    return [
        f"{words} {option}"
        for words, of_command in options.items()
        for option in sorted(of_command)
        if not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", sections.get(words, ""))
    ]


def test_every_command_is_documented() -> None:
    """Each command, with all its words, is on a hand-written page."""
    found = [words for words, _ in EVERY_COMMAND]

    assert len(found) > 25
    assert unexplained(found, written_by_hand()) == []


def test_every_option_is_in_the_docs() -> None:
    """Each option of each command is in its section of commands.md; those of the servers on the pages about them."""
    page = (DOCS / "commands.md").read_text()
    options = {words: options_of(command) for words, command in EVERY_COMMAND if words not in SERVERS}

    assert sum(map(len, options.values())) > 100
    assert lacking(options | {"gantry": options_of(cli)}, page) == []


@pytest.mark.parametrize("words", SERVERS)
def test_every_option_of_a_server_is_in_the_docs(words: str) -> None:
    """Options are taken from the help of the server or job itself, since `gantry` only passes them on."""
    modules = {
        "nameserver": "gantry_nameserver",
        "broker": "gantry_broker",
        "sidecar": "gantry_admin",
        "proxy": "gantry_proxy",
    }
    module = (modules | {"pipeline": "gantry_pipelines"})[words.split()[1]]
    text = (DOCS / SERVERS[words]).read_text()
    help_text = subprocess.run(
        [sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout  # fmt: skip
    options = set(re.findall(r"^ +(?:-\w(?: [A-Z=]+)?, )?(--[a-z-]+)", help_text, re.MULTILINE)) - OWN_HELP

    assert len(options) >= 4
    assert sorted(option for option in options if f"`{option}" not in text and f" {option}" not in text) == []


# -- endpoints ---------------------------------------------------------------------------------------------------------


def undocumented(found: set[tuple[str, str]], text: str) -> list[str]:
    """Endpoints that docs/sidecar.md does not name in code: a GET by its path, others with their method."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    codes = set(re.findall(r"`([^`\n]+)`", prose))
    return sorted(
        f"{method} {path}"
        for method, path in found
        if f"{method} {path}" not in codes and not (method == "GET" and path in codes)
    )


def test_every_endpoint_is_in_the_docs(tmp_path: Path) -> None:
    """Probes, metrics, the console, the description of the interface, and all that OpenAPI knows."""
    app = app_of(tmp_path, "--openapi")
    described = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    found = described | endpoints(app.routes) | {("GET", log_listener.PATH)}

    assert len(described) > 20 and {("GET", "/metrics"), ("GET", "/livez"), ("POST", "/v1/role/promote")} <= found
    assert undocumented(found - {("GET", "/")}, (DOCS / "sidecar.md").read_text()) == []


def test_undocumented_command_is_detected() -> None:
    """A new command is reported, even if a page has one whose last word only begins like it."""
    text = "`gantry topic list` and gantry store verify --quick, gantry upgrade"

    asked = ["gantry topic list", "gantry store verify", "gantry topic", "gantry store", "gantry up"]

    assert unexplained(asked, text) == ["gantry up"]
    assert unexplained(["gantry frobnicate"], written_by_hand()) == ["gantry frobnicate"]


def test_generated_page_explains_no_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that only generated pages and generated tables name is reported."""
    for name in GENERATED:
        (tmp_path / name).write_text("gantry frobnicate")
    table = "<!-- fields: written by a script -->\ngantry frobnicate\n<!-- end: fields -->"
    (tmp_path / "output.md").write_text(f"{table}\ngantry polish")
    monkeypatch.setattr(f"{__name__}.DOCS", tmp_path)

    asked = ["gantry frobnicate", "gantry polish"]

    assert unexplained(asked, written_by_hand()) == ["gantry frobnicate"]


def test_undocumented_option_is_detected() -> None:
    """An option of another command, or one that only begins like it, does not count."""
    page = "## `gantry a`\n  --one-more X\n## `gantry b`\n  --one X\n"

    options = {"gantry a": {"--one"}, "gantry b": {"--one"}, "gantry c": {"-z"}}

    assert lacking(options, page) == ["gantry a --one", "gantry c -z"]


def test_undocumented_endpoint_is_detected(tmp_path: Path) -> None:
    """A new route, in the OpenAPI document or not, is reported with its method."""
    app = app_of(tmp_path, "--openapi")
    text = (DOCS / "sidecar.md").read_text()

    @app.get("/v1/new")
    def new() -> None: ...

    @app.post("/v1/status", include_in_schema=False)
    def written() -> None: ...

    lacks = undocumented(endpoints(app.routes), text)

    assert {"GET /v1/new", "POST /v1/status"} <= set(lacks)
