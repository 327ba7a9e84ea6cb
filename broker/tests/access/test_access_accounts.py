"""Reading the file of accounts, and the errors that name file, account and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_access import AccessFileError, AccessMode, Account, Accounts, Permission, read_accounts, read_credentials
from gantry_access.addresses import read_patterns
from gantry_access.permissions import consume_need, metadata_need, publish_need, read_need

SAMPLE = """\
# as RocketMQ ships it
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - 192.168.0.*

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      # the group should convert to retry topic
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB

  - accessKey: rocketmq2
    secretKey: 12345678
    whiteRemoteAddress: 192.168.1.*
    # if it is admin, it could access all resources
    admin: true
"""
PLAIN = "accounts:\n  - accessKey: someone\n    secretKey: 12345678\n"


def accounts(text: str, mode: AccessMode = AccessMode.V1) -> Accounts:
    return read_accounts(text.encode(), "plain_acl.yml", mode)


def account(text: str) -> Account:
    [one] = accounts(text).by_key.values()
    return one


def test_rocketmq_sample_file_is_read() -> None:
    """Every field of RocketMQ's sample file has the same meaning here."""
    found = accounts(SAMPLE)
    plain, admin = found.by_key["RocketMQ"], found.by_key["rocketmq2"]

    assert found.trusted_addresses.matches("10.10.103.7") and not found.trusted_addresses.matches("10.10.104.7")
    assert plain.secret == b"12345678"
    assert (plain.topic_permission("topicA"), plain.topic_permission("topicC"), plain.topic_permission("other")) == (
        Permission.DENY,
        Permission.SUB,
        Permission.DENY,
    )
    assert plain.topic_permission("topicB") == Permission.PUB | Permission.SUB
    assert (plain.group_permission("groupA"), plain.group_permission("other")) == (Permission.DENY, Permission.SUB)
    assert admin.is_admin and admin.addresses.matches("192.168.1.200") and not plain.addresses.matches("192.168.1.200")


def test_numeric_secret_keeps_its_text() -> None:
    """Secrets are strings: 0123 is not 83, and 1e3 is not 1000."""
    assert account(PLAIN.replace("12345678", "01234567")).secret == b"01234567"
    assert account(PLAIN.replace("12345678", "1.0e3456")).secret == b"1.0e3456"
    assert account(PLAIN.replace("12345678", '"a: #b\\"c"')).secret == b'a: #b"c'


