"""A pytest plugin that selects the tests of a run: `make test` covers each path once, `make verify` runs the others.

    pytest                     tests marked neither `verify` nor `slow`
    pytest --verify            only tests marked `verify`, and property tests
    pytest --part ha           of these, one part of the product
    pytest --slow              also tests that take minutes
    pytest FILE::TEST          a named test is selected, `verify` or not
    pytest --last-failed       a failed test is selected, `verify` or not

A test is marked `verify` if it repeats, with another seed, mode, size or peer, a test without the mark; or if it takes
seconds and a cheaper test covers the same behaviour. `verify(quick=3)` leaves the first three cases of a test in
`make test`.

Property tests run in both, with few examples in `make test` and with many in `make verify`; those marked `verify` run
only in the latter.

A test that is not selected is not skipped: a skip means that this machine lacks something. The table at the end has the
counts.
"""

from __future__ import annotations

from collections import Counter
from pathlib import PurePath
from typing import Final

import pytest
from hypothesis import settings
from xdist.workermanage import WorkerController

from gantry_testing.requirements_plugin import NOT_RUN_TALLY

PARTS: Final = ("store", "ha", "server", "operator", "java", "spark", "browser", "api")
"""The parts of the product, as `make verify PART=` and `--part` name them."""

BY_NEED: Final = {"browser": "browser", "api_server": "api", "spark": "spark", "java": "java"}
"""A test that needs one of these belongs to its part, in any folder; the first match counts."""

BY_PATH: Final = {
    "operator/": "operator",
    "pipelines/": "spark",
    "broker/tests/crash/": "store",
    "broker/tests/damage/": "store",
    "broker/tests/faults/": "store",
    "broker/tests/simulation/": "store",
    "broker/tests/store/": "store",
    "broker/tests/replication/": "ha",
    "broker/tests/group_simulation/": "ha",
    "broker/tests/ha/": "ha",
}
"""Otherwise the beginning of its path decides. All other tests belong to the server."""

EXAMPLES: Final = 25
EXAMPLES_VERIFY: Final = 200
"""The number of examples for each property test that sets no number itself."""

LEFT_OUT: Final = {
    "verify": ("repeats another test with more cases", "make verify, or run pytest with --verify"),
    "slow": ("takes minutes", "run pytest with --slow"),
    "part": ("belongs to another part", "run pytest without --part"),
}
"""The reasons for not selecting a test, and how to select it."""

PART: Final = "gantry part"
"""The property of a report with the part of its test, in a run of `make verify`."""

COUNTS: Final = "gantry_left_out"
"""The key under which a worker process reports the numbers of tests that it has left out."""


def is_left_to_verify(item: pytest.Item, cases: Counter[str]) -> bool:
    """Return whether a test is left to `make verify`. ``cases`` counts the earlier cases of each test."""
    mark = item.get_closest_marker("verify")
    if mark is None:
        return False
    name = item.nodeid.partition("[")[0]
    cases[name] += 1
    return bool(cases[name] > mark.kwargs.get("quick", 0))


def draws_examples(item: pytest.Item) -> bool:
    """Return whether it is a property test, whose examples Hypothesis draws."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def part_of(item: pytest.Item) -> str:
    """Return the part of the product to which a test belongs."""
    for need, part in BY_NEED.items():
        if item.get_closest_marker(f"needs_{need}") is not None:
            return part
    path = PurePath(item.nodeid.partition("::")[0]).as_posix()
    return next((part for start, part in BY_PATH.items() if path.startswith(start)), "server")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Register the options that select tests."""
    parser.addoption(
        "--verify", action="store_true", help="run only the tests that `make test` leaves to `make verify`"
    )
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--part", choices=PARTS, help="run only one part of the product")


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers and the Hypothesis profiles."""
    config.addinivalue_line(
        "markers", "verify: repeats another test with more cases; selected with --verify, and by its name"
    )
    # Examples have no deadline, because on two busy cores it would fail at random. A failure prints what
    # reproduces it.
    settings.register_profile("gantry", deadline=None, print_blob=True, max_examples=EXAMPLES)
    settings.register_profile("gantry-verify", deadline=None, print_blob=True, max_examples=EXAMPLES_VERIFY)
    settings.load_profile("gantry-verify" if config.getoption("--verify") else "gantry")
    config.addinivalue_line("markers", "slow: takes minutes; selected only with --slow")


def reason_against(item: pytest.Item, config: pytest.Config, cases: Counter[str]) -> str | None:
    """Return why a test is not selected, as a key of ``LEFT_OUT``; None if it is selected.

    ``cases`` counts the earlier cases of each test.
    """
    if item.get_closest_marker("slow") is not None:
        if not config.getoption("--slow"):
            return "slow"
    elif is_left_to_verify(item, cases) != bool(config.getoption("--verify")) and not (
        config.getoption("--verify") and draws_examples(item)
    ):
        # With --last-failed only the failed cases of a test are collected, so `quick` cannot be applied.
        failed = config.cache.get("cache/lastfailed", {}) if config.getoption("lf", False) else {}
        is_named = any("::" in word and item.nodeid.startswith(word) for word in config.args)
        if not is_named and item.nodeid not in failed:
            return "verify"
    part = config.getoption("--part")
    return "part" if part is not None and part_of(item) != part else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that this run does not include."""
    cases = Counter[str]()
    reasons = {id(item): reason_against(item, config, cases) for item in items}
    counts = Counter(reason for reason in reasons.values() if reason is not None)
    if counts:
        config.hook.pytest_deselected(items=[item for item in items if reasons[id(item)] is not None])
        items[:] = [item for item in items if reasons[id(item)] is None]
    if config.getoption("--verify"):
        for item in items:
            item.user_properties.append((PART, part_of(item)))
    if hasattr(config, "workeroutput"):
        config.workeroutput[COUNTS] = dict(counts)
    _count(config, counts)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController, error: object) -> None:
    """Store how many tests a worker process has left out; all workers have the same numbers."""
    _count(node.config, getattr(node, "workeroutput", {}).get(COUNTS, {}))


def _count(config: pytest.Config, counts: dict[str, int]) -> None:
    rows = config.stash[NOT_RUN_TALLY].left_out
    for reason, count in counts.items():
        why, remedy = LEFT_OUT[reason]
        if reason == "verify" and config.getoption("--verify"):
            why, remedy = "runs in `make test`", "run pytest without --verify"
        rows[f"({reason})"] = (count, why, remedy)
