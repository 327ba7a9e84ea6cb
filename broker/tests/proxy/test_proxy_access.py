"""Access control of the proxy: signatures of SDKs, permissions of accounts, and clients that have neither."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from proxy_world import (
    ENDPOINTS,
    NOW_MS,
    FakeBrokers,
    FakeStream,
    World,
    consumer_settings,
    message,
    producer_settings,
    receipt_of,
    send_reply,
)

from gantry_access import AccessMode, AccountFile
from gantry_access.permissions import publish_need
from gantry_proxy.access import FileAccounts, ProxyGuard, sign
from gantry_proxy.context import CallContext
from gantry_proxy.handlers.acknowledging import ack_message
from gantry_proxy.handlers.routing import query_route
from gantry_proxy.handlers.sending import send_message
from gantry_proxy.handlers.sessions import accept_settings
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode

AT = "20270115T080000Z"
"""``NOW_MS`` as SDKs write it."""
ACCOUNTS = """
globalWhiteRemoteAddresses: [10.9.9.9]
accounts:
  - {accessKey: producer-1, secretKey: producer-secret, topicPerms: [orders=PUB]}
  - {accessKey: consumer-1, secretKey: consumer-secret, topicPerms: [orders=SUB], groupPerms: [billing=SUB]}
  - {accessKey: administrator, secretKey: admin-secret, admin: true}
