"""How clients come in: with plain text or TLS, as nobody or with an account. The same way to name servers and brokers.

Names in certificates are not compared: what is connected to here are addresses, of pods and Services among them.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, final

from gantry_access import read_credentials
from gantry_access.signing import signer
from gantry_remoting import Channel

TIMEOUT_MS: Final = 3_000


@final
class Door:
    """Of one load."""

    def __init__(self, authority: Path | None = None, account: Path | None = None) -> None:
        """Who signs the servers' certificates, for TLS, and a file with an account. Raises for files that are none."""
        self._credentials: Final = None if account is None else read_credentials(account)
        self._tls: Final = None if authority is None else ssl.create_default_context(cafile=str(authority))
        if self._tls is not None:
            self._tls.check_hostname = False

    def __repr__(self) -> str:
        return f"<Door tls={self._tls is not None} account={self._credentials is not None}>"

    async def connect(self, address: str, *, timeout_ms: int = TIMEOUT_MS) -> Channel:
        """A connection. Raises ``CannotConnect``."""
        return await Channel.connect(address, timeout_ms=timeout_ms, tls=self._tls, sign=signer(self._credentials))
