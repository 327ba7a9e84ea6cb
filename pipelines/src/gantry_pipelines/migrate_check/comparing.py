"""Find the differences between two clusters. Pure.

Before the switch both clusters must have the same messages and offsets. After it (`is_over`) the target is in use: it
may have more messages after the end of the source, and groups may be ahead there. A message of the source that the
target lacks, or has changed, is a finding at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, final

from gantry_pipelines.migrate_check.facts import WHOLE_TOPIC, ClusterFacts, TopicMatch
from gantry_pipelines.migrate_check.fingerprints import SLICE

SHOWN_MAX: Final = 40
"""How many findings the report lists."""


class DifferenceKind(StrEnum):
    """The kind of a difference between two clusters."""

    TOPIC_MISSING = "topic-missing"
    """A topic that only the source has."""
    TOPIC_EXTRA = "topic-extra"
    """A topic that only the target has."""
    QUEUES = "queues"
    """Other numbers of queues, or other brokers; the topic is then compared as a whole."""
    FEWER = "fewer-messages"
    """The target's queue ends before the source's."""
    MORE = "more-messages"
    """The target's queue ends after the source's."""
    EXPIRED = "begins-later"
    """The target's queue begins after the source's."""
    CONTENT = "content"
    """The same offsets, or topics that are compared as a whole, have other messages."""
    GROUP_BEHIND = "group-behind"
    """A group would consume messages again from the target."""
    GROUP_AHEAD = "group-ahead"
    """A group would skip messages in the target that it has not consumed."""


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the clusters."""

    kind: DifferenceKind
    what: str
    """The topic or queue, or the group in it."""
    text: str
    """A description of the difference, for people."""
    is_note: bool = False
    """Whether the difference is expected after the switch, and therefore not a finding."""


@final
@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a migration check."""

    topics: int
    """The number of topics that were compared."""
    messages: int
    """Number of messages whose contents were compared."""
    groups: int
    """The number of groups that were compared."""
    differences: tuple[Difference, ...]

    @property
    def findings(self) -> list[Difference]:
        """The differences that are not only notes."""
        return [one for one in self.differences if not one.is_note]

    def text(self) -> str:
        """Return the report for people."""
        return "\n".join(self._lines()) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the result for programs, as JSON values."""
        findings = self.findings
        return {
            "verdict": "Differs" if findings else "Same",
            "topics": self.topics,
            "messages": self.messages,
            "groups": self.groups,
            "byKind": dict(sorted(Counter(one.kind.value for one in findings).items())),
            "first": [f"{one.kind.value}: {one.what}: {one.text}" for one in findings[:20]],
        }

    def _lines(self) -> Iterator[str]:
        yield f"{self.topics} topics, {self.messages} messages by content, {self.groups} groups"
        shown = sorted(self.differences, key=lambda one: one.is_note)
        for one in shown[:SHOWN_MAX]:
            yield f"  {'note' if one.is_note else 'DIFFERS'} {one.kind.value}: {one.what}: {one.text}"
        if len(shown) > SHOWN_MAX:
            yield f"  and {len(shown) - SHOWN_MAX} more"
        count = len(self.findings)
        yield "no differences" if not count else f"{count} difference{'s' if count > 1 else ''}"


def compare_topics(source: ClusterFacts, target: ClusterFacts, *, is_over: bool) -> Iterator[Difference]:
    """Yield the topics that only one cluster has."""
    for topic in sorted(source.topics.keys() - target.topics.keys()):
        yield Difference(
            DifferenceKind.TOPIC_MISSING,
            topic,
            f"missing in target; source has {source.messages(topic)} messages",
        )
    for topic in sorted(target.topics.keys() - source.topics.keys()):
        yield Difference(
            DifferenceKind.TOPIC_EXTRA,
            topic,
            f"missing in source; target has {target.messages(topic)} messages",
            is_over,
        )


def compare_queues(
    match: TopicMatch, source: ClusterFacts, target: ClusterFacts, *, is_over: bool
) -> Iterator[Difference]:
    """Yield differences between the queues of a topic and their bounds."""
    topic = match.topic
    if match.is_topic_wide:
        left, right = source.topics[topic], target.topics[topic]
        yield Difference(
            DifferenceKind.QUEUES,
            topic,
            f"source has {_queues_text(left)}, target {_queues_text(right)}: compared as a whole",
        )
        return
    for pair in match.pairs:
        one, two = source.bounds[pair.source], target.bounds[pair.target]
        name = str(pair.target)
        if two.end < one.end:
            yield Difference(
                DifferenceKind.FEWER, name, f"target ends at {two.end}, source at {one.end}: {one.end - two.end} fewer"
            )
        elif two.end > one.end:
            text = f"target ends at {two.end}, source at {one.end}: {two.end - one.end} more"
            yield Difference(DifferenceKind.MORE, name, text, is_over)
        if two.begin > one.begin:
            yield Difference(DifferenceKind.EXPIRED, name, f"target begins at {two.begin}, source at {one.begin}")


