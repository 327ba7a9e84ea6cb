"""Reading with access control: accounts and TLS at brokers, certificates at sidecars."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from admin_scene import READ_TOKEN, Child, broker_process, sidecar_process, wait_for, write_token_files

from gantry_access import SignatureKind
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.accounts import ADMIN, guarded_broker, signed_dialogue
from gantry_testing.certificates import Party
from gantry_testing.local import GROUP, TOPIC, wait_until
from gantry_testing.ports import free_ports
from pyspark_rocketmq.catalog import Catalog
from pyspark_rocketmq.errors import NoReplica, Refused
from pyspark_rocketmq.model import QueueRange, Task, TransportKind
from pyspark_rocketmq.reading import read_task
from pyspark_rocketmq.settings import ReadSettings, TlsFiles


def bodies_of(settings: ReadSettings, topic: str) -> list[bytes]:
    """Return all bodies of a topic, as a driver and its workers read it."""
    with Catalog(settings) as catalog:
        bounds = catalog.bounds(catalog.queues([topic]))
        ranges = tuple(QueueRange(queue, one.begin, one.end) for queue, one in bounds.items() if one.end > one.begin)
        broker = ranges[0].queue.broker
        task = Task(broker, catalog.replicas(broker), settings.transport, ranges, ("body",))
    return [row["body"] for batch in read_task(task, settings) for row in batch.to_pylist()]


@pytest.mark.parametrize("signature", [SignatureKind.V1, SignatureKind.STRICT], ids=["v1", "strict"])
async def test_account_with_consume_permission_may_read(tmp_path: Path, signature: SignatureKind) -> None:
    """The account signs pulls for a group that it may use; other accounts are refused at once."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), tmp_path / "ns")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    own = tmp_path / "broker.yml"
    own.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    conf = {"namesrvAddr": address, "aclCredentialsPath": str(own), "aclMode": signature.name}
    try:
        async with guarded_broker(tmp_path, clock=None, **conf) as broker:
            async with signed_dialogue(broker, ADMIN, SignatureKind.STRICT) as admin:
                await admin.send_ok(b"guarded")
            await wait_until(lambda: address in broker.registration.registered)
            await broker.registration.wait_until_published()
            settings = ReadSettings(
                name_servers=address, transport=TransportKind.PULL, group=GROUP, signature=signature,
                access_key="orders-key", secret_key="orders-secret", patience_ms=20_000,
            )  # fmt: skip

            assert await asyncio.to_thread(bodies_of, settings, TOPIC) == [b"guarded"]
            for wrong in (
                replace(settings, access_key="billing-key", secret_key="billing-secret"),
                replace(settings, secret_key="guessed"),
                replace(settings, access_key=None, secret_key=None),
                replace(settings, group="another"),
            ):
                with pytest.raises(Refused):
                    await asyncio.to_thread(bodies_of, wrong, TOPIC)
    finally:
        await server.close()


@pytest.mark.verify
def test_brokers_and_sidecars_are_verified_by_their_certificates(tmp_path: Path) -> None:
    """With the right authority everything is read over TLS; with another nothing is."""
    authority, foreign = trustme.CA(), trustme.CA()
    party, stranger = Party(tmp_path / "party", authority), Party(tmp_path / "stranger", foreign)
    (port,) = free_ports(1)
    served = ["--tls-cert", str(party.chain), "--tls-key", str(party.key)]
    options = ["--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "ns"), "--tls", "enforcing", *served]
    name_server = Child("gantry_nameserver", options, "listening on")
    conf = {
        "brokerName": "broker-a", "namesrvAddr": f"127.0.0.1:{port}", "tlsMode": "permissive",
        "tlsServerCertPath": str(party.chain), "tlsServerKeyPath": str(party.key),
        "tlsEnable": "true", "tlsClientTrustCertPath": str(party.authority), "tlsClientAuthServer": "true",
    }  # fmt: skip
    try:
        with broker_process(tmp_path / "store", **conf) as broker:
            broker.send(20, topic=TOPIC)
            options = [*write_token_files(tmp_path / "tokens"), *served, "--log-listen", "127.0.0.1:0"]
            with sidecar_process(tmp_path / "store", *options) as sidecar:
                good = TlsFiles(ca=str(party.authority))
                given: dict[str, Any] = {
                    "name_servers": f"127.0.0.1:{port}", "sidecars": (f"https://{sidecar.address}",),
                    "token": READ_TOKEN, "tls": good, "sidecar_tls": good, "patience_ms": 60_000,
                }  # fmt: skip
                for way in (TransportKind.HTTP, TransportKind.PULL):
                    settings = ReadSettings(transport=way, **given)
                    wait_for(lambda one=settings: len(bodies_of(one, TOPIC)) == 20, "all of it is shown", 120)  # type: ignore[misc]
                bad = TlsFiles(ca=str(stranger.authority))
                wrong = ReadSettings(transport=TransportKind.HTTP, **given | {"sidecar_tls": bad, "patience_ms": 0})
                with pytest.raises(NoReplica, match="CERTIFICATE_VERIFY_FAILED"):
                    bodies_of(wrong, TOPIC)
                wrong = ReadSettings(transport=TransportKind.PULL, **given | {"tls": bad, "patience_ms": 0})
                with pytest.raises(NoReplica, match="CERTIFICATE_VERIFY_FAILED"):
                    bodies_of(wrong, TOPIC)
    finally:
        name_server.end()
