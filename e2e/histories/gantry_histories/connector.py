"""How clients connect to name servers and brokers: in plain text or with TLS, with or without an account.

Host names in certificates are not verified, because the clients connect to addresses, among them those of pods and
Services.
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
class ClientConnector:
    """Opens the connections of one load, all with the same TLS settings and account."""

    def __init__(self, authority: Path | None = None, account: Path | None = None) -> None:
        """Read the certificate authority for TLS and the file with the account. Raises if a file is invalid."""
        self._credentials: Final = None if account is None else read_credentials(account)
        self._tls: Final = None if authority is None else ssl.create_default_context(cafile=str(authority))
        if self._tls is not None:
            self._tls.check_hostname = False

    def __repr__(self) -> str:
        return f"<ClientConnector tls={self._tls is not None} account={self._credentials is not None}>"

    async def connect(self, address: str, *, timeout_ms: int = TIMEOUT_MS) -> Channel:
        """Open a connection. Raises ``CannotConnect``."""
        return await Channel.connect(address, timeout_ms=timeout_ms, tls=self._tls, sign=signer(self._credentials))
