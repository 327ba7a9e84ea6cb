"""The figures of `make bench`: what it reads from the results files of other benchmarks. Pure, but for reading files.

Every part of `make bench` is a run of another benchmark, which has written its results as JSON. Only the fields that
the goals need are decoded here. A file that is missing or cannot be read is a problem with a reason, so that the
figures of the other parts are still shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from gantry_bench.backlog import BacklogReport
from gantry_bench.figures import Figures
from gantry_bench.ha_cells import HaCell, HaRun, summarise_cells
from gantry_bench.ha_producer import ProducerRun
from gantry_bench.machine import Machine
from gantry_bench.recovery import RecoveryCell
from gantry_bench.send_figures import Cell, GantryPath, SenderCell, ServerName
from gantry_bench.speedups import CodePath

PartName = Literal["send", "ha", "ha-python", "backlog", "recovery-python", "recovery-compiled", "before"]
HA_PARTS: Final[tuple[PartName, ...]] = ("ha", "ha-python")
RECOVERY_PARTS: Final[tuple[PartName, ...]] = ("recovery-python", "recovery-compiled")
GOAL_WAY: Final = "all of it, cached"
"""The recovery that the goal is about: without a recovery point, with the log in the page cache."""


class SendFile(msgspec.Struct, frozen=True):
    """What the goals need of the results of `bench-send`."""

    machine: Machine
    paths: list[CodePath]
    missing: dict[ServerName, str]
    cells: list[Cell]
    sender_cells: list[SenderCell]


class _TableOutcome(msgspec.Struct, frozen=True):
    runs: list[HaRun]
    figures: list[Figures] = []


class _ProducerOutcome(msgspec.Struct, frozen=True):
    runs: list[ProducerRun]
    figures: list[Figures] = []


class _HaOutcomes(msgspec.Struct, frozen=True):
    table: _TableOutcome | None = None
    producer: _ProducerOutcome | None = None


class HaFile(msgspec.Struct, frozen=True):
    """What the goals need of the results of `bench-ha`."""

    path: CodePath
    without_apache: str
    outcomes: _HaOutcomes

    @property
    def cells(self) -> list[HaCell]:
        """The cells of the table; empty if the part has failed."""
        return [] if self.outcomes.table is None else summarise_cells(self.outcomes.table.runs)

    @property
    def producer_runs(self) -> list[ProducerRun]:
        """The runs of Apache's producer; empty if the part has failed."""
        return [] if self.outcomes.producer is None else self.outcomes.producer.runs

    @property
    def table_notes(self) -> list[str]:
        """The conditions of the table, and in which cells Apache was faster."""
        table = self.outcomes.table
        return table.figures[0].notes if table is not None and table.figures else []

    @property
    def producer_table(self) -> Figures | None:
        """The table of Apache's producer, as `bench-ha` has printed it."""
        producer = self.outcomes.producer
        return producer.figures[0] if producer is not None and producer.figures else None


class BacklogFile(msgspec.Struct, frozen=True):
    """What the goals need of the results of `bench-backlog`."""

    report: BacklogReport


class _RecoveryOutcome(msgspec.Struct, frozen=True):
    raw: list[RecoveryCell]
    figures: Figures | None = None
    other_cores: float = 0.0


class _StoreOutcomes(msgspec.Struct, frozen=True):
    recovery: _RecoveryOutcome


class StoreFile(msgspec.Struct, frozen=True):
    """The results of the part `recovery` of `bench-store`."""

    path: CodePath
    outcomes: _StoreOutcomes

    @property
    def cells(self) -> list[RecoveryCell]:
        """All recoveries of the run."""
        return self.outcomes.recovery.raw

    @property
    def notes(self) -> list[str]:
        """The conditions of the recoveries."""
        figures = self.outcomes.recovery.figures
        return [] if figures is None else figures.notes


class _ComparedCell(msgspec.Struct, frozen=True):
    name: str
    cpu_ratio: float
    rate_ratio: float
    other_cores: float = 0.0


class CompareFile(msgspec.Struct, frozen=True):
    """What the goals need of the results of `bench-compare`."""

    before: str
    cells: list[_ComparedCell]


