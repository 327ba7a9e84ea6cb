"""The file with the credentials that sign requests: `accessKey` and `secretKey`, as in RocketMQ's `tools.yml`.

Secrets come from files, never from arguments or settings: those are logged, visible to other users of the machine, and
returned to clients that may read the configuration.
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
"""The size above which a file of credentials is refused."""


def read_credentials(path: Path | str, *, waits: bool = True) -> Credentials:
    """Read the credentials in a file. Raises AccessFileError that names the file and the fault.

    A command may read from a pipe and waits for its writer; a server reads without ``waits``.
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
        raise AccessFileError(f"unknown field {unknown[0][:64]!r}; expected one of {', '.join(sorted(_KNOWN))}")
    values: dict[str, str] = {}
    for name, value in document.items():
        if value is None:
            continue
        if not isinstance(value, str):
            raise AccessFileError(f"{name} must be a string")
        values[name] = value
    for name in ("accessKey", "secretKey"):
        if not values.get(name):
            raise AccessFileError(f"{name} is missing")
    return Credentials(values["accessKey"], values["secretKey"], values.get("securityToken"))


@final
class OwnAccount:
    """The credentials with which a server signs. A caller of ``refresh`` reloads them: a renewal needs no restart.

    If the file is unusable or missing, the previous credentials stay in effect, and the fault is logged once. The first
    read has none to fall back to, so an unusable file prevents the start. Owned by the event loop.
    """

    def __init__(self, path: str) -> None:
        """Read the file for the first time. Blocking. Raises AccessFileError."""
        self.credentials: Credentials = read_credentials(path, waits=False)
        self.previous: Credentials | None = None
        """The previous credentials, for servers that do not have the new account yet: files are not updated at once."""

        self._path = path
        self._fault = ""

    def __repr__(self) -> str:
        return f"<OwnAccount {self._path} fault={self._fault}>"

    async def refresh(self) -> None:
        """Reload the credentials if the file has changed."""
        try:
            found = await asyncio.to_thread(read_credentials, self._path, waits=False)
        except AccessFileError as error:
            if self._fault != str(error):
                log.error(
                    "credentials file is unusable; keeping the previous credentials", extra={"reason": str(error)}
                )
            self._fault = str(error)
            return
        self._fault = ""
        if found != self.credentials:
            log.info("credentials reloaded", extra={"file": self._path})
            self.previous, self.credentials = self.credentials, found
