"""Accounts that brokers store, as the proxy reads and keeps them: their age, their number, and brokers that fail."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from proxy_world import (
    ADDRESS,
    BROKER,
    FakeBrokers,
    FakeStream,
    World,
    consumer_settings,
    message,
    producer_settings,
    send_reply,
)
from test_proxy_access import headers

from gantry_access.permissions import publish_need, read_need
from gantry_client.errors import BrokerRefused, Unavailable
from gantry_proxy import broker_accounts
from gantry_proxy.access import WRONG_SIGNATURE, ProxyGuard
from gantry_proxy.broker_accounts import AGE_MS_MAX, REFRESH_MS, BrokerAccounts
from gantry_proxy.handlers.sending import send_message
from gantry_proxy.handlers.sessions import accept_settings, disconnect_revoked
from gantry_proxy.protocol import rocketmq_pb2 as pb
from gantry_proxy.rpc.protocol import StatusCode
from gantry_proxy.service import _rpc_code
from gantry_proxy.statuses import ProxyError
from gantry_wire.codes import RequestCode, ResponseCode
from gantry_wire.command import Command
from gantry_wire.commands.accounts import UserInfo

PEER = "192.0.2.7"
OTHER = "10.0.0.2:10911"


def user(name: str = "producer-1", secret: str = "producer-secret", **more: str) -> UserInfo:
    return UserInfo(username=name, password=secret, **{"user_type": "Normal", "user_status": "enable", **more})


@pytest.fixture
def brokers() -> FakeBrokers:
    found = FakeBrokers(users={"producer-1": user()}, policies={"producer-1": {"Topic:orders": ["Pub"]}})
    found.answers[RequestCode.SEND_MESSAGE_V2] = send_reply()
    return found


@pytest.fixture
def world(brokers: FakeBrokers) -> World:
    return World(brokers, has_broker_accounts=True)


async def outcome(world: World, key: str = "producer-1", secret: str = "producer-secret") -> pb.Code | str:
    """Return how a call of an account is authenticated: its name, or the code of the refusal."""
    now = datetime.fromtimestamp(world.now_ms / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
    try:
        account = await world.guard.authenticate(headers(key, secret, now), PEER)
    except ProxyError as error:
        return error.code
    assert account is not None
    return account.access_key


async def settle() -> None:
    """Let reads in the background end."""
    for _ in range(20):
        await asyncio.sleep(0)


def hold_requests(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Answer requests after the event is set."""
    go_on = asyncio.Event()
    request = brokers.request

    async def wait(*arguments: Any, **more: Any) -> Command:
        await go_on.wait()
        return await request(*arguments, **more)

    monkeypatch.setattr(brokers, "request", wait)
    return go_on


def reads(brokers: FakeBrokers) -> int:
    return sum(one.code == RequestCode.AUTH_GET_USER for one in brokers.requests)


# ------- who is accepted


async def test_stored_user_is_accepted_and_may_do_what_a_policy_allows(world: World, brokers: FakeBrokers) -> None:
    """The account has the policies of the broker, and no other permission."""
    account = await world.guard.authenticate(headers(), PEER)
    context = msgspec.structs.replace(world.context(), account=account)

    reply = await send_message(world.core, context, pb.SendMessageRequest(messages=[message()]))

    assert reply.status.code == pb.OK
    for need in (read_need("orders"), publish_need("other")):
        with pytest.raises(ProxyError) as caught:
            world.guard.require(context, need)
        assert caught.value.code == pb.FORBIDDEN


@pytest.mark.parametrize(
    ("key", "secret", "expected"),
    [("producer-1", "producer-secret", "producer-1"), ("producer-1", "other", pb.UNAUTHORIZED),
     ("unknown", "producer-secret", pb.UNAUTHORIZED), ("x" * 300, "producer-secret", pb.UNAUTHORIZED)],
)  # fmt: skip
async def test_signature_decides(world: World, brokers: FakeBrokers, key: str, secret: str, expected: object) -> None:
    """An unknown account looks like a wrong secret, and no broker is asked about a name that none can have."""
    assert await outcome(world, key, secret) == expected
    assert reads(brokers) == (len(key) <= 255)


async def test_disabled_user_is_refused_and_only_the_right_secret_learns_it(world: World, brokers: FakeBrokers) -> None:
    """With another secret the answer is that for an unknown account."""
    brokers.users["producer-1"] = user(user_status="disable")
    for secret, reason in (("producer-secret", "the account is disabled"), ("other", WRONG_SIGNATURE)):
        with pytest.raises(ProxyError, match=reason):
            await world.guard.authenticate(headers(secret=secret), PEER)


