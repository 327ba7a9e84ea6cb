"""What a promotion may lose is an estimate only for what nobody saw, and an estimate is never taken for nothing."""

from __future__ import annotations

import msgspec

from gantry_spec.ballot import UNSEEN_BYTES_PER_S, Ballot, loss_of
from gantry_spec.lease import Reign, Voice
from gantry_spec.observed import LastWord

PEAK = 4 << 20
REIGN = Reign(epoch=1_000, master=1, identity="store-1", electable=(Voice(2, "store-2"),))
WORD = LastWord(epoch=1_000, asked_ms=5_000, epoch_start=0, wrote=100, peak_bytes_per_s=PEAK)


def winner(end: int) -> Ballot:
    """Of a slave whose log ends there."""
    return Ballot(2, "store-2", epoch=1_000, last_epoch=1_000, end=end, is_whole=True, grant_over_ms=0)


def test_what_the_winner_has_proves_nothing_of_what_nobody_saw() -> None:
    """It has more than was heard of, and more than the peak explains: a load that has just begun may have gone on."""
    assert loss_of(REIGN, winner(150), [], WORD, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(REIGN, winner(100), [], WORD, silent_by_ms=5_900).at_most == PEAK
    assert loss_of(REIGN, winner(90), [], WORD, silent_by_ms=6_100).at_most == 10 + 2 * PEAK


def test_a_master_that_was_idle_when_it_was_heard_is_not_taken_for_idle_since() -> None:
    """The slave's machine heard nobody for some seconds, and neither did whoever decides, while a load began."""
    idle = msgspec.structs.replace(WORD, peak_bytes_per_s=0)

    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=5_001).at_most == UNSEEN_BYTES_PER_S > 0
    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=15_000).at_most == 10 * UNSEEN_BYTES_PER_S
    assert loss_of(REIGN, winner(100), [], idle, silent_by_ms=5_000).at_most == 0, "it was heard to the end"


def test_what_was_heard_of_after_the_last_acknowledgement_is_exact() -> None:
    """Nothing was unseen: the difference is all."""
    assert loss_of(REIGN, winner(100), [], WORD, silent_by_ms=5_000).at_most == 0
    assert loss_of(REIGN, winner(70), [], WORD, silent_by_ms=4_000).at_most == 30
