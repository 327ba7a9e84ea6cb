"""Servers with access control, and the accounts of a proxy and of its clients, for tests.

The proxy's account is no administrator: it may publish and read every topic, and consume as every group.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from guarded_cluster import guarded_cluster

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_nameserver.server import NameServer
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.accounts import ACCOUNTS, ADMIN, SUPER, signed_dialogue, stored_broker, write_accounts
from gantry_testing.client import wait_until
from gantry_testing.local import TOPIC
from gantry_wire.codes import ResponseCode
from gantry_wire.fastjson import dumps

PROXY = Credentials("proxy-user", "proxy-secret")
FILE_ACCOUNT = """\
  - accessKey: proxy-user
    secretKey: proxy-secret
    defaultTopicPerm: PUB|SUB
    defaultGroupPerm: SUB
"""
RULES = {"Topic:*": ["Pub", "Sub"], "Group:*": ["Sub"]}


def access_settings(folder: Path, clients: str, own: Credentials = PROXY) -> dict[str, str]:
    """Write the accounts of clients and the proxy's own account, and return the settings that name the files."""
    accounts, account = folder / "clients.yml", folder / "proxy.yml"
    accounts.write_text(clients)
    write_own_account(account, own)
    return {"accountsFile": str(accounts), "credentialsFile": str(account)}


def write_own_account(path: Path, own: Credentials) -> None:
    """Replace the file with the proxy's own account."""
    new = path.with_suffix(".new")
    new.write_text(f"accessKey: {own.access_key}\nsecretKey: {own.secret_key}\n")
    new.rename(path)


@asynccontextmanager
async def file_cluster(folder: Path) -> AsyncIterator[tuple[str, Broker, Credentials]]:
    """Servers with RocketMQ 4's accounts: the address, the broker, and an administrator."""
    async with guarded_cluster(folder) as (address, broker):
        write_accounts(folder / "plain_acl.yml", ACCOUNTS + FILE_ACCOUNT)
        async with signed_dialogue(broker, PROXY) as proxy:

            async def is_known() -> bool:
                return (await proxy.send(topic=TOPIC)).code == ResponseCode.SUCCESS

            await wait_until(is_known, what="the account of the proxy")
        yield address, broker, ADMIN


@asynccontextmanager
async def stored_cluster(folder: Path) -> AsyncIterator[tuple[str, Broker, Credentials]]:
    """The same with RocketMQ 5's users and policies, which the broker stores."""
    server = NameServer(NameServerSettings(bind_address="127.0.0.1", listen_port=0), folder / "ns")
    await server.start()
    address = f"127.0.0.1:{server.port}"
    try:
        async with stored_broker(folder, namesrvAddr=address) as broker, signed_dialogue(broker, SUPER) as root:
            await wait_until(lambda: address in broker.registration.registered)
            await root.send_ok(topic=TOPIC)
            name, subject = {"username": PROXY.access_key}, {"subject": f"User:{PROXY.access_key}"}
            user = {**name, "password": PROXY.secret_key, "userType": "Normal"}
            assert (await root.ask(3001, name, dumps(user))).code == 0
            entries = [{"resource": one, "actions": RULES[one], "decision": "Allow"} for one in RULES]
            assert (await root.ask(3006, subject, dumps({**subject, "policies": [{"entries": entries}]}))).code == 0
            await broker.registration.wait_until_published()
            yield address, broker, SUPER
    finally:
        await server.close()
