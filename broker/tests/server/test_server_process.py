"""The broker as a process: its ready line, its exit codes, and one line with a remedy for each failure."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from gantry_status import HotPath, PageReader
from gantry_testing.local import SMALL_STORE
from gantry_testing.ports import free_broker_port
from gantry_testing.tree import PYTHON_PATH

READY = "broker listening on "


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gantry_broker", *arguments]


def options(path: Path, **conf: str) -> list[str]:
    main = free_broker_port()
    pairs = {
        "bindAddress": "127.0.0.1",
        "listenPort": str(main),
        "fastListenPort": str(main - 2),
        "storePathRootDir": str(path),
        **SMALL_STORE,
        **conf,
    }
    return [part for key, value in pairs.items() for part in ("-o", f"{key}={value}")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH}
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=180, env=environment)


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a broker process that is ready, and return its port."""
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
    )
    watchdog = threading.Timer(180, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(READY), (line, process.stderr.read() if process.stderr else "")
        yield process, int(line.rpartition(":")[2])
    finally:
        watchdog.cancel()
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_signal_stops_the_broker_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """After the ready line it accepts connections; a signal ends it with code 0, without traceback or abort marker."""
    with running(*options(tmp_path)) as (process, port):
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        assert (tmp_path / "abort").exists()

        process.send_signal(number)
        _, errors = process.communicate(timeout=120)

    assert process.returncode == 0
    assert "Traceback" not in errors
    assert not (tmp_path / "abort").exists()


def test_log_and_status_page_name_the_hot_path(tmp_path: Path, speedups: ModuleType | None) -> None:
    """The line `starting` and the status page name the path that the broker runs, and why it is the Python path."""
    with running(*options(tmp_path)) as (process, _):
        with PageReader(str(tmp_path / "status")) as reader:
            origin = reader.read().origin
        process.terminate()
        _, log = process.communicate(timeout=120)

    [line] = [line for line in log.splitlines() if " starting " in line]
    off = "switched off by GANTRY_SPEEDUPS=off"
    if speedups is None:
        assert f"Python hot path: {off}" in line
        assert (origin.hot_path, origin.hot_path_reason) == (HotPath.PYTHON, off)
    else:
        assert "compiled hot path" in line
        assert (origin.hot_path, origin.hot_path_reason) == (HotPath.COMPILED, "")
    assert "compiled hot path is unusable" not in log


BAD_SETTINGS = [
    (["-o", "brokerRole=SLAVE"], "brokerRole=SLAVE"),
    (["-o", "listenport=1"], "listenport is not a setting"),
    (["-o", "brokerId=0", "-o", "listenPort"], "-o listenPort: expected KEY=VALUE"),
    (["-c", "/nowhere/broker.conf"], "/nowhere/broker.conf"),
    (["-n", "nonsense"], "namesrvAddr=nonsense"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD_SETTINGS, ids=[text for _, text in BAD_SETTINGS])
def test_invalid_settings_exit_with_two_and_one_line(arguments: list[str], text: str) -> None:
    """The line names the settings, and nothing is created."""
    done = run(*arguments)

    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_command_line_overrides_the_file(tmp_path: Path) -> None:
    """A key on the command line replaces the one in the file; the last of several counts."""
    file = tmp_path / "broker.conf"
    file.write_text("flushDiskType=SYNC_FLUSH\nmaxMessageSize=x\n")

    done = run("-c", str(file), "-o", "flushDiskType=ASYNC_FLUSH", "-o", "maxMessageSize=5", "-o", "maxMessageSize=0")

    assert done.returncode == 2
    assert "maxMessageSize=0" in done.stderr


def test_taken_port_of_a_broker_is_named(tmp_path: Path) -> None:
    """A port in use ends the process with code 1 and a line with the port; the store is closed cleanly."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])

        main = run(*options(tmp_path / "main", listenPort=port))
        fast = run(*options(tmp_path / "fast", fastListenPort=port))

    for done in (main, fast):
        assert done.returncode == 1
        [line] = [line for line in done.stderr.splitlines() if "cannot start" in line]
        assert port in line
        assert "address already in use" in line
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "main/abort").exists()
    assert not (tmp_path / "fast/abort").exists()


def test_store_in_use_is_named(tmp_path: Path) -> None:
    """Two brokers never open one store: the second ends with code 1 and the directory in its line."""
    with running(*options(tmp_path)):
        done = run(*options(tmp_path))

    assert done.returncode == 1
    assert str(tmp_path) in done.stderr
    assert "Traceback" not in done.stderr


def test_store_path_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """A store path that cannot be created ends the process with code 1 and the path in its line."""
    (tmp_path / "file").write_text("in the way")

    done = run(*options(tmp_path / "file" / "store"))

    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_are_listed() -> None:
    """`--settings` prints every key with its default and an explanation, and starts nothing."""
    done = run("--settings")

    assert done.returncode == 0
    assert "listenPort=10911\n    " in done.stdout
    assert "flushIntervalCommitLog=500\n" in done.stdout


def test_broker_does_not_start_without_assertions(tmp_path: Path) -> None:
    """Python's -O would disable the checks that a store relies on; it is refused with code 2."""
    environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "PYTHONOPTIMIZE": "1"}

    done = subprocess.run(command(*options(tmp_path)), capture_output=True, text=True, timeout=180, env=environment)

    assert done.returncode == 2
    assert "-O" in done.stderr
    assert not list(tmp_path.iterdir())
