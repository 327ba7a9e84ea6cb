"""A Spark Connect server in a process of its own, on a free port, for tests that also kill it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, final

import pyspark

from gantry_testing.ports import HOST, free_port

SPARK: Final = Path(pyspark.__file__).parent
START_TIMEOUT_S: Final = 90.0
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of each JVM, for programs that run for seconds."""
SETTINGS: Final = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.connect.grpc.binding.address": HOST,
}
"""Settings for a busy machine; those of a sample's spark-defaults.conf have less precedence."""


def spark_environment(**more: str) -> dict[str, str]:
    """Return the environment of a shell in which this virtual environment is active.

    `PYSPARK_PYTHON` is no path: Spark looks for no Python data sources if the path has a space.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    usual = {"PYSPARK_PYTHON": "python", "SPARK_LOCAL_IP": HOST, "JAVA_TOOL_OPTIONS": QUICK_START}
    return clean | usual | {"PATH": path} | more


@final
class Session:
    """A program and all processes that it started, in a session of the operating system."""

    def __init__(self, command: list[str], environment: Mapping[str, str], folder: Path, output: IO[bytes]) -> None:
        self.process = subprocess.Popen(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip

    def kill(self) -> None:
        """Kill all processes of the session with SIGKILL, and wait until none is left."""
        while members := _session_members(self.process.pid):
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()  # a killed child remains a member until it is reaped
            time.sleep(0.01)
        self.process.wait()


def _session_members(session: int) -> list[int]:
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(number) == session and state != "Z":
                found.append(int(folder.name))
    return found


@final
class ConnectServer:
    """A Connect server that is started from the installed package, and can be killed and started again."""

    def __init__(self, folder: Path, environment: Mapping[str, str], conf: Mapping[str, str]) -> None:
        self.url = ""
        self._folder = folder
        self._environment = environment
        self._conf = {**SETTINGS, **conf}
        self._session: Session | None = None
        folder.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Start the server on a free port, and wait until it accepts connections."""
        port = free_port()
        words = [word for key, value in self._conf.items() for word in ("--conf", f"{key}={value}")]
        command = [str(SPARK / "sbin" / "start-connect-server.sh"), "--wait", *words]
        command += ["--conf", f"spark.connect.grpc.binding.port={port}"]
        with self.log.open("ab") as output:
            session = self._session = Session(command, self._environment, self._folder, output)
        wait_until(lambda: session.process.poll() is not None or _accepts(port), START_TIMEOUT_S, "server starts")
        assert session.process.poll() is None, self.log.read_text()
        self.url = f"sc://{HOST}:{port}"

    def kill(self) -> None:
        """Kill the server, its JVM and its Python workers with SIGKILL."""
        if self._session is not None:
            self._session.kill()
            self._session = None

    @property
    def log(self) -> Path:
        return self._folder / "connect.log"

    def run(self, *command: str, timeout_s: float = 240) -> str:
        """Run a program with this server, and return its output; a failure has the server's log."""
        done = subprocess.run(
            command, env={**self._environment, "SPARK_REMOTE": self.url}, cwd=self._folder, capture_output=True,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr + self.log.read_text()[-4000:]
        return done.stdout


@contextmanager
def connect_server(
    folder: Path, environment: Mapping[str, str] | None = None, conf: Mapping[str, str] | None = None
) -> Iterator[ConnectServer]:
    """Run a server; all of its processes are killed at the end."""
    server = ConnectServer(folder, environment or spark_environment(), conf or {})
    try:
        server.start()
        yield server
    finally:
        server.kill()


def wait_until(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Wait until the condition holds. Raises AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.01)


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
