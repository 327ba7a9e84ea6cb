"""Runs the plan at both peers, command by command, and compares the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gantry_interop import java
from gantry_interop.admin import guarded, plan, scene
from gantry_interop.admin.json_process import JsonProcess
from gantry_interop.admin.masks import normalize
from gantry_interop.admin.steps import TOOL_TIMEOUT_ERROR, TRIES_MAX, Outcome, Step
from gantry_interop.processes import Nursery

PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Compared:
    """One step and its result at each peer, without the values that may differ."""

    step: Step
    theirs: tuple[str, ...]
    """The lines with Apache's servers."""
    ours: tuple[str, ...]
    """The lines with Gantry's servers."""
    is_theirs_failed: bool
    """Whether the command failed with Apache's servers, for example because they refused it."""
    is_ours_failed: bool
    raw: Outcome | None = None
    """The unchanged output with Apache's servers."""
    facts: Mapping[str, str] = field(default_factory=dict)
    """The facts of Apache's side."""

    @property
    def is_late(self) -> bool:
        """Return whether a server was slower than the tool's timeout."""
        return any(TOOL_TIMEOUT_ERROR in line for line in (*self.theirs, *self.ours))

    @property
    def is_same(self) -> bool:
        return self.theirs == self.ours


def is_failed(outcome: Outcome) -> bool:
    """Return whether a command did not do its work."""
    return outcome.exit not in (None, 0) or ("Exception" in outcome.error and not outcome.is_cut)


def comparable_lines(outcome: Outcome, side: scene.Side, step: Step, start: float) -> tuple[str, ...]:
    """Return the output of one run in the form that is compared."""
    window = scene.window(start)
    parts = {"": outcome.out, "error: ": outcome.error, "file: ": outcome.file or ""}
    found = [
        prefix + line
        for prefix, text in parts.items()
        for line in (sorted if step.is_unordered else list)(
            normalize(text, side.facts, window, step.masks, step.quirks)
        )
    ]
    ends = [] if outcome.exit is None else [f"exit {outcome.exit}"]
    return (*found, *ends, *(["still running"] if outcome.is_cut else []))


class PlanRunner:
    """Runs steps at two sides, which are prepared servers (`scene.Side`), and compares the outputs."""

    def __init__(self, tool: JsonProcess, sides: Sequence[scene.Side], start: float) -> None:
        self._tool = tool
        self._sides = sides
        self._start = start

    def run_steps(self, steps: Iterable[Step], report: Callable[[Compared], None]) -> list[Compared]:
        """Run all of these steps, in order."""
        found = []
        for step in steps:
            found.append(self._run_until_settled(step))
            report(found[-1])
        return found

    def _run_until_settled(self, step: Step) -> Compared:
        deadline = time.monotonic() + step.settles_seconds
        tries = 0
        while True:
            compared, tries = self._run_once(step), tries + 1
            is_late = compared.is_late and step.is_read and tries < TRIES_MAX
            if compared.is_same or (time.monotonic() > deadline and not is_late):
                return compared
            time.sleep(PAUSE_SECONDS)

    def _run_once(self, step: Step) -> Compared:
        outcomes = [side.run(self._tool, step) for side in self._sides]
        theirs, ours = (
            comparable_lines(outcome, side, step, self._start)
            for outcome, side in zip(outcomes, self._sides, strict=True)
        )
        if step.common is not None:
            theirs, ours = step.common.of(theirs, ours), step.common.of(ours, theirs)
        are_failed = [is_failed(outcome) for outcome in outcomes]
        return Compared(step, theirs, ours, are_failed[0], are_failed[1], raw=outcomes[0], facts=self._sides[0].facts)


def run_plan(
    nursery: Nursery, directory: Path, report: Callable[[Compared], None] = lambda one: None
) -> tuple[list[str], list[Compared]]:
    """Return the names of mqadmin's own commands, and the results of the whole plan."""
    java.build()
    start = time.time()
    with ExitStack() as stack:
        (directory / scene.TEMPORARY).mkdir()
        program = replace(
            scene.TOOL, properties={**scene.TOOL.properties, "java.io.tmpdir": str(directory / scene.TEMPORARY)}
        )
        tool = stack.enter_context(JsonProcess(program, directory / "tool-home", directory / "logs" / "tool.log"))
        known = list_commands(tool)
        sides = [guarded.start(kind, nursery, directory / f"{kind}-guarded") for kind in scene.KINDS]
        found = PlanRunner(tool, sides, start).run_steps(plan.ACCOUNTS, report)
        for side in sides:
            side.peer.crash()
        sides = [scene.Side.start(kind, nursery, directory / kind) for kind in scene.KINDS]
        runner = PlanRunner(tool, sides, start)
        found += runner.run_steps(plan.BEFORE_CLIENTS, report)
        residents = stack.enter_context(
            JsonProcess(scene.RESIDENTS, directory / "residents-home", directory / "logs" / "residents.log")
        )
        for side in sides:
            side.start_residents(residents)
        found += runner.run_steps(plan.WITH_CLIENTS, report)
    return known, found


def list_commands(tool: JsonProcess) -> list[str]:
    """Return all commands of the tool, from its own list."""
    answer: list[dict[str, Any]] = tool.request({"list": True}, scene.ANSWER_SECONDS_MAX)["commands"]
    return [str(command["name"]) for command in answer]