class Measured(msgspec.Struct, frozen=True):
    """The figures of all parts that have results, by code path where a part runs on one path."""

    send: SendFile | None = None
    replication: dict[GantryPath, HaFile] = {}
    backlog: BacklogFile | None = None
    recovery: dict[GantryPath, StoreFile] = {}
    before: CompareFile | None = None
    compiled_missing: str = ""
    """Why the compiled path was not measured; empty if it was."""
    other_cores: dict[PartName, float] = {}
    """The most CPU time of other programs during each part, in cores."""

    @property
    def has_compiled(self) -> bool:
        """Whether the figures include those of the compiled path."""
        return not self.compiled_missing

    @property
    def busiest_part(self) -> PartName | None:
        """The part during which other programs used most CPU time; None if no part has measured that."""
        return max(self.other_cores, key=lambda part: self.other_cores[part], default=None)

    @property
    def apache_cells(self) -> list[HaCell]:
        """The cells of Apache's brokers, which are measured once for both paths."""
        return [
            cell for file in self.replication.values() for cell in file.cells if cell.system == "Apache"
        ]  # fmt: skip

    @property
    def failed_runs(self) -> int:
        """The number of cells of replication in which a run has failed, with either system."""
        files = self.replication.values()
        cells = [cell.problem for file in files for cell in file.cells]
        return sum(bool(one) for one in [*cells, *(run.problem for file in files for run in file.producer_runs)])

    def gantry_cells(self, path: GantryPath) -> list[HaCell]:
        """Return the cells of Gantry's brokers on one path."""
        file = self.replication.get(path)
        return [] if file is None else [cell for cell in file.cells if cell.system == "Gantry"]


FileType = TypeVar("FileType", SendFile, HaFile, BacklogFile, StoreFile, CompareFile)


def part_path(folder: Path, part: PartName) -> Path:
    """Return the path of a part's results file in the folder of a run."""
    return folder / f"{part}.json"


def read_measured(folder: Path, parts: Sequence[PartName]) -> tuple[Measured, dict[PartName, str]]:
    """Read the results of the parts; return them, and the reason for each part without readable results."""
    problems: dict[PartName, str] = {}

    def read(part: PartName, kind: type[FileType]) -> FileType | None:
        if part not in parts:
            return None
        try:
            return msgspec.json.decode(part_path(folder, part).read_bytes(), type=kind)
        except FileNotFoundError:
            problems[part] = "it wrote no results"
        except (OSError, msgspec.MsgspecError) as error:
            problems[part] = f"its results cannot be read: {error}"
        return None

    send = read("send", SendFile)
    measured = Measured(
        send=send,
        replication=_by_path({part: read(part, HaFile) for part in HA_PARTS}, problems),
        backlog=read("backlog", BacklogFile),
        recovery=_by_path({part: read(part, StoreFile) for part in RECOVERY_PARTS}, problems),
        before=read("before", CompareFile),
    )
    measured = msgspec.structs.replace(
        measured, compiled_missing=_compiled_missing(measured), other_cores=_other_cores(measured)
    )
    return measured, problems


PathFile = TypeVar("PathFile", HaFile, StoreFile)


def _by_path(files: Mapping[PartName, PathFile | None], problems: dict[PartName, str]) -> dict[GantryPath, PathFile]:
    """Return the files by the path that they report, and not by the path that was requested.

    A part on the same path as an earlier one is a problem: its figures are left out.
    """
    found: dict[GantryPath, tuple[PartName, PathFile]] = {}
    for part, file in files.items():
        if file is None:
            continue
        path: GantryPath = "compiled" if file.path.is_compiled else "python"
        if path in found:
            problems[part] = f"it ran on the {path} path, as {found[path][0]} did"
        else:
            found[path] = part, file
    return {path: file for path, (_, file) in found.items()}


def _other_cores(measured: Measured) -> dict[PartName, float]:
    """Return what the parts have recorded. Those of replication do not know it: they count their slaves, too."""
    found: list[tuple[PartName, float]] = []
    if measured.send is not None:
        found += [("send", cell.other_cores) for cell in measured.send.cells]
        found += [("send", cell.other_cores) for cell in measured.send.sender_cells]
    if measured.backlog is not None:
        found.append(("backlog", measured.backlog.report.other_cores))
    for path, file in measured.recovery.items():
        part: PartName = "recovery-compiled" if path == "compiled" else "recovery-python"
        found.append((part, file.outcomes.recovery.other_cores))
    if measured.before is not None:
        found += [("before", cell.other_cores) for cell in measured.before.cells]
    return {part: max(cores for name, cores in found if name == part) for part, _ in found}


def _compiled_missing(measured: Measured) -> str:
    """Return why there is no figure of the compiled path; empty if there is one."""
    known: list[CodePath] = [] if measured.send is None else list(measured.send.paths)
    files: list[Mapping[GantryPath, HaFile | StoreFile]] = [measured.replication, measured.recovery]
    known += [file.path for of_part in files for file in of_part.values()]
    if any(path.is_compiled for path in known):
        return ""
    return next((path.reason for path in known if path.reason and path.setting != "off"), "no part ran on it")
