"""Process 1 of a container as a real process: restarts, signals, orphans, exit codes, the alive port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gantry_testing.ports import free_ports
from gantry_testing.tree import PYTHON_PATH

RUNNER = """
import ctypes, os, signal, sys, time
from pathlib import Path
from gantry_cli.pod.member import NotReadyError
from gantry_cli.pod.supervisor import PodServer, PodSupervisor
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)   # as process 1 of a container: orphans become our children
settings, alive = Path("settings"), int(sys.argv[1])
read = [""]
def command():
    with Path("commands").open("a") as file:
        file.write("x")
    if not settings.exists():
        raise NotReadyError("the settings are not there")
    read[0] = settings.read_text()
    return ["small_pod_server", read[0]]
def is_changed():
    if settings.read_text() == read[0]:
        return False
    if read[0] == "dies of a change":    # it has ended when the supervisor asks it to end, and no wait was made for it
        pid = Path("ready").read_text()
        os.kill(int(pid), signal.SIGKILL)
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
    return True
server = PodServer(name="server", command=command, alive=("", alive) if alive else None, is_changed=is_changed)
sys.exit(PodSupervisor(server).run())
"""
SERVER = """
import os, signal, subprocess, sys, time
from pathlib import Path
settings = sys.argv[1]
with Path("starts").open("a") as file:
    file.write(f"{os.getpid()} {settings}\\n")
if settings.startswith("exit "):
    sys.exit(int(settings[5:]))
if settings == "orphan":    # a grandchild that ends by itself without a wait
    subprocess.run([sys.executable, "-c", "import subprocess, sys; print(subprocess.Popen(['sleep', '0.2']).pid)"],
                   stdout=open("orphan", "w"), check=True)
def leave(*_):
    time.sleep(0.3)
    Path("drained").touch()
    sys.exit(7 if settings == "bad end" else 0)
signal.signal(signal.SIGTERM, leave)
Path("ready").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


