"""What a request of a user with policies needs, and the texts of denials."""

from __future__ import annotations

import pytest

from gantry_access import ADMIN_ONLY, AccessSettings, AccountStore, Credentials, Guard, Kind, Need, Permission, signer
from gantry_access.account_changes import create_user, put_acl
from gantry_access.policy_needs import policy_needs_of
from gantry_access.stored_accounts import AccountTables
from gantry_testing.local import send_ext
from gantry_wire import Command
from gantry_wire.commands.accounts import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

GET, SUB, PUB, UPDATE = Permission.GET, Permission.SUB, Permission.PUB, Permission.UPDATE
TOPIC, GROUP, CLUSTER = Kind.TOPIC, Kind.GROUP, Kind.CLUSTER
CREATE_TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "order": "false",
}  # fmt: skip
RESET = {"group": "G", "topic": "T", "timestamp": "0", "isForce": "true"}

ROWS: list[tuple[int, dict[str, str], tuple[Need, ...]]] = [
    (310, send_ext(310, topic="T"), (Need(TOPIC, "T", PUB),)),
    (11, {"consumerGroup": "G", "topic": "T"}, (Need(GROUP, "G", SUB), Need(TOPIC, "T", SUB))),
    (30, {"topic": "T"}, (Need(TOPIC, "T", SUB | GET),)),
    (33, {"offset": "7"}, (Need(Kind.MESSAGE, "7", SUB | GET),)),
    (14, {"consumerGroup": "G", "topic": "T"}, (Need(GROUP, "G", SUB | GET), Need(TOPIC, "T", SUB | GET))),
    (15, {"consumerGroup": "G", "topic": "T"}, (Need(GROUP, "G", SUB | UPDATE), Need(TOPIC, "T", SUB | UPDATE))),
    (105, {"topic": "T"}, (Need(TOPIC, "T", PUB | SUB | GET),)),
    (17, CREATE_TOPIC, (Need(TOPIC, "T", Permission.CREATE),)),
    (215, {"topic": "T"}, (Need(TOPIC, "T", Permission.DELETE),)),
    (215, {"topic": "%RETRY%G"}, (Need(GROUP, "G", Permission.DELETE),)),
    (207, {"groupName": "G"}, (Need(GROUP, "G", Permission.DELETE),)),
    (222, RESET, (Need(GROUP, "G", UPDATE), Need(TOPIC, "T", UPDATE))),
    (353, {"group": "G", "topic": "T"}, (Need(GROUP, "G", UPDATE), Need(TOPIC, "T", UPDATE))),
    (321, {"topic": "T", "consumerGroup": "G"}, (Need(TOPIC, "T", GET), Need(GROUP, "G", GET))),
    (321, {"topic": "T"}, (Need(TOPIC, "T", GET),)),
    (307, {"consumerGroup": "G", "clientId": "c"}, (Need(GROUP, "G", GET),)),
    (3001, {}, (Need(CLUSTER, "", UPDATE),)),
    (3010, {}, (Need(CLUSTER, "", GET),)),
    (25, {}, ADMIN_ONLY),
    (26, {}, ADMIN_ONLY),
    (9999, {}, ADMIN_ONLY),
]


@pytest.mark.parametrize(("code", "ext", "needs"), ROWS, ids=[f"{row[0]}-{len(row[1])}" for row in ROWS])
def test_request_needs_an_action_on_what_it_accesses(code: int, ext: dict[str, str], needs: tuple[Need, ...]) -> None:
    """The actions are RocketMQ's; what it lets every user do needs a Super user."""
    assert policy_needs_of(Command(code=code, ext=ext)) == needs


def guard_of(*entries: PolicyEntryInfo) -> Guard:
    store = AccountStore(is_authorizing=True)
    tables = create_user(AccountTables(), "alice", UserInfo(password="alice-secret"), is_by_super=True)
    if entries:
        tables = put_acl(tables, "User:alice", AclInfo(policies=[PolicyInfo(entries=list(entries))]))
    store.replace(tables)
    return Guard(AccessSettings(is_stored=True), store, now_ms=lambda: 0, cluster="Main")


def ask(guard: Guard, code: int, ext: dict[str, str], peer: str = "10.1.2.3") -> tuple[int, str] | None:
    command = Command(code=code, ext=dict(ext))
    sign = signer(Credentials("alice", "alice-secret"))
    assert sign is not None
    sign(command)
    return guard.denial(command, peer)


def allow(resource: str, *actions: str, source_ips: list[str] | None = None) -> PolicyEntryInfo:
    return PolicyEntryInfo(resource=resource, actions=list(actions), decision="Allow", source_ips=source_ips)


def test_policy_for_the_cluster_names_the_cluster_of_the_broker() -> None:
    """Another cluster's name gives nothing."""
    assert ask(guard_of(allow("Cluster:Main", "Get")), 3005, {}) is None
    denied = ask(guard_of(allow("Cluster:Other", "Get")), 3005, {})
    assert denied is not None and denied[0] == 16
    assert denied[1] == "User:alice has no permission to access Cluster:Main from 10.1.2.3, no matched policies."


def test_denial_names_the_resource_and_the_reason() -> None:
    """In RocketMQ's words; a request for administrators only says so."""
    send = send_ext(310, topic="T")
    denied = ask(guard_of(PolicyEntryInfo(resource="Topic:T", actions=["Pub"], decision="Deny")), 310, send)
    assert denied == (16, "User:alice has no permission to access Topic:T from 10.1.2.3, the decision is deny.")
    assert ask(guard_of(allow("Topic:T", "Pub")), 310, send) is None
    assert ask(guard_of(allow("*", "All")), 25, {}) == (
        16,
        "Need admin permission for request code=25, but accessKey is not",
    )


def test_address_of_the_peer_decides_on_every_way() -> None:
    """Also for half messages; the short cut of plain sends is not taken for such an account."""
    guard = guard_of(allow("Topic:T", "Pub", source_ips=["10.0.0.0/8"]))
    send = send_ext(310, topic="T")
    assert ask(guard, 310, send, "10.1.2.3") is None
    assert ask(guard, 310, send, "192.0.2.1") is not None
    assert guard.may_receive_half_messages("alice", "10.1.2.3", "T")
    assert not guard.may_receive_half_messages("alice", "192.0.2.1", "T")
    assert not guard.source.accounts.by_key["alice"].may_publish("T")
    assert guard_of(allow("Topic:T", "Pub")).source.accounts.by_key["alice"].may_publish("T"), "the twin"
