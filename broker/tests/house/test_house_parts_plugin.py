"""The parts plugin: `make verify` runs what `make test` leaves out, but for slow tests; each test is in one part."""

from __future__ import annotations

import pytest

from gantry_testing.parts_plugin import EXAMPLES, EXAMPLES_VERIFY, PARTS

pytest_plugins = ["pytester"]

PLUGINS = [f"gantry_testing.{name}_plugin" for name in ("requirements", "parts")]
SOURCE = """
    import pytest

    def test_quick():
        pass

    @pytest.mark.verify
    def test_deep():
        pass

    @pytest.mark.needs_java
    @pytest.mark.verify
    def test_of_java():
        pass

    @pytest.mark.slow
    def test_long():
        pass

    @pytest.mark.verify(quick=1)
    @pytest.mark.parametrize("seed", range(3))
    def test_seeds(seed):
        pass
"""


@pytest.fixture(autouse=True)
def own_files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file for the server and one for the store, in a pytest that loads no other plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")
    pytester.makepyfile(**{"test_any": SOURCE, "broker/tests/store/test_store_any": SOURCE})


def selected(pytester: pytest.Pytester, *arguments: str) -> set[str]:
    """The tests that a run selects, but for their folder."""
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    result = pytester.runpytest_inprocess(*plugins, "--strict-markers", "--collect-only", "-q", *arguments)
    return {line.rpartition("/")[2] for line in result.outlines if "::" in line}


QUICK = {f"{file}::{test}" for file in ("test_any.py", "test_store_any.py") for test in ("test_quick", "test_seeds[0]")}
DEEP = {
    f"{file}::{test}"
    for file in ("test_any.py", "test_store_any.py")
    for test in ("test_deep", "test_of_java", "test_seeds[1]", "test_seeds[2]")
}
LONG = {"test_any.py::test_long", "test_store_any.py::test_long"}


def test_a_run_selects_one_test_of_each_path_and_verify_the_others(pytester: pytest.Pytester) -> None:
    """Together they select every test that does not take minutes; none is selected by both."""
    assert selected(pytester) == QUICK
    assert selected(pytester, "--verify") == DEEP


def test_slow_tests_come_on_top(pytester: pytest.Pytester) -> None:
    """With `--slow` the same tests are selected as without it, and those that take minutes."""
    assert selected(pytester, "--slow") == QUICK | LONG
    assert selected(pytester, "--verify", "--slow") == DEEP | LONG


def test_the_parts_are_the_whole(pytester: pytest.Pytester) -> None:
    """Every test belongs to one part: by what it needs, else by where it lies."""
    parts = {part: selected(pytester, "--verify", "--part", part) for part in PARTS}

    assert {test for tests in parts.values() for test in tests} == DEEP
    assert sum(map(len, parts.values())) == len(DEEP)
    assert parts["java"] == {"test_any.py::test_of_java", "test_store_any.py::test_of_java"}
    assert {test.partition("::")[0] for test in parts["store"]} == {"test_store_any.py"}
    assert {test.partition("::")[0] for test in parts["server"]} == {"test_any.py"}


def test_a_test_that_is_named_is_selected(pytester: pytest.Pytester) -> None:
    """A test named by its id runs with any mark; a named file runs only the tests of `make test`."""
    assert selected(pytester, "test_any.py::test_deep") == {"test_any.py::test_deep"}
    assert selected(pytester, "test_any.py") == {test for test in QUICK if test.startswith("test_any")}


@pytest.mark.verify
def test_properties_are_tried_with_few_examples_and_with_many(pytester: pytest.Pytester) -> None:
    """Both runs have them, each with its own number."""
    source = """
        from hypothesis import given, strategies

        SEEN = []

        @given(strategies.integers())
        def test_property(number):
            SEEN.append(number)

        def teardown_module():
            print("examples", len(SEEN))
    """
    pytester.makepyfile(test_drawn=source)
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    for arguments, count in (([], EXAMPLES), (["--verify"], EXAMPLES_VERIFY)):
        result = pytester.runpytest_subprocess(*plugins, "-s", "-p", "hypothesis", *arguments, "test_drawn.py")
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines([f"*examples {count}"])


def test_what_was_left_out_is_counted_with_the_remedy(pytester: pytest.Pytester) -> None:
    """Not as skips: a skip means that this machine lacks a requirement."""
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    result = pytester.runpytest_inprocess(*plugins)

    result.assert_outcomes(passed=4, deselected=10)
    result.stdout.fnmatch_lines(
        [
            "(slow) *2  takes minutes -- run pytest with --slow",
            "(verify) *8  repeats another test with more cases -- make verify, or run pytest with --verify",
        ]
    )


@pytest.mark.verify
def test_processes_that_run_tests_for_another_one_count_what_they_left_out(pytester: pytest.Pytester) -> None:
    """Each of them finds all tests, and the table has them once."""
    plugins = [part for name in ("xdist.plugin", *PLUGINS) for part in ("-p", name)]
    result = pytester.runpytest_subprocess(*plugins, "-n", "2")

    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(["(slow) *2  takes minutes*", "(verify) *8  repeats*"])


def test_an_unknown_part_stops_the_run(pytester: pytest.Pytester) -> None:
    """A typing error must not select nothing, and succeed."""
    plugins = [part for name in PLUGINS for part in ("-p", name)]
    assert pytester.runpytest_inprocess(*plugins, "--part", "jaba").ret == pytest.ExitCode.USAGE_ERROR
