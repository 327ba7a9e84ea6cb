"""Recall handles have RocketMQ's format, and anything else is refused with its text."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry_wire.errors import RemoteProtocolError
from gantry_wire.recall_handle import RecallHandle

WORD = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=50)
HANDLES = st.builds(RecallHandle, topic=WORD, broker_name=WORD, deliver_ms=WORD, unique_id=WORD)


@given(HANDLES)
def test_handle_survives_encoding(handle: RecallHandle) -> None:
    """Decoding returns what was encoded, also without the padding, which some clients remove."""
    text = handle.encode()

    assert RecallHandle.decode(text) == handle
    assert RecallHandle.decode(text.rstrip("=")) == handle


def test_handle_has_the_bytes_of_rocketmq() -> None:
    """The text is base64 for URLs of the parts, separated by spaces, with the version first."""
    handle = RecallHandle("Orders", "broker-a", "1700000000001", "7F00000100007A0B4C9D2E1F00000000")

    parts = base64.urlsafe_b64decode(handle.encode()).decode().split(" ")
    assert parts == ["v1", "Orders", "broker-a", "1700000000001", "7F00000100007A0B4C9D2E1F00000000"]


def test_further_parts_are_ignored() -> None:
    """RocketMQ ignores what it does not know after the fifth part."""
    text = base64.urlsafe_b64encode(b"v1 Orders broker-a 1 id more").decode()

    assert RecallHandle.decode(text) == RecallHandle("Orders", "broker-a", "1", "id")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "!",
        "\u00fc",
        "A" * 5000,
        base64.urlsafe_b64encode(b"v2 Orders broker-a 1 id").decode(),
        base64.urlsafe_b64encode(b"v1 Orders broker-a 1").decode(),
        base64.urlsafe_b64encode(b"v1 \xff broker-a 1 id").decode(),
    ],
)
def test_other_text_is_refused(text: str) -> None:
    """The error has RocketMQ's text, and names nothing of the input."""
    with pytest.raises(RemoteProtocolError, match=r"^recall handle is invalid$"):
        RecallHandle.decode(text)


@given(st.text(max_size=200))
def test_no_text_breaks_the_decoder(text: str) -> None:
    """Every text of a client is a handle, or the documented error."""
    try:
        RecallHandle.decode(text)
    except RemoteProtocolError as error:
        assert str(error) == "recall handle is invalid"
