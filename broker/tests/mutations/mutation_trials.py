"""Trials of faults: copies of the tree, one fault in each, and the tests that run there until one of them fails.

    base      a copy without a fault, compiled once      <- failed tests run here again: they must pass
    mutated   a copy of the base with one fault in it    <- the stages run here

A failed test counts if it fails again alone in the mutated copy and passes in the base. Otherwise the machine or
chance made it fail, and the tests are run again without it.

Every process gets a PYTHONPATH that begins with the copy's source folders, and so do the brokers and commands that
tests start. Before anything else the module with the fault is imported, and its file must lie in the copy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path, PurePath
from typing import Final, NamedTuple, final

import msgspec
from mutations.planted_fault import Fault, mutated

SOURCES: Final = ("broker/src", "broker/testkit", "operator/src", "pipelines/src")
LEFT_OUT: Final = "broker/tests/mutations"
"""The folder whose tests are not run: they compare the faults with the sources, and so would find every one."""

RUNS_MAX: Final = 5
"""How often a group of test files is run at most, each time without the tests that failed for another reason."""

SUSPECTS_MAX: Final = 4
"""Of the failed tests of one run, how many are run again alone."""

EXIT_PASSED: Final = 0
EXIT_FAILED: Final = (1, 2)
"""Failed tests; files that could not be collected."""
EXIT_NOTHING_SELECTED: Final = 5


class Stage(StrEnum):
    """A group of tests that are run until one fails; the cheapest group comes first."""

    NEAR = "near"
    """Tests of `make test` for the changed module, the closest first."""
    TEST = "test"
    """All tests of `make test`."""
    VERIFY = "verify"
    """All tests that `make verify` adds."""


STAGES: Final = tuple(Stage)
ALONE_LIMIT_S: Final = 600.0
"""A test that fails waits for as long as its own deadline, a minute or more on a slow machine."""

LIMITS_S: Final = {Stage.NEAR: 1_800.0, Stage.TEST: 5_400.0, Stage.VERIFY: 14_400.0}
"""The limit of one run of pytest. A fault may make a test wait for ever; then the run ends without a result."""


class Result(msgspec.Struct, frozen=True):
    """The result of one fault: which stage and test caught it, if any."""

    name: str
    file: str
    promise: str
    stage: str = ""
    """The stage in which it was caught; empty if in none."""

    test: str = ""
    """The test that caught it."""

    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    """Failures that did not count, stages that took too long."""

    @property
    def caught_by(self) -> str:
        """The command whose tests catch the fault."""
        if not self.stage:
            return "NOT CAUGHT"
        return "make verify" if self.stage == Stage.VERIFY else "make test"


class WrongImport(Exception):
    """Tests in a copy import code from elsewhere, so that their results would mean nothing."""


class BrokenRun(Exception):
    """Pytest itself did not work."""


class Outcome(NamedTuple):
    """The outcome of one run of pytest."""

    failed: tuple[str, ...]
    """The ids of the failed tests."""

    is_late: bool = False
    """Whether the run was ended at its time limit."""


def copy_tree(source: Path, target: Path) -> None:
    """Copy all files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=source, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (source / name).is_file() or (source / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name, follow_symlinks=False)


def apply_fault(tree: Path, fault: Fault) -> None:
    """Change one file. Raises ValueError where the fault does not fit.

    Its compiled form is removed: Python would use it if the file had the same size, and was written in the same second.
    """
    path = tree / fault.file
    path.write_text(mutated(fault, path.read_text()))
    Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)


def module_of(file: str) -> str:
    """Return the name by which a source file is imported."""
    path = PurePath(file)
    source = next(one for one in SOURCES if path.is_relative_to(one))
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


