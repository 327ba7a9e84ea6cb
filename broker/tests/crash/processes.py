"""A name server and a broker as real processes, for suites that hurt them.

Nothing here knows what the suites look for. A `ServerProcess` is started with a command, says one ready line on its
standard output, writes everything else to a log file, and is always ended by its own pid: a suite that fails must not
leave a broker behind. All calls belong to one event loop.
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


class ServerFailed(Exception):
    """A server did not start, or not end, as it should. The text holds the end of its log."""


@final
class ServerProcess:
    """One server under test; may be started again after it has ended."""

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
        """Where the process runs: an empty folder, so that a file written by a relative path is noticed."""
        return self._directory

    async def launch(self) -> None:
        """Start it without waiting until it is ready."""
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
        """The ready line. Raises ServerFailed when the process ends or says nothing in time."""
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
        """Launch and wait until it serves."""
        await self.launch()
        return await self.wait_ready()

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self._process is not None:
            send_signal(self._process, number)

    async def ends_within(self, timeout_s: float) -> bool:
        """Whether it ends by itself in this time."""
        assert self._process is not None, "asked before start"
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> int:
        """A clean stop; the exit code. Raises ServerFailed when it does not end."""
        if self._process is None:
            return 0
        return await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it at once, as a crash does."""
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
        """How much it has logged so far, over all its lives."""
        return self.log.stat().st_size if self.log.exists() else 0

    def logged_since(self, start: int) -> str:
        """What it has logged from byte `start` on."""
        with self.log.open("rb") as log:
            log.seek(start)
            return log.read().decode(errors="replace")

    async def wait_logged(self, text: str, start: int) -> None:
        """Wait until it logs `text` after byte `start`, or ends. Raises ServerFailed when it does neither in time.

        By looking again and again: it is another process's file, and there is no event to wait for.
        """
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while text not in self.logged_since(start) and self.is_running:  # noqa: ASYNC110
                    await asyncio.sleep(LOG_POLL_S)
        except TimeoutError as error:
            await self.kill()
            raise ServerFailed(f"{self.name} did not log {text!r} in {READY_TIMEOUT_S:.0f} s\n{self.tail()}") from error

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def anonymous_bytes(self) -> int:
        """Resident memory that is no file: what a leak would make grow."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        raise ServerFailed(f"{self.name}: /proc/{self.pid}/status has no RssAnon")


def name_server(directory: Path, port: int, more: Sequence[str] = ()) -> ServerProcess:
    """A name server on `port`, its files below `directory`; `more` are options of its command."""
    arguments = ["-m", "gantry_nameserver", "--listen", f"{HOST}:{port}", "--data", str(directory / "nameserver")]
    arguments += more
    return ServerProcess("nameserver", arguments, "name server listening on", directory)


def broker(
    directory: Path, port: int, name_server_port: int, settings: Mapping[str, str], program: Sequence[str] = BROKER
) -> ServerProcess:
    """A broker on `port` with its store in `directory`/store; `settings` are keys of broker.conf.

    `program` is what Python runs, before `-c broker.conf`.
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
