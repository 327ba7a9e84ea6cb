"""The command `scripts/museum`: runs exhibits on both systems, and writes docs/museum.md from the recorded results.

Exit codes: 0 nothing has failed on Gantry that the recorded results do not have, 1 a result of Gantry or of a twin is
another one, 2 the harness itself failed or the machine lacks something.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click
from gantry_interop.errors import MissingTool, harness_errors
from gantry_interop.paths import new_run_directory
from gantry_interop.processes import Nursery
from rich.console import Console

from gantry_museum import catalogue, page, results
from gantry_museum.exhibit import TITLES, Exhibit, Need, Stage, System
from gantry_museum.results import Result
from gantry_testing.programs import kubernetes_program

_CHECKS: Final[dict[Need, Callable[[], bool]]] = {
    Need.JAVA: lambda: all(map(shutil.which, ("java", "mvn"))),
    Need.ROOT: lambda: os.geteuid() == 0,
    Need.STRACE: lambda: shutil.which("strace") is not None,
    Need.API_SERVER: lambda: all(map(kubernetes_program, ("etcd", "kube-apiserver"))),
}
_REMEDIES: Final = {
    Need.JAVA: "on Debian: apt-get install openjdk-17-jdk-headless maven",
    Need.ROOT: "run it again with: sudo",
    Need.STRACE: "on Debian: apt-get install strace",
    Need.API_SERVER: "build it with: scripts/kubernetes",
}


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  scripts/museum --list                              the exhibits and the systems on which they run
  scripts/museum                                     everything, on both systems
  scripts/museum failed-flush --systems gantry       one exhibit on Gantry
  scripts/museum failed-flush --record               record its results, and write docs/museum.md
  scripts/museum --page                              only write docs/museum.md again""",
)
@click.option("--systems", help=f"Systems, separated by commas: {', '.join(System)}. Default: those of each exhibit.")
@click.option("--record", is_flag=True, help="Store the results, and write docs/museum.md.")
@click.option("--page", "page_only", is_flag=True, help="Write docs/museum.md from the stored results; run nothing.")
@click.option("--list", "lists", is_flag=True, help="List the exhibits; run nothing.")
@click.argument("exhibits", nargs=-1)
def main(systems: str | None, record: bool, page_only: bool, lists: bool, exhibits: tuple[str, ...]) -> None:
    """Run reported failures of other systems on Apache RocketMQ and on Gantry.

    EXHIBITS are names of exhibits; without one, all are run. Logs and stores are in .gantry/interop.
    """
    chosen = [_find(name) for name in exhibits] or list(catalogue.ALL)
    if lists:
        for exhibit in chosen:
            click.echo(f"{exhibit.name:26} {', '.join(exhibit.systems):40} {exhibit.title}")
        return
    if page_only:
        page.write(results.read(), catalogue.ALL)
        return
    wanted = set(System) if systems is None else {_system(word) for word in systems.split(",")}
    with harness_errors(Console(stderr=True)):
        new = [one for exhibit in chosen for one in run_exhibit(exhibit, [s for s in exhibit.systems if s in wanted])]
    before = results.read()
    changed = changes(before, new)
    if record:
        results.write(results.merge(before, new, catalogue.ALL))
        page.write(results.read(), catalogue.ALL)
    for text in changed:
        click.echo(f"CHANGED: {text}")
    sys.exit(1 if changed and not record else 0)


def run_exhibit(exhibit: Exhibit, systems: Sequence[System]) -> list[Result]:
    """Run one exhibit on these systems, one after another, and print each outcome. Raises InteropError."""
    found: list[Result] = []
    for system in systems:
        _require(exhibit, system)
        directory = new_run_directory(f"museum-{exhibit.name}-{system}")
        _log_to(directory / "client.log")
        began = time.monotonic()
        with Nursery(directory / "logs") as nursery:
            outcome = exhibit.run(Stage(system, directory, nursery))
        word = "THE FAILURE OCCURS" if outcome.has_failed else "does not occur"
        click.echo(f"{exhibit.name} on {TITLES[system]}: {word} ({time.monotonic() - began:.0f} s, {directory})")
        for fact in outcome.facts:
            click.echo(f"    {fact}")
        found.append(Result(exhibit.name, system.value, outcome.has_failed, outcome.facts))
    return found


def _log_to(path: Path) -> None:
    """Write the logs of the clients in this process to a file: they report every fault of a scenario."""
    logging.basicConfig(filename=path, level=logging.INFO, force=True)


def changes(before: Sequence[Result], new: Sequence[Result]) -> list[str]:
    """Return the results that differ from the recorded ones in whether the failure occurs."""
    known = {(one.exhibit, one.system): one.has_failed for one in before}
    return [
        f"{one.exhibit} on {one.system}: the failure {'occurs' if one.has_failed else 'does not occur'} now"
        for one in new
        if known.get((one.exhibit, one.system), one.has_failed) != one.has_failed
    ]


def _require(exhibit: Exhibit, system: System) -> None:
    for need in exhibit.needs_on(system):
        if not _CHECKS[need]():
            raise MissingTool(f"{exhibit.name} on {TITLES[system]} needs {need.value}: {_REMEDIES[need]}")


def _find(name: str) -> Exhibit:
    if name not in catalogue.BY_NAME:
        raise click.BadParameter(f"unknown exhibit {name!r}; expected one of {', '.join(catalogue.BY_NAME)}")
    return catalogue.BY_NAME[name]


def _system(word: str) -> System:
    try:
        return System(word.strip())
    except ValueError:
        raise click.BadParameter(f"unknown system {word!r}; expected one of {', '.join(System)}") from None
