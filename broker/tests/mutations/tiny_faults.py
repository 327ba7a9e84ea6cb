"""Faults of the small repository that `conftest.tiny_tree` makes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mutations.mutation_trials import Stage, Trials
from mutations.planted_fault import Fault

SOURCE: Final = "broker/src/tiny_product/sums.py"


def fault_of(before: str, after: str) -> Fault:
    return Fault("tiny", SOURCE, before, after, "Sums are right.")


def trials_of(root: Path, *, last_stage: Stage = Stage.VERIFY, near: tuple[str, ...] = ()) -> Trials:
    groups = [near] if near else []
    trials = Trials(
        root, root.parent / "run", lambda tree, file: groups, lambda line: None, processes=0, last_stage=last_stage
    )
    trials.prepare()
    return trials
