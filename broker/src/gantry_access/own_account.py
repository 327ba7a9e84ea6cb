"""The account that a server itself signs with, read again before it signs: who renews it restarts nobody.

A file that cannot be used, or is gone, changes nothing: the account from before stays, and the log says what is wrong,
once for each such state. The first reading has nothing to fall back to, and so it refuses the start.
"""

import asyncio
import logging
from typing import final

from gantry_access.credentials import read_credentials
from gantry_access.errors import AccessFileError
from gantry_wire.signatures import Credentials

log = logging.getLogger(__name__)


@final
class OwnAccount:
    """One file, and who it says that we are. Owned by the event loop."""

    def __init__(self, path: str) -> None:
        """Read it for the first time. Blocking. Raises AccessFileError."""
        self.credentials: Credentials = read_credentials(path)
        self.former: Credentials | None = None
        """Who we were before, for servers that do not know yet who we are now: files reach machines one by one."""

        self._path = path
        self._fault = ""

    def __repr__(self) -> str:
        return f"<OwnAccount {self._path} fault={self._fault}>"

    async def refresh(self) -> None:
        """Be who the file says now."""
        try:
            found = await asyncio.to_thread(read_credentials, self._path)
        except AccessFileError as error:
            if self._fault != str(error):
                log.error("the own account cannot be read; the one from before stays", extra={"reason": str(error)})
            self._fault = str(error)
            return
        self._fault = ""
        if found != self.credentials:
            log.info("the own account was replaced", extra={"file": self._path})
            self.former, self.credentials = self.credentials, found
