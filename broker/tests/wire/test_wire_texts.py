"""Properties, batches, names, filters, hashes and ids: the small formats inside messages."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.batch import ENTRY_BYTES_MIN, BatchEntry, decode_batch, encode_batch
from gantry_wire.errors import LocalProtocolError, RemoteProtocolError
from gantry_wire.filters import parse_tag_filter
from gantry_wire.hashing import java_string_hash, tags_code
from gantry_wire.names import (
    NameFault,
    dead_letter_topic,
    group_fault,
    is_retry_or_dead_letter,
    path_component,
    retry_topic,
    topic_fault,
)
from gantry_wire.properties import encode_properties, format_properties, message_keys, parse_properties, split_keys
from gantry_wire.unique_id import UniqueIds

PLAIN = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=30)

# ------- properties


@given(st.dictionaries(PLAIN.filter(bool), PLAIN, max_size=10))
def test_properties_round_trip(pairs: dict[str, str]) -> None:
    """Any names and values without the two separators are unchanged."""
    assert parse_properties(format_properties(pairs)) == pairs
    assert encode_properties(pairs) == format_properties(pairs).encode()


def test_keys_are_separated_by_spaces_only() -> None:
    """A tab belongs to its key, as in the broker's index. A reader that splits at tabs would not find the message."""
    assert split_keys(" a\tb  c ") == ("a\tb", "c")
    assert message_keys({"KEYS": "a\tb c", "UNIQ_KEY": "id"}) == ("id", "a\tb", "c")
    assert message_keys({}) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        ("a\x02b\x01c\x02", {"b": "c"}),
        ("\x01b\x02", {}),
        ("a\x01\x02", {"a": ""}),
        ("a\x01b\x01c\x02", {"a": "b\x01c"}),
        ("a\x01b\x02a\x01c\x02", {"a": "c"}),
        ("\x02\x02\x02", {}),
    ],
)
def test_malformed_properties_are_read_leniently(text: str, expected: dict[str, str]) -> None:
    """A missing last separator, a pair without a separator, an empty name and a repeated name are read as in Java.

    An empty value is kept, which Java's parser skips together with its name.
    """
    assert parse_properties(text) == expected


@pytest.mark.parametrize("pairs", [{"": "v"}, {"a\x01": "v"}, {"a": "v\x02"}, {"a\x02": ""}, {"a": "\x01"}])
def test_unencodable_properties_are_a_local_error(pairs: dict[str, str]) -> None:
    """Encoding is strict: values that would be decoded differently are a local error."""
    with pytest.raises(LocalProtocolError):
        format_properties(pairs)


def test_properties_have_a_limit_in_bytes() -> None:
    """32767 bytes pass, one more does not; characters count by their encoded size."""
    assert len(encode_properties({"a": "x" * 32764})) == 32767
    with pytest.raises(LocalProtocolError):
        encode_properties({"a": "x" * 32765})
    with pytest.raises(LocalProtocolError):
        encode_properties({"a": "é" * 16383})


# ------- batches

ENTRIES = st.lists(
    st.builds(BatchEntry, st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=50), st.binary(max_size=50)),
    min_size=1,
    max_size=6,
)


@given(ENTRIES)
def test_batch_round_trip(entries: list[BatchEntry]) -> None:
    """Flag, body and properties of every message survive."""
    assert decode_batch(encode_batch(entries)) == entries


@given(ENTRIES, st.data())
def test_truncated_batch_is_refused(entries: list[BatchEntry], data: st.DataObject) -> None:
    """A batch is decoded whole or not at all; a cut between two messages gives the first ones, which are whole."""
    body = encode_batch(entries)
    length = data.draw(st.integers(0, len(body) - 1))
    try:
        decoded = decode_batch(body[:length])
    except RemoteProtocolError:
        return
    assert decoded == entries[: len(decoded)] and encode_batch(decoded) == body[:length]


