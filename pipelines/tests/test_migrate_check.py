"""What a check of a migration says, from what two clusters say of themselves; pure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gantry_pipelines.config import config_of
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.migrate_check.comparing import CheckResult, Kind, of_content, of_groups, of_match, of_topics
from gantry_pipelines.migrate_check.facts import ClusterFacts, Pair, match
from gantry_pipelines.migrate_check.job import MigrateCheckJob, MigrateCheckSpec, ranges_of
from pyspark_rocketmq.model import Bounds, QueueId

A, B = QueueId("orders", "old", 0), QueueId("orders", "old", 1)
MINE, MINE_TOO = QueueId("orders", "new", 0), QueueId("orders", "new", 1)


def cluster(bounds: Mapping[QueueId, tuple[int, int]], **groups: Mapping[QueueId, int]) -> ClusterFacts:
    return ClusterFacts({queue: Bounds(*one) for queue, one in bounds.items()}, groups)


THEIRS = cluster({A: (0, 10), B: (5, 20)}, readers={A: 10, B: 12})
OURS = cluster({MINE: (0, 10), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 12})


def kinds(theirs: ClusterFacts, ours: ClusterFacts, *, is_over: bool = False) -> list[tuple[Kind, bool]]:
    """What is said of two clusters without their contents."""
    matches = [match(topic, theirs, ours) for topic in sorted(theirs.topics.keys() & ours.topics.keys())]
    found = [*of_topics(theirs, ours, is_over=is_over)]
    for one in matches:
        found += of_match(one, theirs, ours, is_over=is_over)
    found += of_groups(matches, theirs, ours, is_over=is_over)
    return [(one.kind, one.is_note) for one in found]


def test_clusters_that_have_the_same_have_no_difference() -> None:
    """Brokers may be called otherwise, as long as their queues correspond."""
    assert kinds(THEIRS, OURS) == []
    assert match("orders", THEIRS, OURS).pairs == (Pair(A, MINE, 0, 10), Pair(B, MINE_TOO, 5, 20))


@pytest.mark.parametrize(
    ("ours", "expected", "is_over"),
    [
        (cluster({}), [(Kind.TOPIC_MISSING, False)], True),
        (cluster({MINE: (0, 9), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 12}), [(Kind.FEWER, False)], True),
        (cluster({MINE: (0, 11), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 12}), [(Kind.MORE, False)], False),
        (cluster({MINE: (0, 11), MINE_TOO: (5, 20)}, readers={MINE: 11, MINE_TOO: 12}),
         [(Kind.MORE, True), (Kind.GROUP_AHEAD, True)], True),
        (cluster({MINE: (3, 10), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 12}), [(Kind.EXPIRED, False)], True),
        (cluster({MINE: (0, 10), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 11}),
         [(Kind.GROUP_BEHIND, False)], True),
        (cluster({MINE: (0, 10), MINE_TOO: (5, 20)}), [(Kind.GROUP_BEHIND, False)] * 2, True),
        (cluster({MINE: (0, 10), MINE_TOO: (5, 20)}, readers={MINE: 10, MINE_TOO: 13}),
         [(Kind.GROUP_AHEAD, False)], False),
    ],
    ids=["no topic", "fewer", "more before", "more after", "expired", "behind", "no offsets", "ahead"],
)  # fmt: skip
def test_each_difference_is_said_and_what_a_switch_brings_is_a_note(
    ours: ClusterFacts, expected: list[tuple[Kind, bool]], is_over: bool
) -> None:
    """Less than theirs is a finding at any time; more of it only before the switch."""
    assert kinds(THEIRS, ours, is_over=is_over) == expected


def test_a_topic_whose_queues_do_not_correspond_is_compared_as_a_whole() -> None:
    """Other numbers of queues are a finding, and then groups are compared by what they have left to read."""
    ours = cluster({MINE: (0, 25)}, readers={MINE: 17})
    behind = cluster({MINE: (0, 25)}, readers={MINE: 9})

    assert match("orders", THEIRS, ours).is_whole
    assert kinds(THEIRS, ours) == [(Kind.QUEUES, False)]
    assert kinds(THEIRS, behind) == [(Kind.QUEUES, False), (Kind.GROUP_BEHIND, False)]
    assert ranges_of((), THEIRS, frozenset({"orders"})) == {A: (0, 10), B: (5, 20)}


def test_contents_that_differ_are_named_by_queue_and_offsets() -> None:
    """As exactly as they were compared."""
    rows = [
        {"topic": "orders", "broker": "new", "queue": 1, "slice": 20_000, "theirs": 3, "ours": 3},
        {"topic": "mail", "broker": "*", "queue": -1, "slice": -1, "theirs": 9, "ours": 8},
    ]
    mail, orders = of_content(rows)

    assert (mail.what, orders.what) == ("mail", "orders/new/1")
    assert "[20000, 30000)" in orders.text
    result = CheckResult(2, 12, 0, (mail, orders))
    assert result.text().splitlines()[-1] == "2 differences"
    assert result.document()["byKind"] == {"content": 2}


def test_a_check_without_a_source_is_refused() -> None:
    """There is nothing to compare with."""
    with pytest.raises(ConfigError, match=r"source\.nameServers"):
        MigrateCheckJob().parse(config_of({"nameServers": ["127.0.0.1:9876"]}, MigrateCheckSpec))
