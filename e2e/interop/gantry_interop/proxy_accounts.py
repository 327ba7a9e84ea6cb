"""Users that a broker stores, as proxies read them: each of the two proxies in front of the other's broker.

    requests of mqadmin (3001, 3002, 3006) -> broker <- codes 3004 and 3009 <- proxy <- signed calls of a client

The rule: a user who is created may do what its policy allows, and nothing else; a wrong password gives no access; and
a user who is disabled has none any more after a limited time. The proxy has no file of accounts.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, final

import grpc

from gantry_access import Credentials
from gantry_client.session import Session
from gantry_client.settings import ClientSettings
from gantry_interop import apache_servers, peers, versions
from gantry_interop.admin import guarded
from gantry_interop.processes import Nursery, wait_until
from gantry_proxy.access import SCHEME, sign
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_testing.ports import free_port_run
from gantry_wire.codes import RequestCode
from gantry_wire.commands.accounts import AclInfo, AclSubject, PolicyEntryInfo, PolicyInfo, UserInfo, Username
from gantry_wire.commands.admin import CreateTopic

CLUSTER: Final = "InteropCluster"
ADMINISTRATOR: Final = Credentials(guarded.ADMINISTRATOR, guarded.SECRET)
PROXY: Final = Credentials("interop-proxy", "secret-of-the-proxy")
"""The account of Gantry's proxy at Apache's broker, which is no Super user."""
PROXY_RULES: Final = {"Topic:*": ["Pub", "Sub", "Get"], "Group:*": ["Sub", "Get"], "Cluster:*": ["Get"]}
ALICE: Final = Credentials("alice-one", "secret-of-alice")
FORGED: Final = Credentials("alice-one", "another-secret")
ALLOWED, FOREIGN = "interop-allowed", "interop-foreign"
READY_SECONDS_MAX: Final = 120.0
KNOWN_SECONDS_MAX: Final = 120.0
"""Apache's proxy keeps the answer that a user does not exist for 20 s, like any other."""
REVOKED_SECONDS_MAX: Final = 180.0
CALL_SECONDS_MAX: Final = 10.0
OK: Final = "ok"
REFUSED: Final = "refused"
_REFUSALS: Final = (pb.UNAUTHORIZED, pb.FORBIDDEN)


@final
@dataclass(frozen=True)
class AccountsResult:
    """What one proxy in front of one broker has answered."""

    proxy: str
    broker: str
    broken: tuple[str, ...]
    known_seconds: float
    revoked_seconds: float

    def text(self) -> str:
        times = f"known after {self.known_seconds:.1f} s, revoked after {self.revoked_seconds:.1f} s"
        return f"{self.proxy} in front of {self.broker}: {times} {'; '.join(self.broken)}".strip()


def run(version: str, place: Path) -> Iterator[AccountsResult]:
    """Run both proxies in front of the other's broker, with Apache's servers of a version. Raises InteropError."""
    apache = "apache" if version == versions.PEER else f"apache-{version}"
    for proxy, broker in (("gantry", apache), (apache, "gantry")):
        directory = place / f"{proxy}-{broker}"
        with Nursery(place / f"{proxy}-{broker}-logs") as nursery:
            layout = peers.Layout(directory, settings=guarded.settings(broker, directory))
            peer = peers.start(broker, nursery, layout)
            administration = Administration(peer.address, peer.broker_address)
            administration.create_topics()
            endpoints = _start_proxy(nursery, proxy, version, administration, directory / "proxy")
            yield judge(proxy, broker, administration, Caller(endpoints).send)


class Users(Protocol):
    """What the judge changes at a broker."""

    def create_user(self, account: Credentials, rules: Mapping[str, list[str]]) -> None:
        """Create a user with the allowed actions by resource."""

    def disable(self, account: Credentials) -> None:
        """Let every later request of a user be refused."""


def judge(proxy: str, broker: str, users: Users, send: Callable[[Credentials, str], str]) -> AccountsResult:
    """Create, use and disable a user, and return which rules are broken. ``send`` returns the outcome of a send."""
    broken = [] if (found := send(ALICE, ALLOWED)) == REFUSED else [f"an unknown user: {found}"]
    users.create_user(ALICE, {f"Topic:{ALLOWED}": ["Pub"]})
    begin = time.monotonic()
    wait_until("the new user", lambda: send(ALICE, ALLOWED) == OK, KNOWN_SECONDS_MAX)
    known_seconds = time.monotonic() - begin
    attempts = {"a wrong password": (FORGED, ALLOWED), "another topic": (ALICE, FOREIGN)}
    for what, (account, topic) in attempts.items():
        if (found := send(account, topic)) != REFUSED:
            broken.append(f"{what}: {found}")
    if (found := send(ALICE, ALLOWED)) != OK:
        broken.append(f"the allowed topic after refusals: {found}")
    users.disable(ALICE)
    begin = time.monotonic()
    wait_until("the end of the disabled user", lambda: send(ALICE, ALLOWED) == REFUSED, REVOKED_SECONDS_MAX)
    return AccountsResult(proxy, broker, tuple(broken), known_seconds, time.monotonic() - begin)


