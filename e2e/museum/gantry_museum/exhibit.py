"""The parts of an exhibit: the reported failure, the scenario that reproduces it, and what a system did in it.

    threads -> what was reported -> a scenario: run(Stage) -> Outcome -> a row of results.json -> docs/museum.md

A scenario never decides which system it runs on by itself: the runner calls it once for each of its systems. A twin is
one of these systems: Gantry without the guard that prevents the failure. In a twin the failure must occur, or the
scenario could not detect it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final, final

from gantry_interop import versions
from gantry_interop.processes import Nursery


class System(StrEnum):
    """What a scenario runs on."""

    APACHE = "apache"
    """The version of RocketMQ that the interop harness compares with."""

    PREVIOUS = "apache-previous"
    """The version before it, in which a failure may still exist that the newer one has fixed."""

    GANTRY = "gantry"
    TWIN = "twin"
    """Gantry without the guard."""


TITLES: Final[Mapping[System, str]] = MappingProxyType(
    {
        System.APACHE: f"RocketMQ {versions.PEER}",
        System.PREVIOUS: f"RocketMQ {versions.PREVIOUS}",
        System.GANTRY: "Gantry",
        System.TWIN: "Gantry without its guard",
    }
)
RELEASES: Final[Mapping[System, str]] = MappingProxyType(
    {System.APACHE: versions.PEER, System.PREVIOUS: versions.PREVIOUS}
)


class Need(StrEnum):
    """What the machine must have for a scenario."""

    JAVA = "Java and Maven"
    ROOT = "root"
    STRACE = "strace"
    API_SERVER = "kube-apiserver"


@final
@dataclass(frozen=True)
class Thread:
    """A public report: a repository and the numbers of its issues or pull requests."""

    repository: str
    numbers: tuple[int, ...]
    was_read: bool = True
    """Whether the text of the threads could be read. If not, the page says so, and claims nothing about it."""


@final
@dataclass(frozen=True)
class Stage:
    """Where a scenario runs: one system, an empty directory, and the processes of the run."""

    system: System
    directory: Path
    nursery: Nursery

    @property
    def is_apache(self) -> bool:
        return self.system in RELEASES

    @property
    def is_twin(self) -> bool:
        return self.system is System.TWIN


@final
@dataclass(frozen=True)
class Outcome:
    """What one system did: whether the reported failure occurred, and the facts that were measured, as sentences."""

    has_failed: bool
    facts: tuple[str, ...]


Scenario = Callable[[Stage], Outcome]


@final
@dataclass(frozen=True)
class Exhibit:
    """One reported failure, and the scenario that looks for it. Texts are Markdown."""

    name: str
    title: str
    threads: Sequence[Thread]
    reported: str
    """What the threads describe, in our words."""

    scenario: str
    """What is done, and when the failure counts as occurred."""

    run: Scenario
    systems: Sequence[System] = (System.APACHE, System.GANTRY)
    needs: Mapping[System, Sequence[Need]] = field(default_factory=dict)
    """What a scenario needs on a system beyond what every one of it needs."""

    absent: Mapping[System, str] = field(default_factory=dict)
    """Why the scenario is not run on a system that the page names."""

    twin: str = ""
    """What the twin lacks."""

    remark: str = ""
    """Where the report does not apply, or what explains a result."""

    def needs_on(self, system: System) -> tuple[Need, ...]:
        """Return everything that a run on a system needs."""
        own = tuple(self.needs.get(system, ()))
        return (Need.JAVA, *own) if system in RELEASES else own
