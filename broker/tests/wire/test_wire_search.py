"""Conditions of a search: their syntax, the positions in their faults, and which messages they accept.

A twin repeats a test without the rule that it checks, and finds the fault: so the test can fail.
"""

from __future__ import annotations

import json
import random

import pytest
from msgspec.structs import replace

from gantry_wire.compress import Codec, compress_body
from gantry_wire.hashing import tags_code
from gantry_wire.message import StoredMessage, encode_record
from gantry_wire.properties import encode_properties
from gantry_wire.search import MessageMatcher, Needle, SearchCriteria, SearchFault, parse_json_condition
from gantry_wire.search.needles import ESCAPE, OPAQUE_FLAGS, ascii_needle
from gantry_wire.sql92 import parse_sql_filter
from gantry_wire.sql92.filter import required_texts

ORDER = {"order": {"id": 17, "state": "paid", "total": 17.5}, "items": [{"sku": "A-1"}, {"sku": "B-2"}], "gift": None}


def message(body: bytes = b"", **properties: str) -> StoredMessage:
    return StoredMessage(
        topic="orders", queue_id=0, body=body, store_timestamp_ms=1_000, properties_bytes=encode_properties(properties)
    )


def accepts(message: StoredMessage, **criteria: object) -> bool:
    return MessageMatcher(SearchCriteria(**criteria)).accepts(message)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("$.order.id = 17", True),
        ("$.order.id = 17.0", True),
        ('$.order.id = "17"', False),
        ("$.order.id != 18", True),
        ("$.order.total = 17.5", True),
        ("$.order.state = 'paid'", True),
        ('$["order"]["state"] != "open"', True),
        ("$.order.state contains 'ai'", True),
        ("$.order contains 'state'", True),
        ("$.items[1].sku = 'B-2'", True),
        ("$.items[-1].sku = 'B-2'", True),
        ("$.items[2].sku exists", False),
        ("$.items[0] exists", True),
        ("$.gift = null", True),
        ("$.gift exists", True),
        ("$.missing != 1", False),
        ("$.order.id contains 1", False),
        ("$ contains 'gift'", True),
    ],
)
def test_json_condition_compares_values_with_their_types(text: str, is_met: bool) -> None:
    """Numbers equal numbers, texts equal texts; a missing path meets nothing, also not `!=`."""
    assert accepts(message(json.dumps(ORDER).encode()), json_paths=(text,)) is is_met


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("order = 1", 1, "$"),
        ("$.order ~ 1", 8, "a step, =, !=, contains or exists"),
        ("$.order. = 1", 9, "a name after the dot"),
        ("$.a[x] = 1", 5, "an index"),
        ("$.a =", 6, "a value"),
        ("$.a = [1]", 7, "a number, true, false, null"),
        ("$.a = 'x", 7, "a text in quotes"),
        ("$.a exists 1", 12, "the end after exists"),
    ],
)
def test_fault_of_a_json_condition_names_its_position(text: str, position: int, expected: str) -> None:
    """The text of the fault has the position, from 1 on, and what was expected there."""
    with pytest.raises(SearchFault, match=f"position {position}: expected ") as caught:
        parse_json_condition(text)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("criteria", "part"),
    [
        ({"text": ""}, "text: expected 1"),
        ({"key": "two keys"}, "a key has no spaces"),
        ({"sql": "a = "}, "SQL filter"),
        ({"sql": "a = 1 b"}, "SQL filter, position 7"),
        ({"tag": "||"}, "tag"),
        ({"from_ms": 5, "to_ms": 5}, "time range is empty"),
        ({"ignores_case": True}, "ignoring case needs a text"),
        ({"json_paths": ("$.a exists",) * 9}, "at most 8"),
    ],
)
def test_invalid_conditions_are_refused(criteria: dict[str, object], part: str) -> None:
    """Each fault names its condition."""
    with pytest.raises(SearchFault, match=part):
        MessageMatcher(SearchCriteria(**criteria))  # type: ignore[arg-type]


def test_conditions_on_properties_and_time() -> None:
    """A key must be complete; the time range is half-open; all conditions must hold."""
    one = message(b"", KEYS="order-17 eu", TAGS="paid", UNIQ_KEY="AB", region="eu")

    assert accepts(one, key="order-17", tag="paid || sent", sql="region = 'eu'", from_ms=1_000, to_ms=1_001)
    assert accepts(one, id="AB") and accepts(one, id=one.offset_message_id.lower())
    assert not accepts(one, key="order-1")
    assert not accepts(one, tag="sent")
    assert not accepts(one, from_ms=1_001)
    assert not accepts(one, to_ms=1_000)
    assert not accepts(one, key="order-17", sql="region = 'us'")


def test_units_of_delayed_messages_have_no_codes_of_tags() -> None:
    """Their units have a time there, so they are not excluded by it; those of other topics are."""
    matcher = MessageMatcher(SearchCriteria(tag="paid"))

    assert matcher.unit_codes("SCHEDULE_TOPIC_XXXX") == frozenset()
    assert matcher.unit_codes("orders") == {tags_code("paid")}


