"""A pytest plugin: which tests share a process when several run them (`pytest -n 2`).

A file's tests stay together, since they share what is expensive to make. All that mount disks, take the machine's huge
pages or make network namespaces stay together as well: what they take there is everybody's.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ALONE: Final = ("broker/tests/crash/", "broker/tests/faults/", "broker/tests/replication/")
"""Folders whose tests never run beside each other."""


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """One process after another gets the next file; the largest come first."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "alone" if path.startswith(ALONE) else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)
