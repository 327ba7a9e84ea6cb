"""Reading of small files that other programs write: certificates, keys, secrets, settings.

A path in a configuration can name anything. A pipe would block the reader for ever, a device or a large log would fill
the memory, and a folder is a typing error. Each of these raises an error at once that names the file.

The calls wait for the disk, so they run in a thread, never on the event loop.
"""

import errno
import os
import stat
from typing import Final

BYTES_MAX: Final = 1 << 20
"""The size above which a file is refused."""


def read_small_file(path: str) -> bytes:
    """Return the content of a file. Raises OSError with the path, also if it is no regular file or exceeds 1 MiB."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as error:  # the path contains a zero byte
        raise OSError(errno.EINVAL, str(error), path) from error
    file_status = os.fstat(descriptor)
    if not stat.S_ISREG(file_status.st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(file_status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory", path)
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    with open(descriptor, "rb") as file:
        data = file.read(BYTES_MAX + 1)
    if len(data) > BYTES_MAX:
        raise OSError(errno.EFBIG, f"it has {file_status.st_size} bytes, and at most {BYTES_MAX} are read", path)
    return data