@pytest.mark.parametrize(
    ("kind", "checks_policies", "may_read"), [("Super", True, True), ("Normal", True, False), ("Normal", False, True)]
)
async def test_super_user_needs_no_policy(
    world: World, brokers: FakeBrokers, kind: str, *, checks_policies: bool, may_read: bool
) -> None:
    """So does every user of brokers without authorization; then no policy is read."""
    brokers.users["producer-1"] = user(user_type=kind)
    found = await BrokerAccounts(brokers, world.clock, checks_policies=checks_policies).find("producer-1")

    assert found is not None
    assert (found.account.is_admin or found.account.has_permission(read_need("any"))) == may_read
    asked = any(one.code == RequestCode.AUTH_GET_ACL for one in brokers.requests)
    assert asked == (not may_read)


async def test_policy_for_addresses_counts_for_the_address_of_the_client(world: World, brokers: FakeBrokers) -> None:
    """The address is that of the connection to the proxy."""
    entry = (
        b'{"policies":[{"policyType":"Custom","entries":[{"resource":"Topic:*","actions":["Pub"],'
        b'"sourceIps":["192.0.2.0/24"],"decision":"Allow"}]}]}'
    )
    brokers.answers[RequestCode.AUTH_GET_ACL] = Command(code=ResponseCode.SUCCESS, body=entry)
    account = await world.guard.authenticate(headers(), PEER)
    context = msgspec.structs.replace(world.context(), account=account)

    world.guard.require(context, publish_need("orders"))
    with pytest.raises(ProxyError):
        world.guard.require(msgspec.structs.replace(context, peer="198.51.100.1"), publish_need("orders"))


# ------- age


@pytest.mark.parametrize("change", ["deleted", "disabled", "password"])
@pytest.mark.parametrize("age_ms_max", [AGE_MS_MAX, 10**9])
async def test_revoked_account_has_access_for_a_limited_time(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, change: str, age_ms_max: int
) -> None:
    """A client that was idle gets no further call. The twin, without the limit, gets one with the old answer."""
    monkeypatch.setattr(broker_accounts, "AGE_MS_MAX", age_ms_max)
    world = World(brokers, has_broker_accounts=True)
    assert await outcome(world) == "producer-1"
    if change == "deleted":
        del brokers.users["producer-1"]
    else:
        brokers.users["producer-1"] = user(user_status="disable") if change == "disabled" else user(secret="new-secret")
    world.now_ms += AGE_MS_MAX

    assert await outcome(world) == (pb.UNAUTHORIZED if age_ms_max == AGE_MS_MAX else "producer-1")


async def test_account_in_use_is_read_again_in_the_background(world: World, brokers: FakeBrokers) -> None:
    """The call that finds it old does not wait; the next one has the new answer."""
    assert await outcome(world) == "producer-1"
    world.now_ms += REFRESH_MS - 1
    assert (await outcome(world), reads(brokers)) == ("producer-1", 1)
    del brokers.users["producer-1"]
    world.now_ms += 1
    assert await outcome(world) == "producer-1"
    await settle()

    assert (await outcome(world), reads(brokers)) == (pb.UNAUTHORIZED, 2)


async def test_created_user_is_accepted_soon(world: World, brokers: FakeBrokers) -> None:
    """The answer that a user does not exist is used for a second only."""
    del brokers.users["producer-1"]
    assert await outcome(world) == pb.UNAUTHORIZED
    brokers.users["producer-1"] = user()
    world.now_ms += 1_000

    assert await outcome(world) == "producer-1"


async def test_unchanged_account_stays_the_same_object(world: World, brokers: FakeBrokers) -> None:
    """So that the check of thousands of streams is a comparison."""
    first = await world.broker_accounts.find("producer-1")
    world.now_ms += AGE_MS_MAX
    assert await world.broker_accounts.find("producer-1") is first
    brokers.policies["producer-1"] = {"Topic:orders": ["Sub"]}
    world.now_ms += AGE_MS_MAX
    assert await world.broker_accounts.find("producer-1") is not first


# ------- brokers that fail


