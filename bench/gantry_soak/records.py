"""The file of a soak: one JSON document a line, appended while it runs, so that a run that ends early can be analysed.

    {"kind": "start", ...}     one, the first line
    {"kind": "sample", ...}    one at each interval
    {"kind": "fault", ...}     one when a fault is over
    {"kind": "end", ...}       at most one, the last line; without it the run was interrupted

All times are seconds since the start of the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import final

import msgspec
from gantry_bench.errors import BenchmarkFailed
from gantry_bench.machine import Machine


@final
class Start(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="start"):
    """What was run, and where."""

    started_at: str
    machine: Machine
    seed: int
    planned_s: float
    interval_s: float
    features: list[str]
    leak: str = ""
    """The planted leak; empty for none."""


@final
class ProcessSample(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the group at one time."""

    name: str
    life: str
    """Changes when the process restarts or its role moves: values of two lives are not compared."""
    anonymous: int
    """Bytes of its own memory, without mapped files."""
    proportional: int
    """Resident bytes with its share of mapped files (PSS)."""
    descriptors: int
    threads: int
    mappings: int


@final
class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """The latencies of one kind of operation within an interval."""

    name: str
    count: int
    p50_ms: float
    p99_ms: float


@final
class Sample(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="sample"):
    """Everything that is measured at one time."""

    at_s: float
    processes: list[ProcessSample]
    disk: dict[str, int]
    """Allocated bytes by `PROCESS/KIND OF FILE`."""
    tables: dict[str, float]
    """Lengths of internal tables by `PROCESS/TABLE`."""
    latencies: list[Latency]
    done: dict[str, int]
    """Acknowledged operations of each feature since the start."""
    other_cores: float = 0.0
    """How many cores' worth of time other programs have used since the sample before."""


@final
class Fault(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fault"):
    """A fault, from its injection until the group was whole again."""

    start_s: float
    end_s: float
    name: str
    target: str
    note: str = ""


@final
class End(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """What the ledger found at the end."""

    at_s: float
    findings: list[str]
    sent: int
    acknowledged: int
    received: int
    failures: dict[str, int] = {}
    """Failed operations by feature and error; they are no findings."""


Record = Start | Sample | Fault | End


@final
class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file of a soak."""

    start: Start
    samples: list[Sample]
    faults: list[Fault]
    end: End | None


_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


@final
class RecordFile:
    """Appends records to a file. Owned by one loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")

    def append(self, record: Record) -> None:
        """Write a record; it is in the file when the call returns."""
        with self.path.open("ab") as file:
            file.write(_ENCODER.encode(record) + b"\n")


def read_run(path: Path) -> Run:
    """Read the file of a soak, also of one that was interrupted. Raises BenchmarkFailed for any other file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BenchmarkFailed(f"cannot read {path}: {error.strerror}") from error
    records = []
    last = len(lines) - 1
    for number, line in enumerate(lines):
        if not line or number == last:  # a last line without its end was cut off
            continue
        try:
            records.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            raise BenchmarkFailed(f"{path}, line {number + 1}: {error}; expected a file of make soak") from error
    return make_run(records, str(path))


def make_run(records: Iterable[Record], source: str) -> Run:
    """Return records as a run. Raises BenchmarkFailed if they do not begin with a start."""
    records = list(records)
    if not records or not isinstance(records[0], Start):
        raise BenchmarkFailed(f"{source} has no start of a soak: it is no file of make soak, or empty")
    ends = [one for one in records if isinstance(one, End)]
    return Run(
        start=records[0],
        samples=sorted((one for one in records if isinstance(one, Sample)), key=lambda one: one.at_s),
        faults=sorted((one for one in records if isinstance(one, Fault)), key=lambda one: one.start_s),
        end=ends[-1] if ends else None,
    )
