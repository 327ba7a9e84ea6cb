"""The secret that all brokers of a group know, and that its file may say another one while we run.

    haSecretPath changes -> streams that begin from now on prove the new one; those that exist go on

The file may be written in place, renamed over, or be a mounted Kubernetes Secret whose `..data` link is turned: what is
in it counts, and it counts when two looks have seen the same, for somebody may be writing it. A file that is gone,
empty or no file at all is not used, since an empty secret lets everybody follow; the old one goes on, and the log says
why. The log never says what a secret is.

The brokers of a group see the change seconds or, with Kubernetes, a minute apart. A stream that breaks in between is
refused until both sides know the new one, and then made again by itself.
"""

import asyncio
import logging
from typing import Final, final

from gantry_remoting import read_small_file

log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 3.0


@final
class GroupSecret:
    """One file. Owned by the event loop; other threads only read it."""

    def __init__(self, path: str) -> None:
        """Without a path there is no secret."""
        self.current = b""
        self.trouble: str | None = None
        """Why what the file says now is not in use."""

        self._path: Final = path
        self._seen: bytes | str = b""
        """What the last look has found: a secret, or what is wrong."""

        self._watching: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<GroupSecret {self._path or 'none'} trouble={self.trouble}>"

    async def start(self) -> None:
        """Read it, and look again every few seconds until closed. Raises OSError that names the setting."""
        if self._path:
            self.current = await asyncio.to_thread(_secret_in, self._path)
            self._watching = asyncio.create_task(self._watch(), name="the group's secret")

    async def close(self) -> None:
        """Look no more."""
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait([watching])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self.look()

    async def look(self) -> None:
        """Use what the file says, if it can be used and was there at the last look, too."""
        found: bytes | str
        try:
            found = await asyncio.to_thread(_secret_in, self._path)
        except OSError as error:
            found = str(error)
        before, self._seen = self._seen, found
        if found == self.current:
            self.trouble = None
        elif found == before:
            self._take(found)

    def _take(self, found: bytes | str) -> None:
        if isinstance(found, bytes):
            self.current, self.trouble = found, None
            log.info("the group's secret was replaced", extra={"path": self._path})
        elif self.trouble != found:
            self.trouble = found
            log.error("the group's secret is not replaced, the old one goes on", extra={"reason": found})


def _secret_in(path: str) -> bytes:
    try:
        secret = read_small_file(path).strip()
    except OSError as error:
        raise OSError(f"cannot read haSecretPath={path}: {error.strerror}") from error
    if not secret:
        raise OSError(f"cannot use haSecretPath={path}: there is no secret in it, and everybody could follow")
    return secret
