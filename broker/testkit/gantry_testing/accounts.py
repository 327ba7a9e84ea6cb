"""Accounts for tests: an account file, a broker that uses it, and connections that sign with one of the accounts.

orders-key     may publish to TopicTest and consume it as GroupTest; has no permission for other topics
billing-key    may only consume Billing as BillingGroup
admin-key      is an administrator
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from gantry_access import Credentials, Sign, SignatureKind, signer
from gantry_broker.app import Broker
from gantry_broker.ports import Clock, Disk
from gantry_remoting import Channel
from gantry_testing.local import GROUP, TOPIC, Dialogue, names_below, running_broker
from gantry_wire import Command
from gantry_wire.fastjson import dumps

ORDERS: Final = Credentials("orders-key", "orders-secret")
BILLING: Final = Credentials("billing-key", "billing-secret")
ADMIN: Final = Credentials("admin-key", "admin-secret")

ACCOUNTS: Final = """\
accounts:
  - accessKey: orders-key
    secretKey: orders-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: DENY
    topicPerms:
      - TopicTest=PUB|SUB
    groupPerms:
      - GroupTest=SUB
  - accessKey: billing-key
    secretKey: billing-secret
    topicPerms:
      - Billing=SUB
    groupPerms:
      - BillingGroup=SUB
  - accessKey: admin-key
    secretKey: admin-secret
    admin: true
"""


def write_accounts(path: Path, text: str = ACCOUNTS) -> Path:
    """Write a file with accounts."""
    path.write_text(text)
    return path


@asynccontextmanager
async def guarded_broker(path: Path, *, clock: Clock | None = None, **conf: str) -> AsyncIterator[Broker]:
    """Run a broker with access control over a store below `path`.

    `conf` has settings that have precedence; with `aclEnable=false` the broker has no access control.
    """
    guarded = {"aclEnable": "true", "aclFile": str(write_accounts(path / "plain_acl.yml")), "haListenPort": "-1"}
    guarded.update(conf)
    if guarded["aclEnable"] == "false":
        guarded = {key: value for key, value in guarded.items() if not key.startswith("acl")}
    async with running_broker(path / "store", disk=None, clock=clock, **guarded) as broker:
        yield broker


@asynccontextmanager
async def signed_dialogue(
    broker: Broker, credentials: Credentials | None, kind: SignatureKind = SignatureKind.V1, *, port: int | None = None
) -> AsyncIterator[Dialogue]:
    """Open a connection that signs all requests with `credentials`, or none if they are None."""
    async with raw_dialogue(broker, signer(credentials, kind), port=port) as one:
        yield one


@asynccontextmanager
async def raw_dialogue(broker: Broker, sign: Sign | None, *, port: int | None = None) -> AsyncIterator[Dialogue]:
    """Open a connection whose requests are signed by the function `sign`, which may change them in any way."""
    pushed: list[Command] = []

    def record_pushed(command: Command, channel: Channel) -> None:
        pushed.append(command)

    channel = await Channel.connect(f"127.0.0.1:{port or broker.port}", on_request=record_pushed, sign=sign)
    try:
        yield Dialogue(channel, pushed)
    finally:
        await channel.close()


async def fill_topics(broker: Broker) -> None:
    """Create the topics of both accounts that are no administrators, with a message in each, and their groups."""
    async with signed_dialogue(broker, ADMIN) as admin:
        for topic in (TOPIC, "Billing"):
            await admin.send_ok(b"first", topic=topic)
        for group in (GROUP, "BillingGroup"):
            assert (await admin.ask(200, body=dumps({"groupName": group}))).code == 0


def protected_state(broker: Broker) -> tuple[int, list[str], list[str], list[str]]:
    """Return the state that a denied request must not change: the log's end, topics, groups, queues on the disk."""
    core = broker.core
    queues = [name for name in names_below(core.settings.store_path) if name.startswith("consumequeue")]
    return core.store.log.wrote, sorted(core.topics.all), sorted(core.groups.all), queues


SUPER: Final = Credentials("root", "root-secret")
"""The first user of a broker with the settings `FIRST_USER`."""

FIRST_USER: Final = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": dumps({"username": SUPER.access_key, "password": SUPER.secret_key}).decode(),
}
"""The settings of a broker that stores users and policies."""


@asynccontextmanager
async def stored_broker(path: Path, *, disk: Disk | None = None, **conf: str) -> AsyncIterator[Broker]:
    """Run a broker that stores users and policies, with the Super user `SUPER`. `conf` has precedence."""
    settings = {**FIRST_USER, "haListenPort": "-1", **conf}
    async with running_broker(path / "store", disk=disk, clock=None, **settings) as broker:
        yield broker
