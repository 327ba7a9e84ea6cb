"""The table of needs is complete, agrees with docs/security.md, and reads the same fields as the handlers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry_access import ADMIN_ONLY, NEEDS, Kind, Need, Permission, needs_of
from gantry_access.permissions import ANY
from gantry_broker.app import Broker
from gantry_nameserver.handlers import Handlers
from gantry_nameserver.key_value_store import KeyValueStore
from gantry_nameserver.live_settings import LiveSettings
from gantry_nameserver.routes import RouteTable
from gantry_nameserver.settings import NameServerSettings
from gantry_testing.local import running_broker, send_ext
from gantry_wire import Command, RequestCode
from gantry_wire.commands.fields import FieldError
from gantry_wire.fastjson import dumps

PUB_T = Need(Kind.TOPIC, "T", Permission.PUB)
SUB_T = Need(Kind.TOPIC, "T", Permission.SUB)
ANY_T = Need(Kind.TOPIC, "T", ANY)
SUB_G = Need(Kind.GROUP, "G", Permission.SUB)
AT_7 = Need(Kind.MESSAGE, "7", Permission.SUB)
GROUP_AND_TOPIC = {"consumerGroup": "G", "topic": "T"}
SUBSCRIPTION = {"topic": "T", "subString": "*"}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "P"}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [SUBSCRIPTION, {"topic": "%RETRY%G"}]}],
}
LOCK = {"consumerGroup": "G", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]}
CHECK = {"clientId": "c", "group": "G", "subscriptionData": SUBSCRIPTION}

ACK_OF_T = {"c": "G", "t": "T", "r": "1", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "AQ=="}
ROWS: list[tuple[int, dict[str, str], object, tuple[Need, ...]]] = [
    (10, send_ext(10, topic="T"), None, (PUB_T,)),
    (310, send_ext(310, topic="T"), None, (PUB_T,)),
    (320, send_ext(320, topic="T", batch="true"), None, (PUB_T,)),
    (10, send_ext(10, topic="%RETRY%G"), None, (SUB_G,)),
    (310, send_ext(310, topic="%RETRY%G"), None, (SUB_G,)),
    (324, send_ext(10, topic="T"), None, (PUB_T,)),
    (325, send_ext(310, topic="T"), None, (PUB_T,)),
    (11, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (361, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (11, {"consumerGroup": "G", "topic": "%RETRY%other"}, None, (SUB_G, Need(Kind.GROUP, "other", Permission.SUB))),
    (12, {"topic": "T", "key": "k"}, None, (SUB_T,)),
    (14, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (15, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (29, {"topic": "T"}, None, (SUB_T,)),
    (30, {"topic": "T"}, None, (SUB_T,)),
    (31, {"topic": "T"}, None, (SUB_T,)),
    (32, {"topic": "T"}, None, (SUB_T,)),
    (33, {"offset": "7", "topic": "claimed"}, None, (AT_7,)),
    (34, {}, HEARTBEAT, (SUB_G, SUB_T)),
    (34, {}, {"clientID": "c", "producerDataSet": [{"groupName": "P"}]}, ()),
    (35, {"clientID": "c", "consumerGroup": "G"}, None, (SUB_G,)),
    (35, {"clientID": "c", "producerGroup": "P"}, None, ()),
    (36, {"offset": "7", "group": "G", "delayLevel": "0", "originTopic": "claimed"}, None, (SUB_G, AT_7)),
    (37, {"commitLogOffset": "7", "topic": "claimed"}, None, (Need(Kind.MESSAGE, "7", Permission.PUB),)),
    (38, {"consumerGroup": "G"}, None, (SUB_G,)),
    (41, {}, LOCK, (SUB_G, SUB_T)),
    (42, {}, LOCK, (SUB_G, SUB_T)),
    (46, {}, CHECK, (SUB_G, SUB_T)),
    (105, {"topic": "T"}, None, (ANY_T,)),
    (105, {"topic": "TBW102"}, None, ()),
    (202, {"topic": "T"}, None, (SUB_T,)),
    (300, {"topic": "T"}, None, (SUB_T,)),
    (304, {}, None, ADMIN_ONLY),
    (305, {}, None, ADMIN_ONLY),
    (203, {"consumerGroup": "G"}, None, (SUB_G,)),
    (208, {"consumerGroup": "G", "topic": "T"}, None, (SUB_G, SUB_T)),
    (208, {"consumerGroup": "G"}, None, (SUB_G,)),
    (208, {"consumerGroup": "G", "topic": "claimed", "topicList": "T;"}, None, (SUB_G, SUB_T)),
    (303, {"group": "G", "topic": "T"}, None, (SUB_G, SUB_T)),
    (345, {"group": "G", "topic": "T"}, None, (SUB_G, SUB_T)),
    (345, {"group": "G"}, None, (SUB_G,)),
    (222, {"group": "G", "topic": "T"}, None, ADMIN_ONLY),
    (309, {"consumerGroup": "G", "topic": "T"}, None, ADMIN_ONLY),
    (343, {"group": "G"}, None, (SUB_G,)),
    (352, {"group": "G"}, None, (SUB_G,)),
    (351, {"topic": "T"}, None, (ANY_T,)),
    (17, {"topic": "T"}, None, ADMIN_ONLY),
    (25, {}, None, ADMIN_ONLY),
    (103, {}, None, ADMIN_ONLY),
    (200050, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200051, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200052, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200053, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200054, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200055, GROUP_AND_TOPIC, None, (SUB_G, SUB_T)),
    (200051, {"consumerGroup": "G", "topic": "%RETRY%G_T"}, None, (SUB_G, SUB_T)),
    (200051, {"consumerGroup": "G", "topic": "%RETRY%G+T"}, None, (SUB_G, SUB_T)),
    (200051, {"consumerGroup": "G", "topic": "%RETRY%H_T"}, None, (SUB_G, Need(Kind.GROUP, "H_T", Permission.SUB))),
    (200151, {}, {"acks": [ACK_OF_T, ACK_OF_T]}, (SUB_G, SUB_T)),
    (370, {"topic": "T", "producerGroup": "P"}, None, (PUB_T,)),
    (400, {}, {"consumerGroup": "G", "topic": "T", "clientId": "c"}, (SUB_G, SUB_T)),
    (401, {}, {"consumerGroup": "G", "topic": "T"}, ADMIN_ONLY),
    (215, {"topic": "T"}, None, ADMIN_ONLY),
    (318, {}, None, ADMIN_ONLY),
    (9999, {"topic": "T"}, None, ADMIN_ONLY),
]


@pytest.mark.parametrize(("code", "ext", "document", "needs"), ROWS, ids=[f"{row[0]} {row[3]}" for row in ROWS])
def test_request_needs_permission_for_what_it_accesses(
    code: int, ext: dict[str, str], document: object, needs: tuple[Need, ...]
) -> None:
    """The needs follow from the code; an unknown code needs an administrator."""
    body = b"" if document is None else dumps(document)

    assert needs_of(Command(code=code, ext=ext, body=body)) == needs


@pytest.mark.parametrize(
    ("code", "ext"),
    [(10, {"b": "T"}), (310, {"topic": "T"}), (320, {}), (11, {"topic": "T"}), (33, {}), (33, {"offset": "x"}),
     (37, {"commitLogOffset": "-7"}), (36, {"offset": "7"}), (34, {}), (41, {}), (105, {}),
     (400, {}), (200050, {"topic": "T"}), (200051, {"consumerGroup": "G"}), (200151, {})],
)  # fmt: skip
def test_request_without_topic_or_group_is_refused(code: int, ext: dict[str, str]) -> None:
    """A name in the wrong field, or no name, does not bypass the check."""
    with pytest.raises(FieldError):
        needs_of(Command(code=code, ext=ext))


# ------- the documented table


SECURITY_PAGE = Path(__file__).parents[3] / "docs" / "security.md"
DOCUMENTED_NEED = re.compile(r"(PUB or SUB|PUB|SUB) on (the group|the topic|each topic|the message's topic)")
KINDS = {
    "the group": Kind.GROUP, "the topic": Kind.TOPIC, "each topic": Kind.TOPIC, "the message's topic": Kind.MESSAGE
}  # fmt: skip
PERMISSIONS = {"PUB": Permission.PUB, "SUB": Permission.SUB, "PUB or SUB": ANY}
KindsOfNeeds = frozenset[tuple[Kind, Permission]]


def documented_needs() -> dict[int, KindsOfNeeds]:
    """Return the needs of each code that docs/security.md documents."""
    found: dict[int, KindsOfNeeds] = {}
    for line in SECURITY_PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and re.fullmatch(r"\d+(, \d+)*", cells[1]):
            needs = DOCUMENTED_NEED.findall(cells[2])
            kinds = frozenset((KINDS[about], PERMISSIONS[permission]) for permission, about in needs)
            assert kinds, f"no need is read from: {line}"
            for code in cells[1].split(", "):
                assert int(code) not in found, f"code {code} is in two rows"
                found[int(code)] = kinds
    return found


def needs_of_code() -> dict[int, KindsOfNeeds]:
    """Return the needs of accounts that are not administrators, for the requests of `ROWS`."""
    found: dict[int, set[tuple[Kind, Permission]]] = {}
    for code, ext, document, _ in ROWS:
        if any(value.startswith("%RETRY%") for value in ext.values()):
            continue  # a retry topic represents its group
        body = b"" if document is None else dumps(document)
        needs = needs_of(Command(code=code, ext=ext, body=body))
        if needs != ADMIN_ONLY:
            found.setdefault(code, set()).update((need.kind, need.permission) for need in needs)
    return {code: frozenset(kinds) for code, kinds in found.items()}


def test_documented_permissions_match_the_code() -> None:
    """docs/security.md lists every code that does not need an administrator, with exactly what it needs."""
    assert needs_of_code() == documented_needs()


def test_undocumented_codes_need_an_administrator() -> None:
    """A code without a row in the table needs `admin: true`, also for a request without fields and body."""
    for code in NEEDS.keys() - documented_needs().keys():
        assert needs_of(Command(code=code)) == ADMIN_ONLY, RequestCode(code).name


@pytest.mark.parametrize("code", [305, 304, 318, 11])
def test_comparison_detects_a_code_that_is_open_to_all_accounts(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin: if the table lets any account send a code, one of the two comparisons fails."""
    monkeypatch.setitem(NEEDS, code, lambda _: ())
    ours = needs_of_code()

    strays = [one for one in NEEDS.keys() - documented_needs().keys() if needs_of(Command(code=one)) != ADMIN_ONLY]
    assert strays == [code] or ours != documented_needs()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running_broker(tmp_path) as one:
        yield one