@pytest.mark.parametrize("codec", [Codec.ZLIB, Codec.LZ4, Codec.ZSTD])
def test_compressed_body_is_searched(codec: Codec) -> None:
    """The text is found in the body as it was sent; a damaged one matches nothing, and is counted."""
    packed = replace(message(compress_body(b"a needle" * 20, codec)), sys_flag=codec.flags)
    matcher = MessageMatcher(SearchCriteria(text="needle"))

    assert matcher.accepts(packed)
    assert not matcher.accepts(replace(packed, body=packed.body[:-9]))
    assert matcher.unreadable == 1


def test_case_is_ignored_for_letters_with_one_other_case() -> None:
    """`ü` finds `Ü`, but not `u`; without the option, case counts."""
    body = "GRÜSSE aus München".encode()

    assert accepts(message(body), text="grüsse", ignores_case=True)
    assert accepts(message(body), text="MÜNCHEN", ignores_case=True)
    assert not accepts(message(body), text="munchen", ignores_case=True)
    assert not accepts(message(body), text="münchen")
    assert ascii_needle("grüsse") == Needle(b"sse", is_folded=True)


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("region = 'eu' AND price > 3 AND 'x''y' = name", [("region", "eu"), ("name", "x'y")]),
        ("region = 'eu' OR price > 3", []),
        ("NOT region = 'eu'", []),
        ("price BETWEEN 1 AND 3 AND region = 'eu'", [("region", "eu")]),
        ("region <> 'eu'", []),
        ("region = ''", []),
    ],
)
def test_required_texts_of_a_conjunction(expression: str, texts: list[tuple[str, str]]) -> None:
    """Only equalities that must hold for every match are required."""
    assert required_texts(parse_sql_filter(expression)) == texts


# -- the needle --------------------------------------------------------------------------------------------------------

WORDS = ("paid", "PAID", "open", "grün", "GRÜN", 'quo"te', "back\\slash", "17", "\u212a", "")
NUMBERS = (17, 17.0, -17, 170, 1.7e1, 17.5, 10**16, 0, True)


def random_json(rng: random.Random) -> bytes:
    """Return a body in JSON, as one of several writers would write it."""
    value = rng.choice([rng.choice(WORDS), rng.choice(NUMBERS), None, [rng.choice(WORDS)]])
    document = {rng.choice(("id", "state", "i\u0064")): value, "note": rng.choice(WORDS)}
    text = json.dumps({"order": document}, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, 1)))
    text = text.replace("17.0", rng.choice(("17.0", "1.7e1", "17.000", "170E-1")))
    return text.replace('"id"', rng.choice(('"id"', '"\\u0069d"'))).encode()


def random_message(rng: random.Random) -> StoredMessage:
    properties = {"KEYS": rng.choice(("order-17", "order-170", "x order-17")), "region": rng.choice(("eu", "us"))}
    body = random_json(rng) if rng.random() < 0.8 else rng.randbytes(20) + rng.choice(WORDS).encode()
    if rng.random() < 0.2:
        return replace(message(compress_body(body, Codec.ZLIB), **properties), sys_flag=Codec.ZLIB.flags)
    return message(body, **properties)


def random_criteria(rng: random.Random) -> SearchCriteria:
    literal = rng.choice([json.dumps(rng.choice(WORDS[:-1])), json.dumps(rng.choice(NUMBERS)), "null"])
    path = rng.choice(("$.order.id", "$.order.state", "$.order", "$.order.id[0]", "$"))
    condition = f"{path} {rng.choice(('=', '!=', 'contains'))} {literal}"
    return rng.choice(
        [
            SearchCriteria(json_paths=(rng.choice((condition, f"{path} exists")),)),
            SearchCriteria(text=rng.choice(WORDS[:-1]), ignores_case=rng.random() < 0.5),
            SearchCriteria(key="order-17", sql="region = 'eu'"),
        ]
    )


def passes_needle(matcher: MessageMatcher, record: bytes) -> bool:
    """Return whether a record would be decoded, by the rule of a scan."""
    needle = matcher.needle
    if needle is None or record[39] & OPAQUE_FLAGS:
        return True
    return any(needle.places(bytearray(record), len(record))) or (needle.may_be_escaped and ESCAPE in record)


def test_needle_never_excludes_a_match() -> None:
    """Of many random messages and conditions, each match passes the needle; and needles exclude most others."""
    rng, excluded, matches = random.Random(29), 0, 0
    for _ in range(20_000):
        one, matcher = random_message(rng), MessageMatcher(random_criteria(rng))
        passes = passes_needle(matcher, encode_record(one))
        excluded += not passes
        if matcher.accepts(one):
            matches += 1
            assert passes, f"{matcher} {one.body!r}"

    assert matches > 1_000 and excluded > 5_000


@pytest.mark.parametrize("body", [b'{"id": 1.7e1}', b'{"id": 17.000}', b'{"\\u0069d": 17}'])
def test_needle_for_plain_numbers_alone_would_exclude_matches(body: bytes) -> None:
    """Twin: numbers with exponents and escaped names match, but do not contain `"id": 17`."""
    matcher = MessageMatcher(SearchCriteria(json_paths=("$.id = 17",)))
    record = encode_record(message(body))

    assert matcher.accepts(message(body)) and passes_needle(matcher, record)
    assert b'"id": 17}' not in record