BROKEN = [
    ("", "holds no fields"),
    ("accounts:\n", "accounts must be a list of at least one"),
    ("acounts: []\n" + PLAIN, "unknown field 'acounts'"),
    (PLAIN + "    acessKey: x\n", r"account 1 \(someone\): unknown field 'acessKey'"),
    (PLAIN + PLAIN.partition("\n")[2], "account 2 .*accessKey is a duplicate"),
    (PLAIN.replace("    secretKey: 12345678\n", ""), r"account 1 \(someone\): secretKey is missing"),
    (PLAIN.replace("someone", "six666"), "account 1: accessKey must be a string of at least 7"),
    (PLAIN.replace("12345678", "short"), "secretKey must be a string of at least 7"),
    (PLAIN.replace("12345678", "[a, b]"), "secretKey must be a string"),
    (PLAIN + "    admin: yes\n", "admin must be true or false"),
    (PLAIN + "    admin: true\n    defaultTopicPerm: SUB\n", "defaultTopicPerm beside admin: true"),
    (PLAIN + "    defaultTopicPerm: ALL\n", "defaultTopicPerm must be one of DENY, PUB, SUB"),
    (PLAIN + "    topicPerms: orders=PUB\n", "topicPerms must be a list"),
    (PLAIN + "    topicPerms:\n      - orders\n", r"topicPerms\[1\]: expected name=PERMISSION"),
    (PLAIN + "    topicPerms:\n      - orders=PUB\n      - orders=SUB\n", r"topicPerms\[2\]: orders is a duplicate"),
    (PLAIN + "    topicPerms: [a/b=PUB]\n", "invalid topic"),
    (PLAIN + "    topicPerms:\n      - '%RETRY%g=SUB'\n", "use g in groupPerms"),
    (PLAIN + "    groupPerms: [g=READ]\n", r"groupPerms\[1\] must be one of"),
    (PLAIN + "    whiteRemoteAddress: '*'\n", "matches every peer"),
    (PLAIN + "    whiteRemoteAddress: example.org\n", "is not an address"),
    ("globalWhiteRemoteAddresses: [0.0.0.0/0]\n" + PLAIN, r"globalWhiteRemoteAddresses\[1\]: .*matches every peer"),
    (PLAIN + "    secretKey: 12345678\n", "line 4: duplicate key secretKey"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_file_with_one_fault_is_refused(text: str, message: str) -> None:
    """The error names file, account and field, and contains no secret."""
    with pytest.raises(AccessFileError, match=message) as caught:
        accounts(text)

    assert str(caught.value).startswith("plain_acl.yml: ")
    assert "12345678" not in str(caught.value)


def test_strict_mode_refuses_trusted_addresses() -> None:
    """Trusted addresses contradict the strict mode; the same file is accepted in the other mode."""
    for text in ("globalWhiteRemoteAddresses: [10.0.0.1]\n" + PLAIN, PLAIN + "    whiteRemoteAddress: 10.0.0.1\n"):
        with pytest.raises(AccessFileError, match="trusts no addresses"):
            accounts(text, AccessMode.STRICT)
        accounts(text, AccessMode.V1)


def test_account_repr_contains_no_secret() -> None:
    """Accounts may appear in a log or a traceback without revealing their secrets."""
    found = accounts(SAMPLE)

    assert "12345678" not in f"{found!r} {found.by_key!r}"


# ------- what an account may


def test_named_permission_overrides_default() -> None:
    """Permissions by name have priority, and DENY by name denies what the default permits."""
    one = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n    topicPerms: [secret=DENY, log=PUB]\n")

    assert one.has_permission(publish_need("other")) and one.has_permission(read_need("other"))
    assert not one.has_permission(publish_need("secret")) and not one.has_permission(read_need("secret"))
    assert one.has_permission(publish_need("log")) and not one.has_permission(read_need("log"))
    assert one.has_permission(metadata_need("log")) and not one.has_permission(metadata_need("secret"))


def test_retry_topic_follows_group_permission() -> None:
    """Only accounts with permission for the group may send back to its retry topic and read it."""
    one = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n    groupPerms: [mine=SUB]\n")

    assert one.has_permission(publish_need("%RETRY%mine")) and one.has_permission(read_need("%RETRY%mine"))
    assert not one.has_permission(publish_need("%RETRY%other")) and not one.has_permission(read_need("%RETRY%other"))


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_defaults_do_not_apply_to_internal_topics(topic: str) -> None:
    """Internal topics hold messages of all accounts: only a permission by name, or an administrator, may read them."""
    default = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n")
    named = account(PLAIN + f"    topicPerms: [{topic}=SUB]\n")
    admin = account(PLAIN + "    admin: true\n")

    assert not default.has_permission(read_need(topic))
    assert named.has_permission(read_need(topic)) and admin.has_permission(read_need(topic))


def test_publishing_traces_needs_no_permission() -> None:
    """As in RocketMQ; reading the trace topic needs one, and DENY by name denies publishing, too."""
    one = account(PLAIN)

    assert one.has_permission(publish_need("RMQ_SYS_TRACE_TOPIC")) and not one.has_permission(
        read_need("RMQ_SYS_TRACE_TOPIC")
    )
    assert not account(PLAIN + "    topicPerms: [RMQ_SYS_TRACE_TOPIC=DENY]\n").has_permission(
        publish_need("RMQ_SYS_TRACE_TOPIC")
    )


def test_pub_permission_does_not_allow_group_membership() -> None:
    """Membership in a group needs SUB."""
    assert not account(PLAIN + "    groupPerms: [g=PUB]\n").has_permission(consume_need("g"))


# ------- addresses


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("10.0.3.7", "10.0.3.7", "10.0.3.8"),
        ("10.0.*.*", "10.0.255.1", "10.1.0.1"),
        ("10.0.3-5.*", "10.0.5.1", "10.0.6.1"),
        ("10.0.3.{7,8}", "10.0.3.8", "10.0.3.9"),
        ("10.0.3.7,10.0.4.7", "10.0.4.7", "10.0.5.7"),
        ("10.0.0.0/16", "10.0.9.9", "10.1.9.9"),
        ("fd00::7", "fd00:0::7", "fd00::8"),
        ("fd00::/8", "fdff::1", "fe80::1"),
        ("10.0.3.7", "::ffff:10.0.3.7", "::ffff:10.0.3.8"),
    ],
)
def test_address_patterns_match(pattern: str, inside: str, outside: str) -> None:
    """RocketMQ's patterns and networks match; an IPv4 peer on an IPv6 socket is the same peer."""
    found = read_patterns(pattern)

    assert found.matches(inside) and not found.matches(outside) and not found.matches("")


@pytest.mark.parametrize(
    "pattern", ["*", "*.*.*.*", "0.0.0.0/0", "::/0", "10.0.0", "10.0.0.256", "10.0.5-3.1", "10.0.3.{a}", "a.b.c.d", ""]
)
def test_invalid_or_universal_address_pattern_is_refused(pattern: str) -> None:
    """A pattern must not silently disable access control."""
    with pytest.raises(ValueError, match=r"matches every peer|is not an address"):
        read_patterns(pattern)


# ------- credentials


def test_credentials_are_read_from_file(tmp_path: Path) -> None:
    """The format is that of RocketMQ's tools.yml."""
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: orders-key\nsecretKey: 0123456789\n")

    found = read_credentials(path)

    assert (found.access_key, found.secret_key, found.security_token) == ("orders-key", "0123456789", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accessKey: orders-key\n", "secretKey is missing"),
        ("accesKey: a\nsecretKey: topsecret\n", "unknown field 'accesKey'"),
        ("accessKey: [a]\nsecretKey: topsecret\n", "accessKey must be a string"),
        ("topsecret\n", "holds no fields"),
        (
            "accessKey: 'a\nsecretKey: topsecret\n",
            "line 3: invalid YAML: .* while scanning a quoted scalar that begins in line 1",
        ),
    ],
)
def test_invalid_credentials_file_error_contains_no_secret(tmp_path: Path, text: str, message: str) -> None:
    """The error names file and fault, and quotes no content."""
    path = tmp_path / "tools.yml"
    path.write_text(text)

    with pytest.raises(AccessFileError, match=message) as caught:
        read_credentials(path)

    assert str(path) in str(caught.value) and "topsecret" not in str(caught.value)


def test_missing_credentials_file_is_named(tmp_path: Path) -> None:
    """The error has the path and the reason of the operating system."""
    with pytest.raises(AccessFileError, match=r"cannot read .*gone.yml: No such file"):
        read_credentials(tmp_path / "gone.yml")
