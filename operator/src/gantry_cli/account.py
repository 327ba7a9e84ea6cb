"""As whom a command speaks: the account of `gantry --credentials FILE`, or of the environment, or nobody.

The options belong to `gantry` itself, since every command that talks to a cluster talks as somebody. The file is read
when a command first needs it.
"""

from pathlib import Path
from typing import Final

import click

from gantry_access import AccessFileError, Credentials, SignatureKind, read_credentials
from gantry_cli.errors import Mistyped
from gantry_cli.tls_options import client_tls
from gantry_client import ClientSettings

CREDENTIALS: Final = "gantry.credentials"
SIGNATURE: Final = "gantry.signature"
"""Where `gantry` leaves its options for its commands."""


def credentials() -> Credentials | None:
    """The account of this call. Raises Mistyped for a file that holds none."""
    path = _option(CREDENTIALS)
    if path is None:
        return None
    try:
        return read_credentials(path)
    except AccessFileError as error:
        remedy = "a file of credentials has two lines, accessKey: NAME and secretKey: SECRET"
        raise Mistyped(f"{error}", remedy) from error


def credentials_path() -> str | None:
    """Where the account of this call is kept, for a server that shall have the same one."""
    path = _option(CREDENTIALS)
    return None if path is None else str(Path(path).resolve())


def signature() -> SignatureKind:
    """How this call signs."""
    return SignatureKind(_option(SIGNATURE) or SignatureKind.V1)


def client_settings() -> ClientSettings:
    """The settings of every client that a command opens. Raises ValueError for options that contradict each other."""
    return ClientSettings(tls=client_tls(), credentials=credentials(), signature=signature())


def _option(name: str) -> str | None:
    context = click.get_current_context(silent=True)
    value = None if context is None else context.meta.get(name)
    return None if value is None else str(value)
