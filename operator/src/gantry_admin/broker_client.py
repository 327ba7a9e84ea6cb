"""The sidecar as a client of its broker: a connection with TLS and signed requests where the broker requires them.

Files are reloaded when they have changed: certificates by the client at its next connection, the account here at the
next request, so neither needs a restart. Another address or another account makes another client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import AccessFileError, Credentials, OwnAccount, read_credentials
from gantry_admin.errors import Problem
from gantry_admin.link import BrokerLink
from gantry_admin.settings import BrokerPaths, BrokerTls
from gantry_client import Admin, ClientError, ClientSettings, ClientTlsSettings

Connect = Callable[[], Awaitable[tuple[Admin, str]]]
"""The type of ``BrokerClient.connect``, for callers that use only this method."""

REQUEST_TIMEOUT_MS: Final = 2_000
"""How long a request to the broker may take."""

CONNECT_TIMEOUT_MS: Final = 1_000


def client_tls(tls: BrokerTls) -> ClientTlsSettings | None:
    """Return the TLS settings for the broker's port; None for plain text."""
    if not tls.is_on:
        return None
    return ClientTlsSettings(
        authority_file=None if tls.authority is None else str(tls.authority),
        certificate_file=None if tls.certificate is None else str(tls.certificate),
        key_file=None if tls.key is None else str(tls.key),
        is_server_verified=tls.verify != "none",
        is_host_name_checked=tls.verify == "full",
        names=("--broker-tls-ca", "--broker-tls-cert", "--broker-tls-key"),
    )


@final
class BrokerClient:
    """The client of the broker's port. Owned by the event loop. Replacing it ends requests that are still pending."""

    def __init__(self, paths: BrokerPaths, link: BrokerLink) -> None:
        """``link`` reports the broker's address where ``paths`` names none."""
        self._paths: Final = paths
        self._link: Final = link
        self._admin: Admin | None = None
        self._connected_to: tuple[str, Credentials | OwnAccount | None] | None = None
        self._lock: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<BrokerClient {'' if self._connected_to is None else self._connected_to[0]}>"

    async def connect(self) -> tuple[Admin, str]:
        """Return a client and the broker's address. Raises ``AccessFileError``, and ``Problem`` without an address."""
        state = self._link.role_report.status
        address = self._paths.address or (state.address if state is not None else "")
        if not address:
            raise Problem(503, "the broker's address is unknown: set --broker, or wait until it reports it")
        async with self._lock:
            return await self._client_at(address), address

    async def broker_settings(self) -> dict[str, str]:
        """Return the broker's effective settings, as it reports them. Raises ``Problem`` 503."""
        try:
            admin, address = await self.connect()
            return await admin.brokers.config(address)
        except (ClientError, AccessFileError) as error:
            raise Problem(503, str(error)[:300]) from error

    async def name_servers(self) -> str:
        """Return the name servers at which the broker registers. Raises ``Problem`` 409 without any, and 503."""
        found = (await self.broker_settings()).get("namesrvAddr", "")
        if not found:
            raise Problem(409, "the broker registers with no name server, so the routes of topics are unknown")
        return found

    async def settings(self) -> ClientSettings:
        """Return the settings for clients of this broker: time limits, account and TLS. Raises ``AccessFileError``."""
        path = self._paths.credentials
        credentials = None if path is None else await asyncio.to_thread(read_credentials, path)
        return ClientSettings(
            request_timeout_ms=REQUEST_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS, credentials=credentials,
            tls=client_tls(self._paths.tls),
        )  # fmt: skip

    async def _client_at(self, address: str) -> Admin:
        settings = await self.settings()
        if self._admin is not None and self._connected_to == (address, settings.credentials):
            return self._admin
        await self.close()
        # No name server is ever asked: all requests go to one broker whose address is known.
        admin = Admin(address, client_settings=settings)
        await admin.start()
        self._admin, self._connected_to = admin, (address, settings.credentials)
        return admin

    async def close(self) -> None:
        """Close the connection, and end its pending requests."""
        admin, self._admin, self._connected_to = self._admin, None, None
        if admin is not None:
            await admin.close()
