"""The environment of one page: a folder and ports of its own, and a shell that finds this checkout's `gantry`.

    on the page               in the sandbox
    gantry up                 the same, on free ports
    127.0.0.1:9876            the port in its place, in commands, files, programs and expected output
    gantry, python            those of the environment that runs the tests

Programs are run by their toolchains (`toolchains`): those in Python with `-W error`, those in Java with a home in the
folder. Nothing else differs from what a reader types. Everything that a page leaves running is stopped at its end: a
command in a terminal gets SIGINT, and `gantry down` is called for each stack that is still up.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from gantry_pages.blocks import Block, Kind, missing_lines
from gantry_pages.toolchains import Python, Toolchain
from gantry_testing.ports import free_port_run

ROOT: Final = Path(__file__).resolve().parents[3]
DEADLINE_S: Final = 300.0
"""The time limit of one block. A machine that is busy with other tests is slow."""
NAME_SERVERS, BROKERS, SIDECARS = range(9876, 9880), range(10909, 10945), range(8080, 8090)
"""The ports that occur on pages."""


class PageFailed(Exception):
    """A block did not do what its page shows."""


@final
class Sandbox:
    """The environment of one page. Use it as a context manager."""

    def __init__(self, folder: Path, *, toolchains: Mapping[str, Toolchain] | None = None) -> None:
        self._folder: Final = folder
        self._toolchains: Final = {"python": Python(), **(toolchains or {})}
        self._ports: Final = _ports()
        self._background_commands: Final[list[_BackgroundCommand]] = []
        self._environment: Final = self._make_environment()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for command_process in reversed(self._background_commands):
            command_process.stop()
        for record in self._folder.glob("**/stack.json"):  # of each stack that is still up
            subprocess.run(
                ["gantry", "down", "--data", str(record.parent)], cwd=self._folder, env=self._environment,
                timeout=DEADLINE_S, check=False, capture_output=True,
            )  # fmt: skip

    def run(self, block: Block) -> None:
        """Run one block as a reader would. Raises PageFailed."""
        if block.reason or block.kind is Kind.ILLUSTRATION:
            return
        text = self._with_sandbox_ports(block.text)
        if block.kind is not Kind.COMMANDS:
            path = self._folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        if block.kind is Kind.FILE:
            return
        if block.ready_line:
            self._start_in_background(block, text)
            return
        for command in self._commands(block, text):
            done = self._run_shell(block, command)
            missing = list(missing_lines(tuple(map(self._with_sandbox_ports, block.expected)), done.stdout))
            if done.returncode != 0 or missing:
                raise PageFailed(
                    f"line {block.line}: exit code {done.returncode}, missing {missing}\n--- typed\n{command}\n"
                    f"--- printed\n{done.stdout}"
                )

    def _commands(self, block: Block, text: str) -> list[str]:
        """Return the shell commands of a block: a block is one call, which ends at the first failure."""
        if block.kind is Kind.COMMANDS:
            return [text]
        assert block.language in self._toolchains, f"a page with {block.language} needs a toolchain for it"
        return [self._toolchains[block.language].command(self._folder, block.name)]

    def _run_shell(self, block: Block, command: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], cwd=self._folder, env=self._environment, text=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=DEADLINE_S,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise PageFailed(f"line {block.line}: not done within {DEADLINE_S:.0f} s:\n{command}") from error

    def _start_in_background(self, block: Block, text: str) -> None:
        command_process = _BackgroundCommand(text, self._folder, self._environment)
        self._background_commands.append(command_process)
        expected = (*map(self._with_sandbox_ports, block.expected), self._with_sandbox_ports(block.ready_line))
        deadline = time.monotonic() + DEADLINE_S
        while list(missing_lines(expected, command_process.printed)):
            if command_process.process.poll() is not None or time.monotonic() > deadline:
                raise PageFailed(
                    f"line {block.line}: did not print {expected}:\n{text}\n---\n{command_process.printed}"
                )
            time.sleep(0.05)

    def _with_sandbox_ports(self, text: str) -> str:
        """Return the text with this sandbox's ports."""
        return re.sub(r"\b\d{4,5}\b", lambda match: str(self._ports.get(int(match[0]), match[0])), text)

    def _make_environment(self) -> Mapping[str, str]:
        programs = self._folder / "bin"
        programs.mkdir()
        options = (
            f"--namesrv-port {self._ports[9876]} --broker-port {self._ports[10911]}",
            f"--console-port {self._ports[8080]} --proxy-port {self._ports[8081]}",
        )
        gantry = f"{shlex.quote(sys.executable)} -m gantry_cli"
        _write_program(
            programs / "gantry",
            f'[ "${{1-}}" = up ] || exec {gantry} "$@"\nshift\n'
            f'case " $* " in *" --single "*) exec {gantry} up {options[0]} "$@" ;; esac\n'
            f'exec {gantry} up {" ".join(options)} "$@"\n',
        )
        _write_program(programs / "python", f'exec {shlex.quote(sys.executable)} "$@"\n')
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GANTRY_")}
        return kept | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}/broker/src:{ROOT}/broker/testkit:{ROOT}/operator/src",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder),
        }


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)


def _ports() -> dict[int, int]:
    moved: dict[int, int] = {}
    for ports in (NAME_SERVERS, BROKERS, SIDECARS):
        moved |= dict(zip(ports, range(first := free_port_run(len(ports)), first + len(ports)), strict=True))
    return moved


@final
class _BackgroundCommand:
    """A command that keeps running in the background."""

    def __init__(self, text: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.process: Final = subprocess.Popen(
            ["bash", "-c", f"set -e\n{text}"], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._lines: Final[list[str]] = []
        self._reader: Final = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def printed(self) -> str:
        return "".join(self._lines)

    def stop(self) -> None:
        """Send SIGINT to its process group, and SIGKILL to what is left when its shell ends, or after three minutes."""
        for number, patience_s in ((signal.SIGINT, 180.0), (signal.SIGKILL, 60.0)):
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
        self._reader.join(60.0)
        assert self.process.stdout is not None, "expected a pipe"
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None, "expected a pipe"
        for line in self.process.stdout:
            self._lines.append(line)
