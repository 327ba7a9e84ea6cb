"""The file in which whoever signs keeps its account: `accessKey` and `secretKey`, as in RocketMQ's `tools.yml`.

Secrets come from files, never from arguments or settings: those are logged, shown to other users of the machine, and
answered to whoever may ask for a configuration.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final, final

from gantry_access.accounts import read_document, read_file
from gantry_access.errors import AccessFileError
from gantry_wire.signatures import Credentials

log = logging.getLogger(__name__)

_KNOWN: Final = frozenset({"accessKey", "secretKey", "securityToken"})
FILE_BYTES_MAX: Final = 64 * 1024


def read_credentials(path: Path | str, *, waits: bool = True) -> Credentials:
    """The account in a file. Raises AccessFileError that names the file and what is wrong with it.

    A command may be given a pipe, whose writer may be slower; a server reads without ``waits``.
    """
    data = read_file(str(path), FILE_BYTES_MAX, waits=waits)
    try:
        return _credentials(data)
    except AccessFileError as error:
        raise AccessFileError(f"{path}: {error}") from error


def _credentials(data: bytes) -> Credentials:
    document = read_document(data)
    unknown = sorted(set(document) - _KNOWN)
    if unknown:
        raise AccessFileError(f"unknown field {unknown[0][:64]!r}; known are {', '.join(sorted(_KNOWN))}")
    values: dict[str, str] = {}
    for name, value in document.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise AccessFileError(f"{name} is a text")
        values[name] = value
    for name in ("accessKey", "secretKey"):
        if not values.get(name):
            raise AccessFileError(f"{name} is missing")
    return Credentials(values["accessKey"], values["secretKey"], values.get("securityToken"))


@final
class OwnAccount:
    """The account that a server signs with, read again before it signs, so that renewing it restarts nothing.

    A file that cannot be used, or is gone, changes nothing: the account from before stays, and the log says what is
    wrong, once for each such state. The first reading has nothing to fall back to, so it refuses the start. Owned by
    the event loop.
    """

    def __init__(self, path: str) -> None:
        """Read it for the first time. Blocking. Raises AccessFileError."""
        self.credentials: Credentials = read_credentials(path, waits=False)
        self.former: Credentials | None = None
        """The account before, for servers that do not know the new one yet: files reach machines one by one."""

        self._path = path
        self._fault = ""

    def __repr__(self) -> str:
        return f"<OwnAccount {self._path} fault={self._fault}>"

    async def refresh(self) -> None:
        """Take the account that is in the file now."""
        try:
            found = await asyncio.to_thread(read_credentials, self._path, waits=False)
        except AccessFileError as error:
            if self._fault != str(error):
                log.error("the own account cannot be read; the one from before stays", extra={"reason": str(error)})
            self._fault = str(error)
            return
        self._fault = ""
        if found != self.credentials:
            log.info("the own account was replaced", extra={"file": self._path})
            self.former, self.credentials = self.credentials, found