class Container:
    """A supervisor as a process, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None
        (folder / "small_pod_server.py").write_text(SERVER)

    def start(self, settings: str | None, alive: int = 0) -> None:
        """Start it; without settings its server cannot start yet."""
        if settings is not None:
            self.write_settings(settings)
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUNNER, str(alive)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": f"{self.folder}:{PYTHON_PATH}"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def write_settings(self, settings: str) -> None:
        """Replace the file with the server's settings atomically, as kubelet does: a reader never finds it empty."""
        new = self.folder / "settings.new"
        new.write_text(settings)
        new.replace(self.folder / "settings")

    @property
    def starts(self) -> list[tuple[int, str]]:
        """Return process and settings of every start."""
        path = self.folder / "starts"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(pid), settings) for pid, _, settings in (line.partition(" ") for line in lines)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition is met, or fail at the deadline."""
        deadline = time.monotonic() + 180
        while not condition():
            assert time.monotonic() < deadline, "the condition was not met in time"
            time.sleep(0.02)

    def wait_ready(self) -> int:
        """Wait until the server of the last start handles signals; return its process."""
        ready = self.folder / "ready"
        self.wait_for(lambda: ready.exists() and ready.read_text() == str(self.starts[-1][0]))
        return self.starts[-1][0]

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send it a signal, wait for the end, and return the exit code and the output."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the output."""
        assert self.process is not None
        _, output = self.process.communicate(timeout=180)
        return self.process.returncode, output


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    """A container that is stopped after the test."""
    made = Container(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


@pytest.mark.verify
def test_killed_server_restarts_at_once_three_times(container: Container) -> None:
    """A crash costs a start and no delay, also the third time within a minute."""
    container.start("run")

    for number in range(3):
        os.kill(container.wait_ready(), signal.SIGKILL)
        container.wait_for(lambda wanted=number + 2: len(container.starts) == wanted)  # type: ignore[misc]
    container.wait_ready()
    code, output = container.end()

    assert code == 0
    assert output.count("was killed by SIGKILL; restarting immediately") == 3


def test_sigterm_waits_for_the_server_and_passes_its_exit_code(container: Container) -> None:
    """The server gets one SIGTERM and unlimited time, its exit code is the container's, and it is not restarted."""
    container.start("bad end")
    container.wait_ready()

    assert container.process is not None
    container.process.send_signal(signal.SIGTERM)
    code, _ = container.end(signal.SIGTERM)

    assert code == 7
    assert (container.folder / "drained").exists()
    assert len(container.starts) == 1


@pytest.mark.verify
def test_sigterm_before_the_first_start_ends_cleanly(container: Container) -> None:
    """A start that is not ready is reported once and retried, and a signal ends the wait."""
    [alive] = free_ports(1)
    container.start(None, alive)
    container.wait_for(lambda: is_open(alive))

    container.wait_for(lambda: len((container.folder / "commands").read_text()) >= 3)
    code, output = container.end()

    assert code == 0
    assert output == "gantry pod: not ready: the settings are not there\n"


def test_wrong_settings_are_not_retried(container: Container) -> None:
    """Exit code 2 is passed to kubelet: a restart does not help against a typing error."""
    container.start("exit 2")

    code, output = container.ended()

    assert (code, len(container.starts)) == (2, 1)
    assert "settings are wrong" in output


def test_repeated_crashes_delay_the_restart(container: Container) -> None:
    """The sixth crash within a minute causes a delay; a signal ends the wait."""
    container.start("exit 1")
    container.wait_for(lambda: len(container.starts) >= 6)
    container.wait_for(lambda: not Path(f"/proc/{container.starts[-1][0]}").exists())

    code, output = container.end()

    assert output.count("immediately (") == 5
    assert len(container.starts) >= 6
    assert code in (0, 1)


@pytest.mark.verify
def test_orphaned_process_is_reaped(container: Container) -> None:
    """A process that lost its parent becomes a child of process 1, and does not stay a zombie."""
    container.start("orphan")
    container.wait_ready()
    orphan = int((container.folder / "orphan").read_text())

    container.wait_for(lambda: not Path(f"/proc/{orphan}").exists())

    assert container.end()[0] == 0


def test_changed_arguments_restart_the_server(container: Container) -> None:
    """It gets the time that it needs to stop, which is not a crash; the container keeps running."""
    container.start("first")
    container.wait_ready()

    container.write_settings("second")
    container.wait_for(lambda: [settings for _, settings in container.starts] == ["first", "second"])
    container.wait_ready()
    code, output = container.end()

    assert code == 0
    assert "restarting it with new arguments" in output
    assert "crash" not in output
    assert (container.folder / "drained").exists()


def test_server_that_exits_just_before_sigterm_restarts(container: Container) -> None:
    """A signal to a process that has ended does not hide its end from the supervisor."""
    container.start("dies of a change")
    container.wait_ready()

    container.write_settings("second")
    container.wait_for(lambda: [settings for _, settings in container.starts] == ["dies of a change", "second"])
    container.wait_ready()

    assert container.end()[0] == 0


def test_alive_port_answers_while_the_server_is_down(container: Container) -> None:
    """Kubelet probes the supervisor, so a broker may take any time to recover."""
    [alive] = free_ports(1)
    container.start("exit 1", alive)

    container.wait_for(lambda: len(container.starts) >= 6)

    assert is_open(alive)
    container.end()


def test_alive_port_answers_on_both_families(container: Container) -> None:
    """A kubelet connects to the address of the pod, which may be of IPv4 or of IPv6."""
    [alive] = free_ports(1)
    container.start("", alive)
    container.wait_ready()

    assert [is_open(alive, host) for host in ("127.0.0.1", "::1")] == [True, True]
    container.end()


def is_open(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a connection is accepted and closed."""
    try:
        with socket.create_connection((host, port), timeout=60) as connection:
            return connection.recv(1) == b""
    except ConnectionRefusedError:
        return False
