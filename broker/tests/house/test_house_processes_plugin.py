"""The processes plugin: one order in all processes, another one with each seed, and files that stay together."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from gantry_testing.processes_plugin import API, LONG, TOGETHER
from gantry_testing.tree import ROOT

pytest_plugins = ["pytester"]

LINK_UID = f"link-{os.getpid()}"
"""In place of a user's number, in the name of a directory."""

PLUGINS = ["-p", "xdist.plugin", "-p", "gantry_testing.processes_plugin"]
FILES = {f"test_{name}": "".join(f"def test_{number}():\n    pass\n\n" for number in range(8)) for name in "abc"}


@pytest.fixture(autouse=True)
def own_files(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files of eight tests, in a pytest that loads no other plugin."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]")
    pytester.makepyfile(**FILES)


def order(pytester: pytest.Pytester, *arguments: str) -> list[str]:
    """The tests, in the order in which they run."""
    result = pytester.runpytest_subprocess(*PLUGINS, "-v", *arguments)
    result.assert_outcomes(passed=24)
    lines = [line.replace("[gw0]", "").split() for line in result.outlines]
    return [word for words in lines for word in words if "::" in word and "PASSED" in words]


@pytest.mark.verify
def test_a_seed_gives_an_order_and_its_files_stay_together(pytester: pytest.Pytester) -> None:
    """The same with and without a process of its own; another seed gives another one."""
    usual, seven = order(pytester), order(pytester, "--order", "7")
    assert sorted(seven) == usual and seven != usual
    files = [test.partition("::")[0] for test in seven]
    assert len([file for file, before in zip(files, ["", *files], strict=False) if file != before]) == 3
    assert order(pytester, "--order", "7") == seven == order(pytester, "--order", "7", "-n", "1")
    assert order(pytester, "--order", "8") != seven


@pytest.mark.verify
def test_a_drawn_seed_is_printed_and_is_one_for_all_processes(pytester: pytest.Pytester) -> None:
    """Processes that collect in different orders could not share the tests: the run would fail."""
    result = pytester.runpytest_subprocess(*PLUGINS, "--order", "random", "-n", "2")
    result.assert_outcomes(passed=24)
    [seed] = [line.split()[-1] for line in result.outlines if line.startswith("order: --order ")]
    assert seed.isdecimal()


def test_an_order_that_is_no_seed_is_refused(pytester: pytest.Pytester) -> None:
    """A typing error must not run in the usual order."""
    result = pytester.runpytest_subprocess(*PLUGINS, "--order", "rnadom")
    result.stderr.fnmatch_lines(["*--order rnadom: expected `random` or a whole number"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


INTERRUPTED = """
import signal, subprocess, sys

def test_it():
    words = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        child.stdin.close()  # ends a child that ignores the signal, which was sent before
        assert child.wait(60) != 0
"""


@pytest.mark.parametrize("plugins", [PLUGINS, []], ids=["with the plugin", "without"])
def test_what_tests_start_in_the_background_can_be_interrupted(pytester: pytest.Pytester, plugins: list[str]) -> None:
    """A shell's job in the background inherits that SIGINT is ignored."""
    pytester.makepyfile(test_interrupted=INTERRUPTED)
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        result = pytester.runpytest_subprocess(*plugins, "test_interrupted.py")
    finally:
        signal.signal(signal.SIGINT, usual)

    result.assert_outcomes(passed=1 if plugins else 0, failed=0 if plugins else 1)


BOUND = """
import os, socket, tempfile

def test_it(tmp_path):
    assert len(os.environ["TMPDIR"]) <= 52 and tempfile.gettempdir() == os.environ["TMPDIR"]
    assert os.stat(tempfile.gettempdir()).st_mode & 0o77 == 0
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "gantry-broker.sock"))
"""


@pytest.mark.parametrize("plugins", [PLUGINS, []], ids=["with the plugin", "without"])
def test_sockets_can_be_created_where_the_path_of_temporary_files_is_long(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, plugins: list[str]
) -> None:
    """Also if pytest is run directly, without the scripts that set TMPDIR."""
    place = pytester.path / ("x" * 112)
    place.mkdir()
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")
    monkeypatch.setenv("TMPDIR", str(place))
    pytester.makepyfile(test_bound=BOUND)

    result = pytester.run(sys.executable, "-m", "pytest", *plugins, "test_bound.py")

    result.assert_outcomes(passed=1 if plugins else 0, failed=0 if plugins else 1)


def test_a_directory_of_another_user_is_refused_for_temporary_files(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that another user made would lead the files elsewhere."""
    place = pytester.path / ("x" * 112)
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    (pytester.path / "elsewhere").mkdir()
    link = Path(f"/tmp/gantry-{LINK_UID}")
    link.symlink_to(pytester.path / "elsewhere")
    pytester.makeconftest(f"import os\nos.getuid = lambda: {LINK_UID!r}\n")
    try:
        result = pytester.run(sys.executable, "-m", "pytest", *PLUGINS)
    finally:
        link.unlink()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [f"*{link} is not a directory that you own; remove it, or set TMPDIR to a shorter path"]
    )


def test_each_rule_about_files_is_about_files_that_exist() -> None:
    """A rule whose files have moved would silently give an API server to each process, and start what is long last."""
    known = [str(path.relative_to(ROOT)) for folder in ("broker", "operator", "pipelines", "e2e")
             for path in (ROOT / folder).rglob("test_*.py")]  # fmt: skip
    starts = [*LONG, *(start for group in TOGETHER.values() for start in group)]

    assert [start for start in starts if not any(path.startswith(start) for path in known)] == []


def test_files_that_share_the_api_server_stay_in_one_process() -> None:
    """A file with the fixture `groups_api` that is not listed would start another API server in its process."""
    users = {
        str(path.relative_to(ROOT).with_suffix(""))
        for path in (ROOT / "operator/tests").rglob("test_*.py")
        if "groups_api" in path.read_text()
    }

    assert users == set(API)
