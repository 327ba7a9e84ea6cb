"""TLS of the name server by its settings file, and brokers that register over it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import final

import pytest
import trustme

from gantry_broker.app import Broker
from gantry_broker.setting_keys import broker_settings
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_remoting import TlsMode
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.certificates import Party, served_serial, wait_for_other_serial
from gantry_testing.local import running_broker, wait_until


def name_server_entries(party: Party, mode: str = "enforcing", *, needs_client: bool = False) -> dict[str, str]:
    """Return the TLS entries of a namesrv.conf."""
    return {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "tlsMode": mode,
        "tlsServerCertPath": str(party.chain),
        "tlsServerKeyPath": str(party.key),
        "tlsServerTrustCertPath": str(party.authority),
        "tlsServerNeedClientAuth": str(needs_client).lower(),
    }


def broker_entries(party: Party, *, shows_certificate: bool = False, **conf: str) -> dict[str, str]:
    """Return the TLS entries of a broker.conf that trusts the CA of the party."""
    own = {"tlsClientCertPath": str(party.chain), "tlsClientKeyPath": str(party.key)} if shows_certificate else {}
    return {"tlsEnable": "true", "tlsClientTrustCertPath": str(party.authority), **own, **conf}


def broker_at(path: Path, **conf: str) -> AbstractAsyncContextManager[Broker]:
    """Return a broker with these settings."""
    return running_broker(path, disk=None, clock=None, **conf)


@asynccontextmanager
async def name_server(path: Path, conf: dict[str, str]) -> AsyncIterator[NameServer]:
    server = NameServer(with_entries(NameServerSettings(), conf), path)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@final
class RegistrationAttempts:
    """Brokers that try to register one after the other, with the errors that they log."""

    def __init__(self, path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self._path = path
        self._caplog = caplog

    async def succeeds(self, server: NameServer, conf: dict[str, str]) -> bool:
        """Return whether a broker with this configuration registers, before it logs a failure."""
        self._caplog.clear()
        address = f"127.0.0.1:{server.port}"
        async with broker_at(self._path, namesrvAddr=address, **conf) as broker:
            await wait_until(lambda: address in broker.registration.registered or self._has_failed())
            return address in broker.registration.registered

    def _has_failed(self) -> bool:
        return "name server is not reachable; retrying" in [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def attempts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> RegistrationAttempts:
    return RegistrationAttempts(tmp_path / "store", caplog)


# ------- settings


def test_settings_file_enables_tls(tmp_path: Path, authority: trustme.CA) -> None:
    """The keys are those of a broker; permissive is the default; without a certificate it is plain text."""
    party = Party(tmp_path, authority)
    conf = name_server_entries(party)

    tls = with_entries(NameServerSettings(), conf).tls
    assert tls is not None and tls.mode is TlsMode.ENFORCING and tls.authority_file == str(party.authority)
    assert not tls.requires_client_certificate
    del conf["tlsMode"]
    tls = with_entries(NameServerSettings(), conf).tls
    assert tls is not None and tls.mode is TlsMode.PERMISSIVE
    assert with_entries(NameServerSettings(), {**conf, "tlsMode": "DISABLED"}).tls is None
    assert with_entries(NameServerSettings(), {"tlsMode": "permissive"}).tls is None


CONTRADICTIONS = [
    ({"tlsMode": "on"}, "disabled, permissive, enforcing"),
    ({"tlsMode": "enforcing"}, "tlsServerCertPath"),
    ({"tlsServerCertPath": "a"}, "tlsServerKeyPath"),
    ({"tlsServerNeedClientAuth": "yes"}, "true or false"),
    ({"tlsServerNeedClientAuth": "true"}, "tlsServerTrustCertPath"),
    ({"tlsServerCertPath": "a", "tlsServerKeyPath": "b", "tlsServerTrustCertPath": "c",
      "tlsServerNeedClientAuth": "true"}, "plain text would need no certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("conf", "text"), CONTRADICTIONS, ids=[text for _, text in CONTRADICTIONS])
def test_contradictory_tls_settings_are_refused(conf: dict[str, str], text: str) -> None:
    """Settings that protect less than they appear to are refused with the key."""
    with pytest.raises(SettingsError, match=text):
        with_entries(NameServerSettings(), conf)


BROKER_CONTRADICTIONS = [
    ({"tlsClientCertPath": "a"}, "tlsClientKeyPath"),
    ({"tlsClientTrustCertPath": "a"}, "tlsEnable"),
    ({"tlsEnable": "true", "tlsClientAuthServer": "false", "tlsClientTrustCertPath": "a"}, "tlsClientAuthServer"),
    ({"tlsServerCertPath": "a", "tlsServerKeyPath": "b", "tlsServerTrustCertPath": "c",
      "tlsServerNeedClientAuth": "true"}, "plain text would need no certificate"),
]  # fmt: skip


@pytest.mark.parametrize(("conf", "text"), BROKER_CONTRADICTIONS, ids=[text for _, text in BROKER_CONTRADICTIONS])
def test_broker_tls_settings_without_effect_are_refused(conf: dict[str, str], text: str) -> None:
    """Settings that look like verification and verify nothing are refused."""
    with pytest.raises(SettingsError, match=text):
        broker_settings(conf)


# ------- registration


async def test_broker_registers_over_tls(tmp_path: Path, authority: trustme.CA, attempts: RegistrationAttempts) -> None:
    """With tlsEnable and the CA it registers; without, a name server that enforces TLS gets no registration."""
    party = Party(tmp_path / "party", authority)
    async with name_server(tmp_path / "data", name_server_entries(party)) as server:
        assert await attempts.succeeds(server, broker_entries(party))
        assert not await attempts.succeeds(server, {})


async def test_broker_registers_with_client_certificate(
    tmp_path: Path, authority: trustme.CA, attempts: RegistrationAttempts
) -> None:
    """A name server that requires certificates lets no other client change its routes."""
    party = Party(tmp_path / "party", authority)
    stranger = Party(tmp_path / "stranger", trustme.CA(), trusts=authority)
    async with name_server(tmp_path / "data", name_server_entries(party, needs_client=True)) as server:
        assert await attempts.succeeds(server, broker_entries(party, shows_certificate=True))
        assert not await attempts.succeeds(server, broker_entries(party))
        assert not await attempts.succeeds(server, broker_entries(stranger, shows_certificate=True))


async def test_broker_verifies_the_name_server(
    tmp_path: Path, authority: trustme.CA, attempts: RegistrationAttempts
) -> None:
    """A name server with a certificate of another CA or host gets no registration, unless verification is off."""
    party = Party(tmp_path / "party", authority, "elsewhere.example")
    stranger = Party(tmp_path / "stranger", trustme.CA())
    async with name_server(tmp_path / "data", name_server_entries(party)) as server:
        assert not await attempts.succeeds(server, broker_entries(stranger, tlsClientCheckHostName="false"))
        assert not await attempts.succeeds(server, broker_entries(party))
        assert await attempts.succeeds(server, broker_entries(party, tlsClientCheckHostName="false"))
        assert await attempts.succeeds(server, {"tlsEnable": "true", "tlsClientAuthServer": "false"})


async def test_name_server_certificate_is_reloaded(
    tmp_path: Path, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections get the new certificate; registered brokers stay registered."""
    monkeypatch.setattr("gantry_remoting.file_watch.CHECK_INTERVAL_S", 0.01)
    party = Party(tmp_path / "party", authority)
    async with name_server(tmp_path / "data", name_server_entries(party)) as server:
        address = f"127.0.0.1:{server.port}"
        async with broker_at(tmp_path / "store", namesrvAddr=address, **broker_entries(party)) as broker:
            await wait_until(lambda: address in broker.registration.registered)
            context = party.client().client_context()
            serial = await served_serial(server.port, context)

            party.replace(authority)
            await wait_for_other_serial(server.port, context, serial)

            assert broker.registration.registered == {address}
