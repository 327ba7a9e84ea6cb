"""A pytest plugin that assigns tests to processes when several run them (`pytest -n 2`).

A file's tests stay together, since they share expensive fixtures. Those of the folders in `ALONE`, which mount disks,
use the machine's huge pages or make network namespaces, stay together as well, because these resources belong to the
whole machine. So do those of `pipelines/` that need Spark, which then starts only once and is warm from the second file
on, and those that share an API server.

Slow files run first, so that the processes end at about the same time. `LONG` lists them: a file that starts many
programs has few tests, and would run last if the number of tests determined the order.

`--order random` shuffles files, and the tests of each, within that: no test may need another one before it. The seed is
printed, and `--order SEED` reproduces the order.

Each process collects all tests, which makes a million objects that stay until its end. The garbage collector
is disabled meanwhile and never scans them later.

Tests create Unix sockets in temporary folders, and the kernel limits their names to 107 bytes. If the path for
temporary files is long, the run uses a private directory with a short one instead, as scripts/common.sh does.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import stat
import tempfile
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ALONE: Final = ("broker/tests/crash/", "broker/tests/faults/", "broker/tests/replication/")
"""Folders whose tests never run at the same time."""

SPARK: Final = ("pipelines/tests/test_spark_",)
"""Files that share a Spark session."""

API: Final = (
    "operator/tests/objects/test_admission_api_server",
    "operator/tests/objects/test_crd_api_server",
    "operator/tests/reconcile/test_applier_api_server",
    "operator/tests/reconcile/test_edit_api_server",
    "operator/tests/reconcile/test_gitops_api_server",
    "operator/tests/reconcile/test_pipelines_api_server",
    "operator/tests/reconcile/test_resizer_api_server",
)
"""Files that share one API server."""

ORDER: Final = pytest.StashKey[str]()
"""The seed of a shuffled order; empty for the usual one."""

ORDER_INPUT: Final = "gantry_order"

TOGETHER: Final = {"alone": ALONE, "spark": SPARK, "api": API}
"""The units that one process runs as a whole, by how their files begin."""

LONG: Final = (
    "broker/tests/client/test_timers_with_apache.py",
    *ALONE,
    *SPARK,
    *API,
    "broker/tests/fuzz/",
    "e2e/tests/",
    "broker/tests/client/test_client_against_",
    "broker/tests/simulation/",
    "operator/tests/cli/test_cli_local_",
    "operator/tests/admin/test_console_",
    "operator/tests/admin/",
    "operator/tests/reconcile/test_edit_",
    "operator/tests/cli/test_kubectl_",
    "operator/tests/reconcile/test_operator_",
    "operator/tests/cli/test_pod_",
    "operator/tests/cli/",
    "broker/tests/bench/",
)
"""The beginnings of file names that are slow for their number of tests, the slowest first."""


TEMPORARY_BYTES_MAX: Final = 52
"""The longest path for temporary files: that of scripts/common.sh in a clone whose path has 40 bytes."""


def _unit(nodeid: str) -> str:
    """Return the unit to which a test belongs: a key of ``TOGETHER``, or the path of its file."""
    path = nodeid.partition("::")[0]
    return next((name for name, starts in TOGETHER.items() if path.startswith(starts)), path)


def _rank(path: str) -> int:
    """Return the rank of a file in the order, by its name."""
    return next((number for number, start in enumerate(LONG) if path.startswith(start)), len(LONG))


class FileScheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the next file to the next free process, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during collection, and exclude the collected tests from later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the option for the order."""
    parser.addoption(
        "--order", default="", metavar="SEED", help="run in the order of this seed; `random` draws one and prints it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed once, for all processes; let SIGINT reach the programs that tests start; shorten temporary paths.

    A shell ignores SIGINT for background jobs, and every process that they start would inherit that.
    """
    _shorten_temporary_paths()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    order = str(config.getoption("--order"))
    if order == "random":
        order = str(random.randrange(1 << 32))
    elif order and not order.isdecimal():
        raise pytest.UsageError(f"--order {order}: expected `random` or a whole number")
    config.stash[ORDER] = str(getattr(config, "workerinput", {}).get(ORDER_INPUT, order))


def _shorten_temporary_paths() -> None:
    """Use a private directory for temporary files if the name of a socket below the usual one would be too long."""
    if len(os.fsencode(tempfile.gettempdir())) <= TEMPORARY_BYTES_MAX:
        return
    place = f"/tmp/gantry-{os.getuid()}"
    os.makedirs(place, mode=0o700, exist_ok=True)
    found = os.lstat(place)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise pytest.UsageError(f"{place} is not a directory that you own; remove it, or set TMPDIR to a shorter path")
    os.chmod(place, 0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = place


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Send the order to a worker process."""
    node.workerinput[ORDER_INPUT] = node.config.stash[ORDER]


def pytest_report_header(config: pytest.Config) -> str:
    """Print the option that reproduces the order."""
    order = config.stash[ORDER]
    return f"order: --order {order}" if order else "order: default; `--order random` shuffles it"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests if requested, and sort those of worker processes, slow files first.

    In the usual order the files with most tests come next. Every worker process has the same order.
    """
    order = config.stash[ORDER]
    if order:
        _shuffle(items, random.Random(order))
    if not hasattr(config, "workerinput"):
        return
    if order:
        items.sort(key=lambda item: _rank(item.nodeid))
        return
    counts = Counter(_unit(item.nodeid) for item in items)
    items.sort(key=lambda item: (_rank(item.nodeid), -counts[_unit(item.nodeid)], _unit(item.nodeid)))


def _shuffle(items: list[pytest.Item], random_source: random.Random) -> None:
    """Shuffle the files, and the tests of each, which stay together."""
    random_source.shuffle(items)
    units = sorted({_unit(item.nodeid) for item in items})
    random_source.shuffle(units)
    places = {unit: place for place, unit in enumerate(units)}
    items.sort(key=lambda item: (places[_unit(item.nodeid)], item.nodeid.partition("::")[0]))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduler:
    config.option.loadscopereorder = False
    return FileScheduler(config, log)
