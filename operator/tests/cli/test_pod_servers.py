"""`gantry pod sidecar` and `gantry pod nameserver` as real processes, started as the rendered containers do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantry_testing.ports import free_ports

TOKEN = "a-token-that-is-long-enough"


class Containers:
    """Processes that a test starts, stopped after it."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start `gantry pod ...` as a process."""
        process = subprocess.Popen(
            [sys.executable, "-m", "gantry_cli", "pod", *words],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def containers() -> Iterator[Containers]:
    """An empty set of containers."""
    made = Containers()
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the condition is met, or fail at the deadline."""
    deadline = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met in time"
        time.sleep(0.05)


def is_open(port: int) -> bool:
    """Return whether a process listens on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except OSError:
        return False
    return True


def answers(port: int) -> bool:
    """Return whether a sidecar answers on the port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def children_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the processes that a supervisor has started and not reaped yet."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def arguments_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the arguments of the server that a supervisor has started; empty between two."""
    try:
        [child, *_] = children_of(process) or [""]
        return Path(f"/proc/{child}/cmdline").read_text().split("\0")[:-1] if child else []
    except OSError:
        return []


def peers_of(process: subprocess.Popen[str]) -> list[str]:
    """Return the peers that the sidecar was started with."""
    return option_of(process, "--peer")


def option_of(process: subprocess.Popen[str], option: str) -> list[str]:
    """Return the values of an option with which the server was started."""
    words = arguments_of(process)
    return [words[number + 1] for number, word in enumerate(words) if word == option]


@pytest.mark.verify
def test_sidecar_follows_the_members_without_a_new_pod(containers: Containers, tmp_path: Path) -> None:
    """It is started with all peers but itself, and restarted when the ConfigMap changes; then it stops cleanly."""
    port, log_port = free_ports(2)
    (tmp_path / "tokens").write_text(f"operator:{TOKEN}\n")
    (tmp_path / "store").mkdir()
    peers = tmp_path / "peers"
    first, second = "http://g-0-slave-0.g-0-slave.shop.svc:8080", "http://g-0-slave-1.g-0-slave.shop.svc:8080"
    own = "http://g-0-master-0.g-0-master.shop.svc:8080"
    peers.write_text(f"{own}\n{first}\n")
    process = containers.start(
        *("sidecar", "--group", str(tmp_path), "--", "--page", f"{tmp_path}/status", "--control", f"{tmp_path}/socket"),
        *("--store", f"{tmp_path}/store", "--token-file", f"{tmp_path}/tokens"),
        *("--listen", f"127.0.0.1:{port}", "--log-listen", f"127.0.0.1:{log_port}"),
        POD_NAME="g-0-master-0",
        POD_NAMESPACE="shop",
        TMPDIR=str(tmp_path),
    )

    wait_for(lambda: answers(port))
    assert option_of(process, "--state") == [f"{tmp_path}/gantry-sidecar"]
    assert peers_of(process) == [first]
    assert option_of(process, "--proxy") == ["http://g-proxy-pods.shop.svc:9081"]
    peers.write_text(f"{own}\n{first}\n{second}\n")
    wait_for(lambda: peers_of(process) == [first, second])
    wait_for(lambda: answers(port))
    process.terminate()
    _, output = process.communicate(timeout=180)

    assert process.returncode == 0, output
    assert "the sidecar has ended; restarting it with new arguments" in output


def test_name_server_restarts_and_stops_cleanly(containers: Containers, tmp_path: Path) -> None:
    """It has its pod's settings, restarts at once after a kill, and the alive port is always open."""
    port, outside, alive = free_ports(3)
    process = containers.start(
        *("nameserver", "--data", f"{tmp_path}/data", "--run", str(tmp_path), "--alive", str(alive)),
        GANTRY_NAMESERVER_CONF=f"listenPort={port}\nexternalListenPort={outside}\n",
    )
    wait_for(lambda: is_open(port) and is_open(outside))
    [child] = children_of(process)

    os.kill(int(child), signal.SIGKILL)
    wait_for(lambda: children_of(process) not in ([], [child]) and is_open(port))
    assert is_open(alive)
    process.terminate()
    _, output = process.communicate(timeout=180)

    assert process.returncode == 0, output
    assert "the name server was killed by SIGKILL; restarting immediately" in output


def test_name_server_with_invalid_settings_is_not_restarted(containers: Containers, tmp_path: Path) -> None:
    """A restart would not help: the container ends, with the exit code of invalid settings."""
    process = containers.start(
        *("nameserver", "--data", f"{tmp_path}/data", "--run", str(tmp_path)),
        GANTRY_NAMESERVER_CONF="listenPort=none\n",
    )
    assert process.stderr is not None
    reaction = next(line for line in process.stderr if line.startswith("gantry pod: the name server"))

    assert "exited with code 2: its settings are wrong; not restarting it" in reaction
    assert process.wait(timeout=180) == 2
