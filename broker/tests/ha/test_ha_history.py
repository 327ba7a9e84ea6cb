"""Which slave may follow a master, and from where: no differing byte counts as common, and no only copy is cut away."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry_broker.ha.history import PIECE_BYTES_MIN, Comparison, History, Verdict, compare, find_fork, piece_checksums
from gantry_broker.store.identity import Epoch


def history(*starts: tuple[int, int], begin: int = 0, end: int) -> History:
    return History([Epoch(epoch, start) for epoch, start in starts], begin, end)


MASTER = history((1, 0), (3, 400), begin=100, end=1_000)


@pytest.mark.parametrize(
    ("slave", "expected"),
    [
        (history(end=0), (Verdict.COPY, 100)),
        (history((1, 0), (3, 400), end=1_000), (Verdict.FOLLOW, 1_000)),
        (history((1, 0), (3, 400), end=700), (Verdict.FOLLOW, 700)),
        (history((1, 0), end=300), (Verdict.FOLLOW, 300)),
        (history((1, 0), end=400), (Verdict.FOLLOW, 400)),
        (history((1, 0), end=500), (Verdict.TRUNCATE, 400)),
        (history((1, 0), (2, 300), end=500), (Verdict.TRUNCATE, 300)),
        (history((1, 0), end=50), (Verdict.COPY_AGAIN, 100)),
        (history((1, 0), (2, 60), end=500), (Verdict.COPY_AGAIN, 100)),
        (history((1, 0), (3, 400), end=1_001), (Verdict.AHEAD, 1_000)),
        (history((1, 0), (3, 400), (4, 900), end=950), (Verdict.NEWER, 950)),
        (history((1, 0), (3, 500), end=950), (Verdict.FOREIGN, 400)),
        (history((2, 0), end=300), (Verdict.FOREIGN, 0)),
        (history((1, 0), end=500, begin=450), (Verdict.FOREIGN, 0)),
    ],
    ids=[
        "empty", "same", "behind", "behind-an-epoch", "at-the-epoch", "extra-tail", "extra-epoch", "expired",
        "extra-and-expired", "ahead", "newer", "same-epoch-elsewhere", "stranger", "nothing-in-common",
    ],
)  # fmt: skip
def test_each_kind_of_slave_gets_its_verdict(slave: History, expected: tuple[Verdict, int]) -> None:
    """The master has epoch 1 up to 400 and epoch 3 from there to 1000, and begins at 100."""
    assert compare(MASTER, slave) == Comparison(*expected)


@dataclass
class Node:
    """A log in which every byte is the epoch that wrote it."""

    bytes: list[int] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    begin: int = 0

    @property
    def history(self) -> History:
        return History(list(self.epochs), self.begin, len(self.bytes))


@pytest.mark.verify
@settings(max_examples=400)
@given(st.data())
def test_following_slave_has_the_masters_bytes_up_to_the_start(data: st.DataObject) -> None:
    """Three nodes copy, lose tails and are promoted, in any order, with one master per epoch."""
    nodes = [Node() for _ in range(3)]
    master, epoch = nodes[0], 0
    for _ in range(data.draw(st.integers(1, 25))):
        what = data.draw(st.sampled_from(("write", "copy", "promote", "lose", "expire")))
        node = data.draw(st.sampled_from(nodes))
        if what == "promote" or epoch == 0:
            epoch += 1
            master = node
            master.epochs.append(Epoch(epoch, len(master.bytes)))
        elif what == "write":
            master.bytes += [epoch] * data.draw(st.integers(1, 30))
        elif what == "expire":
            node.begin = data.draw(st.integers(node.begin, len(node.bytes)))
        elif what == "lose" and node is not master:
            del node.bytes[data.draw(st.integers(node.begin, len(node.bytes))) :]
            node.epochs = [one for one in node.epochs if one.start <= len(node.bytes)]
        elif what == "copy" and node is not master:
            follow(master, node, data)


def follow(master: Node, slave: Node, data: st.DataObject) -> None:
    """Execute the master's decision, and verify it."""
    before = list(slave.bytes)
    verdict, start = compare(master.history, slave.history)
    assert verdict not in (Verdict.AHEAD, Verdict.NEWER), (
        "the slave is ahead of the only master, which has lost nothing"
    )
    if verdict is Verdict.FOREIGN:
        return
    if verdict is Verdict.FOLLOW:
        assert start == len(before)
    elif verdict is Verdict.TRUNCATE:
        assert start < len(before)
        assert slave.epochs[-1].epoch < master.epochs[-1].epoch
    else:
        slave.begin = master.begin
    if verdict in (Verdict.FOLLOW, Verdict.TRUNCATE):
        assert before[:start] == master.bytes[:start], "these bytes are not the same"
    end = data.draw(st.integers(start, len(master.bytes)))
    slave.bytes = master.bytes[:end]
    slave.epochs = [one for one in master.epochs if one.start <= end]


@given(st.integers(0, 40_000), st.integers(0, 40_000), st.integers(0, 40_000))
def test_search_finds_where_two_logs_diverge(size: int, begin: int, place: int) -> None:
    """The result is exact to 4 KiB after a few requests, or None."""
    mine = bytes(number % 251 for number in range(size))
    theirs = bytearray(mine)
    begin = min(begin, size)
    is_other = begin <= place < size
    if is_other:
        theirs[place:] = bytes(byte ^ 1 for byte in theirs[place:])
    search = find_fork(lambda offset, length: mine[offset : offset + length], begin, size)
    questions = 0
    try:
        question = next(search)
        while True:
            questions += 1
            question = search.send(piece_checksums(lambda at, length: bytes(theirs[at : at + length]), *question))
    except StopIteration as end:
        found = end.value

    assert (found is not None) == is_other
    assert questions <= 6
    if found is not None:
        assert found <= place < found + PIECE_BYTES_MIN