async def test_every_code_of_the_broker_has_needs(broker: Broker) -> None:
    """A new handler needs a decision on its permissions; until then it needs an administrator, and this test fails."""
    handled = {int(code) for code in broker.listeners.codes}

    assert len(handled) > 40
    assert sorted(RequestCode(code).name for code in handled - NEEDS.keys()) == []


def test_every_code_of_the_name_server_has_needs(tmp_path: Path) -> None:
    """Every handler of the name server needs an entry, too."""
    settings = LiveSettings(NameServerSettings())
    handlers = Handlers(RouteTable(), KeyValueStore(tmp_path / "kv.json"), settings, lambda: 0)

    assert len(handlers.codes) > 20
    assert sorted(RequestCode(code).name for code in set(handlers.codes) - NEEDS.keys()) == []


async def test_comparison_detects_a_handler_without_needs(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the comparison with the broker's own table: each code that is removed from the needs is reported."""
    for code in (RequestCode.END_TRANSACTION, RequestCode.SEND_REPLY_MESSAGE_V2, RequestCode.UPDATE_BROKER_CONFIG):
        with monkeypatch.context() as patch:
            patch.delitem(NEEDS, code)
            assert {int(one) for one in broker.listeners.codes} - NEEDS.keys() == {code}


def test_code_without_needs_needs_an_administrator() -> None:
    """The default for a code without an entry is the strictest."""
    assert needs_of(Command(code=9999)) == ADMIN_ONLY
