"""A name server and a broker as real processes, for suites that kill or disturb them.

A `ServerProcess` is started with a command, prints one ready line on its standard output, writes everything else to a
log file, and is always ended by its own pid: a suite that fails must not leave a broker behind. All calls belong to one
event loop.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

from gantry_cli.processes import send_signal
from gantry_testing.tree import PYTHON_PATH

HOST: Final = "127.0.0.1"
READY_TIMEOUT_S: Final = 180.0
STOP_TIMEOUT_S: Final = 180.0
LOG_POLL_S: Final = 0.001
BROKER: Final = ("-m", "gantry_broker")
"""The arguments of Python that run the shipped broker."""


class ServerFailed(Exception):
    """A server did not start or end as expected. The text contains the end of its log."""


@final
class ServerProcess:
    """One server under test, which may be started again after it has ended."""

    def __init__(self, name: str, arguments: list[str], ready: str, directory: Path) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._arguments = arguments
        self._ready = ready
        self._directory = directory / f"{name}.cwd"
        self._process: asyncio.subprocess.Process | None = None

    def __repr__(self) -> str:
        return f"<ServerProcess {self.name} {'running' if self.is_running else 'ended'}>"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None, "asked for the pid before start"
        return self._process.pid

    @property
    def working_directory(self) -> Path:
        """The working directory of the process: an empty folder, so that a file at a relative path is detected."""
        return self._directory

    async def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        assert not self.is_running, "started twice"
        self._directory.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._arguments,
                cwd=self._directory, env=environment, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip

    async def wait_ready(self) -> str:
        """Wait for the ready line and return it. Raises ServerFailed if the process ends, or is not ready in time."""
        assert self._process is not None and self._process.stdout is not None, "wait_ready before launch"
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while line := (await self._process.stdout.readline()).decode().strip():
                    if line.startswith(self._ready):
                        return line
        except TimeoutError as error:
            await self.kill()
            raise ServerFailed(f"{self.name} was not ready in {READY_TIMEOUT_S:.0f} s\n{self.tail()}") from error
        await self._process.wait()
        raise ServerFailed(f"{self.name} ended with code {self._process.returncode} at start\n{self.tail()}")

    async def start(self) -> str:
        """Start the process and wait until it serves."""
        await self.launch()
        return await self.wait_ready()

    def send_signal(self, number: signal.Signals) -> None:
        """Send the process a signal, unless it has ended."""
        if self._process is not None:
            send_signal(self._process, number)

    async def ends_within(self, timeout_s: float) -> bool:
        """Wait for the process, and return whether it has ended in this time."""
        assert self._process is not None, "asked before start"
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> int:
        """Stop the process cleanly and return its exit code. Raises ServerFailed if it does not end."""
        if self._process is None:
            return 0
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill the process at once, as a crash does."""
        if self._process is not None:
            await self._end(signal.SIGKILL)

    async def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        send_signal(self._process, number)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                return await self._process.wait()
        except TimeoutError as error:
            send_signal(self._process, signal.SIGKILL)
            await self._process.wait()
            raise ServerFailed(f"{self.name} did not end on {number.name}\n{self.tail()}") from error

    @property
    def log_bytes(self) -> int:
        """The size of the log file, over all starts of the process."""
        return self.log.stat().st_size if self.log.exists() else 0

    def logged_since(self, start: int) -> str:
        """Return the log from byte `start` on."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    async def wait_logged(self, text: str, start: int) -> None:
        """Wait until the process logs `text` after byte `start`, or ends. Raises ServerFailed if neither comes in time.

        The file is polled: another process writes it, so there is no event to wait for.
        """
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while text not in self.logged_since(start) and self.is_running:  # noqa: ASYNC110
                    await asyncio.sleep(LOG_POLL_S)
        except TimeoutError as error:
            await self.kill()
            raise ServerFailed(f"{self.name} did not log {text!r} in {READY_TIMEOUT_S:.0f} s\n{self.tail()}") from error

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def anonymous_bytes(self) -> int:
        """Return the resident anonymous memory, which a leak would let grow."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"{self.name}: /proc/{self.pid}/status has no RssAnon")


def name_server(directory: Path, port: int, more: Sequence[str] = ()) -> ServerProcess:
    """Create a name server on `port` with its files below `directory`; `more` are options of its command."""
    arguments = ["-m", "gantry_nameserver", "--listen", f"{HOST}:{port}", "--data", str(directory / "nameserver")]
    arguments += more
    return ServerProcess("nameserver", arguments, "name server listening on", directory)


def broker(
    directory: Path, port: int, name_server_port: int, settings: Mapping[str, str], program: Sequence[str] = BROKER
) -> ServerProcess:
    """Create a broker on `port` with its store in `directory`/store; `settings` are keys of broker.conf.

    `program` are the arguments of Python before `-c broker.conf`.
    """
    pairs = {
        "brokerClusterName": "SuiteCluster",
        "brokerName": "suite-broker",
        "brokerIP1": HOST,
        "bindAddress": HOST,
        "listenPort": str(port),
        "fastListenPort": "-1",
        "namesrvAddr": f"{HOST}:{name_server_port}",
        "storePathRootDir": str(directory / "store"),
        **settings,
    }
    file = directory / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in pairs.items()))
    return ServerProcess("broker", [*program, "-c", str(file)], "broker listening on", directory)