@final
class Trials:
    """Tries faults in copies of one repository.

    ``near_tests`` names groups of test files for a source file, which the first stage tries in turn.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        near_tests: Callable[[Path, str], Sequence[Sequence[str]]],
        report: Callable[[str], None],
        *,
        processes: int = 2,
        last_stage: Stage = Stage.VERIFY,
    ) -> None:
        self._root: Final = root
        self.directory: Final = directory
        self._near_tests: Final = near_tests
        self._report: Final = report
        self._processes: Final = processes
        self._stages: Final = STAGES[: STAGES.index(last_stage) + 1]
        self.base: Final = directory / "base"

    def prepare(self) -> None:
        """Make the copy without a fault."""
        (self.directory / "tmp").mkdir(parents=True)
        copy_tree(self._root, self.base)
        folders = [str(self.base / one) for one in SOURCES if (self.base / one).is_dir()]
        command = [sys.executable, "-m", "compileall", "-q", *folders]
        subprocess.run(command, cwd=self.base, env=self.environment(self.base), check=True)

    def try_fault(self, fault: Fault) -> Result:
        """Run the stages until one catches the fault. Raises WrongImport, BrokenRun and ValueError."""
        began_at = time.monotonic()
        notes: list[str] = []
        stage, test = "", ""
        with self.planted(fault) as tree:
            for one in self._stages:
                test = self._run_stage(tree, fault, one, notes)
                if test:
                    stage = one
                    break
        seconds = round(time.monotonic() - began_at, 1)
        return Result(fault.name, fault.file, fault.promise, stage, test, seconds, tuple(notes))

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[Path]:
        """Provide a copy of the tree with the fault in it. Raises WrongImport and ValueError."""
        tree = self.directory / "tree"
        shutil.copytree(self.base, tree, symlinks=True)
        try:
            apply_fault(tree, fault)
            self._demand_own_import(tree, fault)
            yield tree
        finally:
            shutil.rmtree(tree)

    def _run_stage(self, tree: Path, fault: Fault, stage: Stage, notes: list[str]) -> str:
        """Return the test that caught the fault; empty if none did."""
        groups = self._near_tests(self.base, fault.file) if stage is Stage.NEAR else [[]]
        return next(filter(None, (self.run_group(tree, stage, files, notes) for files in groups)), "")

    def run_group(
        self, tree: Path, stage: Stage, files: Sequence[str], notes: list[str], limit_s: float | None = None
    ) -> str:
        """Return the test of these files, or of all if ``files`` is empty, that caught the fault; empty if none did.

        ``limit_s`` limits each run of pytest; by default the stage does.
        """
        limit_s = LIMITS_S[stage] if limit_s is None else limit_s
        left_out: list[str] = []
        for _ in range(RUNS_MAX):
            how_many = f"{len(files)} files" if files else "all files"
            self._report(f"  {stage}: {how_many}")
            outcome = self._run_tests(tree, stage, files, left_out, limit_s)
            if outcome.is_late:
                notes.append(f"{stage}: not done after {limit_s:.0f} s")
                return ""
            if not outcome.failed:
                return ""
            for test in outcome.failed[:SUSPECTS_MAX]:
                if self._fails_alone(tree, test) and not self._fails_alone(self.base, test):
                    return test
                notes.append(f"{stage}: {test} failed, and not because of the fault")
                self._report(f"  {notes[-1]}")
            left_out += outcome.failed[:SUSPECTS_MAX]
        notes.append(f"{stage}: gave up after {RUNS_MAX} runs")
        return ""

    def _run_tests(
        self, tree: Path, stage: Stage, files: Sequence[str], left_out: Iterable[str], limit_s: float
    ) -> Outcome:
        options = ["--verify"] if stage is Stage.VERIFY else []
        options += ["-n", str(self._processes)] if self._processes else []
        options += [f"--deselect={one}" for one in left_out]
        return self._pytest(tree, ["-x", f"--ignore={LEFT_OUT}", *options, *files], limit_s)

    def _fails_alone(self, tree: Path, test: str) -> bool:
        """Return whether the test fails when it runs alone. A test that is named by its id runs with any mark."""
        outcome = self._pytest(tree, ["-x", test], ALONE_LIMIT_S)
        return outcome.is_late or bool(outcome.failed)

    def _pytest(self, tree: Path, arguments: Sequence[str], limit_s: float) -> Outcome:
        cache = self.directory / "cache"
        shutil.rmtree(cache, ignore_errors=True)
        command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *arguments]
        with (self.directory / "output.log").open("wb") as output:
            process = subprocess.Popen(
                command, cwd=tree, env=self.environment(tree), stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return Outcome((), is_late=True)
            finally:
                end_session(process)
        failures = cache / "v/cache/lastfailed"
        failed = tuple(json.loads(failures.read_text())) if failures.exists() else ()
        if code in EXIT_FAILED and failed:
            return Outcome(failed)
        if code in (EXIT_PASSED, EXIT_NOTHING_SELECTED):
            return Outcome(())
        last_lines = (self.directory / "output.log").read_text(errors="replace").splitlines()[-15:]
        raise BrokenRun(f"pytest ended with {code}:\n" + "\n".join(last_lines))

    def environment(self, tree: Path) -> dict[str, str]:
        """Return the environment of a process that must import the code of this copy."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST")
            and not name.startswith(("GANTRY_", "PYTEST_XDIST_"))
        }
        path = os.pathsep.join(str(tree / one) for one in SOURCES)
        return {**kept, "PYTHONPATH": path, "TMPDIR": str(self.directory / "tmp")}

    def _demand_own_import(self, tree: Path, fault: Fault) -> None:
        """Raise WrongImport unless a process that is started as tests are imports the mutated file."""
        program = f"import importlib; print(importlib.import_module({module_of(fault.file)!r}).__file__)"
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=tree, env=self.environment(tree), capture_output=True, text=True)
        found = done.stdout.strip()
        if done.returncode != 0:
            raise WrongImport(f"{module_of(fault.file)} cannot be imported: {done.stderr.strip()[-300:]}")
        if found != str(tree / fault.file):
            raise WrongImport(f"{module_of(fault.file)} is imported from {found}, expected {tree / fault.file}")


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End pytest and what it has started, if any of it is left."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()
