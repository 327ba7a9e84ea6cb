"""Receipts of pop consumption, the texts from which they are made, and names of retry topics."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire import names, pop_receipts
from gantry_wire.pop_receipts import (
    ORDER_REVIVE_QUEUE,
    Receipt,
    ReceiptError,
    format_offsets,
    format_order_counts,
    format_start_offsets,
    parse_offsets,
    parse_order_counts,
    parse_receipt,
    parse_start_offsets,
    retry_flag_of,
)

OFFSETS = st.integers(0, (1 << 63) - 1)
QUEUES = st.integers(0, (1 << 31) - 1)
FLAGS = st.sampled_from("012")
RECEIPTS = st.builds(Receipt, OFFSETS, OFFSETS, OFFSETS, QUEUES, FLAGS, st.just("broker-a"), QUEUES, OFFSETS)


@given(RECEIPTS)
def test_receipt_round_trips(receipt: Receipt) -> None:
    """A receipt that is written and parsed is unchanged."""
    assert parse_receipt(receipt.text) == receipt


def test_receipt_of_java_client_is_parsed() -> None:
    """The receipt of a captured ack has the parts that Java's client wrote."""
    receipt = parse_receipt("0 1795209866394 60000 0 0 broker-a 0 0")
    assert receipt == Receipt(0, 1795209866394, 60000, 0, "0", "broker-a", 0, 0)
    assert not receipt.is_ordered
    assert receipt._replace(revive_queue=ORDER_REVIVE_QUEUE).is_ordered


def test_short_receipt_of_old_client_is_parsed() -> None:
    """A receipt without the queue and the offset is valid: an ack has both in its own fields."""
    assert parse_receipt("7 1 2 3 1 b").queue_offset == -1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0 1 2 3 0",
        "a 1 2 3 0 b 0 0",
        "-1 1 2 3 0 b 0 0",
        "0 1 2 3 3 b 0 0",
        "0 1 2 2147483648 0 b 0 0",
        "9223372036854775808 1 2 3 0 b 0 0",
        "\u0661 1 2 3 0 b 0 0",
        "0  1 2 3 0 b",
        "0 1 2 3 0 b 0 " + "9" * 2000,
    ],
)
def test_malformed_receipt_is_refused(text: str) -> None:
    """A text that is no receipt raises ReceiptError, which names it."""
    with pytest.raises(ReceiptError, match=r"receipt|not a number"):
        parse_receipt(text)


@given(st.text(max_size=80))
def test_any_text_is_a_receipt_or_refused(text: str) -> None:
    """No text causes another exception than ReceiptError."""
    try:
        parse_receipt(text)
    except ReceiptError:
        return


QUEUE_OFFSETS = st.dictionaries(st.tuples(FLAGS, QUEUES), st.lists(OFFSETS, min_size=1, max_size=32), max_size=8)


@given(QUEUE_OFFSETS)
def test_texts_of_reply_round_trip(offsets: dict[tuple[str, int], list[int]]) -> None:
    """The texts of a reply name the queues and offsets from which they were made."""
    assert parse_offsets(format_offsets((flag, queue, found) for (flag, queue), found in offsets.items())) == offsets
    starts = {key: found[0] for key, found in offsets.items()}
    assert parse_start_offsets(format_start_offsets((*key, start) for key, start in starts.items())) == starts


def test_order_counts_name_each_message_and_the_queue() -> None:
    """The counts of messages that are consumed in order are found by offset, and by queue for older clients."""
    text = format_order_counts("0", 3, 2, {6: 2})
    assert text == "0 qo3%6 2;0 3 0"
    assert parse_order_counts(text) == {("0", "qo3%6"): 2, ("0", "3"): 0}
    assert format_order_counts("0", 3, 2, {5: 1, 6: 2}) == "0 qo3%5 1;0 qo3%6 2;0 3 1"
    with pytest.raises(ReceiptError, match="three parts"):
        parse_order_counts("0 1")


def test_retry_topics_have_flags_and_origins() -> None:
    """The name of a retry topic yields its flag and the topic of its messages, for both kinds of names."""
    v1, v2 = names.pop_retry_topic("t_x", "g"), names.pop_retry_topic("t_x", "g", is_v2=True)
    assert (v1, v2) == ("%RETRY%g_t_x", "%RETRY%g+t_x")
    assert [retry_flag_of(topic) for topic in ("t_x", v1, v2)] == ["0", "1", "2"]
    assert names.pop_retry_origin(v1, "g") == names.pop_retry_origin(v2, "g") == "t_x"
    assert names.pop_retry_origin("%RETRY%g", "g") is names.pop_retry_origin("t_x", "g") is None


def test_plus_sign_is_valid_only_between_group_and_topic_of_retry_topic() -> None:
    """A plus sign is valid in the name of a retry topic of version 2, and in no other name."""
    assert names.topic_fault("%RETRY%g+t") is None
    assert names.path_component("%RETRY%g+t") == "%RETRY%g+t"
    for topic in ("a+b", "%RETRY%g+", "%RETRY%+t", "%RETRY%g+t+u", "%DLQ%g+t", "%RETRY%g+../t"):
        assert names.topic_fault(topic) is names.NameFault.CHARACTERS, topic
    assert names.group_fault("%RETRY%g+t") is names.NameFault.CHARACTERS


PARTS = st.one_of(
    st.integers(0, 1 << 64).map(str),
    st.integers(0, 5).map(str),
    st.sampled_from(["", "b", "-1", "007", "\u0661", "1\n"]),
)


@given(st.lists(PARTS, min_size=5, max_size=10).map(" ".join))
def test_receipt_is_read_alike_in_one_step_and_by_its_parts(text: str) -> None:
    """The expression for whole receipts accepts nothing else, and finds the same values."""

    def outcome(parse: Callable[[str], Receipt]) -> Receipt | str:
        try:
            return parse(text)
        except ReceiptError as error:
            return str(error)

    assert outcome(parse_receipt) == outcome(pop_receipts._parse_parts)


@given(RECEIPTS, st.sampled_from(["", " 5", " 5 6", " "]))
def test_whole_receipt_is_read_in_one_step(receipt: Receipt, rest: str) -> None:
    """Almost all receipts are whole; what follows them is ignored."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pop_receipts, "_parse_parts", lambda text: pytest.fail("read by its parts"))
        assert parse_receipt(receipt.text + rest) == receipt
