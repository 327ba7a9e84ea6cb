"""The secret that all brokers of a group share, reloaded while the broker runs.

    haSecretPath changes -> new streams prove the new secret; existing streams continue

The file may be written in place, renamed over, or be a mounted Kubernetes Secret whose `..data` link is replaced: only
its content counts, and only when two checks have found the same, since it may be in the middle of a write. A file that
is missing, empty or not a regular file is not used, since an empty secret lets any broker follow; the old secret stays
in use, and the log has the reason. A secret itself is never logged.

The brokers of a group notice the change seconds or, with Kubernetes, a minute apart. A stream that breaks in between is
refused until both sides have the new secret, and is then restored automatically.
"""

import asyncio
import logging
from typing import Final, final

from gantry_remoting import FileWatch, read_secret

log = logging.getLogger(__name__)


@final
class GroupSecret:
    """The secret in one file. Owned by the event loop; other threads only read it."""

    def __init__(self, path: str) -> None:
        """An empty path means that there is no secret."""
        self.current = b""
        """The secret in use; empty without one."""
        self.problem: str | None = None
        """Why the content of the file is not in use; None if it is."""

        self._path: Final = path
        self._found: bytes | str = b""
        """Result of the last check: a secret, or the reason why there is none."""

        self._watch: Final = FileWatch("the group's secret", self.check)

    def __repr__(self) -> str:
        return f"<GroupSecret {self._path or 'none'} problem={self.problem}>"

    async def start(self) -> None:
        """Read the secret, and check it every few seconds until closed. Raises OSError that names the setting."""
        if self._path:
            self.current = await asyncio.to_thread(_read_secret, self._path)
            self._watch.start()

    async def close(self) -> None:
        """Stop checking the file for changes."""
        await self._watch.close()

    async def check(self) -> None:
        """Use the content of the file, if it is usable and was the same at the last check."""
        found: bytes | str
        try:
            found = await asyncio.to_thread(_read_secret, self._path)
        except OSError as error:
            found = str(error)
        before, self._found = self._found, found
        if found == self.current:
            self.problem = None
        elif found == before:
            self._adopt(found)

    def _adopt(self, found: bytes | str) -> None:
        if isinstance(found, bytes):
            self.current, self.problem = found, None
            log.info("replication secret replaced", extra={"path": self._path})
        elif self.problem != found:
            self.problem = found
            log.error("replication secret not replaced; the old one stays in use", extra={"reason": found})


def _read_secret(path: str) -> bytes:
    return read_secret(path, "haSecretPath", "any broker could follow")
