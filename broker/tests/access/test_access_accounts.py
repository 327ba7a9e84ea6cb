"""The file of accounts: what is read from it, and what refuses it, by file, account and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from gantry_access import AccessFileError, AccessMode, Account, Accounts, Permission, read_accounts, read_credentials
from gantry_access.addresses import read_patterns
from gantry_access.permissions import consuming, knowing, publishing, reading

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


def test_the_file_that_rocketmq_ships_is_read() -> None:
    """Every field of RocketMQ's own sample means what it means there."""
    found = accounts(SAMPLE)
    plain, admin = found.by_key["RocketMQ"], found.by_key["rocketmq2"]

    assert found.everything_from.matches("10.10.103.7") and not found.everything_from.matches("10.10.104.7")
    assert plain.secret == b"12345678"
    assert (plain.topic("topicA"), plain.topic("topicC"), plain.topic("other")) == (
        Permission.DENY,
        Permission.SUB,
        Permission.DENY,
    )
    assert plain.topic("topicB") == Permission.PUB | Permission.SUB
    assert (plain.group("groupA"), plain.group("other")) == (Permission.DENY, Permission.SUB)
    assert admin.is_admin and admin.addresses.matches("192.168.1.200") and not plain.addresses.matches("192.168.1.200")


def test_a_secret_stays_the_text_that_was_written() -> None:
    """Digits are no number: 0123 is not 83, and 1e3 is not 1000."""
    assert account(PLAIN.replace("12345678", "01234567")).secret == b"01234567"
    assert account(PLAIN.replace("12345678", "1.0e3456")).secret == b"1.0e3456"
    assert account(PLAIN.replace("12345678", '"a: #b\\"c"')).secret == b'a: #b"c'


BROKEN = [
    ("", "holds no fields"),
    ("accounts:\n", "accounts is a list with at least one"),
    ("acounts: []\n" + PLAIN, "unknown field 'acounts'"),
    (PLAIN + "    acessKey: x\n", r"account 1 \(someone\): unknown field 'acessKey'"),
    (PLAIN + PLAIN.partition("\n")[2], "account 2 .*accessKey is in the file twice"),
    (PLAIN.replace("    secretKey: 12345678\n", ""), r"account 1 \(someone\): secretKey is missing"),
    (PLAIN.replace("someone", "six666"), "account 1: accessKey is a text of 7 or more"),
    (PLAIN.replace("12345678", "short"), "secretKey is a text of 7 or more"),
    (PLAIN.replace("12345678", "[a, b]"), "secretKey is a text"),
    (PLAIN + "    admin: yes\n", "admin is true or false"),
    (PLAIN + "    admin: true\n    defaultTopicPerm: SUB\n", "defaultTopicPerm beside admin: true"),
    (PLAIN + "    defaultTopicPerm: ALL\n", "defaultTopicPerm is one of DENY, PUB, SUB"),
    (PLAIN + "    topicPerms: orders=PUB\n", "topicPerms is a list"),
    (PLAIN + "    topicPerms:\n      - orders\n", r"topicPerms\[1\]: write name=PERMISSION"),
    (PLAIN + "    topicPerms:\n      - orders=PUB\n      - orders=SUB\n", r"topicPerms\[2\]: orders is in .* twice"),
    (PLAIN + "    topicPerms: [a/b=PUB]\n", "the topic is illegal"),
    (PLAIN + "    topicPerms:\n      - '%RETRY%g=SUB'\n", "write g into groupPerms"),
    (PLAIN + "    groupPerms: [g=READ]\n", r"groupPerms\[1\] is one of"),
    (PLAIN + "    whiteRemoteAddress: '*'\n", "matches every peer"),
    (PLAIN + "    whiteRemoteAddress: example.org\n", "is no address"),
    ("globalWhiteRemoteAddresses: [0.0.0.0/0]\n" + PLAIN, r"globalWhiteRemoteAddresses\[1\]: .*matches every peer"),
    (PLAIN + "    secretKey: 12345678\n", "line 4: secretKey comes twice"),
]


