"""A name server and a broker behind one file of accounts, for tests of their clients."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gantry_access import AccessMode, SignatureKind
from gantry_broker.app import Broker
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.accounts import ADMIN, guarded_broker, signed_dialogue, write_accounts
from gantry_testing.local import wait_until


@asynccontextmanager
async def guarded_cluster(path: Path, mode: str = "V1") -> AsyncIterator[tuple[str, Broker]]:
    """A name server and a broker with the same accounts, and the topic of the orders account."""
    file = write_accounts(path / "plain_acl.yml")
    own = path / "broker.yml"
    own.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    settings = NameServerSettings(
        bind_address="127.0.0.1", listen_port=0, acl_enable=True, acl_file=str(file), acl_mode=AccessMode(mode)
    )
    server = NameServer(settings, path / "ns")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        conf = {"namesrvAddr": address, "aclCredentialsPath": str(own), "aclMode": mode}
        async with guarded_broker(path, clock=None, **conf) as broker:
            await wait_until(lambda: address in broker.registration.registered)
            async with signed_dialogue(broker, ADMIN, SignatureKind.STRICT) as admin:
                await admin.send_ok(b"first")
            await broker.registration.wait_until_published()
            yield address, broker
    finally:
        await server.close()
