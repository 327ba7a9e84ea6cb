"""A broker's certificates: both ports change together, and when the first of them ends can be asked."""

from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from gantry_broker.app import Broker
from gantry_remoting import Channel, RemotingError
from gantry_testing.certificates import Party, served_serial, wait_for_other_serial
from gantry_testing.local import running_broker, send_ext
from gantry_wire import Command, RequestCode
from gantry_wire.fastjson import loads

TIMEOUT_MS = 60_000


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def conf_of(party: Party, **more: str) -> dict[str, str]:
    return {
        "tlsMode": "enforcing", "tlsServerCertPath": str(party.chain), "tlsServerKeyPath": str(party.key), **more,
    }  # fmt: skip


def broker_at(path: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    """Run a broker with these settings."""
    return running_broker(path, disk=None, clock=None, **conf)


async def test_both_ports_change_their_certificate_together(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Main and fast port present one certificate, before and after its replacement; old connections stay open."""
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.01)
    party = Party(tmp_path / "party", authority)
    context = party.client().client_context()
    async with broker_at(tmp_path / "store", **conf_of(party)) as broker:
        main, fast = broker.settings.listen_port, broker.settings.fast_listen_port
        assert fast is not None
        old = await Channel.connect(f"127.0.0.1:{main}", tls=context)
        serial = await served_serial(main, context)
        assert await served_serial(fast, context) == serial

        party.replace(authority)
        new = await wait_for_other_serial(main, context, serial)

        assert await served_serial(fast, context) == new
        reply = await old.request(Command(code=310, ext=send_ext(310), body=b"from before"), TIMEOUT_MS)
        assert reply.code == 0
        await old.close()


async def test_only_clients_with_a_certificate_may_send(tmp_path: Path, authority: trustme.CA) -> None:
    """With tlsServerNeedClientAuth a send without a certificate, or with another authority's, is not stored."""
    party = Party(tmp_path / "party", authority)
    stranger = Party(tmp_path / "stranger", trustme.CA())
    stranger.authority.write_bytes(party.authority.read_bytes())
    asks = conf_of(party, tlsServerTrustCertPath=str(party.authority), tlsServerNeedClientAuth="true")
    async with broker_at(tmp_path / "store", **asks) as broker:
        address = f"127.0.0.1:{broker.settings.listen_port}"
        for client in (stranger.client(), party.client(shows_certificate=False), None):
            wrote = broker.store.log.wrote
            with pytest.raises(RemotingError):
                channel = await Channel.connect(address, tls=None if client is None else client.client_context())
                try:
                    await channel.request(Command(code=310, ext=send_ext(310), body=b"no"), TIMEOUT_MS)
                finally:
                    await channel.close()
            assert broker.store.log.wrote == wrote

        channel = await Channel.connect(address, tls=party.client().client_context())
        reply = await channel.request(Command(code=310, ext=send_ext(310), body=b"yes"), TIMEOUT_MS)
        assert reply.code == 0 and broker.store.log.wrote > 0
        await channel.close()


async def runtime(port: int, party: Party | None) -> dict[str, Any]:
    context = None if party is None else party.client(shows_certificate=False).client_context()
    channel = await Channel.connect(f"127.0.0.1:{port}", tls=context)
    try:
        reply = await channel.request(Command(code=RequestCode.GET_BROKER_RUNTIME_INFO), TIMEOUT_MS)
        table: dict[str, Any] = loads(reply.body)["table"]
        return table
    finally:
        await channel.close()


async def test_expiry_of_the_first_certificate_is_answered(tmp_path: Path, authority: trustme.CA) -> None:
    """The earliest expiry of all certificates counts, also on the status page; without any it is missing."""
    now = datetime.now(UTC).replace(microsecond=0)
    clients, brokers = Party(tmp_path / "c", authority), Party(tmp_path / "b", authority)
    clients.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=50))
    brokers.replace(authority, not_before=now - timedelta(days=1), not_after=now + timedelta(days=40))
    both = conf_of(clients) | brokers.replication()
    for name, conf, days in (("one", conf_of(clients), 50), ("two", both, 40)):
        async with broker_at(tmp_path / name, **conf) as broker:
            table = await runtime(broker.settings.listen_port, clients)
            assert table["tlsCertificateEndsTimestamp"] == str(int((now + timedelta(days=days)).timestamp() * 1000))
            assert broker.status.snapshot().certificate_ends_wall_ms == int(table["tlsCertificateEndsTimestamp"])
            assert broker.tls.problem is None
    async with broker_at(tmp_path / "none") as broker:
        assert "tlsCertificateEndsTimestamp" not in await runtime(broker.settings.listen_port, None)
        assert broker.tls.expires_at is None and broker.status.snapshot().certificate_ends_wall_ms is None
