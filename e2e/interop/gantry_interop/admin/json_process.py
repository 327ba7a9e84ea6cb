"""A Java program that answers each line of JSON with one line of JSON.

Starting a virtual machine takes longer than most commands, so one machine runs them all. Other output of the program
(log libraries print greetings) is skipped: an answer begins with a brace.
"""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Final

from gantry_interop import java
from gantry_interop.errors import DeadlineExceeded, InteropError

END_SECONDS_MAX: Final = 20.0


class JsonProcess:
    """A running program; leaving the context ends it."""

    def __init__(self, program: java.Program, home: Path, log: Path) -> None:
        self.home: Final = home
        self._program = program
        self._log = log
        self._lines: Queue[str | None] = Queue()

    def __enter__(self) -> JsonProcess:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        command = self._program.command(self.home)
        with self._log.open("xb") as log:
            # The working directory is its home, because consumerStatus writes files to the working directory.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.home,
                env=java.environment(self.home), start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name="answers", daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(END_SECONDS_MAX)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._reader.join()

    def request(self, question: dict[str, Any], seconds_max: float) -> dict[str, Any]:
        """Return the answer to one request. Raises InteropError if none arrives in time."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            try:
                line = self._lines.get(timeout=seconds_max)
            except Empty:
                raise DeadlineExceeded(f"no answer within {seconds_max:.0f} s to {question}; see {self._log}") from None
            if line is None:
                raise InteropError(f"{self._program.main} ended at {question}; see {self._log}")
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            for line in stream:
                self._lines.put(line.decode("utf-8", "replace"))
        self._lines.put(None)