"""


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    return file


def guard(accounts: Path, *, window_ms: int = 60_000, now_ms: int = NOW_MS) -> ProxyGuard:
    file = AccountFile(str(accounts), AccessMode.V1)
    file.load()
    return ProxyGuard(FileAccounts(file), lambda: now_ms, window_ms)


def headers(key: str = "producer-1", secret: str = "producer-secret", at: str = AT) -> dict[str, str]:
    signature = sign(secret.encode(), at)
    return {
        "x-mq-date-time": at,
        "authorization": f"MQv2-HMAC-SHA1 Credential={key}/cn/RocketMQ, SignedHeaders=x-mq-date-time, "
        f"Signature={signature}",
    }


def test_signature_is_that_of_the_sdks() -> None:
    """HMAC-SHA1 of the time with the secret key, in hexadecimal digits of upper case."""
    assert sign(b"secret", "20260102T030405Z") == "B8233E003C697C8C4218A6AFC2BC397A08E8F645"


async def test_signed_call_has_its_account(accounts: Path) -> None:
    """The access key names the account, and the signature of the time proves it."""
    account = await guard(accounts).authenticate(headers(), "192.0.2.7")

    assert account is not None
    assert account.access_key == "producer-1"


@pytest.mark.parametrize(
    "at",
    [
        "2027-01-15T08:00:00Z",
        "2027-01-15T08:00:00.123456789Z",
        "2027-01-15T10:00:00.5+02:00",
        "2027-01-15T03:00:30-05:00",
    ],
)
async def test_signed_time_may_have_an_offset_and_a_fraction(accounts: Path, at: str) -> None:
    """The SDK for Rust signs local times with nanoseconds."""
    account = await guard(accounts).authenticate(headers(at=at), "192.0.2.7")

    assert account is not None and account.access_key == "producer-1"


async def test_without_accounts_every_call_is_allowed() -> None:
    """A proxy without accounts allows every call."""
    open_guard = ProxyGuard(None, lambda: NOW_MS, 0)

    assert await open_guard.authenticate({}, "192.0.2.7") is None
    open_guard.require(CallContext(client_id="c", peer="p", remaining_ms=1), publish_need("orders"))


async def test_trusted_address_needs_no_signature(accounts: Path) -> None:
    """Addresses that the file trusts have every permission, as at brokers."""
    account = await guard(accounts).authenticate({}, "10.9.9.9")

    assert account is not None
    assert account.is_admin


FORGED = [
    ({}, "not signed"),
    (headers(secret="other-secret"), "unknown access key, or another secret key"),
    (headers(key="unknown-key"), "unknown access key, or another secret key"),
    ({**headers(), "x-mq-date-time": "20270115T080001Z"}, "unknown access key, or another secret key"),
    ({**headers(), "x-mq-date-time": ""}, "expected a time"),
    ({**headers(), "x-mq-date-time": "yesterday"}, "expected a time"),
    (headers(at="2027-01-15T08:00:00"), "expected a time"),
    (headers(at="2027-01-15T08:00:00+02:00"), "differs"),
    ({**headers(), "authorization": "Basic abc"}, "another form"),
    ({**headers(), "authorization": "MQv2-HMAC-SHA1 Credential=producer-1"}, "another form"),
    ({**headers(), "authorization": "MQv2-HMAC-SHA1 Credential=producer-1, Signature=größe"}, "another form"),
    ({**headers(), "authorization": "MQv2-HMAC-SHA1 " + "x" * 100_000}, "another form"),
    (headers(at="20270115T080101Z"), "differs"),
    (headers(at="20270115T075859Z"), "differs"),
]


@pytest.mark.parametrize(("forged", "reason"), FORGED)
async def test_call_without_a_valid_signature_is_refused(accounts: Path, forged: dict[str, str], reason: str) -> None:
    """Each has its reason, and an unknown account looks like a wrong secret."""
    with pytest.raises(ProxyError, match=reason) as caught:
        await guard(accounts).authenticate(forged, "192.0.2.7")

    assert caught.value.code == pb.UNAUTHORIZED


async def test_recorded_signature_expires_unless_the_window_is_open(accounts: Path) -> None:
    """An SDK signs only the time; without a window a signature would be valid for ever."""
    later = NOW_MS + 3_600_000

    with pytest.raises(ProxyError):
        await guard(accounts, now_ms=later).authenticate(headers(), "192.0.2.7")
    assert await guard(accounts, now_ms=later, window_ms=0).authenticate(headers(), "192.0.2.7") is not None


async def outcomes(accounts: Path, key: str, secret: str) -> list[pb.Code]:
    """Return how a route, a send and an ack of an account end."""
    one = World(FakeBrokers(answers={RequestCode.SEND_MESSAGE_V2: send_reply()}), accounts=accounts)
    account = await one.guard.authenticate(headers(key, secret), "192.0.2.7")
    context = msgspec.structs.replace(one.context(), account=account)
    topic, group = pb.Resource(name="orders"), pb.Resource(name="billing")
    entry = pb.AckMessageEntry(message_id="id", receipt_handle=receipt_of(1))
    ack = pb.AckMessageRequest(topic=topic, group=group, entries=[entry])
    found: list[pb.Code] = []
    for call in (
        query_route(one.core, context, pb.QueryRouteRequest(topic=topic, endpoints=ENDPOINTS)),
        send_message(one.core, context, pb.SendMessageRequest(messages=[message()])),
        ack_message(one.core, context, ack),
    ):
        try:
            found.append((await call).status.code)
        except ProxyError as error:
            found.append(error.code)
    return found


@pytest.mark.parametrize(
    ("key", "secret", "expected"),
    [
        ("producer-1", "producer-secret", [pb.OK, pb.OK, pb.FORBIDDEN]),
        ("consumer-1", "consumer-secret", [pb.OK, pb.FORBIDDEN, pb.OK]),
        ("administrator", "admin-secret", [pb.OK, pb.OK, pb.OK]),
    ],
)
async def test_account_does_what_it_may(accounts: Path, key: str, secret: str, expected: list[pb.Code]) -> None:
    """A producer cannot acknowledge, a consumer cannot send; an administrator may do both."""
    assert await outcomes(accounts, key, secret) == expected


@pytest.mark.parametrize(
    ("key", "settings", "is_allowed"),
    [
        ("producer", producer_settings(), True),
        ("consumer", producer_settings(), False),
        ("consumer", consumer_settings(), True),
        ("producer", consumer_settings(), False),
        ("consumer", consumer_settings(topic="payments"), False),
        ("consumer", consumer_settings("payers"), False),
    ],
    ids=["producer", "producer that may only read", "consumer", "consumer that may only send", "topic", "group"],
)
async def test_client_is_known_only_with_the_permissions_of_its_settings(
    accounts: Path, key: str, settings: pb.Settings, is_allowed: bool
) -> None:
    """A producer of a topic is asked about its transactions, and sees half messages: reading it does not suffice."""
    one = World(FakeBrokers(), accounts=accounts)
    account = await one.guard.authenticate(headers(f"{key}-1", f"{key}-secret"), "192.0.2.7")
    context = msgspec.structs.replace(one.context(), account=account)

    try:
        await accept_settings(one.core, context, settings, FakeStream())
        code = pb.OK
    except ProxyError as error:
        code = error.code

    assert code == (pb.OK if is_allowed else pb.FORBIDDEN)
    assert len(one.clients) == is_allowed