def content_differences(rows: Iterable[Mapping[str, Any]], *, is_over: bool) -> Iterator[Difference]:
    """Yield a difference for each row of `find_differences`."""
    for row in sorted(rows, key=lambda one: (one["topic"], one["broker"], one["queue"], one["slice"])):
        counts = f"source has {row['source']}, target {row['target']}"
        if row["broker"] == WHOLE_TOPIC and is_over:
            text = f"messages of source that target lacks, or has changed: {row['source'] - row['target']}"
            yield Difference(DifferenceKind.CONTENT, row["topic"], text)
        elif row["broker"] == WHOLE_TOPIC:
            yield Difference(DifferenceKind.CONTENT, row["topic"], f"messages differ: {counts}")
        else:
            queue_name = f"{row['topic']}/{row['broker']}/{row['queue']}"
            text = f"messages differ in [{row['slice']}, {row['slice'] + SLICE}): {counts}"
            yield Difference(DifferenceKind.CONTENT, queue_name, text)


def compare_groups(
    matches: Iterable[TopicMatch], source: ClusterFacts, target: ClusterFacts, *, is_over: bool
) -> Iterator[Difference]:
    """Yield differences between group offsets, by queue, or by the remaining messages of a whole topic."""
    for match in matches:
        for group in sorted(source.groups):
            left, right = source.groups[group], target.groups.get(group, {})
            if match.is_topic_wide:
                yield from _compare_remaining(group, match.topic, source, target, is_over=is_over)
                continue
            for pair in match.pairs:
                offset = left.get(pair.source)
                if offset is None or (offset <= target.bounds[pair.target].begin and pair.target not in right):
                    continue
                yield from _compare_offset(group, str(pair.target), offset, right.get(pair.target), is_over=is_over)


def _compare_offset(
    group: str, queue_name: str, source: int, target: int | None, *, is_over: bool
) -> Iterator[Difference]:
    """Yield the difference between the offsets of a group in one queue, if there is one."""
    what = f"{group} in {queue_name}"
    if target is None:
        yield Difference(DifferenceKind.GROUP_BEHIND, what, f"no offset in target, {source} in source")
    elif target < source:
        yield Difference(
            DifferenceKind.GROUP_BEHIND,
            what,
            f"offset {target} in target, {source} in source: {source - target} would be consumed again",
        )
    elif target > source:
        text = f"offset {target} in target, {source} in source: {target - source} would be skipped"
        yield Difference(DifferenceKind.GROUP_AHEAD, what, "ahead of source" if is_over else text, is_over)


def _compare_remaining(
    group: str, topic: str, source: ClusterFacts, target: ClusterFacts, *, is_over: bool
) -> Iterator[Difference]:
    """Yield the difference between the remaining messages of a group in a whole topic, if there is one."""
    left, right = _remaining_messages(group, topic, source), _remaining_messages(group, topic, target)
    if left is None:
        return
    what = f"{group} in {topic}"
    if right is None:
        yield Difference(
            DifferenceKind.GROUP_BEHIND, what, f"no offsets in target, {left} messages remaining in source"
        )
    elif right > left and not is_over:
        yield Difference(DifferenceKind.GROUP_BEHIND, what, f"{right} messages remaining in target, {left} in source")
    elif right < left:
        yield Difference(
            DifferenceKind.GROUP_AHEAD, what, f"{right} messages remaining in target, {left} in source", is_over
        )


def _remaining_messages(group: str, topic: str, facts: ClusterFacts) -> int | None:
    offsets = {queue: offset for queue, offset in facts.groups.get(group, {}).items() if queue.topic == topic}
    if not offsets:
        return None
    return sum(
        max(one.end - max(offsets.get(queue, one.begin), one.begin), 0)
        for queue, one in facts.bounds.items() if queue.topic == topic
    )  # fmt: skip


def _queues_text(brokers: Mapping[str, list[int]]) -> str:
    return ", ".join(f"{len(numbers)} on {name}" for name, numbers in sorted(brokers.items())) or "none"
