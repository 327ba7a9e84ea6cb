"""The account of a command: from `gantry --credentials FILE`, from the environment, or none.

The options belong to `gantry` itself, since every command that connects to a cluster uses them. The file is read when a
command first needs it.
"""

from pathlib import Path
from typing import Final

import click

from gantry_access import AccessFileError, Credentials, SignatureKind, read_credentials
from gantry_cli.errors import InvalidInput
from gantry_cli.tls_options import client_tls
from gantry_client import ClientSettings

CREDENTIALS: Final = "gantry.credentials"
"""The key in click's context under which `gantry` keeps the path of the credentials file."""

SIGNATURE: Final = "gantry.signature"
"""The key in click's context under which `gantry` keeps the signature option for its commands."""


def credentials() -> Credentials | None:
    """Return the account of this call, or None. Raises InvalidInput for a file without credentials."""
    path = _option(CREDENTIALS)
    if path is None:
        return None
    try:
        return read_credentials(path)
    except AccessFileError as error:
        remedy = "a credentials file has two lines, accessKey: NAME and secretKey: SECRET"
        raise InvalidInput(f"{error}", remedy) from error


def credentials_path() -> str | None:
    """Return the absolute path of the credentials file, for a server that uses the same account."""
    path = _option(CREDENTIALS)
    return None if path is None else str(Path(path).resolve())


def account_options() -> list[str]:
    """Return the options of ``gantry`` with which another process uses the same account."""
    path = credentials_path()
    return [] if path is None else ["--credentials", path, "--signature", signature().value]


def signature() -> SignatureKind:
    """Return the signature scheme of this call."""
    return SignatureKind(_option(SIGNATURE) or SignatureKind.V1)


def client_settings() -> ClientSettings:
    """Return the settings of every client that a command opens.

    Raises ValueError or click's UsageError for contradictory TLS options, InvalidInput for an unusable account file.
    """
    return ClientSettings(tls=client_tls(), credentials=credentials(), signature=signature())


def _option(name: str) -> str | None:
    context = click.get_current_context(silent=True)
    value = None if context is None else context.meta.get(name)
    return None if value is None else str(value)
