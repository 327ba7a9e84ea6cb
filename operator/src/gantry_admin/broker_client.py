"""The sidecar as a client of its broker: a connection with TLS and a signature where the broker wants them.

Files are read again when they have changed: certificates by the client itself at its next connection, the account here
at the next question, so that neither needs a restart. Another address or another account makes another client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, final

from gantry_access import AccessFileError, Credentials, read_credentials
from gantry_admin.errors import Problem
from gantry_admin.link import BrokerLink
from gantry_admin.settings import BrokerPaths, BrokerTls
from gantry_client import Admin, ClientError, ClientSettings, ClientTlsSettings

Connect = Callable[[], Awaitable[tuple[Admin, str]]]
"""``BrokerClient.connected``, for those who need no more of it."""

REQUEST_TIMEOUT_MS: Final = 2_000
CONNECT_TIMEOUT_MS: Final = 1_000


def client_tls(tls: BrokerTls) -> ClientTlsSettings | None:
    """How the broker's port is spoken to; None is plain text."""
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
    """Owned by the event loop. A client that is replaced ends the questions that are still asked with it."""

    def __init__(self, paths: BrokerPaths, link: BrokerLink) -> None:
        """``link`` reports the broker's address where ``paths`` names none."""
        self._paths: Final = paths
        self._link: Final = link
        self._admin: Admin | None = None
        self._made_of: tuple[str, Credentials | None] | None = None
        self._turn: Final = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<BrokerClient {'' if self._made_of is None else self._made_of[0]}>"

    async def connected(self) -> tuple[Admin, str]:
        """A client, and the broker's address. Raises ``AccessFileError``, and ``Problem`` without an address."""
        word = self._link.word.status
        address = self._paths.address or (word.address if word is not None else "")
        if not address:
            raise Problem(503, "its address is not known yet: give --broker, or wait until it answers orders")
        async with self._turn:
            return await self._at(address), address

    async def broker_settings(self) -> dict[str, str]:
        """The broker's effective settings, as it reports them. Raises ``Problem`` 503."""
        try:
            admin, address = await self.connected()
            return await admin.brokers.config(address)
        except (ClientError, AccessFileError) as error:
            raise Problem(503, str(error)[:300]) from error

    async def settings(self) -> ClientSettings:
        """What any client of ours needs to be heard by this broker. Raises ``AccessFileError``."""
        path = self._paths.credentials
        credentials = None if path is None else await asyncio.to_thread(read_credentials, path)
        return ClientSettings(
            request_timeout_ms=REQUEST_TIMEOUT_MS, connect_timeout_ms=CONNECT_TIMEOUT_MS, credentials=credentials,
            tls=client_tls(self._paths.tls),
        )  # fmt: skip

    async def _at(self, address: str) -> Admin:
        settings = await self.settings()
        if self._admin is not None and self._made_of == (address, settings.credentials):
            return self._admin
        await self.close()
        # No name server is ever asked: the questions are to one broker whose address is known.
        admin = Admin(address, client_settings=settings)
        await admin.start()
        self._admin, self._made_of = admin, (address, settings.credentials)
        return admin

    async def close(self) -> None:
        """End the connection."""
        admin, self._admin, self._made_of = self._admin, None, None
        if admin is not None:
            await admin.close()
