"""The recorded results, `results.json`: one row for each exhibit and system, in the order of the catalogue.

A run replaces only the rows of its own exhibits and systems, so that exhibits can be recorded one by one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

from gantry_museum.exhibit import Exhibit, System

RESULTS: Final = Path(__file__).resolve().parent / "results.json"


@final
@dataclass(frozen=True)
class Result:
    """What happened in one exhibit on one system."""

    exhibit: str
    system: str
    has_failed: bool
    facts: tuple[str, ...]


def read(path: Path = RESULTS) -> list[Result]:
    """Return the recorded results, in the order of the file; none without a file."""
    if not path.exists():
        return []
    return [Result(**{**row, "facts": tuple(row["facts"])}) for row in json.loads(path.read_text())]


def write(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Record results, a line for each."""
    rows = [json.dumps(asdict(one), ensure_ascii=False) for one in results]
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n")


def merge(before: Sequence[Result], new: Sequence[Result], exhibits: Sequence[Exhibit]) -> list[Result]:
    """Return all results of exhibits that exist, in their order; a new one replaces that of the same system."""
    found = {(one.exhibit, one.system): one for one in (*before, *new)}
    keys = [(exhibit.name, system.value) for exhibit in exhibits for system in System if system in exhibit.systems]
    return [found[key] for key in keys if key in found]


def faults(results: Sequence[Result], exhibits: Sequence[Exhibit]) -> list[str]:
    """Return what is wrong with recorded results: missing ones, and twins in which no failure occurred."""
    found = {(one.exhibit, one.system): one for one in results}
    texts: list[str] = []
    for exhibit in exhibits:
        for system in exhibit.systems:
            one = found.get((exhibit.name, system.value))
            if one is None:
                texts.append(
                    f"{exhibit.name}: no result for {system.value}; run scripts/museum {exhibit.name} --record"
                )
            elif system is System.TWIN and not one.has_failed:
                texts.append(f"{exhibit.name}: the failure did not occur without the guard, so it proves nothing")
    return texts
