"""A pytest plugin: which tests share a process when several run them (`pytest -n 2`).

A file's tests stay together, since they share what is expensive to make. All that mount disks, take the machine's huge
pages or make network namespaces stay together as well: what they take there is everybody's. So do those that need a
Spark, which is started once then, and warm from the second file on.

Files that take long come first, so that the processes end at about the same time: a file that starts many processes has
few tests, and would come last if the number of its tests decided.

Each process collects all tests, which makes a million objects that live as long as it does. The garbage collector does
not look at them while they are made, nor ever after.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ALONE: Final = ("broker/tests/crash/", "broker/tests/faults/", "broker/tests/replication/")
"""Folders whose tests never run beside each other."""

SPARK: Final = ("pipelines/tests/test_spark_",)
"""Files that share a Spark."""

TOGETHER: Final = {"alone": ALONE, "spark": SPARK}
"""What is given to one process as a whole, by how its files begin."""

LONG: Final = (
    *ALONE,
    *SPARK,
    "broker/tests/fuzz/",
    "e2e/tests/",
    "broker/tests/test_client_against_",
    "broker/tests/simulation/",
    "broker/tests/test_cli_local_",
    "operator/tests/test_console_",
    "operator/tests/test_admin_",
    "operator/tests/test_edit_",
    "operator/tests/test_kubectl_",
    "operator/tests/test_operator_",
    "operator/tests/test_pod_",
    "broker/tests/test_cli_",
    "broker/tests/test_bench_",
)
"""How the files begin that take long for the number of their tests, the longest first."""


def _unit(nodeid: str) -> str:
    """What is given to one process as a whole."""
    path = nodeid.partition("::")[0]
    return next((name for name, starts in TOGETHER.items() if path.startswith(starts)), path)


def _rank(path: str) -> int:
    """How early a file comes by its name."""
    return next((number for number, start in enumerate(LONG) if path.startswith(start)), len(LONG))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """One process after another gets the next file, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is looked for before all tests are there, and none of them is ever taken for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In each of several processes the same order: what takes long, then the files with most tests."""
    if not hasattr(config, "workerinput"):
        return
    counts = Counter(_unit(item.nodeid) for item in items)
    items.sort(key=lambda item: (_rank(item.nodeid), -counts[_unit(item.nodeid)], _unit(item.nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    config.option.loadscopereorder = False
    return ByFile(config, log)