@pytest.mark.parametrize("failure", [Unavailable("no broker"), BrokerRefused(16, "no permission", ADDRESS)])
async def test_account_is_refused_while_no_broker_answers(
    world: World, brokers: FakeBrokers, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A known account has access until it is too old, an unknown one has none; both have it again afterwards."""
    brokers.users["other"] = user("other")
    assert await outcome(world) == "producer-1"
    brokers.failure = failure
    world.now_ms += AGE_MS_MAX - 1
    assert await outcome(world, "other") == pb.HA_NOT_AVAILABLE
    assert await outcome(world) == "producer-1"
    await settle()
    world.now_ms += 1
    assert await outcome(world) == pb.HA_NOT_AVAILABLE
    brokers.failure = None
    assert await outcome(world) == "producer-1"

    texts = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
    assert texts == ["cannot read accounts from brokers; calls of unknown accounts are refused"]


def test_refusal_without_a_reply_is_unavailable() -> None:
    """The status of a Telemetry stream, after which SDKs connect again."""
    assert _rpc_code(ProxyError(pb.HA_NOT_AVAILABLE, "")) is StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"username":"producer-1","userType":"Super"}', "needs the type Super at Gantry's brokers"),
        (b'{"username":"other","password":"producer-secret"}', "about another user"),
        (b'{"username":"producer-1","password":"producer-secret","userType":"King"}', "not a valid UserType"),
        (b'{"username":"producer-1","password":["producer-secret"]}', "malformed"),
        (b"producer-secret", "malformed"),
    ],
)
async def test_unusable_answer_gives_no_access_and_no_secret(
    world: World, brokers: FakeBrokers, body: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the reason and the remedy, and never the answer."""
    brokers.answers[RequestCode.AUTH_GET_USER] = Command(code=ResponseCode.SUCCESS, body=body)
    assert await outcome(world) == pb.HA_NOT_AVAILABLE

    logged = " ".join(str(one.__dict__) for one in caplog.records)
    assert (words in logged, "producer-secret" in logged) == (True, False)
    assert "secret" not in repr(world.guard)


async def test_unusable_policy_gives_no_access(world: World, brokers: FakeBrokers) -> None:
    """Half of the policies must not define the permissions: a denial might be in the other half."""
    entry = b'{"resource":"Planet:x","actions":["Pub"],"decision":"Deny"}'
    body = b'{"policies":[{"policyType":"Custom","entries":[%s]}]}' % entry
    brokers.answers[RequestCode.AUTH_GET_ACL] = Command(code=ResponseCode.SUCCESS, body=body)
    assert await outcome(world) == pb.HA_NOT_AVAILABLE


async def test_another_master_is_asked_if_one_is_down(world: World, brokers: FakeBrokers) -> None:
    """Later reads begin with the one that answered; a broker without a master is not asked."""
    brokers.masters = {BROKER: ADDRESS, "broker-b": OTHER, "broker-c": ""}
    brokers.down = {ADDRESS}
    assert await outcome(world) == "producer-1"
    assert await outcome(world, "unknown") == pb.UNAUTHORIZED

    asked = [one.address for one in brokers.requests if one.code == RequestCode.AUTH_GET_USER]
    assert asked == [ADDRESS, OTHER, OTHER]


@pytest.mark.parametrize(("cluster", "expected"), [("", pb.HA_NOT_AVAILABLE), ("c", "producer-1")])
async def test_one_of_several_clusters_must_be_named(
    world: World, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, cluster: str, expected: object
) -> None:
    """A user of one cluster may be another person in the other one."""
    info = await brokers.cluster_info()
    info.cluster_addr_table["d"] = ["broker-d"]

    async def cluster_info() -> object:
        return info

    monkeypatch.setattr(brokers, "cluster_info", cluster_info)
    world.guard = ProxyGuard(BrokerAccounts(brokers, world.clock, cluster=cluster), world.clock, 60_000)
    assert await outcome(world) == expected


# ------- floods


@pytest.mark.parametrize("limit", [5, 10_000])
async def test_flood_of_invented_names_reaches_brokers_at_a_limited_rate(
    world: World, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Known accounts are served meanwhile. The twin, without the limit, asks a broker about each name."""
    monkeypatch.setattr(broker_accounts, "UNKNOWN_PER_S_MAX", limit)
    assert await outcome(world) == "producer-1"
    found = [await outcome(world, f"invented-{number}") for number in range(50)]
    assert await outcome(world) == "producer-1"
    world.now_ms += 1_000
    assert await outcome(world, "invented-51") == pb.UNAUTHORIZED

    assert found.count(pb.TOO_MANY_REQUESTS) == max(0, 51 - limit)
    assert reads(brokers) == min(limit, 51) + 1


async def test_first_calls_of_many_clients_of_one_account_are_one_read(world: World, brokers: FakeBrokers) -> None:
    """They do not count as a flood."""
    found = await asyncio.gather(*(outcome(world) for _ in range(1_000)))

    assert (set(found), reads(brokers)) == ({"producer-1"}, 1)


async def test_invented_names_do_not_displace_accounts(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that do not exist have a table of their own; both tables are limited."""
    monkeypatch.setattr(broker_accounts, "ACCOUNTS_MAX", 3)
    world = World(brokers, has_broker_accounts=True)
    names = [f"user-{number}" for number in range(5)]
    brokers.users.update({name: user(name, "secret") for name in names})
    for name in names:
        assert await outcome(world, name, "secret") == name
    assert len(world.broker_accounts) == 3
    for number in range(10):
        await outcome(world, f"invented-{number}")
    before = reads(brokers)
    assert await outcome(world, names[-1], "secret") == names[-1]

    assert (reads(brokers), len(world.broker_accounts)) == (before, 3)


async def test_unknown_accounts_are_not_looked_up_while_reads_pile_up(
    world: World, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a broker does not answer, waiting reads do not grow with every invented name."""
    monkeypatch.setattr(broker_accounts, "READS_WAITING_MAX", 3)
    go_on = hold_requests(brokers, monkeypatch)
    waiting = [asyncio.ensure_future(outcome(world, f"invented-{number}")) for number in range(3)]
    await settle()
    assert await outcome(world, "invented-3") == pb.TOO_MANY_REQUESTS
    go_on.set()
    assert await asyncio.gather(*waiting) == [pb.UNAUTHORIZED] * 3


# ------- streams


async def connect(world: World, settings: pb.Settings) -> FakeStream:
    account = await world.guard.authenticate(headers(), PEER)
    stream = FakeStream()
    await accept_settings(world.core, msgspec.structs.replace(world.context(), account=account), settings, stream)
    return stream


@pytest.mark.parametrize("change", ["deleted", "password", "policy", "unrelated", "failure"])
async def test_stream_of_a_revoked_account_is_closed(world: World, brokers: FakeBrokers, change: str) -> None:
    """A producer gets half messages on its stream. Other changes close no stream, nor does a broker that fails."""
    stream = await connect(world, producer_settings())
    if change == "deleted":
        del brokers.users["producer-1"]
    elif change == "password":
        brokers.users["producer-1"] = user(secret="new-secret")
    elif change == "policy":
        brokers.policies["producer-1"] = {}
    elif change == "unrelated":
        brokers.policies["producer-1"] = {"Topic:orders": ["Pub"], "Topic:more": ["Pub"]}
    else:
        brokers.failure = Unavailable("no broker")
    await disconnect_revoked(world.core)
    assert not stream.is_closed
    world.now_ms += AGE_MS_MAX
    await disconnect_revoked(world.core)

    is_revoked = change in ("deleted", "password", "policy")
    assert (stream.is_closed, world.clients.find("client-1") is None) == (is_revoked, is_revoked)


@pytest.mark.parametrize("lost", ["Group:billing", "Topic:orders"])
async def test_consumer_that_lost_its_group_or_topic_is_disconnected(
    world: World, brokers: FakeBrokers, lost: str
) -> None:
    """Its messages return to the group at once."""
    brokers.policies["producer-1"] = {"Group:billing": ["Sub"], "Topic:orders": ["Sub"]}
    stream = await connect(world, consumer_settings())
    del brokers.policies["producer-1"][lost]
    world.now_ms += AGE_MS_MAX
    await disconnect_revoked(world.core)

    assert (stream.is_closed, len(world.clients)) == (True, 0)


async def test_client_that_has_connected_again_stays(
    world: World, brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its new password: what was found out about the old stream does not count."""
    await connect(world, producer_settings())
    brokers.users["producer-1"] = user(secret="new-secret")
    world.now_ms += AGE_MS_MAX
    new = FakeStream()
    go_on = hold_requests(brokers, monkeypatch)
    checking = asyncio.ensure_future(disconnect_revoked(world.core))
    await settle()
    world.clients.register("client-1", producer_settings(), new, world.context())
    go_on.set()
    await checking

    assert (new.is_closed, world.clients.find("client-1") is not None) == (False, True)
