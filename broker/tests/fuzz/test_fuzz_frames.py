"""The fuzzer's own parts: frames are reproducible, cover every code and mostly parse; the oracle counts due replies."""

import random
from collections import Counter

import pytest
from fuzz.golden import golden_seeds
from fuzz.mutate import Mutator
from fuzz.oracle import DueReplies
from fuzz.pools import KnownMessages
from fuzz.seeds import SEED_MAKERS

from gantry_wire import Command, RequestCode
from gantry_wire.errors import RemoteProtocolError
from gantry_wire.frame import FrameReader
from gantry_wire.header import decode_header


def mutator(seed: int) -> Mutator:
    return Mutator(random.Random(seed), KnownMessages(), golden_seeds())


def parses(frame: bytes) -> bool:
    """Return whether the wire accepts this frame as one whole frame."""
    try:
        return [decode_header(one.header, one.serialization) for one in FrameReader().feed(frame)] != []
    except RemoteProtocolError:
        return False


def test_frames_repeat_with_the_seed() -> None:
    """The same seed gives the same bytes and another seed others, so that a finding can be replayed."""
    first, again, other = (
        [maker.frame(int(code), opaque) for opaque, code in enumerate(RequestCode)]
        for maker in (mutator(1), mutator(1), mutator(2))
    )

    assert first == again
    assert first != other


def test_known_offsets_do_not_shift_the_frames() -> None:
    """A replay has other offsets of messages than the run; only frames with offsets may differ."""
    known = KnownMessages()
    for offset in range(9):
        known.add(offset, "0" * 32)
    plain, knowing = mutator(3), Mutator(random.Random(3), known, golden_seeds())
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.END_TRANSACTION):
        plain.frame(int(code), 1)
        knowing.frame(int(code), 1)

    assert plain.frame(int(RequestCode.PULL_MESSAGE), 2) == knowing.frame(int(RequestCode.PULL_MESSAGE), 2)


def test_every_code_has_frames_that_parse_and_most_do() -> None:
    """Each request code is among the frames that parse; at most one in twenty frames does not parse."""
    maker = mutator(4)
    good = Counter({code: sum(parses(maker.frame(int(code), 1)) for _ in range(40)) for code in RequestCode})

    assert min(good[code] for code in RequestCode) > 0
    assert good.total() > 0.95 * 40 * len(RequestCode)


def test_every_kind_of_mutation_occurs() -> None:
    """Wrong lengths, random bytes, other types, hostile names: no code of the mutator is dead."""
    maker = mutator(5)
    for number in range(30_000):
        maker.frame(int(RequestCode.SEND_BATCH_MESSAGE if number % 2 else RequestCode.HEART_BEAT), number)
    maker.frame(999, 1)
    expected = {
        "benign", "hostile text", "number", "another name", "properties", "field missing", "field of another type",
        "body", "body where none belongs", "header", "another JSON", "a byte of the header", "a wrong header length",
        "a wrong total length", "an unknown serialization", "random bytes", "unknown code",
    }  # fmt: skip

    assert expected - set(maker.kinds) == set()


def test_every_seed_has_its_code_and_text_fields() -> None:
    """Before its mutation each seed has the code it was made for, and text in every field."""
    for code in RequestCode:
        for number in range(20):
            seed = SEED_MAKERS[code](random.Random(number), KnownMessages())
            assert seed.code == code
            assert all(isinstance(value, str) for value in seed.ext.values())


@pytest.mark.parametrize("pieces", [1, 7, 1000], ids=["byte by byte", "sevens", "whole"])
def test_oracle_counts_due_replies(pieces: int) -> None:
    """One reply is due for a request, none for a one-way request or a reply, however the bytes arrive."""
    frames = [
        Command(code=RequestCode.GET_MAX_OFFSET, opaque=1).encode(),
        Command(code=RequestCode.HEART_BEAT, opaque=2, flag=2).encode(),
        Command(code=0, opaque=3, flag=1).encode(),
        Command(code=RequestCode.PULL_MESSAGE, opaque=4, ext={"suspendTimeoutMillis": "20000"}).encode(),
    ]
    stream = b"".join(frames)
    due = DueReplies()

    for start in range(0, len(stream), pieces):
        due.add(stream[start : start + pieces])

    assert due.answers == Counter({1: 1, 4: 1})
    assert due.held == Counter({4: 1})
    assert (due.without_reply, due.must_close, due.waits_for_more) == (2, False, False)


def test_the_oracle_ends_with_the_first_bad_frame() -> None:
    """Replies to earlier frames are due, and then the connection must close."""
    due = DueReplies()

    due.add(Command(code=RequestCode.GET_MAX_OFFSET, opaque=1).encode() + b"\xff\xff\xff\xff")

    assert due.answers == Counter({1: 1})
    assert due.must_close