@pytest.mark.parametrize(
    "head",
    [
        (0, 4), (-1, 4), (21, 4), (27, 4), (0x7FFFFFFF, 4), (26, -1), (26, 5), (26, 0x7FFFFFFF), (26, -0x80000000),
        (25, 4), (26, 3),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_lengths_in_a_batch_are_refused(head: tuple[int, int]) -> None:
    """Total and body length are checked against the bytes and against each other."""
    total, body_bytes = head
    good = bytearray(encode_batch([BatchEntry(0, b"body", b"")]))
    good[0:4] = (total & 0xFFFFFFFF).to_bytes(4, "big")
    good[16:20] = (body_bytes & 0xFFFFFFFF).to_bytes(4, "big")

    with pytest.raises(RemoteProtocolError):
        decode_batch(bytes(good))


@pytest.mark.parametrize("properties_bytes", [b"\x00\x01", b"\xff\xff", b"\x7f\xff"])
def test_invalid_properties_length_in_a_batch_is_refused(properties_bytes: bytes) -> None:
    """The properties' length of one message is checked like the other lengths."""
    data = encode_batch([BatchEntry(0, b"body", b"")])[:-2] + properties_bytes

    with pytest.raises(RemoteProtocolError):
        decode_batch(data)


@pytest.mark.parametrize("properties_bytes", [0, 9])
def test_a_properties_length_that_leaves_bytes_over_is_refused(properties_bytes: int) -> None:
    """Bytes of a message that no length covers are not taken for properties."""
    properties = b"K\x01value\x02++"
    data = encode_batch([BatchEntry(0, b"body", properties)])[: -len(properties) - 2]

    with pytest.raises(RemoteProtocolError):
        decode_batch(data + properties_bytes.to_bytes(2, "big") + properties)


def test_empty_batch_is_refused() -> None:
    """A batch body without a message is an error."""
    with pytest.raises(RemoteProtocolError):
        decode_batch(b"")
    assert ENTRY_BYTES_MIN == 22


@given(st.binary(max_size=150))
def test_arbitrary_batches_raise_only_protocol_errors(data: bytes) -> None:
    """No body makes decoding raise another exception."""
    try:
        entries = decode_batch(data)
    except RemoteProtocolError:
        return
    assert sum(ENTRY_BYTES_MIN + len(e.body) + len(e.properties) for e in entries) == len(data)


# ------- names

HOSTILE = [
    "", " ", ".", "..", "../x", "..%2f", "a/b", "a\\b", "/etc/passwd", "a\x00b", "\x00", "a.b", "a b", "a\n", "\n",
    "．．", "a․b", "…", "／x", "ａ", "é", "naïve", "тема", "主题", "\u202ex",
    "%RETRY%../x", "%DLQ%a/b", "C:", "a:b", "~", "*",
    "x" * 256, "x" * 300,
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_are_refused_everywhere(name: str) -> None:
    """Path tricks, controls, lookalike dots and overlong names are neither topic nor group nor file name."""
    assert topic_fault(name) is not None
    assert group_fault(name) is not None
    with pytest.raises(ValueError):
        path_component(name)


@given(st.text(max_size=300))
def test_accepted_name_is_one_safe_path_component(name: str) -> None:
    """A name that path_component accepts is unchanged, ASCII, and exactly one component."""
    try:
        component = path_component(name)
    except ValueError:
        return
    assert component == name and name.isascii() and 0 < len(name.encode()) <= 255
    assert not set("./\\\x00") & set(name)


@pytest.mark.parametrize("name", ["a", "TopicTest", "%RETRY%group", "a|b", "under_score-dash", "0", "x" * 127])
def test_ordinary_names_are_accepted(name: str) -> None:
    """Every name that RocketMQ accepts is accepted."""
    assert topic_fault(name) is None and group_fault(name) is None and path_component(name) == name


def test_name_length_limits_differ_by_kind() -> None:
    """Topics have 127 characters, retry and dead letter topics and groups 255; a fault names the rule."""
    assert topic_fault("x" * 128) is NameFault.LENGTH
    assert group_fault("x" * 255) is None and group_fault("x" * 256) is NameFault.LENGTH
    assert topic_fault(retry_topic("g" * 248)) is None
    assert topic_fault(retry_topic("g" * 249)) is NameFault.LENGTH
    assert topic_fault("a.b") is NameFault.CHARACTERS and topic_fault(" ") is NameFault.EMPTY


def test_derived_topics_are_recognised() -> None:
    """Retry and dead letter topics are named after their group."""
    assert (retry_topic("g"), dead_letter_topic("g")) == ("%RETRY%g", "%DLQ%g")
    assert is_retry_or_dead_letter("%RETRY%g") and is_retry_or_dead_letter("%DLQ%g")
    assert not is_retry_or_dead_letter("RETRY%g")


# ------- filters and hashes


@pytest.mark.parametrize("expression", [None, "", " ", "*", " * "])
def test_star_filter_accepts_every_tag(expression: str | None) -> None:
    """No expression and the star accept every tag and messages without one."""
    tags = parse_tag_filter(expression)

    assert tags.accepts_all and tags.accepts_code(0) and tags.accepts_code(5)
    assert tags.accepts_tags(None) and tags.accepts_tags("x")


def test_a_filter_takes_its_tags_by_hash_and_by_text() -> None:
    """The hash may accept a collision, the text does not; messages without a tag match no tag."""
    tags = parse_tag_filter(" Aa ||  c || ")

    assert tags.tags == {"Aa", "c"}
    assert tags.accepts_code(tags_code("Aa")) and tags.accepts_code(tags_code("BB"))
    assert tags.accepts_tags("Aa") and not tags.accepts_tags("BB")
    assert not tags.accepts_tags(None) and not tags.accepts_code(tags_code(None))


@pytest.mark.parametrize("expression", ["||", " || ", "|| ||"])
def test_filter_without_a_tag_is_refused(expression: str) -> None:
    """Separators alone are an error, not a filter for everything."""
    with pytest.raises(ValueError):
        parse_tag_filter(expression)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagA", 2598919),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -2147483648),
        ("é", 233),
        ("主题", 31 * 0x4E3B + 0x9898),
        ("\U0001f600", 1772899),
        ("a\U0001f600b", 31 * (31 * (31 * 97 + 0xD83D) + 0xDE00) + 98),
    ],
)
def test_hashes_are_javas(text: str, expected: int) -> None:
    """Known values of String.hashCode, beyond the basic plane by its two UTF-16 units."""
    assert java_string_hash(text) == expected


@given(st.text(max_size=400))
def test_fast_hash_equals_the_recurrence(text: str) -> None:
    """For any text the result is that of h = 31*h + unit, wrapped to 32 bits."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[index : index + 2], "big")) & 0xFFFFFFFF
    expected = value - (1 << 32) if value >= 1 << 31 else value

    assert java_string_hash(text) == expected


def test_message_without_tag_has_code_zero() -> None:
    """The unit of a message without a tag has the code 0."""
    assert tags_code(None) == tags_code("") == 0


# ------- ids

JANUARY_MS = int(datetime(2024, 1, 31, 23, 59, 59, 999000, tzinfo=UTC).timestamp() * 1000)


def test_unique_id_has_address_process_and_time() -> None:
    """Address, process, salt, milliseconds of the month, counter; 32 upper-case hex digits."""
    ids = UniqueIds(b"\x7f\x00\x00\x01", salt=0xDEADBEEF, process=0x11234)

    assert ids.next(JANUARY_MS) == f"7F0000011234DEADBEEF{31 * 86_400_000 - 1:08X}0000"
    assert ids.next(JANUARY_MS + 1) == "7F0000011234DEADBEEF000000000001"
    assert len(UniqueIds(bytes(16), salt=1).next(JANUARY_MS)) == 56


def test_unique_ids_differ_when_the_clock_jumps_back() -> None:
    """The counter increases independent of the clock, also across the turn of a year."""
    ids = UniqueIds(b"\x7f\x00\x00\x01", salt=1)
    december_ms = int(datetime(2023, 12, 31, 12, tzinfo=UTC).timestamp() * 1000)
    times = [december_ms, JANUARY_MS, december_ms, december_ms - 40 * 86_400_000, JANUARY_MS] * 1000

    assert len({ids.next(at_ms) for at_ms in times}) == len(times)


def test_two_clients_of_one_process_differ() -> None:
    """The salt keeps their ids apart at the same millisecond and count."""
    first, second = (UniqueIds(b"\x7f\x00\x00\x01", salt=salt) for salt in (1, 2))

    assert first.next(JANUARY_MS) != second.next(JANUARY_MS)
