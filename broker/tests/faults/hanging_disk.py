"""Run a broker over a disk that hangs on demand. A program, not a module to import.

    python hanging_disk.py FILE -m gantry_broker -c broker.conf

While FILE exists no sync of a file or a directory returns, as on a dead volume, but without root and for exactly as
long as a test needs. While it contains the word "fail", syncs fail at once. Progress of a recovery is reported every
ten records, so that it is visible with a short log, too.
"""

import errno
import os
import runpy
import sys
import time
from collections.abc import Callable

from gantry_broker.ports.real_disk import RealDisk, RealFile
from gantry_broker.store import recovery, scan_dispatcher

POLL_S = 0.005


def hang_while(path: str, owner: type, name: str) -> None:
    """Let a method wait until `path` is deleted before it does its work, or fail while it contains "fail"."""
    work: Callable[..., None] = getattr(owner, name)

    def hanging(*arguments: object) -> None:
        while (content := _read(path)) is not None:
            if content == "fail":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            time.sleep(POLL_S)
        work(*arguments)

    setattr(owner, name, hanging)


def _read(path: str) -> str | None:
    """Return the content of the file; None without one, since it may be deleted at any moment."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def main() -> None:
    path, option, module = sys.argv[1:4]
    assert option == "-m", f"expected -m MODULE, not {option}"
    hang_while(path, RealFile, "sync")
    hang_while(path, RealDisk, "sync_directory")
    scan_dispatcher.PROGRESS_RECORDS = 10  # type: ignore[misc]  # Constants everywhere but in this program.
    recovery.READ_AHEAD_BYTES = 4096  # type: ignore[misc]
    sys.argv = sys.argv[3:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
