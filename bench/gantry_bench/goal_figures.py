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
from gantry_bench.ha_cells import HaCell, HaRun, summarise_cells
from gantry_bench.ha_producer import ProducerRun
from gantry_bench.machine import Machine
from gantry_bench.recovery import RecoveryCell
from gantry_bench.send_figures import Cell, GantryPath, SenderCell, ServerName
from gantry_bench.speedups import CodePath

PartName = Literal["send", "ha", "ha-python", "backlog", "recovery-python", "recovery-compiled", "before"]
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


class _ProducerOutcome(msgspec.Struct, frozen=True):
    runs: list[ProducerRun]


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


class BacklogFile(msgspec.Struct, frozen=True):
    """What the goals need of the results of `bench-backlog`."""

    report: BacklogReport


class _RecoveryOutcome(msgspec.Struct, frozen=True):
    raw: list[RecoveryCell]


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


class _ComparedCell(msgspec.Struct, frozen=True):
    name: str
    cpu_ratio: float
    rate_ratio: float


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

    @property
    def has_compiled(self) -> bool:
        """Whether the figures include those of the compiled path."""
        return not self.compiled_missing

    @property
    def apache_cells(self) -> list[HaCell]:
        """The cells of Apache's brokers, which are measured once for both paths."""
        return [
            cell for file in self.replication.values() for cell in file.cells if cell.system == "Apache"
        ]  # fmt: skip

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
    on_paths = [read("ha", HaFile), read("ha-python", HaFile)]
    recoveries = [read("recovery-python", StoreFile), read("recovery-compiled", StoreFile)]
    measured = Measured(
        send=send,
        replication=_by_path([file for file in on_paths if file is not None]),
        backlog=read("backlog", BacklogFile),
        recovery=_by_path([file for file in recoveries if file is not None]),
        before=read("before", CompareFile),
    )
    return msgspec.structs.replace(measured, compiled_missing=_compiled_missing(measured)), problems


PathFile = TypeVar("PathFile", HaFile, StoreFile)


def _by_path(files: Sequence[PathFile]) -> dict[GantryPath, PathFile]:
    """Return the files by the path that they report, and not by the path that was requested."""
    return {"compiled" if file.path.is_compiled else "python": file for file in files}


def _compiled_missing(measured: Measured) -> str:
    """Return why there is no figure of the compiled path; empty if there is one."""
    known: list[CodePath] = [] if measured.send is None else list(measured.send.paths)
    files: list[Mapping[GantryPath, HaFile | StoreFile]] = [measured.replication, measured.recovery]
    known += [file.path for of_part in files for file in of_part.values()]
    if any(path.is_compiled for path in known):
        return ""
    return next((path.reason for path in known if path.reason and path.setting != "off"), "no part ran on it")
