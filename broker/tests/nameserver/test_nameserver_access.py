"""Access control of the name server: brokers need administrator accounts, clients see topics with their permissions.

S6 is a row of the fault catalogue (`broker/tests/faults/rows.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry_access import AccessMode, Credentials, OwnAccount, SignatureKind, signer
from gantry_broker.app import Broker
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings, with_entries
from gantry_remoting import Channel
from gantry_remoting.setting_kinds import SettingsError
from gantry_testing.accounts import ACCOUNTS, ADMIN, BILLING, ORDERS, guarded_broker, write_accounts
from gantry_testing.local import wait_until
from gantry_wire import Command, RequestCode, ResponseCode

DENIED = ResponseCode.NO_PERMISSION


@asynccontextmanager
async def name_server(path: Path, **more: str | bool) -> AsyncIterator[NameServer]:
    settings = NameServerSettings(
        bind_address="127.0.0.1",
        listen_port=0,
        acl_enable=True,
        acl_file=str(write_accounts(path / "plain_acl.yml")),
        **more,  # type: ignore[arg-type]
    )
    server = NameServer(settings, path / "ns")
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def ask(
    server: NameServer, code: int, ext: dict[str, str], credentials: Credentials | None,
    kind: SignatureKind = SignatureKind.V1,
) -> Command:  # fmt: skip
    channel = await Channel.connect(f"127.0.0.1:{server.port}", sign=signer(credentials, kind))
    try:
        return await channel.request(Command(code=code, ext=ext), 30_000)
    finally:
        await channel.close()


IDENTITY = {"brokerName": "a", "brokerAddr": "10.0.0.1:10911", "clusterName": "c", "brokerId": "0"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.REGISTER_BROKER, {**IDENTITY, "haServerAddr": "10.0.0.1:10912"}),
        (RequestCode.UNREGISTER_BROKER, IDENTITY),
        (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
        (RequestCode.UPDATE_NAMESRV_CONFIG, {}),
        (RequestCode.GET_NAMESRV_CONFIG, {}),
        (RequestCode.GET_BROKER_CLUSTER_INFO, {}),
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "TopicTest"}),
    ],
)
async def test_registration_and_cluster_info_need_an_administrator(
    tmp_path: Path, code: int, ext: dict[str, str]
) -> None:
    """S6: neither anonymous clients nor users may register brokers or read the cluster; administrators may."""
    async with name_server(tmp_path) as server:
        for credentials in (None, ORDERS, Credentials("admin-key", "wrong-secret")):
            assert (await ask(server, code, ext, credentials)).code == DENIED
        assert (await ask(server, code, ext, ADMIN)).code != DENIED


async def test_broker_with_account_registers(tmp_path: Path) -> None:
    """S6: the broker signs its registrations strictly, which both modes accept; routes go to permitted clients."""
    credentials = tmp_path / "broker.yml"
    credentials.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    async with name_server(tmp_path, acl_mode=AccessMode.STRICT) as server:
        address = f"127.0.0.1:{server.port}"
        async with guarded_broker(tmp_path, namesrvAddr=address, aclCredentialsPath=str(credentials)) as broker:
            await wait_until(lambda: address in broker.registration.registered)
            kind = SignatureKind.STRICT
            route = {"topic": "TBW102"}
            assert (await ask(server, 105, route, ORDERS, kind)).code == 0
            assert (await ask(server, 105, route, ORDERS)).code == DENIED
            assert (await ask(server, 105, {"topic": "TopicTest"}, BILLING, kind)).code == DENIED
            assert (await ask(server, 105, {"topic": "TopicTest"}, ORDERS, kind)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_broker_without_account_is_not_registered(tmp_path: Path) -> None:
    """S6: the twin of the broker with an account."""
    async with name_server(tmp_path) as server:
        address = f"127.0.0.1:{server.port}"
        async with guarded_broker(tmp_path, namesrvAddr=address) as broker:
            await wait_until(lambda: bool(broker.registration._refusals))
            assert address not in broker.registration.registered


BOTH = ACCOUNTS + "  - accessKey: next-key\n    secretKey: next-secret\n    admin: true\n"
NEXT_ALONE = BOTH.replace("admin-key", "unknown-key")
NEXT = "accessKey: next-key\nsecretKey: next-secret\n"


class Registered:
    """A broker whose account a name server accepts."""

    def __init__(self, folder: Path, server: NameServer, broker: Broker) -> None:
        self.registration = broker.registration
        self._folder, self._server = folder, server
        [self._address] = self.registration.registered
        self._channel = self.registration._channels[self._address]

    @classmethod
    @asynccontextmanager
    async def start(cls, folder: Path) -> AsyncIterator[Registered]:
        (folder / "broker.yml").write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
        async with name_server(folder) as server:
            address, ours = f"127.0.0.1:{server.port}", str(folder / "broker.yml")
            async with guarded_broker(folder, namesrvAddr=address, aclCredentialsPath=ours) as broker:
                await wait_until(lambda: address in broker.registration.registered)
                yield cls(folder, server, broker)

    async def set_accounts(self, accounts: str) -> None:
        """Set the accounts of the name server."""
        write_accounts(self._folder / "plain_acl.yml", accounts)
        assert self._server.account_file is not None
        await self._server.account_file.refresh()

    def set_credentials(self, account: str) -> None:
        """Set the credentials file of the broker."""
        (self._folder / "broker.yml").write_text(account)

    async def register_again(self) -> bool:
        """Register again. Return whether it was accepted, over the connection of the first registration."""
        self.registration.schedule_update()
        edition = self.registration._change_count
        await wait_until(
            lambda: self.registration._published.get(self._address) == edition or bool(self.registration._refusals)
        )
        is_same = self.registration._channels.get(self._address) is self._channel
        return not self.registration._refusals and is_same and self._channel.is_open


async def test_broker_stays_registered_when_its_account_is_replaced(tmp_path: Path) -> None:
    """S6: it keeps its connection, because name servers unregister a broker when its connection closes."""
    async with Registered.start(tmp_path) as broker:
        await broker.set_accounts(BOTH)
        broker.set_credentials(NEXT)
        assert await broker.register_again()
        await broker.set_accounts(NEXT_ALONE)
        assert await broker.register_again()


async def test_broker_uses_previous_account_until_the_new_one_is_known(tmp_path: Path) -> None:
    """S6: a Secret reaches pods one by one, and the broker may have it a minute before the name server."""
    async with Registered.start(tmp_path) as broker:
        broker.set_credentials(NEXT)
        assert await broker.register_again()
        await broker.set_accounts(NEXT_ALONE)
        assert await broker.register_again()


async def test_broker_with_removed_account_is_refused(tmp_path: Path) -> None:
    """S6: the twin: the credentials file of the broker has not changed."""
    async with Registered.start(tmp_path) as broker:
        await broker.set_accounts(NEXT_ALONE)

        assert not await broker.register_again()
        await wait_until(lambda: not broker.registration.registered)


async def test_unreadable_credentials_keep_the_previous_account(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S6: a missing or truncated file is logged once, and the previous account stays; a complete file is loaded."""
    file = tmp_path / "broker.yml"
    file.write_text("accessKey: a\nsecretKey: first\n")
    account = OwnAccount(str(file))
    file.write_text("accessKey: a\n")
    await account.refresh()
    file.unlink()
    await account.refresh()
    await account.refresh()
    assert account.credentials == Credentials("a", "first")
    assert [record.levelname for record in caplog.records].count("ERROR") == 2

    file.write_text("accessKey: a\nsecretKey: second\n")
    await account.refresh()

    assert account.credentials == Credentials("a", "second")
    assert "second" not in caplog.text + repr(account)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"aclEnable": "true"}, "needs aclFile"),
        ({"aclFile": "x"}, "aclEnable is false"),
        ({"aclMode": "STRICT"}, "aclEnable is false"),
        ({"aclEnable": "true", "aclFile": "x", "aclMode": "LAX"}, "aclMode=LAX: write one of V1, STRICT"),
    ],
)
def test_invalid_name_server_access_settings_are_refused(tmp_path: Path, entries: dict[str, str], message: str) -> None:
    """The error names both keys of a contradiction, or the key with an unknown value."""
    with pytest.raises(SettingsError, match=message):
        NameServer(with_entries(NameServerSettings(), entries), tmp_path)


async def test_missing_account_file_prevents_start(tmp_path: Path) -> None:
    """The directory is unlocked for the next attempt."""
    settings = with_entries(NameServerSettings(), {"aclEnable": "true", "aclFile": str(tmp_path / "gone.yml")})
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"aclFile: cannot read .*gone.yml"):
            await NameServer(settings, tmp_path / "ns").start()
