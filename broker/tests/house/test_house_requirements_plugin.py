"""The requirements plugin, run on small test files in a pytest of their own.

Every promise has its failing twin: the same file with the need met, missing, and missing though promised. The inner
pytest loads only the plugins that are named to it, because it would import each other installed plugin a second time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gantry_testing import requirements_plugin
from gantry_testing.requirements_plugin import NEEDS, Need, parse_promises
from gantry_testing.tree import ROOT

pytest_plugins = ["pytester"]

RunInside = Callable[..., pytest.RunResult]

NO_OTHERS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
ONE_TEST = """
    import pytest

    @pytest.mark.needs_go
    def test_with_go():
        pass
"""


def needs_with_answer(name: str, reason: str | None) -> dict[str, Need]:
    """Return the needs, one of them with a given answer instead of a look at the machine."""
    return {**NEEDS, name: Need(name, lambda: reason, f"install {name}")}


@pytest.fixture(autouse=True)
def own_root(pytester: pytest.Pytester) -> None:
    """The pytest inside has its root where its files are, though temporary files may be kept inside a clone."""
    pytester.makeini("[pytest]")


@pytest.fixture
def run_inside(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunInside:
    """Run one test file under the plugin, with a probe's answer and a GANTRY_REQUIRE of our choice."""
    monkeypatch.setenv(NO_OTHERS, "1")

    def run(source: str, *arguments: str, missing: str | None = None, promised: str = "") -> pytest.RunResult:
        monkeypatch.setenv("GANTRY_REQUIRE", promised)
        monkeypatch.setattr(requirements_plugin, "NEEDS", needs_with_answer("go", missing))
        pytester.makepyfile(source)
        return pytester.runpytest_inprocess("-p", "gantry_testing.requirements_plugin", "--strict-markers", *arguments)

    return run


def test_a_test_whose_need_is_met_runs(run_inside: RunInside) -> None:
    """A marked test runs when the probe finds what it needs, and the table says that nothing was left out."""
    result = run_inside(ONE_TEST, missing=None, promised="go")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*not run here*", "none: every selected test ran*"])


def test_a_missing_need_skips_loudly_and_is_counted(run_inside: RunInside) -> None:
    """A marked test is skipped without its need, and the table gives count, reason and remedy."""
    result = run_inside(ONE_TEST, missing="go is not on PATH")

    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*not run here*", "go *1  go is not on PATH -- install go"])


