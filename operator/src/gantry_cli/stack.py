"""A local stack: the directory of `gantry up`, and whether one runs there. ``local.state`` has the rest of its files.

    DIR/lock         held (flock) for as long as the stack runs: the only proof that it does
    DIR/stack.json   who holds it, and where it listens
    DIR/up.log       what `gantry up --detach` reports

A process id in a file proves nothing, because ids are used again; a lock dies with its process. So `down` and `status`
believe `stack.json` only while the lock is held.
"""

import fcntl
import os
from pathlib import Path
from typing import Final, Self, final

import msgspec

from gantry_remoting.durable_files import replace_file

DEFAULT_DIRECTORY: Final = Path(".gantry/local")


class StackRecord(msgspec.Struct, kw_only=True):
    """Who runs a stack, and where."""

    pid: int
    name_server: str
    broker: str
    broker_name: str
    started_at_ms: int
    is_detached: bool


class StackRunning(Exception):
    """Somebody runs this stack already. The caller should say who: `record` may be None in its first moments."""

    def __init__(self, record: StackRecord | None) -> None:
        super().__init__("the stack runs already")
        self.record = record


@final
class StackDirectory:
    """The files of one stack. Usable without a lock for looking; `claim` is for running."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: int | None = None

    def __repr__(self) -> str:
        return f"<StackDirectory {self.path} {'claimed' if self._lock is not None else 'free'}>"

    @property
    def record_file(self) -> Path:
        return self.path / "stack.json"

    @property
    def log(self) -> Path:
        return self.path / "up.log"

    # ------- running

    def claim(self) -> Self:
        """Make the directory ours until `release`. Raises StackRunning or OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise StackRunning(self._read()) from error
        self._lock = lock
        self.record_file.unlink(missing_ok=True)
        return self

    def write(self, record: StackRecord) -> None:
        """Tell others where we are."""
        assert self._lock is not None, "only whoever claimed the directory writes its record"
        replace_file(self.record_file, msgspec.json.encode(record), is_durable=False)

    def release(self) -> None:
        if self._lock is not None:
            self.record_file.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    # ------- looking

    def is_running(self) -> bool:
        """Whether somebody holds the lock now."""
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
        """Who runs the stack now, or None."""
        return self._read() if self.is_running() else None

    def _read(self) -> StackRecord | None:
        try:
            return msgspec.json.decode(self.record_file.read_bytes(), type=StackRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
