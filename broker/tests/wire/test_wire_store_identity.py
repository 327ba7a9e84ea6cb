"""Epochs out of `store.json`: what the store writes is what a reader of the file sees."""

from __future__ import annotations

import pytest

from gantry_broker.store.identity import Epoch, StoreIdentity, encode_identity
from gantry_wire.store_identity import EpochBegin, read_epochs

DATA = encode_identity(StoreIdentity("0" * 32, 3, [Epoch(1, 0), Epoch(4, 4096, is_ours=False), Epoch(5, 9000)]))


def test_epochs_are_those_that_the_store_wrote() -> None:
    """All of them, in the order of the log."""
    assert read_epochs(DATA) == (EpochBegin(1, 0), EpochBegin(4, 4096), EpochBegin(5, 9000))


@pytest.mark.parametrize(
    "data",
    [b"", DATA[:-1], DATA.replace(b"4096", b"4097"), b"00000000\n", b"not a store"],
    ids=["empty", "cut", "changed", "no body", "foreign"],
)
def test_a_file_that_is_not_whole_says_nothing(data: bytes) -> None:
    """Half a history would make a fork look like a continuation."""
    with pytest.raises(ValueError, match=r"its CRC is wrong|truncated"):
        read_epochs(data)
