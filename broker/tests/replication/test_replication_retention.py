"""Deletion of log files while a consumer is behind: nothing that it still needs, and never a consumer that waits."""

from __future__ import annotations

from pathlib import Path

import pytest
from replication.retention_load import Move, RetentionHistory, Rule, judge
from replication.service_runs import judge_retention

TWO = {(0, 0): b"a", (0, 1): b"b"}
OVER_THE_FIRST = Move(queue=0, offset=0, to=1)


def history(shown: dict[tuple[int, int], bytes], *moves: Move, begin: int = 1) -> RetentionHistory:
    """Return a history in which two messages were acknowledged."""
    return RetentionHistory(dict(TWO), shown, list(moves), begins={0: begin})


@pytest.mark.parametrize(
    ("seen", "rule", "kinds"),
    [
        (history(TWO), Rule.CONSUMED, []),
        (history({(0, 1): b"b"}, OVER_THE_FIRST), Rule.CONSUMED, ["lost"]),
        (history({(0, 1): b"b"}, OVER_THE_FIRST), Rule.UNCONSUMED, []),
        (history({(0, 1): b"b"}), Rule.UNCONSUMED, ["lost"]),
        (history({}, OVER_THE_FIRST), Rule.UNCONSUMED, ["lost"]),
        (history({}, OVER_THE_FIRST._replace(to=2)), Rule.UNCONSUMED, ["skipped"]),
        (history({(0, 0): b"a", (0, 1): b"a"}), Rule.CONSUMED, ["altered"]),
        (RetentionHistory(dict(TWO), unanswered=[(0, 1)]), Rule.UNCONSUMED, ["stuck"]),
    ],
    ids=["all shown", "deleted unconsumed", "moved", "gap", "moved and lost", "moved too far", "altered", "stuck"],
)
def test_judge_of_retention_finds_violations(seen: RetentionHistory, rule: Rule, kinds: list[str]) -> None:
    """The judge finds each kind of violation, and nothing in a history without one."""
    assert [text.partition(":")[0] for text in judge(seen, rule)] == kinds


@pytest.mark.verify
@pytest.mark.needs_root
@pytest.mark.needs_loop
@pytest.mark.parametrize("seed", [2, 3], ids=["consumed", "unconsumed"])
async def test_deletion_on_a_full_disk_costs_a_slow_consumer_only_what_it_may(seed: int, tmp_path: Path) -> None:
    """Files with messages that a group needs are kept; where they may go, the group continues with what is left."""
    assert await judge_retention(seed, tmp_path) == []
