"""The accounts as the file has them now, read again when it changes.

Polled once a second by content, since that is right for everything that happens to such files: edited in place,
renamed over, a Kubernetes Secret whose `..data` link moves, a clock that stands. A file that cannot be used, or is
gone, changes nothing: the accounts from before stay, and the log says what is wrong, once for each such state. The
first reading has nothing to fall back to, and so it refuses the start.

What is read belongs to the event loop; reading and parsing happen in a thread.
"""

import asyncio
import logging
from typing import Final, final

from gantry_access.accounts import Accounts, read_accounts, read_file
from gantry_access.errors import AccessFileError
from gantry_access.settings import AccessMode

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 1.0
FILE_BYTES_MAX: Final = 16 * 1024 * 1024


@final
class AccountFile:
    """One file of accounts, and who is in it."""

    def __init__(self, path: str, mode: AccessMode) -> None:
        self.accounts = Accounts()
        """Nobody, until `load`."""
        self.fault: str | None = None
        """What is wrong with the file as it is now; the accounts are those from before then."""
        self.path: Final = path
        self._mode = mode
        self._data = b""

    def __repr__(self) -> str:
        return f"<AccountFile {self.path} accounts={len(self.accounts.by_key)} fault={self.fault}>"

    def load(self) -> None:
        """Read it for the first time. Blocking. Raises AccessFileError."""
        data = read_file(self.path, FILE_BYTES_MAX)
        self.accounts = read_accounts(data, self.path, self._mode)
        self._data = data
        log.info("accounts read", extra={"file": self.path, "accounts": len(self.accounts.by_key)})

    async def watch(self) -> None:
        """Keep the accounts as the file has them, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Look at the file once."""
        try:
            found = await asyncio.to_thread(self._look, self._data)
        except AccessFileError as error:
            if self.fault != str(error):
                self.fault = str(error)
                log.error("the file of accounts cannot be used; those from before stay", extra={"reason": self.fault})
            return
        if self.fault is not None:
            log.info("the file of accounts can be used again", extra={"file": self.path})
            self.fault = None
        if found is not None:
            self._data, self.accounts = found
            log.info("accounts changed", extra={"file": self.path, "accounts": len(self.accounts.by_key)})

    def _look(self, known: bytes) -> tuple[bytes, Accounts] | None:
        """What the file holds; None when it holds what is known. Runs in a thread and changes nothing."""
        data = read_file(self.path, FILE_BYTES_MAX)
        return None if data == known else (data, read_accounts(data, self.path, self._mode))