@final
class Administration:
    """Requests of an administrator to one broker."""

    def __init__(self, name_server: str, broker: str) -> None:
        self.name_server: Final = name_server
        self._broker: Final = broker

    def create_topics(self) -> None:
        for topic in (ALLOWED, FOREIGN):
            header = CreateTopic(
                topic=topic, default_topic=peers.AUTO_CREATE_TOPIC, read_queue_nums=2, write_queue_nums=2, perm=6,
                topic_filter_type="SINGLE_TAG", order=False, attributes="+message.type=NORMAL",
            )  # fmt: skip
            self._request(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        wait_until("the routes", lambda: self._has_route(FOREIGN), READY_SECONDS_MAX)

    def create_user(self, account: Credentials, rules: Mapping[str, list[str]]) -> None:
        user = UserInfo(username=account.access_key, password=account.secret_key, user_type="Normal")
        self._request(RequestCode.AUTH_CREATE_USER, Username(username=account.access_key), user)
        entries = [PolicyEntryInfo(resource=one, actions=rules[one], decision="Allow") for one in rules]
        subject = f"User:{account.access_key}"
        acl = AclInfo(subject=subject, policies=[PolicyInfo(policy_type="Custom", entries=entries)])
        self._request(RequestCode.AUTH_CREATE_ACL, AclSubject(subject=subject), acl)

    def disable(self, account: Credentials) -> None:
        change = UserInfo(username=account.access_key, user_status="disable")
        self._request(RequestCode.AUTH_UPDATE_USER, Username(username=account.access_key), change)

    def _request(self, code: RequestCode, header: Any, body: Any = None) -> None:
        asyncio.run(self._with_session(lambda session: session.calls.request_success(self._broker, code, header, body)))

    def _has_route(self, topic: str) -> bool:
        return asyncio.run(self._with_session(lambda session: session.name_servers.route(topic))) is not None

    async def _with_session(self, use: Any) -> Any:
        session = Session(self.name_server, ClientSettings(credentials=ADMINISTRATOR))
        await session.start()
        try:
            return await use(session)
        finally:
            await session.close()


@final
class Caller:
    """A client of a proxy that signs its calls as SDKs do."""

    def __init__(self, endpoints: str) -> None:
        self._send: Final = grpc.insecure_channel(endpoints).unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )

    def send(self, account: Credentials, topic: str) -> str:
        """Send a message, and return `OK`, `REFUSED`, or what else came."""
        message = pb.Message(
            topic=pb.Resource(name=topic), body=b"body",
            system_properties=pb.SystemProperties(
                message_id=f"01{uuid.uuid4().hex[:32].upper()}", body_encoding=pb.IDENTITY, message_type=pb.NORMAL
            ),
        )  # fmt: skip
        try:
            request = pb.SendMessageRequest(messages=[message])
            reply = self._send(request, metadata=signed_headers(account), timeout=CALL_SECONDS_MAX)
        except grpc.RpcError as error:
            code = error.code()
            return (
                REFUSED if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED) else str(code)
            )
        if reply.status.code == pb.OK:
            return OK
        return REFUSED if reply.status.code in _REFUSALS else f"{reply.status.code} {reply.status.message}"


def signed_headers(account: Credentials) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call that an account signs now."""
    at = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    signed = f"{SCHEME} Credential={account.access_key}, SignedHeaders=x-mq-date-time, Signature="
    return (
        ("x-mq-client-id", "interop-accounts"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"),
        ("x-mq-client-version", "5.0.0"), ("x-mq-date-time", at),
        ("authorization", signed + sign(account.secret_key.encode(), at)),
    )  # fmt: skip


def _start_proxy(nursery: Nursery, kind: str, version: str, administration: Administration, directory: Path) -> str:
    """Start a proxy that reads users from brokers, and return its endpoints."""
    if peers.is_apache(kind):
        settings = {
            **guarded.proxy_settings(),
            "innerClientAuthenticationCredentials": json.dumps(
                {"accessKey": ADMINISTRATOR.access_key, "secretKey": ADMINISTRATOR.secret_key}
            ),
        }
        return apache_servers.start_proxy(
            nursery, version, administration.name_server, CLUSTER, directory, settings
        ).grpc
    administration.create_user(PROXY, PROXY_RULES)
    directory.mkdir(parents=True)
    own, conf, port = directory / "own.yml", directory / "proxy.yaml", free_port_run(2)
    own.write_text(f"accessKey: {PROXY.access_key}\nsecretKey: {PROXY.secret_key}\n")
    document = {
        "nameServers": [administration.name_server],
        "listen": {"address": f"127.0.0.1:{port}", "httpAddress": f"127.0.0.1:{port + 1}"},
        "access": {"accountsSource": "brokers", "credentialsFile": str(own)},
    }
    conf.write_text(json.dumps(document))
    proxy = nursery.start("proxy", [sys.executable, "-m", "gantry_proxy", "--config", str(conf)], os.environ)
    wait_until("the proxy's port", lambda: apache_servers.is_listening(port), READY_SECONDS_MAX, proxy)
    return f"127.0.0.1:{port}"
