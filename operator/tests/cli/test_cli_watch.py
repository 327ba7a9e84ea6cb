"""`--watch`: tables that refresh, in place on a terminal and one below the other in a pipe, until Ctrl-C."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from click.testing import CliRunner

from gantry_cli.main import cli
from gantry_testing.client import FakeCluster, ThreadedCluster
from gantry_testing.tree import PYTHON_PATH

DEADLINE_S: Final = 60.0
ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")} | {
    "PYTHONPATH": PYTHON_PATH, "TERM": "xterm",
}  # fmt: skip


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    fake = FakeCluster()
    fake.add_topic("orders", queues=1)
    with ThreadedCluster(fake):
        yield fake


def read_until(descriptor: int, predicate: Callable[[str], bool]) -> str:
    """Read what a process prints until the text meets the condition."""
    text, deadline = "", time.monotonic() + DEADLINE_S
    while not predicate(text):
        ready, _, _ = select.select([descriptor], [], [], 1.0)
        data = os.read(descriptor, 65536) if ready else b""
        assert (data or not ready) and time.monotonic() < deadline, text
        text += data.decode()
    return text


def words_of(cluster: FakeCluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "gantry_cli", *words, "-n", cluster.name_server, "--watch", "--interval", "0.1"]


@pytest.mark.parametrize("words", [("topic", "list"), ("topic", "list", "-o", "wide"), ("status",)], ids=" ".join)
def test_screens_are_appended_in_a_pipe(words: tuple[str, ...], cluster: FakeCluster) -> None:
    """Each refresh is a new block with what has changed; Ctrl-C ends the command with 0 and no message."""
    with subprocess.Popen(
        words_of(cluster, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        read_until(process.stdout.fileno(), lambda text: text.count("orders") >= 2)
        cluster.add_topic("parcels", queues=1)
        later = read_until(process.stdout.fileno(), lambda text: text.count("parcels") >= 2)
        process.send_signal(signal.SIGINT)

        assert process.wait(DEADLINE_S) == 0
        assert "\x1b" not in later and process.stderr.read() == b""


def test_screen_is_redrawn_on_a_terminal(cluster: FakeCluster) -> None:
    """The alternate screen of the terminal is used, and left at Ctrl-C, so that the shell's text is as before."""
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        words_of(cluster, "topic", "list"), stdout=terminal, stderr=terminal, stdin=terminal, env=ENVIRONMENT
    )
    os.close(terminal)
    try:
        before = read_until(main, lambda text: "orders" in text)
        process.send_signal(signal.SIGINT)
        after = read_until(main, lambda text: "\x1b[?1049l" in text)

        assert process.wait(DEADLINE_S) == 0
        assert "\x1b[?1049h" in before and "Traceback" not in after
    finally:
        process.kill()
        process.wait(DEADLINE_S)
        os.close(main)


def test_failure_while_watching_is_shown_and_a_first_one_ends(cluster: FakeCluster) -> None:
    """A broker that loses its role later is reported on the screen; a name server that never answers ends with 1."""
    with subprocess.Popen(
        words_of(cluster, "topic", "describe", "orders"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        read_until(process.stdout.fileno(), lambda text: "orders" in text)
        first = CliRunner().invoke(cli, ["topic", "list", "-n", "127.0.0.1:1", "--watch"])
        cluster.masterless_names.add("broker-a")
        read_until(process.stdout.fileno(), lambda text: "not available: " in text and "no master" in text)
        process.send_signal(signal.SIGINT)

        assert process.wait(DEADLINE_S) == 0
    assert first.exit_code == 1 and "no name server answers" in first.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("topic", "list", "--watch", "-o", "json"), "--watch cannot be combined with --output json"),
        (("group", "list", "--interval", "2"), "--interval has no effect without --watch"),
        (("status", "--watch", "--interval", "0"), "0.1<=x<=3600"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, tuple) else None,
)
def test_contradictory_options_are_refused(words: tuple[str, ...], problem: str, cluster: FakeCluster) -> None:
    """A stream of documents, an interval without a watch, and a busy loop."""
    result = CliRunner().invoke(cli, [*words, "-n", cluster.name_server])

    assert result.exit_code == 2 and problem in result.stderr
