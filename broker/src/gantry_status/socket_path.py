"""Short names for Unix sockets whose path is too long for a socket address.

The kernel takes 108 bytes, including the final zero, for the path of a socket. For a longer path the directory is
opened, and the socket is named through it: ``/proc/self/fd/9/control.sock`` is the same file while the directory is
open.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ADDRESS_BYTES_MAX: Final = 107
"""The longest path that a socket address holds."""


@contextmanager
def socket_address(path: str) -> Iterator[str]:
    """Yield a name of ``path`` to bind or connect to inside of the ``with`` block.

    Raises OSError with the path if its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        yield path
        return
    directory, name = os.path.split(path)
    try:
        descriptor = os.open(directory or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)
