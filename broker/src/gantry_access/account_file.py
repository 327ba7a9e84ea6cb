"""The accounts of a file, reloaded when the file changes.

The file is polled once a second and compared by content, which detects every kind of change: an edit in place, a
rename, a Kubernetes Secret whose `..data` link moves, a clock that does not advance. If the file is unusable or
missing, the old accounts stay in effect, and the fault is logged once. The first read has no accounts to fall back to,
so an unusable file prevents the start.

The accounts belong to the event loop; reading and parsing run in a thread.
"""

import asyncio
import logging
from typing import Final, final

from gantry_access.accounts import Accounts, read_accounts, read_file
from gantry_access.errors import AccessFileError
from gantry_access.settings import AccessMode

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 1.0
"""How often the file is read."""
FILE_BYTES_MAX: Final = 16 * 1024 * 1024
"""The size above which a file of accounts is refused."""


@final
class AccountFile:
    """One file of accounts and its present accounts."""

    def __init__(self, path: str, mode: AccessMode) -> None:
        self.accounts = Accounts()
        """The present accounts; empty until `load`."""
        self.fault: str | None = None
        """Why the present file is unusable, while the previous accounts stay in effect; None if it is usable."""
        self.path: Final = path
        self._mode = mode
        self._data = b""

    def __repr__(self) -> str:
        return f"<AccountFile {self.path} accounts={len(self.accounts.by_key)} fault={self.fault}>"

    def load(self) -> None:
        """Read the file for the first time. Blocking. Raises AccessFileError."""
        data = read_file(self.path, FILE_BYTES_MAX)
        self.accounts = read_accounts(data, self.path, self._mode)
        self._data = data
        log.info("accounts loaded", extra={"file": self.path, "accounts": len(self.accounts.by_key)})

    async def watch(self) -> None:
        """Reload the accounts when the file changes, until cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            await self.refresh()

    async def refresh(self) -> None:
        """Check the file once, and reload it if it changed."""
        try:
            found = await asyncio.to_thread(self._read_if_changed, self._data)
        except AccessFileError as error:
            if self.fault != str(error):
                self.fault = str(error)
                log.error("account file is unusable; keeping the previous accounts", extra={"reason": self.fault})
            return
        if self.fault is not None:
            log.info("account file is usable again", extra={"file": self.path})
            self.fault = None
        if found is not None:
            self._data, self.accounts = found
            log.info("accounts reloaded", extra={"file": self.path, "accounts": len(self.accounts.by_key)})

    def _read_if_changed(self, known: bytes) -> tuple[bytes, Accounts] | None:
        """Read the file; return None if its content is `known`. Runs in a thread and changes no state."""
        data = read_file(self.path, FILE_BYTES_MAX)
        return None if data == known else (data, read_accounts(data, self.path, self._mode))
