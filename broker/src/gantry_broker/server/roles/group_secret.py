"""The secret that all brokers of a group know, read again while the broker runs.

    haSecretPath changes -> streams that begin from now on prove the new one; those that exist go on

The file may be written in place, renamed over, or be a mounted Kubernetes Secret whose `..data` link is turned: what is
in it counts, and it counts when two checks have found the same, since it may be in the middle of a write. A file that
is gone, empty or no file at all is not used, since an empty secret lets any broker follow; the old secret stays in use,
and the log has the reason. A secret itself is never logged.

The brokers of a group see the change seconds or, with Kubernetes, a minute apart. A stream that breaks in between is
refused until both sides know the new one, and then made again by itself.
"""

import asyncio
import logging
from typing import Final, final

from gantry_remoting import FileWatch, read_small_file

log = logging.getLogger(__name__)


@final
class GroupSecret:
    """One file. Owned by the event loop; other threads only read it."""

    def __init__(self, path: str) -> None:
        """Without a path there is no secret."""
        self.current = b""
        self.trouble: str | None = None
        """Why what is in the file now is not in use."""

        self._path: Final = path
        self._found: bytes | str = b""
        """What the last check has found: a secret, or what is wrong."""

        self._watch: Final = FileWatch("the group's secret", self.check)

    def __repr__(self) -> str:
        return f"<GroupSecret {self._path or 'none'} trouble={self.trouble}>"

    async def start(self) -> None:
        """Read it, and check it every few seconds until closed. Raises OSError that names the setting."""
        if self._path:
            self.current = await asyncio.to_thread(_secret_in, self._path)
            self._watch.start()

    async def close(self) -> None:
        """Stop checking."""
        await self._watch.close()

    async def check(self) -> None:
        """Use what is in the file, if it can be used and was there at the last check, too."""
        found: bytes | str
        try:
            found = await asyncio.to_thread(_secret_in, self._path)
        except OSError as error:
            found = str(error)
        before, self._found = self._found, found
        if found == self.current:
            self.trouble = None
        elif found == before:
            self._take(found)

    def _take(self, found: bytes | str) -> None:
        if isinstance(found, bytes):
            self.current, self.trouble = found, None
            log.info("replication secret replaced", extra={"path": self._path})
        elif self.trouble != found:
            self.trouble = found
            log.error("replication secret not replaced; the old one stays in use", extra={"reason": found})


def _secret_in(path: str) -> bytes:
    try:
        secret = read_small_file(path).strip()
    except OSError as error:
        raise OSError(f"cannot read haSecretPath={path}: {error.strerror}") from error
    if not secret:
        raise OSError(f"cannot use haSecretPath={path}: there is no secret in it, and everybody could follow")
    return secret
