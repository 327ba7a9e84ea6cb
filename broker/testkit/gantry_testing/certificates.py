"""Certificates for tests, as files: made, replaced, and wrong on purpose.

A `Party` is a folder as a broker or client is given one: its chain, its key, and who signs the others. `replace` writes
the files as a careless administrator does, one after the other, in place; what renames and mounts do is up to the test.
"""

import asyncio
import contextlib
import ssl
from datetime import datetime
from pathlib import Path
from typing import Final, final

import trustme

from gantry_remoting import ClientTlsSettings, TlsMode, TlsSettings

DEADLINE_S: Final = 120.0
LOCAL_NAMES: Final = ("127.0.0.1", "localhost")


@final
class Party:
    """One who holds a certificate."""

    def __init__(
        self, folder: Path, authority: trustme.CA, *names: str, trusts: trustme.CA | None = None, **about: str
    ) -> None:
        """`trusts` is whose certificates it takes; its own authority's without it. `about` is for the subject."""
        folder.mkdir(parents=True, exist_ok=True)
        self.chain: Final = folder / "chain.pem"
        self.key: Final = folder / "key.pem"
        self.authority: Final = folder / "authority.pem"
        self._names: Final = names or LOCAL_NAMES
        self._about: Final = about
        self.replace(authority)
        self.trust(trusts or authority)

    def issued(
        self, authority: trustme.CA, *, not_before: datetime | None = None, not_after: datetime | None = None
    ) -> trustme.LeafCert:
        """A certificate for the same names that is in no file yet."""
        about = {key: value for key, value in self._about.items() if key in ("common_name", "organization_name")}
        return authority.issue_cert(
            *self._names,
            common_name=about.get("common_name"),
            organization_name=about.get("organization_name"),
            not_before=not_before,
            not_after=not_after,
        )

    def replace(
        self, authority: trustme.CA, *, not_before: datetime | None = None, not_after: datetime | None = None
    ) -> None:
        """Another certificate and key in the same files."""
        issued = self.issued(authority, not_before=not_before, not_after=not_after)
        self.chain.write_bytes(chain_of(issued))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def trust(self, *authorities: trustme.CA) -> None:
        """Take certificates of these, and of nobody else."""
        self.authority.write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))

    def server(self, mode: TlsMode = TlsMode.ENFORCING, *, needs_client: bool = False) -> TlsSettings:
        """As a listener's settings."""
        authority = str(self.authority) if needs_client else None
        return TlsSettings(mode, str(self.chain), str(self.key), authority, needs_client)

    def client(self, *, shows_certificate: bool = True) -> ClientTlsSettings:
        """As a client's settings."""
        return ClientTlsSettings(
            authority_file=str(self.authority),
            certificate_file=str(self.chain) if shows_certificate else None,
            key_file=str(self.key) if shows_certificate else None,
        )

    def replication(self) -> dict[str, str]:
        """As keys of a `broker.conf`."""
        return {
            "haTlsCertPath": str(self.chain),
            "haTlsKeyPath": str(self.key),
            "haTlsTrustCertPath": str(self.authority),
        }


def chain_of(issued: trustme.LeafCert) -> bytes:
    """The whole chain in PEM form."""
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


async def served_serial(port: int, context: ssl.SSLContext) -> str:
    """The number of the certificate that a new connection to `port` is shown. Raises what connecting raises."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return str(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def other_serial(port: int, context: ssl.SSLContext, old: str) -> str:
    """Wait until new connections are shown another certificate than `old`: its number."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            serial = await served_serial(port, context)
            if serial != old:
                return serial
            await asyncio.sleep(0.01)
