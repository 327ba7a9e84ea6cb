"""Reads small files that others write: certificates, keys, secrets, settings.

A path in a configuration can lead anywhere. A pipe would block the reader for ever, a device or a forgotten log would
fill the memory, and a folder is a mistyped name. Each of these is an error at once that names the file.

The calls wait for the disk, so they run in a thread, never on the event loop.
"""

import errno
import os
import stat
from typing import Final

BYTES_MAX: Final = 1 << 20


def read_small_file(path: str) -> bytes:
    """Return the content of a file. Raises OSError with the path, also if it is no plain file or exceeds 1 MiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # a zero byte in a path
        raise OSError(errno.EINVAL, str(error), path) from error
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        raise OSError(errno.EINVAL, "it is not a file", path)
    with open(descriptor, "rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has {facts.st_size} bytes, and at most {BYTES_MAX} are read", path)
    return data
