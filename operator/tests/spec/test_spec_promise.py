"""The sentence about what an acknowledged message survives, with which each sample begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from spec_world.observations import spec_with

from gantry_spec.manifest.reading import group_of
from gantry_spec.promise import describe_promise
from gantry_testing.tree import ROOT

SAMPLES = sorted((ROOT / "manifests/samples").glob("*.yaml"))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"replication": {"ack": "Received"}},
            "in the master's memory and in the memory of a slave: the loss of one machine loses nothing, and a power "
            "failure of all machines loses the last 500ms.",
        ),
        (
            {},
            "in the master's memory and on the disk of a slave: the loss of one machine loses nothing, and a power "
            "failure loses nothing.",
        ),
        (
            {"slaves": 2, "replication": {"ack": "Flushed", "inSyncReplicas": 3}},
            "in the master's memory and on the disks of 2 slaves: the loss of one machine loses nothing, and a power "
            "failure loses nothing.",
        ),
        (
            {"replication": {"mode": "Async"}, "flush": {"interval": "1s"}},
            "in the master's memory: the loss of the master's machine loses what its slaves lack, and a power failure "
            "of all machines loses the last 1s.",
        ),
        (
            {"slaves": 0, "replication": {"mode": "Async"}, "flush": {"mode": "Sync"}},
            "on the master's disk: the loss of the machine loses everything, and a power failure loses nothing.",
        ),
    ],
    ids=["received", "default", "two slaves", "asynchronous", "alone"],
)
def test_promise_says_what_a_machine_and_the_power_may_take(fields: dict[str, Any], expected: str) -> None:
    """It follows from the spec alone, also from its defaults."""
    assert describe_promise(spec_with(**fields)) == f"Acknowledged messages are {expected}"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_begins_with_its_promise(path: Path) -> None:
    """A person who copies a sample reads what it may lose."""
    text = path.read_text()
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    spec = group_of(yaml.safe_load(text)).spec

    assert comment.startswith(describe_promise(spec)), describe_promise(spec)