@pytest.mark.parametrize(("text", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_a_file_with_one_fault_is_refused_as_a_whole(text: str, says: str) -> None:
    """The error names file, account and field, and shows no secret."""
    with pytest.raises(AccessFileError, match=says) as caught:
        accounts(text)

    assert str(caught.value).startswith("plain_acl.yml: ")
    assert "12345678" not in str(caught.value)


def test_the_strict_mode_believes_no_address() -> None:
    """What would let somebody in without a signature contradicts the mode; the twin is the mode that allows it."""
    for text in ("globalWhiteRemoteAddresses: [10.0.0.1]\n" + PLAIN, PLAIN + "    whiteRemoteAddress: 10.0.0.1\n"):
        with pytest.raises(AccessFileError, match="no address is believed"):
            accounts(text, AccessMode.STRICT)
        accounts(text, AccessMode.V1)


def test_no_repr_holds_a_secret() -> None:
    """Accounts may end up in a log or a traceback."""
    found = accounts(SAMPLE)

    assert "12345678" not in f"{found!r} {found.by_key!r}"


# ------- what an account may


def test_a_name_wins_over_the_default() -> None:
    """Permissions by name come first, and DENY by name denies what the default would give."""
    one = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n    topicPerms: [secret=DENY, log=PUB]\n")

    assert one.may(publishing("other")) and one.may(reading("other"))
    assert not one.may(publishing("secret")) and not one.may(reading("secret"))
    assert one.may(publishing("log")) and not one.may(reading("log"))
    assert one.may(knowing("log")) and not one.may(knowing("secret"))


def test_a_retry_topic_belongs_to_its_group() -> None:
    """Whoever consumes as a group may put back into its retry topic and read it, and nobody else."""
    one = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n    groupPerms: [mine=SUB]\n")

    assert one.may(publishing("%RETRY%mine")) and one.may(reading("%RETRY%mine"))
    assert not one.may(publishing("%RETRY%other")) and not one.may(reading("%RETRY%other"))


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"])
def test_defaults_do_not_reach_the_brokers_own_topics(topic: str) -> None:
    """Everybody's waiting messages lie there: only a permission by name, or an administrator, reads them."""
    default = account(PLAIN + "    defaultTopicPerm: PUB|SUB\n")
    named = account(PLAIN + f"    topicPerms: [{topic}=SUB]\n")
    admin = account(PLAIN + "    admin: true\n")

    assert not default.may(reading(topic))
    assert named.may(reading(topic)) and admin.may(reading(topic))


def test_everybody_may_report_traces() -> None:
    """As in RocketMQ: clients publish to the trace topic without a permission of its own; reading it needs one."""
    one = account(PLAIN)

    assert one.may(publishing("RMQ_SYS_TRACE_TOPIC")) and not one.may(reading("RMQ_SYS_TRACE_TOPIC"))
    assert not account(PLAIN + "    topicPerms: [RMQ_SYS_TRACE_TOPIC=DENY]\n").may(publishing("RMQ_SYS_TRACE_TOPIC"))


def test_pub_is_not_enough_to_be_in_a_group() -> None:
    """A group's permission is SUB."""
    assert not account(PLAIN + "    groupPerms: [g=PUB]\n").may(consuming("g"))


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
def test_a_pattern_matches_what_it_says(pattern: str, inside: str, outside: str) -> None:
    """RocketMQ's patterns and networks; an IPv4 peer on an IPv6 socket is the same peer."""
    found = read_patterns(pattern)

    assert found.matches(inside) and not found.matches(outside) and not found.matches("")


@pytest.mark.parametrize(
    "pattern", ["*", "*.*.*.*", "0.0.0.0/0", "::/0", "10.0.0", "10.0.0.256", "10.0.5-3.1", "10.0.3.{a}", "a.b.c.d", ""]
)
def test_a_pattern_that_means_nothing_or_everybody_is_refused(pattern: str) -> None:
    """No access control must not hide in a pattern."""
    with pytest.raises(ValueError, match=r"matches every peer|is no address"):
        read_patterns(pattern)


# ------- credentials


def test_credentials_come_from_a_file(tmp_path: Path) -> None:
    """The two lines of RocketMQ's tools.yml."""
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: orders-key\nsecretKey: 0123456789\n")

    found = read_credentials(path)

    assert (found.access_key, found.secret_key, found.security_token) == ("orders-key", "0123456789", None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accessKey: orders-key\n", "secretKey is missing"),
        ("accesKey: a\nsecretKey: topsecret\n", "unknown field 'accesKey'"),
        ("accessKey: [a]\nsecretKey: topsecret\n", "accessKey is a text"),
        ("topsecret\n", "holds no fields"),
        (
            "accessKey: 'a\nsecretKey: topsecret\n",
            "line 3: it is no YAML: .* while scanning a quoted scalar that begins in line 1",
        ),
    ],
)
def test_a_wrong_file_of_credentials_is_named_without_its_secret(tmp_path: Path, text: str, says: str) -> None:
    """File and fault, never the content."""
    path = tmp_path / "tools.yml"
    path.write_text(text)

    with pytest.raises(AccessFileError, match=says) as caught:
        read_credentials(path)

    assert str(path) in str(caught.value) and "topsecret" not in str(caught.value)


def test_an_absent_file_of_credentials_is_named(tmp_path: Path) -> None:
    """The path, and the system's reason."""
    with pytest.raises(AccessFileError, match=r"cannot read .*gone.yml: No such file"):
        read_credentials(tmp_path / "gone.yml")
