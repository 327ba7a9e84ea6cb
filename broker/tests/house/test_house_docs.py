"""The documents are complete and correct: they list every setting and command, and no link is broken."""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
import reference

from gantry_broker.setting_keys import effective_settings
from gantry_broker.settings import BrokerSettings
from gantry_testing.tree import ROOT

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)]*)?\)")
WRITTEN = [
    "ARCHITECTURE.md",
    *(f"docs/{name}.md" for name in ("settings", "commands", "output", "groups", "pipelines", "logs")),
]
TITLES = {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md"}


def documents() -> Iterator[Path]:
    """Yield every Markdown page of the repository, also new ones that are not tracked yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.split(b"\0")
    yield from (page for name in names if name and (page := ROOT / os.fsdecode(name)).is_file())


def dead_links(page: Path) -> list[str]:
    """Return the links of a page that lead to no file of the tree, or to no heading of a page."""
    found = []
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            found.append(path + anchor)
    return found


@cache
def anchors_of(page: Path) -> frozenset[str]:
    """Return the anchors of a page's headings, as code hosts make them, and those that it sets itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", one).lower()).replace(" ", "-") for one in headings)
    return frozenset("#" + one for one in (*slugs, *re.findall(r'<a (?:id|name)="([^"]+)"', text)))


def commands() -> list[tuple[str, click.Command]]:
    """Every command of `gantry` with the words that call it."""
    return [(name, command) for name, command, _ in reference.walk_commands(reference.command_line(), "gantry")]


@cache
def regenerated_pages() -> dict[str, str]:
    """Every page as another process writes it: in this one, a command that a test has called keeps some state of it."""
    program = (
        "import json, pathlib, reference;"
        "here = pathlib.Path.cwd();"
        "print(json.dumps({str(page.relative_to(here)): text for page, text in reference.pages(here).items()}))"
    )
    path = {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=os.environ | path, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("page", WRITTEN)
def test_the_reference_is_not_stale(page: str) -> None:
    """The reference pages and the package graph agree with the code."""
    wanted = regenerated_pages()[page]

    stale = difflib.unified_diff((ROOT / page).read_text().splitlines(), wanted.splitlines(), n=0)
    assert list(stale) == [], "run: make format"


def misnumbered_decisions(folder: Path) -> list[str]:
    """Decisions that share a number, or whose heading has another one than the file's name."""
    pages = sorted(folder.glob("*.md"))
    numbers = Counter(page.name[:4] for page in pages)
    return [
        page.name
        for page in pages
        if numbers[page.name[:4]] > 1 or not page.read_text().startswith(f"# {int(page.name[:4])}. ")
    ]


def test_every_decision_has_a_number_of_its_own() -> None:
    """Decision records have unique numbers, because other pages refer to them."""
    assert misnumbered_decisions(ROOT / "broker/docs/decisions") == []


def test_a_number_given_twice_is_caught(tmp_path: Path) -> None:
    """And one that the page does not bear."""
    for name, heading in (
        ("0001-a.md", "# 1. A"),
        ("0001-b.md", "# 1. B"),
        ("0002-c.md", "# 3. C"),
        ("0004-d.md", "# 4. D"),
    ):
        (tmp_path / name).write_text(heading)

    assert misnumbered_decisions(tmp_path) == ["0001-a.md", "0001-b.md", "0002-c.md"]


def test_every_setting_is_in_the_docs() -> None:
    """Each field of each settings class is named in docs/, with its reason."""
    text = (ROOT / "docs/settings.md").read_text()
    classes = reference.all_settings(ROOT)
    names = [(one.name, setting.name) for one in classes for setting in one.settings]

    assert {one.name for one in classes} >= {"BrokerSettings", "StoreSettings", "NameServerSettings", "WireLimits"}
    assert [name for name in names if f"`{name[1]}`" not in text] == []
    assert [name for one in classes for name in one.unexplained] == []


def test_every_key_of_broker_conf_is_in_the_docs() -> None:
    """Each name that works in a `broker.conf` is named in docs/, as RocketMQ users spell it."""
    text = (ROOT / "docs/settings.md").read_text()
    keys = list(effective_settings(BrokerSettings()))

    assert len(keys) > 20
    assert [key for key in keys if not re.search(rf"\b{re.escape(key)}\b", text)] == []


def test_an_unexplained_setting_is_caught(tmp_path: Path) -> None:
    """A setting without a docstring is named instead of being listed bare."""
    module = tmp_path / "broker/src/gantry_new/settings.py"
    module.parent.mkdir(parents=True)
    module.write_text('class NewSettings:\n    """New."""\n\n    one: int = 1\n    """Said."""\n\n    two: int = 2\n')

    [found] = reference.all_settings(tmp_path)

    assert [setting.name for setting in found.settings] == ["one", "two"]
    assert found.unexplained == ["gantry_new.settings.NewSettings.two"]


def test_default_is_shown_as_its_value(tmp_path: Path) -> None:
    """A reader cannot look up the name of a constant, whether it is annotated, imported or a part of an expression."""
    folder = tmp_path / "broker/src/gantry_new"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from gantry_new.limits import UNIT_BYTES\n")
    (folder / "limits.py").write_text("from typing import Final\n\nUNIT_BYTES: Final = 10 + 10\nPORT = 1\n")
    text = (
        "from gantry_new import UNIT_BYTES\nfrom gantry_new.limits import PORT as PORT_DEFAULT\n\nOWN: Final = 3\n"
        'class NewSettings:\n    """New."""\n    one: int = PORT_DEFAULT\n    two: int = 5 * UNIT_BYTES\n'
        "    three: int = OWN\n    four: int = field(default=OWN)\n    five: Kind = Kind.SMALL\n"
    )
    (folder / "settings.py").write_text(text)

    [found] = reference.all_settings(tmp_path)

    defaults = [setting.default for setting in found.settings]
    assert defaults == ["1", "5 * (10 + 10)", "3", "3", "Kind.SMALL"]


def undocumented(name: str, command: click.Command, text: str) -> list[str]:
    """Return what a command lacks: its section, its own help, or the help of an option."""
    lacks = [] if f"\n## `{name}`\n" in text else [f"{name}: no section"]
    lacks += [] if command.help else [f"{name}: no help"]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    return lacks + [f"{name} {option.name}: no help" for option in options if not option.help and not option.hidden]


def test_every_command_is_documented() -> None:
    """Each command has its own section in docs/, says what it does, and so does each of its options."""
    text = (ROOT / "docs/commands.md").read_text()
    found = commands()

    assert len(found) > 8
    assert [lack for name, command in found for lack in undocumented(name, command, text)] == []


def test_an_undocumented_command_is_caught() -> None:
    """The section, the help and the help of each option are asked for."""
    command = click.Command("new", params=[click.Option(["--bare"])])

    assert undocumented("gantry new", command, "# Commands") == [
        "gantry new: no section",
        "gantry new: no help",
        "gantry new bare: no help",
    ]


def test_the_command_line_has_the_promised_commands() -> None:
    """Users, pages and scripts rely on the names of these commands."""
    promised = {"up", "down", "status", "produce", "consume", "topic", "nameserver", "broker"}

    assert {f"gantry {name}" for name in promised} <= {name for name, _ in commands()}


def test_every_link_leads_somewhere() -> None:
    """No page of `documents` links to a file or heading that does not exist."""
    pages = list(documents())

    assert {page.name for page in pages} >= TITLES
    assert {page.relative_to(ROOT).parts[0] for page in pages} >= {"bench", "broker", "charts", "docs", "e2e"}
    assert {str(page): dead for page in pages if (dead := dead_links(page))} == {}


def test_a_dead_link_is_caught(tmp_path: Path) -> None:
    """A link leads to a file, and an anchor to a heading; links to other sites are left alone."""
    page = tmp_path / "page.md"
    text = "[a](gone.md) [b](page.md#a-part-of-it) [c](#no-part) [d](https://example.org/x) [e](page.md#no-part)\n"
    page.write_text(text + "## A `part` of it\n```\n# No part\n```\n")

    assert dead_links(page) == ["gone.md", "#no-part", "page.md#no-part"]


def test_the_readme_opens_with_the_two_commands() -> None:
    """The first block of the README is the two commands, before any explanation of what Gantry is."""
    text = (ROOT / "README.md").read_text()
    first_block = text.split("```")[1]

    assert [line.split("#")[0].strip() for line in first_block.splitlines()[1:] if line] == ["make up", "make test"]
    assert text.index("```") < 400


def readme_figures(text: str) -> list[tuple[str, str]]:
    """Ours and Apache's, of each row of the README's table."""
    return re.findall(r"^\| [^|]*outstanding \| ([\d,]+) \| ([\d,]+) \|$", text, re.MULTILINE)


def missing_figures(pairs: list[tuple[str, str]], benchmarks: str) -> list[tuple[str, str]]:
    """Pairs of figures that are not in one row of the benchmarks."""
    rows = [[cell.strip() for cell in line.split("|")] for line in benchmarks.splitlines()]
    return [pair for pair in pairs if not any(set(pair) <= set(row) for row in rows)]


def test_figures_of_the_readme_are_measured_ones() -> None:
    """The README's figures of speed are in the table that the benchmark writes; some of them show a slower Gantry."""
    pairs = readme_figures((ROOT / "README.md").read_text())
    benchmarks = (ROOT / "docs/benchmarks.md").read_text()

    assert len(pairs) >= 5 and any(int(a.replace(",", "")) < int(b.replace(",", "")) for a, b in pairs)
    assert missing_figures(pairs, benchmarks) == []
    assert missing_figures([("27,308", "11,990")], benchmarks) == [("27,308", "11,990")], (
        "one that is made up is caught"
    )


def test_the_readme_is_short() -> None:
    """A newcomer reads the README to its end."""
    assert len((ROOT / "README.md").read_text().splitlines()) < 90


def test_every_package_is_on_the_map() -> None:
    """Each import package that exists is named in ARCHITECTURE.md."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = {path.parent.name for path in ROOT.glob("*/src/*/__init__.py")}

    assert "gantry_wire" in packages
    assert sorted(package for package in packages if f"`{package}`" not in text) == []