def test_a_promised_need_turns_the_skip_into_a_failure(run_inside: RunInside) -> None:
    """Where GANTRY_REQUIRE names the need, the same test fails the run and says why."""
    result = run_inside(ONE_TEST, missing="go is not on PATH", promised="root, go")

    result.assert_outcomes(errors=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*GANTRY_REQUIRE promises go, but go is not on PATH (remedy: install go)*"])


def test_a_promise_of_another_need_leaves_the_skip_alone(run_inside: RunInside) -> None:
    """A promise concerns the need it names and no other."""
    result = run_inside(ONE_TEST, missing="go is not on PATH", promised="root")

    result.assert_outcomes(skipped=1)


def test_the_promised_need_fails_even_behind_an_unpromised_one(
    run_inside: RunInside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test with two missing needs fails also if only the one that is checked last was promised."""
    source = ONE_TEST.replace("@pytest.mark.needs_go", "@pytest.mark.needs_go\n    @pytest.mark.needs_root")
    assert list(NEEDS).index("root") < list(NEEDS).index("go")
    monkeypatch.setitem(NEEDS, "root", Need("root", lambda: "running as user 1", "sudo"))

    result = run_inside(source, missing="go is not on PATH", promised="go")

    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_unknown_promise_stops_the_run(run_inside: RunInside) -> None:
    """A name in GANTRY_REQUIRE that is no need is an error, not a promise of nothing."""
    result = run_inside(ONE_TEST, promised="jaba")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*GANTRY_REQUIRE names jaba; known: api_server, axe, browser, buildah, *"])


def test_continuous_integration_promises_what_it_brings() -> None:
    """Every name is a need, and the needs of the operator's tests with Kubernetes are among them."""
    script = (ROOT / ".ci/run").read_text()
    [promised] = re.findall(r"GANTRY_REQUIRE=\$\{GANTRY_REQUIRE-([a-z_,]+)\}", script)

    assert {"helm", "api_server", "prometheus"} <= parse_promises(promised)
    assert "\nscripts/kubernetes" in script


@pytest.mark.parametrize(
    ("text", "names"),
    [("", set()), ("root", {"root"}), (" root , java,", {"root", "java"})],
    ids=["empty", "one", "spaces and a last comma"],
)
def test_promises_are_a_comma_list(text: str, names: set[str]) -> None:
    """Spaces and empty parts mean nothing."""
    assert parse_promises(text) == names


def test_other_skips_are_in_the_table_too(run_inside: RunInside) -> None:
    """A skip that names no need was not run here either."""
    source = """
        import pytest

        def test_odd():
            pytest.skip("the moon is full")
    """

    run_inside(source).stdout.fnmatch_lines(["(skip) *1  the moon is full"])


def test_a_run_that_stops_early_counts_the_tests_it_did_not_reach(run_inside: RunInside) -> None:
    """Tests that a stopped run did not come to are counted, not forgotten."""
    source = "def test_a():\n    assert False\n\n\ndef test_b():\n    pass\n\n\ndef test_c():\n    pass\n"

    result = run_inside(source, "--exitfirst")

    result.stdout.fnmatch_lines(["(stop) *2  the run ended before them"])
    result.stdout.no_fnmatch_line("none: *")


def test_a_run_that_cannot_collect_says_so(run_inside: RunInside) -> None:
    """A file that does not import hides its tests; the table does not pretend that all of them ran."""
    result = run_inside("import no_such_module_here\n")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["the run was incomplete*"])
    result.stdout.no_fnmatch_line("none: *")


def test_a_probe_is_asked_once(run_inside: RunInside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine is checked for a need once per session, however many tests have that need."""
    asked: list[str] = []
    source = ONE_TEST + "\n    @pytest.mark.needs_java\n    def test_a():\n        pass\n"
    source += "\n    @pytest.mark.needs_java\n    def test_b():\n        pass\n"
    java = Need("java", lambda: asked.append("java"), "install java")
    monkeypatch.setitem(NEEDS, "java", java)

    run_inside(source).assert_outcomes(passed=3)

    assert asked == ["java"]


def test_a_failing_or_absent_command_counts_as_missing() -> None:
    """The probe of a command that is there but does not work says so instead of passing."""
    assert requirements_plugin.command_fails("true") is None
    assert requirements_plugin.command_fails("false") == "`false` exits 1"
    assert requirements_plugin.missing_commands("sh", "no-such-command-here") == "no no-such-command-here on PATH"


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("go1.22", None),
        ("go1.26.8", None),
        ("go1.19.8", "Go 1.22 or newer is needed, found go1.19.8"),
        ("", "Go 1.22 or newer is needed, found nothing"),
    ],
    ids=["oldest good", "newer", "too old", "broken"],
)
def test_an_old_go_counts_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, reason: str | None
) -> None:
    """A Go that cannot build our modules is no Go."""
    command = tmp_path / "go"
    command.write_text(f"#!/bin/sh\necho {version}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert requirements_plugin.probe_go() == reason


@pytest.mark.verify
def test_tests_of_several_processes_are_counted_together(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One table has the skips of all processes, and also the tests that no process has reached."""
    monkeypatch.setenv(NO_OTHERS, "1")
    source = "import pytest\n\n@pytest.mark.skip('far')\ndef test_far():\n    pass\n\ndef test_near():\n    assert {}\n"
    pytester.makepyfile(test_one=source.format(True), test_two=source.format(True))
    names = ("xdist.plugin", "gantry_testing.requirements_plugin", "gantry_testing.processes_plugin")
    plugin = [part for name in names for part in ("-p", name)]

    whole = pytester.runpytest_subprocess(*plugin, "-n", "2")
    whole.assert_outcomes(passed=2, skipped=2)
    whole.stdout.fnmatch_lines(["(skip) *2  far"])
    whole.stdout.no_fnmatch_line("(stop)*")

    pytester.makepyfile(test_one=source.format(False) + "\ndef test_last():\n    pass\n")
    stopped = pytester.runpytest_subprocess(*plugin, "-n", "1", "--exitfirst", "test_one.py")
    stopped.stdout.fnmatch_lines(["(stop) *1  the run ended before them"])
