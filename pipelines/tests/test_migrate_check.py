"""The comparison of a source and a target cluster by their topics, bounds and group offsets; pure."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gantry_pipelines.config import config_of
from gantry_pipelines.errors import ConfigError
from gantry_pipelines.migrate_check.comparing import (
    CheckResult,
    DifferenceKind,
    compare_groups,
    compare_queues,
    compare_topics,
    content_differences,
)
from gantry_pipelines.migrate_check.facts import ClusterFacts, QueuePair, match_queues
from gantry_pipelines.migrate_check.job import MigrateCheckJob, MigrateCheckSpec, applications_groups, ranges_of
from gantry_wire.names import SYSTEM_GROUPS
from pyspark_rocketmq.model import Bounds, QueueId

A, B = QueueId("orders", "old", 0), QueueId("orders", "old", 1)
TARGET_A, TARGET_B = QueueId("orders", "new", 0), QueueId("orders", "new", 1)


def cluster(bounds: Mapping[QueueId, tuple[int, int]], **groups: Mapping[QueueId, int]) -> ClusterFacts:
    return ClusterFacts({queue: Bounds(*one) for queue, one in bounds.items()}, groups)


SOURCE = cluster({A: (0, 10), B: (5, 20)}, readers={A: 10, B: 12})
TARGET = cluster({TARGET_A: (0, 10), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 12})


def kinds(source: ClusterFacts, target: ClusterFacts, *, is_over: bool = False) -> list[tuple[DifferenceKind, bool]]:
    """Return the kinds of the differences between two clusters, without contents."""
    matches = [match_queues(topic, source, target) for topic in sorted(source.topics.keys() & target.topics.keys())]
    found = [*compare_topics(source, target, is_over=is_over)]
    for one in matches:
        found += compare_queues(one, source, target, is_over=is_over)
    found += compare_groups(matches, source, target, is_over=is_over)
    return [(one.kind, one.is_note) for one in found]


def test_equal_clusters_have_no_difference() -> None:
    """Brokers may have other names if their queues can be paired."""
    assert kinds(SOURCE, TARGET) == []
    assert match_queues("orders", SOURCE, TARGET).pairs == (
        QueuePair(A, TARGET_A, 0, 10),
        QueuePair(B, TARGET_B, 5, 20),
    )


@pytest.mark.parametrize(
    ("target", "expected", "is_over"),
    [
        (cluster({}), [(DifferenceKind.TOPIC_MISSING, False)], True),
        (cluster({TARGET_A: (0, 9), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 12}),
         [(DifferenceKind.FEWER, False)], True),
        (cluster({TARGET_A: (0, 11), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 12}),
         [(DifferenceKind.MORE, False)], False),
        (cluster({TARGET_A: (0, 11), TARGET_B: (5, 20)}, readers={TARGET_A: 11, TARGET_B: 12}),
         [(DifferenceKind.MORE, True), (DifferenceKind.GROUP_AHEAD, True)], True),
        (cluster({TARGET_A: (3, 10), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 12}),
         [(DifferenceKind.EXPIRED, False)], True),
        (cluster({TARGET_A: (0, 10), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 11}),
         [(DifferenceKind.GROUP_BEHIND, False)], True),
        (cluster({TARGET_A: (0, 10), TARGET_B: (5, 20)}), [(DifferenceKind.GROUP_BEHIND, False)] * 2, True),
        (cluster({TARGET_A: (0, 10), TARGET_B: (5, 20)}, readers={TARGET_A: 10, TARGET_B: 13}),
         [(DifferenceKind.GROUP_AHEAD, False)], False),
    ],
    ids=["no topic", "fewer", "more before", "more after", "expired", "behind", "no offsets", "ahead"],
)  # fmt: skip
def test_each_difference_is_reported_and_progress_after_the_switch_is_a_note(
    target: ClusterFacts, expected: list[tuple[DifferenceKind, bool]], is_over: bool
) -> None:
    """Fewer messages than in the source are a finding at any time; more messages only before the switch."""
    assert kinds(SOURCE, target, is_over=is_over) == expected


def test_topic_with_unpaired_queues_is_compared_as_a_whole() -> None:
    """Other numbers of queues are a finding; groups are then compared by their remaining messages."""
    target = cluster({TARGET_A: (0, 25)}, readers={TARGET_A: 17})
    behind = cluster({TARGET_A: (0, 25)}, readers={TARGET_A: 9})

    assert match_queues("orders", SOURCE, target).is_topic_wide
    assert kinds(SOURCE, target) == [(DifferenceKind.QUEUES, False)]
    assert kinds(SOURCE, behind) == [(DifferenceKind.QUEUES, False), (DifferenceKind.GROUP_BEHIND, False)]
    assert ranges_of((), SOURCE, frozenset({"orders"})) == {A: (0, 10), B: (5, 20)}


def test_differing_contents_are_reported_by_queue_and_offsets() -> None:
    """The difference has the queue and the slice of offsets, or only the topic if that was compared as a whole."""
    rows = [
        {"topic": "orders", "broker": "new", "queue": 1, "slice": 20_000, "source": 3, "target": 3},
        {"topic": "mail", "broker": "*", "queue": -1, "slice": -1, "source": 9, "target": 8},
    ]
    mail, orders = content_differences(rows, is_over=False)
    lacking, _ = content_differences(rows, is_over=True)

    assert (mail.what, orders.what) == ("mail", "orders/new/1")
    assert "[20000, 30000)" in orders.text
    assert (mail.text, lacking.kind, lacking.is_note) == ("messages differ: source has 9, target 8", mail.kind, False)
    assert lacking.text == "messages of source that target lacks, or has changed: 1"
    result = CheckResult(2, 12, 0, (mail, orders))
    assert result.text().splitlines()[-1] == "2 differences"
    assert result.document()["byKind"] == {"content": 2}


def test_groups_of_applications_are_compared_with_any_prefix() -> None:
    """CID_ is a common prefix of applications' groups, too; only the names of RocketMQ's own groups are left out."""
    own = [*SYSTEM_GROUPS, "CID_RMQ_SYS_SOMETHING"]
    applications = ["CID_billing", "SELF_TEST_of_orders", "TOOLS_shop", "readers"]

    assert applications_groups([*own, *applications]) == applications


def test_check_without_a_source_is_refused() -> None:
    """A configuration without the source's name servers is invalid."""
    with pytest.raises(ConfigError, match=r"source\.nameServers"):
        MigrateCheckJob().parse(config_of({"nameServers": ["127.0.0.1:9876"]}, MigrateCheckSpec))
