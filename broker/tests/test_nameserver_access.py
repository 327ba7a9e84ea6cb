"""Access control of the name server: brokers are administrators, clients see the topics that they may use."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gantry_access import Credentials, SignatureKind, signer
from gantry_broker.testing.accounts import ADMIN, BILLING, ORDERS, guarded_broker, write_accounts
from gantry_broker.testing.local import wait_until
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings, SettingsError, with_entries
from gantry_remoting import Channel
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
async def test_the_cluster_is_administrators(tmp_path: Path, code: int, ext: dict[str, str]) -> None:
    """S6: neither nobody nor a user registers brokers or sees the whole; an administrator is not denied."""
    async with name_server(tmp_path) as server:
        for credentials in (None, ORDERS, Credentials("admin-key", "wrong-secret")):
            assert (await ask(server, code, ext, credentials)).code == DENIED
        assert (await ask(server, code, ext, ADMIN)).code != DENIED


async def test_a_broker_with_an_account_registers_and_clients_see_their_topics(tmp_path: Path) -> None:
    """S6: the broker signs its registrations strictly, so they pass in both modes; routes go to whoever may."""
    credentials = tmp_path / "broker.yml"
    credentials.write_text("accessKey: admin-key\nsecretKey: admin-secret\n")
    async with name_server(tmp_path, acl_mode="STRICT") as server:
        address = f"127.0.0.1:{server.port}"
        async with guarded_broker(tmp_path, namesrvAddr=address, aclCredentialsPath=str(credentials)) as broker:
            await wait_until(lambda: address in broker.registration.registered)
            kind = SignatureKind.STRICT
            route = {"topic": "TBW102"}
            assert (await ask(server, 105, route, ORDERS, kind)).code == 0
            assert (await ask(server, 105, route, ORDERS)).code == DENIED
            assert (await ask(server, 105, {"topic": "TopicTest"}, BILLING, kind)).code == DENIED
            assert (await ask(server, 105, {"topic": "TopicTest"}, ORDERS, kind)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_broker_without_an_account_is_not_registered(tmp_path: Path) -> None:
    """S6: the twin of the broker above."""
    async with name_server(tmp_path) as server:
        address = f"127.0.0.1:{server.port}"
        async with guarded_broker(tmp_path, namesrvAddr=address) as broker:
            await wait_until(lambda: bool(broker.registration._refusals))
            assert address not in broker.registration.registered


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"aclEnable": "true"}, "needs aclFile"),
        ({"aclFile": "x"}, "aclEnable is false"),
        ({"aclMode": "STRICT"}, "aclEnable is false"),
        ({"aclEnable": "true", "aclFile": "x", "aclMode": "LAX"}, "aclMode must be one of V1, STRICT"),
    ],
)
def test_contradictory_settings_do_not_start(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    """Both keys are named."""
    with pytest.raises(SettingsError, match=says):
        NameServer(with_entries(NameServerSettings(), entries), tmp_path)


async def test_a_missing_file_refuses_the_start(tmp_path: Path) -> None:
    """And leaves the directory to the next try."""
    settings = with_entries(NameServerSettings(), {"aclEnable": "true", "aclFile": str(tmp_path / "gone.yml")})
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"aclFile: cannot read .*gone.yml"):
            await NameServer(settings, tmp_path / "ns").start()
