"""The file of the control socket: there whole or not at all, and for its own user alone.

    bind <path>.<pid>  --chmod 0600-->  listen  --rename-->  <path>

Nobody can connect before it listens, so there is no moment at which others could, and none at which the path leads to a
socket that refuses. What a dead broker left at the path is replaced. A living one's would be, too: that there is none
is what the lock of the store is for, so take that first.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from typing import Final, final

from gantry_status.socket_path import socket_address

BACKLOG: Final = 64


@final
class SocketFile:
    """A listening socket with a name. One thread at a time."""

    def __init__(self, path: str) -> None:
        """Listen at ``path``. Raises OSError with the path in it; something there that is no socket is left alone."""
        self.path: Final = path
        _refuse_other_file(path)
        temporary = f"{path}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        self.socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with socket_address(temporary) as address:
                self.socket.bind(address)
            os.chmod(temporary, 0o600)
            self.socket.listen(BACKLOG)
            self._identity: Final = _identity(temporary)
            os.replace(temporary, path)
        except BaseException as error:
            self.socket.close()
            with suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError) and error.filename is None:
                raise OSError(error.errno, error.strerror or str(error), path) from error
            raise

    def remove(self) -> None:
        """Take the name away, if it still leads to this socket. The socket itself is its server's."""
        with suppress(FileNotFoundError):
            if _identity(self.path) == self._identity:
                os.unlink(self.path)


def _identity(path: str) -> tuple[int, int]:
    facts = os.lstat(path)
    return facts.st_dev, facts.st_ino


def _refuse_other_file(path: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise FileExistsError(17, "there is a file at the path of the control socket, and it is no socket", path)
