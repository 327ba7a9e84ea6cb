"""Files that somebody else writes and we only read: certificates, keys, secrets. They are small, or they are wrong.

A path in a configuration may lead anywhere. A pipe would hold the reader for ever, a device or a forgotten log would
fill the memory, and a folder is a mistyped name. All of that is an error at once, in words that say which file it was.
"""

import errno
import os
import stat
from typing import Final

BYTES_MAX: Final = 1 << 20


def read_small_file(path: str) -> bytes:
    """Everything in it. Raises OSError with the path, also for what is no plain file or has more than 1 MiB."""
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
