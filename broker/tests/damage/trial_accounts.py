"""Users and policies of the brokers in trials of their file: what a template stores, and what a client may do then.

    run 1            alice: first password, both topics   bob, carol: one topic
    run 2            alice: second password               dave: one topic
    after `older-2`  alice: one topic                     bob: deleted   carol: disabled   erin: one topic

So each older copy of the file gives access that the newest does not give, and lacks a user that it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, final

from damage.expectations import Login

from gantry_access import Credentials
from gantry_broker.app import Broker
from gantry_testing.accounts import FIRST_USER, SUPER, signed_dialogue
from gantry_testing.local import Dialogue
from gantry_wire import RequestCode, ResponseCode
from gantry_wire.fastjson import dumps, loads

SECRET_FILE: Final = "ha-secret"
"""The file of the group's secret, without which a broker with users offers no replication."""
OTHER_TOPIC_TEXT: Final = "its policies do not name the topic"


def account_settings() -> dict[str, str]:
    """Return the settings of a broker that stores users, and write the secret of its group to this directory."""
    Path(SECRET_FILE).write_text("secret of the group")
    return {**FIRST_USER, "haSecretPath": SECRET_FILE}


@asynccontextmanager
async def super_dialogue(broker: Broker) -> AsyncIterator[Dialogue]:
    """Open a connection that may do everything, signed by the first user if the broker stores users."""
    async with signed_dialogue(broker, None if broker.core.accounts is None else SUPER) as peer:
        yield peer


async def is_granted(broker: Broker, login: Login) -> bool:
    """Return whether the broker lets this account pull from its topic; another refusal counts as access."""
    async with signed_dialogue(broker, Credentials(login.user, login.password)) as peer:
        reply = await peer.pull(0, topic=login.topic, consumerGroup=login.group)
        return reply.code != ResponseCode.NO_PERMISSION


async def users_of(peer: Dialogue) -> dict[str, str] | None:
    """Return type, status and policies of each user, as the broker lists them; None if it refuses."""
    users, acls = await peer.ask(RequestCode.AUTH_LIST_USER), await peer.ask(RequestCode.AUTH_LIST_ACL)
    if users.code or acls.code:
        return None
    policies = {acl["subject"]: acl["policies"] for acl in loads(acls.body)}
    return {
        user["username"]: dumps({**user, "policies": policies.get(f"User:{user['username']}")}).decode()
        for user in loads(users.body)
    }


@final
class TemplateUsers:
    """The users of one template. ``marker`` is a part of their passwords, so that those of two stores differ."""

    def __init__(self, marker: str, *, topic: str, other_topic: str, group: str) -> None:
        self._marker: Final = marker
        self._topic: Final = topic
        self._other_topic: Final = other_topic
        self._group: Final = group

    def _password(self, name: str, number: int = 1) -> str:
        return f"{name}-{number}-{self._marker}"

    async def change_in_first_run(self, peer: Dialogue) -> None:
        await self._create(peer, "alice", self._topic, self._other_topic)
        await self._create(peer, "bob", self._topic)
        await self._create(peer, "carol", self._topic)

    async def change_in_second_run(self, peer: Dialogue) -> None:
        await self._update(peer, "alice", {"password": self._password("alice", 2)})
        await self._create(peer, "dave", self._topic)

    async def change_at_last(self, peer: Dialogue) -> None:
        """Make the changes that no older copy has."""
        fields = {"subject": "User:alice", "resource": f"Topic:{self._other_topic}"}
        await _ask(peer, RequestCode.AUTH_DELETE_ACL, fields)
        await _ask(peer, RequestCode.AUTH_DELETE_USER, {"username": "bob"})
        await self._update(peer, "carol", {"userStatus": "disable"})
        await self._create(peer, "erin", self._topic)

    def logins(self) -> list[Login]:
        """Return what accounts may do, and what they may not, after all changes."""
        second = self._password("alice", 2)
        return [
            self._login("alice", password=second),
            self._login("dave"),
            self._login("erin"),
            self._login(SUPER.access_key, password=SUPER.secret_key),
            self._login("alice", denied="its password was changed"),
            self._login("alice", password=second, topic=self._other_topic, denied="its policy was deleted"),
            self._login("bob", denied="it was deleted"),
            self._login("carol", denied="it was disabled"),
            self._login("dave", topic=self._other_topic, denied=OTHER_TOPIC_TEXT),
            self._login("erin", topic=self._other_topic, denied=OTHER_TOPIC_TEXT),
            self._login("frank", denied="it never existed"),
            self._login(SUPER.access_key, denied="its password is another one"),
        ]

    def _login(self, name: str, *, password: str = "", topic: str = "", denied: str = "") -> Login:
        return Login(name, password or self._password(name), topic or self._topic, self._group, denied)

    async def _create(self, peer: Dialogue, name: str, *topics: str) -> None:
        await _ask(peer, RequestCode.AUTH_CREATE_USER, {"username": name}, {"password": self._password(name)})
        resources = [*(f"Topic:{topic}" for topic in topics), f"Group:{self._group}"]
        entries = [{"resource": one, "actions": ["Pub", "Sub"], "decision": "Allow"} for one in resources]
        await _ask(peer, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, {"policies": [{"entries": entries}]})

    async def _update(self, peer: Dialogue, name: str, change: dict[str, str]) -> None:
        await _ask(peer, RequestCode.AUTH_UPDATE_USER, {"username": name}, change)


async def _ask(peer: Dialogue, code: int, fields: dict[str, str], body: Mapping[str, object] | None = None) -> None:
    """Send a change that must be made."""
    reply = await peer.ask(code, fields, b"" if body is None else dumps(body))
    assert reply.code == ResponseCode.SUCCESS, reply
