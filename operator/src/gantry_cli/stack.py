"""The directory of a local stack, and the check whether a stack runs there.

A stack is a local group that `gantry up` runs, with its name servers and supervisor.

    DIR/lock         held (flock) as long as the stack runs; the only proof that it runs
    DIR/stack.json   the process that holds the lock, and its addresses
    DIR/up.log       the output of `gantry up --detach`

A process id in a file proves nothing, since ids are reused; a lock is released when its process dies. `down` and
`status` therefore trust `stack.json` only while the lock is held. ``local.state`` describes the other files of the
directory.

To see whether the lock is held, they take a shared lock for a moment. `claim` waits for such a moment to pass.
"""

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self, final

import msgspec

from gantry_remoting.durable_files import replace_file

DEFAULT_DIRECTORY: Final = Path(".gantry/local")
CLAIM_TRIES: Final = 20
"""How often `claim` tries to take the lock. A stack holds it for long, `is_running` of another command for a moment."""
CLAIM_PAUSE_S: Final = 0.01


class StackRecord(msgspec.Struct, kw_only=True):
    """The process that runs a stack, and the addresses of the stack."""

    pid: int
    name_server: str
    broker: str
    broker_name: str
    started_at_ms: int
    is_detached: bool
    """Whether it runs in the background, by `gantry up --detach`."""


class StackRunningError(Exception):
    """Another process runs this stack. `record` names it; it is None while that process is starting."""

    def __init__(self, record: StackRecord | None) -> None:
        super().__init__("the stack is already running")
        self.record = record


@final
class StackDirectory:
    """The files of one stack. Reading needs no lock; `claim` takes it to run the stack."""

    def __init__(self, path: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self.path = path.absolute()
        self._sleep = sleep
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<StackDirectory {self.path} {'claimed' if self._lock is not None else 'free'}>"

    @property
    def record_file(self) -> Path:
        return self.path / "stack.json"

    @property
    def log(self) -> Path:
        return self.path / "up.log"

    # ------- methods of the process that runs the stack

    def claim(self) -> Self:
        """Take the lock of the directory until `release`. Raises StackRunningError or OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        for rest in reversed(range(CLAIM_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if not rest:
                    os.close(lock)
                    raise StackRunningError(self._read()) from error
                self._sleep(CLAIM_PAUSE_S)
        self._lock = lock
        self.record_file.unlink(missing_ok=True)
        return self

    def write(self, record: StackRecord) -> None:
        """Write the record for other processes. The caller must hold the lock."""
        assert self._lock is not None, "the record is written only under the lock"
        replace_file(self.record_file, msgspec.json.encode(record), is_durable=False)

    def release(self) -> None:
        if self._lock is not None:
            self.record_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    # ------- methods of other processes

    def is_running(self) -> bool:
        """Return whether a process holds the lock."""
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def running(self) -> StackRecord | None:
        """Return the record of the stack that is running, or None."""
        return self._read() if self.is_running() else None

    def _read(self) -> StackRecord | None:
        try:
            return msgspec.json.decode(self.record_file.read_bytes(), type=StackRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
