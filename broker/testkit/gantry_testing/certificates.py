"""Certificates for tests, as files: valid, replaced, and invalid on purpose.

A `Party` is the certificate folder of a broker or client: its chain, its key, and its trusted authority. `replace`
writes the files one after the other, in place, as a careless administrator does; tests of renames and mounts do those
themselves.
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
    """A broker or client with a certificate."""

    def __init__(
        self, folder: Path, authority: trustme.CA, *names: str, trusts: trustme.CA | None = None, **about: str
    ) -> None:
        """Issue the first certificate. `trusts` is the trusted authority, by default its own. `about` is for the
        subject.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.chain: Final = folder / "chain.pem"
        self.key: Final = folder / "key.pem"
        self.authority: Final = folder / "authority.pem"
        self._names: Final = names or LOCAL_NAMES
        self._about: Final = about
        self.replace(authority)
        self.trust(trusts or authority)

    def issue(
        self, authority: trustme.CA, *, not_before: datetime | None = None, not_after: datetime | None = None
    ) -> trustme.LeafCert:
        """Return a new certificate for the same names without writing it to a file."""
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
        """Write another certificate and key to the same files."""
        issued = self.issue(authority, not_before=not_before, not_after=not_after)
        self.chain.write_bytes(chain_of(issued))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def trust(self, *authorities: trustme.CA) -> None:
        """Trust exactly the certificates of these authorities."""
        self.authority.write_bytes(b"".join(authority.cert_pem.bytes() for authority in authorities))

    def server(self, mode: TlsMode = TlsMode.ENFORCING, *, needs_client: bool = False) -> TlsSettings:
        """Return the settings of a listener."""
        authority = str(self.authority) if needs_client else None
        return TlsSettings(mode, str(self.chain), str(self.key), authority, needs_client)

    def client(self, *, shows_certificate: bool = True) -> ClientTlsSettings:
        """Return the settings of a client."""
        return ClientTlsSettings(
            authority_file=str(self.authority),
            certificate_file=str(self.chain) if shows_certificate else None,
            key_file=str(self.key) if shows_certificate else None,
        )

    def replication(self) -> dict[str, str]:
        """Return the keys of a `broker.conf` for replication."""
        return {
            "haTlsCertPath": str(self.chain),
            "haTlsKeyPath": str(self.key),
            "haTlsTrustCertPath": str(self.authority),
        }


def chain_of(issued: trustme.LeafCert) -> bytes:
    """Return the whole chain in PEM form."""
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)


async def served_serial(port: int, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate on a new connection to `port`. Raises the errors of connecting."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return str(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def wait_for_other_serial(port: int, context: ssl.SSLContext, old: str) -> str:
    """Wait until new connections get another certificate than `old`; return its serial number."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            serial = await served_serial(port, context)
            if serial != old:
                return serial
            await asyncio.sleep(0.01)
