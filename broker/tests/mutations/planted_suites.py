"""The suites that should see a fault, and what each says when it does.

    unit            the tests near the changed module, as the first stage of the mutation run selects them
    process         tests that start real processes, which a fault names
    groups, histories, crash:CELL, replication, scenario:GUARD, services, pops, retention, elections, damage:WORDS
                    suites with a judge of histories: repeated with other seeds until the judge finds something

A judge's finding counts only if the same command finds nothing in the tree without the fault.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import count
from typing import Final, NamedTuple

from mutations.planted_fault import Fault

FIRST_SEED: Final = 1
TESTS: Final = "broker/tests"


class Kind(StrEnum):
    """What decides in a suite. The table has a column for each."""

    UNIT = "unit"
    PROCESS = "process"
    JUDGE = "judge"


class Suite(NamedTuple):
    """One suite to run against one fault."""

    name: str
    kind: Kind
    budget_s: float
    """How long it is repeated, or runs, without a result."""


UNIT: Final = Suite("unit", Kind.UNIT, 900.0)
PROCESS: Final = Suite("process", Kind.PROCESS, 900.0)
BUDGETS_S: Final = {
    "groups": 240.0, "histories": 420.0, "crash": 300.0, "replication": 600.0, "scenario": 240.0, "services": 300.0,
    "pops": 400.0, "retention": 200.0, "elections": 300.0, "damage": 300.0,
}  # fmt: skip
"""The budget of each judge, by the part of its name before the colon."""


def judge_suite(name: str) -> Suite:
    """Return the suite of a judge. Raises KeyError for an unknown one."""
    return Suite(name, Kind.JUDGE, BUDGETS_S[name.partition(":")[0]])


def suites_of(fault: Fault) -> list[Suite]:
    """Return the suites that should see a fault, those with a judge first."""
    suites = [judge_suite(name) for name in fault.judges]
    return [*suites, UNIT, *([PROCESS] if fault.process else [])]


class Attempt(NamedTuple):
    """One run of a judge's command."""

    command: tuple[str, ...]
    limit_s: float
    """When it hangs."""


def attempts_of(suite: Suite) -> Iterator[Attempt]:
    """Yield the commands of a judge one after the other, each with the next seed; scenarios are only repeated."""
    name, _, detail = suite.name.partition(":")
    if name == "histories":  # those that were written for one safeguard each are fast
        yield Attempt((sys.executable, f"{TESTS}/simulation/run_histories.py", "--directed"), 600.0)
    for seed in count(FIRST_SEED):
        yield Attempt((sys.executable, *_arguments(name, detail, seed)), 600.0)


def _arguments(name: str, detail: str, seed: int) -> tuple[str, ...]:
    text = str(seed)
    match name:
        case "groups":
            some = ("--histories", "20", "--workers", "1", "--seed", str(seed * 1_000))
            return (f"{TESTS}/group_simulation/run_group_histories.py", *some)
        case "histories":
            many = (f"{TESTS}/simulation/run_histories.py", "--histories", "50", "--workers", "1")
            return (*many, "--seed", str(seed * 1_000))
        case "crash":
            rounds = ("--rounds", "10", "--jobs", "1", "--verbose", "--seed", text)
            return (f"{TESTS}/crash/run_crash.py", "--cells", detail, *rounds)
        case "replication":
            return (f"{TESTS}/replication/run_replication.py", "--runs", "1", "--seed", text)
        case "scenario":
            return (f"{TESTS}/replication/run_replication.py", "--runs", "1", "--scenario", detail)
        case "services":
            return (f"{TESTS}/replication/run_services.py", "--runs", "1", "--seed", text)
        case "pops" | "retention":
            return (f"{TESTS}/replication/run_services.py", f"--{name}", "--runs", "1", "--seed", text)
        case "elections":
            histories = ("--first", str(seed * 1_000), "--count", "25", "--steps", "400")
            return ("operator/tests/spec_world/run_histories.py", *histories)
        case "damage":
            trials = ("--trials", "40", "--jobs", "1", "--seed", text)
            return (f"{TESTS}/damage/run_damage.py", "--only", detail, *trials)
    raise KeyError(name)


FINDINGS: Final = (
    re.compile(r"^\s*FOUND (?P<finding>.+)", re.MULTILINE),
    re.compile(r"^(?P<finding>fails at .+)", re.MULTILINE),
    re.compile(r"^seed \d+: (?P<finding>(?!.*kept every promise).+)\n  again: ", re.MULTILINE),
    re.compile(r"^NOT GOOD seed \d+: (?P<finding>.+)", re.MULTILINE),
    re.compile(r"^FAULT .+\n\s+(?P<finding>.+)", re.MULTILINE),
)
"""What a judge prints for a violation: those of groups, of the store, of elections, of damaged stores."""

FINDING_CHARACTERS_MAX: Final = 160


def finding_in(output: str) -> str:
    """Return the first violation that a judge has printed; empty if there is none."""
    for pattern in FINDINGS:
        found = pattern.search(output)
        if found is not None:
            return found["finding"].strip()[:FINDING_CHARACTERS_MAX]
    return ""
